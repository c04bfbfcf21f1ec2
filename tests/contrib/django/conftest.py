"""Django in this process: set up once, real commits, a store of its own for every test."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

_zone = os.environ.get("TZ")
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.contrib.django.settings"
import django  # noqa: E402

django.setup()
# Django sets the time zone of the whole process, and this one has other tests as well.
os.environ.pop("TZ", None)
if _zone is not None:
    os.environ["TZ"] = _zone
time.tzset()

from deployments.models import ApiKey, WorkflowExecution  # noqa: E402
from django.apps import apps  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connections  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.test.utils import setup_test_environment  # noqa: E402

from headgate.contrib.django import slot, tenants  # noqa: E402
from headgate.contrib.django.models import Organization, OrganizationRateLimit  # noqa: E402
from headgate.contrib.django.tenants import Tenants  # noqa: E402
from tests.contrib.django.settings import EXAMPLE  # noqa: E402
from tests.support.postgres import Postgres  # noqa: E402
from tests.support.servers import NoServer, Server  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def database() -> Iterator[Postgres | None]:
    """PostgreSQL where it is installed, as projects have it; SQLite elsewhere, or with HEADGATE_TEST_DATABASE=sqlite."""
    with ExitStack() as stack:
        server: Postgres | None = None
        if os.environ.get("HEADGATE_TEST_DATABASE") != "sqlite":
            with suppress(NoServer):
                server = stack.enter_context(Postgres())
                use(server)
        setup_test_environment()
        call_command("migrate", verbosity=0)
        yield server
        connections.close_all()
        os.environ.pop("EXAMPLE_POSTGRES", None)


def use(server: Postgres) -> None:
    """Have Django use this server from now on, and the processes that tests start too."""
    os.environ["EXAMPLE_POSTGRES"] = server.address()
    host, port, user = server.address().split(":")
    settings.DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql", "NAME": "postgres", "HOST": host, "PORT": port, "USER": user,
    }  # fmt: skip
    connections.close_all()
    with suppress(AttributeError):
        del connections["default"]
    connections.__dict__.pop("settings", None)


def example_process(store: str, **more: str) -> dict[str, str]:
    """The environment of a process of the example that has the database and the store of the test."""
    paths = os.pathsep.join(filter(None, (str(EXAMPLE), os.environ.get("PYTHONPATH"))))
    return {
        **os.environ, "EXAMPLE_DATA": str(settings.DATA), "HEADGATE_STORE": store, "PYTHONPATH": paths,
        "DJANGO_SETTINGS_MODULE": "project.settings", **more,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def clean_tables() -> Iterator[None]:
    yield
    for model in (OrganizationRateLimit, ApiKey, WorkflowExecution, Organization, apps.get_model("admin.LogEntry")):
        model.objects.all()._raw_delete("default")
    apps.get_model("auth.User").objects.all().delete()


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[str]:
    """A store of its own for every test; a test that asks for `redis` has its state there."""
    url = f"sqlite:///{tmp_path / 'headgate.db'}"
    with override_settings(HEADGATE_STORE=url):
        yield url


@pytest.fixture
def redis() -> Iterator[Server]:
    with Server() as server, override_settings(HEADGATE_STORE=patient(server)):
        yield server


def patient(server: Server) -> str:
    """For tests in which the store is not to fail: on a busy machine a healthy server may take seconds to answer."""
    return f"{server.url}?timeout=60s"


@pytest.fixture
def acme() -> Organization:
    return make_organization("acme-corp", "org_a1b2c3d4e5f6g7h8")


@pytest.fixture
def limits() -> Iterator[Callable[..., Any]]:
    """Settings for the rest of the test: limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=2, shadow=True)."""
    entered: list[Any] = []

    def use(**changes: Any) -> None:
        named = {name: value for name, value in changes.items() if name.isupper()}
        table = {name: value for name, value in changes.items() if not name.isupper()}
        if table:
            named["HEADGATE_TENANTS"] = table
        entered.append(override_settings(**named))
        entered[-1].enable()

    yield use
    for override in reversed(entered):
        override.disable()


def make_organization(name: str, id: str | None = None) -> Organization:
    organization, _ = Organization.objects.get_or_create(organization_id=id or f"org_{name}", defaults={"name": name})
    ApiKey.objects.get_or_create(key=f"key-{name}", defaults={"organization": organization})
    return organization  # type: ignore[no-any-return]


def occupy(organization: Organization, count: int, first: int = 0) -> list[str]:
    """Hold so many slots of an organisation; returns their ids."""
    ids = [f"{organization.organization_id}-run-{number}" for number in range(first, first + count)]
    for id in ids:
        slot(organization, id).take()
    return ids


def used(organization: Organization, owner: Tenants | None = None) -> int:
    return (owner or tenants()).figures(organization).org_count

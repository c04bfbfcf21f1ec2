"""Settings: a Django setting wins over the environment, and what makes no sense is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from headgate import Concurrency, Window
from headgate.contrib.django import conf, slot, tenants
from headgate.contrib.django.models import Organization
from tests.contrib.django.conftest import make_organization, used
from tests.contrib.django.settings import EXAMPLE
from tests.support.postgres import Postgres, programs
from tests.support.servers import NoServer


def told(prefix: str = "headgate.") -> list[tuple[str, str]]:
    return [(found.id, found.msg) for found in run_checks() if str(found.id).startswith(prefix)]


def test_a_project_that_sets_nothing_has_nothing_to_be_told() -> None:
    assert told() == []
    made = tenants()
    assert [(limit.name, limit.by, limit.limit) for limit in made.conf.limits] == [
        ("org", "org", 20),
        ("global", None, 100),
    ]
    assert (made.conf.on_store_error, made.conf.lease, made.conf.gate) == ("open", "10m", "api-deployment")


def test_without_a_setting_the_store_is_a_file_beside_the_project(
    limits: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(HEADGATE_STORE=None, BASE_DIR=tmp_path / "site")
    assert conf.store_url() == f"sqlite:///{tmp_path}/site/headgate.db"
    monkeypatch.setenv("HEADGATE_STORE", "redis://elsewhere:6379/3")
    assert conf.store_url() == "redis://elsewhere:6379/3"
    limits(HEADGATE_STORE="memory://")
    assert conf.store_url() == "memory://"


def test_a_setting_wins_over_the_environment_and_the_environment_over_the_default(
    limits: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_DEPLOYMENT_DEFAULT_RATE_LIMIT", "30")
    assert conf.number(conf.DEFAULT_LIMIT) == 30
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT="40")
    assert conf.number(conf.DEFAULT_LIMIT) == 40
    monkeypatch.setenv("API_DEPLOYMENT_GLOBAL_RATE_LIMIT", "")
    assert conf.number(conf.GLOBAL_LIMIT) == 100


@pytest.mark.parametrize("name", conf.NUMBERS)
@pytest.mark.parametrize("value", ["abc", "0", "-1", 0, -5, True, "nan", "inf", [], "1e400"])
def test_a_number_that_is_none_is_refused_by_name(limits: Callable[..., None], name: str, value: Any) -> None:
    limits(**{name: value})
    [(id, message)] = told()
    assert id == "headgate.E001"
    assert message.startswith(f"{name} is {value!r} (from settings); it must be a")
    with pytest.raises(ImproperlyConfigured, match=name):
        tenants()


def test_a_bad_value_of_the_environment_says_where_it_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_DEPLOYMENT_DEFAULT_RATE_LIMIT", "twenty")
    with pytest.raises(ImproperlyConfigured, match=r"RATE_LIMIT is 'twenty' \(from the environment\); .* whole number"):
        conf.read()


def test_every_wrong_setting_is_told_at_once(limits: Callable[..., None]) -> None:
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=0, API_DEPLOYMENT_GLOBAL_RATE_LIMIT="x", HEADGATE_STORE=5)
    assert [id for id, _ in told()] == ["headgate.E001"] * 3


def test_settings_without_effect_are_told_once(limits: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    limits(API_DEPLOYMENT_RATE_LIMIT_CACHE_TTL=600, API_DEPLOYMENT_RATE_LIMIT_LOCK_TIMEOUT="whatever")
    monkeypatch.setenv("API_DEPLOYMENT_RATE_LIMIT_LOCK_BLOCKING_TIMEOUT", "5")
    [(id, message)] = told()
    assert id == "headgate.W001"
    assert all(name in message for name in conf.WITHOUT_EFFECT)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"shaddow": True}, "unknown key 'shaddow'"),
    ({"shadow": "yes"}, r"\['shadow'\] is 'yes'; it must be a bool"),
    ({"gate": 5}, r"\['gate'\] is 5; it must be a str"),
    ({"retry_after": 0}, "at least 1 second"),
    ({"retry_after": True}, "must be a int"),
    ({"limits": [Concurrency(5, name="all")]}, "no limit by 'org'"),
    ({"limits": [Concurrency(5, name="a", by="org")], "limit": "b"}, r"\['limit'\] is 'b'.*: a"),
    ({"limits": ["20"]}, "no limit by 'org'"),
    ({"messages": {"nope": "x"}}, "'nope', which is no limit"),
    ({"messages": {"org": "{nope}"}}, "a message may use {used}"),
    ({"lease": "soon"}, "lease"),
    ({"on_store_error": "ajar"}, "on_store_error"),
    ({"gate": "no spaces please"}, "no spaces please"),
    ({"id_field": "nope"}, "no field of headgate.Organization"),
]


@pytest.mark.parametrize(("table", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_a_table_of_tenants_that_makes_no_sense_is_named(
    limits: Callable[..., None], table: dict[str, Any], message: str
) -> None:
    import re

    limits(**table)
    [(id, text)] = told()
    assert id in ("headgate.E001", "headgate.E002", "headgate.E003")
    assert re.search(message, text), text


def test_processes_that_share_nothing_and_a_total_below_one_organization_are_warned_of(
    limits: Callable[..., None],
) -> None:
    limits(HEADGATE_STORE="memory://", API_DEPLOYMENT_GLOBAL_RATE_LIMIT=10)
    assert [id for id, _ in told()] == ["headgate.W002", "headgate.W003"]


def test_a_model_that_is_not_there_is_told(limits: Callable[..., None]) -> None:
    limits(HEADGATE_ORGANIZATION_MODEL="nowhere.Org")
    assert ("headgate.E002", "HEADGATE_ORGANIZATION_MODEL is 'nowhere.Org', and no such model is installed") in told()


def test_a_project_of_another_kind_has_its_own_gate_key_and_messages(limits: Callable[..., None]) -> None:
    from headgate.contrib.django import LimitReached

    limits(
        gate="exports",
        key="user",
        limits=[Concurrency(1, name="per-user", by="user"), Window(100, per="1m", by="user", name="rate")],
        messages={"per-user": "{organization} exports already ({used} of {limit})."},
        code="busy",
    )
    with slot("user-7"), pytest.raises(LimitReached, match=r"^user-7 exports already \(1 of 1\)\.$") as caught:
        slot("user-7").take()
    assert b'"code":"busy"' in caught.value.response().content
    assert tenants().gate.name == "exports"


def test_the_app_makes_no_migrations_and_its_checks_pass_with_a_model_of_the_project(tmp_path: Path) -> None:
    """HEADGATE_ORGANIZATION_MODEL: another primary key, other names of fields, in a project of its own."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "models.py").write_text(
        "import uuid\nfrom django.db import models\n"
        "class Company(models.Model):\n"
        "    id = models.UUIDField(primary_key=True, default=uuid.uuid4)\n"
        "    title = models.CharField(max_length=50)\n"
    )
    (tmp_path / "site_settings.py").write_text(
        "from pathlib import Path\n"
        "BASE_DIR = Path(__file__).parent\nSECRET_KEY = 'x'\nUSE_TZ = True\n"
        "INSTALLED_APPS = ['shop', 'headgate.contrib.django']\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': BASE_DIR / 'db.sqlite3'}}\n"
        "DEFAULT_AUTO_FIELD = 'django.db.models.BigAutoField'\n"
        "HEADGATE_ORGANIZATION_MODEL = 'shop.Company'\nHEADGATE_TENANTS = {'name_field': 'title'}\n"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "site_settings", "PYTHONPATH": str(tmp_path)}
    script = (
        "import django; django.setup()\n"
        "from django.core.management import call_command as call\n"
        "call('makemigrations', 'shop', verbosity=0); call('makemigrations', check=True); call('migrate', verbosity=0)\n"
        "call('check', fail_level='WARNING')\n"
        "from shop.models import Company\n"
        "acme = Company.objects.create(title='acme')\n"
        "call('set_org_rate_limit', 'acme', 3); call('get_org_rate_limit', str(acme.pk))\n"
        "from headgate.contrib.django import slot, tenants\n"
        "with slot(acme): print(tenants().gate.usage(key=tenants().key(acme))['org'])\n"
        "call('list_org_rate_limits', '--with-usage')\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No changes detected" in done.stdout
    assert "used=1" in done.stdout
    assert "• acme (" in done.stdout
    assert (tmp_path / "headgate.db").exists(), "the embedded default: a file beside the project"


def test_the_example_has_no_changes_to_migrate_and_its_sample_environment_is_complete() -> None:
    from django.core.management import call_command

    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
    text = (EXAMPLE / "sample.env").read_text(encoding="utf-8")
    for name in (*conf.NUMBERS, *conf.WITHOUT_EFFECT, conf.STORE):
        assert f"{name}=" in text


def test_the_database_is_postgresql_where_initdb_is_there_and_sqlite_elsewhere(database: Postgres | None) -> None:
    """So that "on PostgreSQL" cannot silently become "on SQLite": in this process, and in those that tests start."""
    from django.db import connection

    try:
        there = programs().exists() and os.environ.get("HEADGATE_TEST_DATABASE") != "sqlite"
    except NoServer:
        there = False
    assert (database is not None) == there
    assert connection.vendor == ("postgresql" if there else "sqlite")
    with connection.cursor() as cursor:
        cursor.execute("SELECT version()" if there else "SELECT 'SQLite ' || sqlite_version()")
        assert cursor.fetchone()[0].startswith("PostgreSQL" if there else "SQLite")
    assert bool(os.environ.get("EXAMPLE_POSTGRES")) == there


def test_settings_that_change_under_a_test_are_read_again(acme: Organization, limits: Callable[..., None]) -> None:
    limits(gate="another")
    with slot(acme):
        assert used(acme) == 1
    assert tenants().gate.name == "another"
    assert used(make_organization("other")) == 0

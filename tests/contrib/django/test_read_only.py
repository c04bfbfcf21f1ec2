"""The reading commands write nothing: neither to the database nor to Redis."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.contrib.django.models import Organization, OrganizationRateLimit
from tests.contrib.django.conftest import example_process, occupy
from tests.contrib.django.test_commands import manage
from tests.support.postgres import Postgres, started
from tests.support.servers import Server, packed

READING = (
    ("get_org_rate_limit", "acme-corp"),
    ("get_org_rate_limit", "acme-corp", "--json"),
    ("list_org_rate_limits",),
    ("list_org_rate_limits", "--with-usage"),
    ("list_org_rate_limits", "--with-usage", "--json"),
)


def test_reading_sends_redis_no_command_that_writes(acme: Organization, redis: Server) -> None:
    OrganizationRateLimit.objects.create(organization=acme, concurrent_request_limit=50)
    occupy(acme, 5)  # and the script is on the server
    manage(*READING[0])
    with socket.create_connection(redis.address) as monitor:
        monitor.sendall(packed("MONITOR"))
        stream = monitor.makefile("rb")
        assert stream.readline() == b"+OK\r\n"
        for words in READING:
            manage(*words)
        redis.command("ECHO", "the-end")
        names: set[str] = set()
        while b"the-end" not in (line := stream.readline()):
            names.add(line.decode().partition("] ")[2].split()[0].strip('"').lower())
    assert names, "it was asked"
    of_the_connection = {"hello", "client", "select", "ping", "info", "time", "subscribe"}
    of_the_script = {"fcall", "fcall_ro", "evalsha", "evalsha_ro"}
    others = names - of_the_connection - of_the_script
    for name in others:
        [[_, _, flags, *_]] = redis.command("COMMAND", "INFO", name)
        assert b"readonly" in flags, f"{name} writes"


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with started() as server:
        yield server


def example(address: str, data: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of the example on PostgreSQL."""
    env = example_process(f"sqlite:///{data / 'headgate.db'}", EXAMPLE_POSTGRES=address)
    return subprocess.run(
        [sys.executable, "-m", "django", *words], env=env, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_user_who_may_only_read_the_database_reads_and_changes_nothing(postgres: Postgres, tmp_path: Path) -> None:
    for words in (("migrate", "-v0"), ("make_example", "acme-corp=key"), ("set_org_rate_limit", "acme-corp", "50")):
        done = example(postgres.address(), tmp_path, *words)
        assert done.returncode == 0, done.stderr
    with postgres.connect() as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    for words in READING:
        done = example(postgres.address("reader"), tmp_path, *words)
        assert done.returncode == 0, done.stderr
    assert "Cached Limit: 50 ✓" in example(postgres.address("reader"), tmp_path, *READING[0]).stdout
    denied = example(postgres.address("reader"), tmp_path, "set_org_rate_limit", "acme-corp", "60")
    assert denied.returncode != 0
    assert "permission denied" in denied.stderr
    assert "Database Limit: 50" in example(postgres.address("reader"), tmp_path, *READING[0]).stdout

"""The reading commands write nothing: neither to the database nor to Redis."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from headgate.contrib.django.models import Organization, OrganizationRateLimit
from tests.contrib.django.conftest import example_process, occupy
from tests.contrib.django.test_commands import manage
from tests.support.postgres import HOW_TO_GET_ONE, Postgres
from tests.support.servers import NoServer, Server, packed

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
    with socket.create_connection(redis.address) as monitor, monitor.makefile("rb") as stream:
        monitor.sendall(packed("MONITOR"))
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


#: All in one process: what each command prints, and at last what becomes of one that writes.
READER = """
import io, json
import django; django.setup()
from django.core.management import call_command
def told(*words):
    out = io.StringIO()
    try:
        call_command(*words, stdout=out)
    except Exception as error:
        return repr(error)
    return out.getvalue()
reading = json.loads(input())
print(json.dumps([told(*words) for words in [*reading, ("set_org_rate_limit", "acme-corp", "60"), reading[0]]]))
"""


def test_a_user_who_may_only_read_the_database_reads_and_changes_nothing(
    acme: Organization, database: Postgres | None, store: str
) -> None:
    if database is None:
        if os.environ.get("CI"):
            raise NoServer(HOW_TO_GET_ONE)
        pytest.skip(HOW_TO_GET_ONE)
    OrganizationRateLimit.objects.create(organization=acme, concurrent_request_limit=50)
    with database.connect() as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        try:
            done = subprocess.run(
                [sys.executable, "-c", READER],
                env=example_process(store, EXAMPLE_POSTGRES=database.address("reader")),
                input=json.dumps(READING), capture_output=True, text=True, timeout=240, check=False,
            )  # fmt: skip
        finally:
            connection.execute("DROP OWNED BY reader")
            connection.execute("DROP ROLE reader")
    assert done.returncode == 0, done.stderr
    *told, denied, again = json.loads(done.stdout)
    assert "Cached Limit: 50 ✓" in told[0]
    assert json.loads(told[1])["database_limit"] == 50
    assert all("acme-corp" in text for text in told[1:])
    assert "permission denied" in denied
    assert "Database Limit: 50" in again

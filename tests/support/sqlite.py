"""What tests of the SQLite store need: asks that always fit, processes that end with their test, a locked file."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from headgate import Bucket
from headgate.kernel.commands import Admit
from headgate.kernel.plan import Policy


def rate(limit: float = 10**9, **more: Any) -> Policy:
    return Policy("g", [Bucket(limit, per="1s", slack=0, name="b")], **more)


def ask(limit: float = 10**9) -> Admit:
    return Admit(rate(limit).plan())


started: list[subprocess.Popen[str]] = []


def python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Some lines of Python in a process of their own, which ends with the test at the latest."""
    child = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started.append(child)
    return child


def told(child: subprocess.Popen[str]) -> str:
    """All that a process printed, which must have ended well."""
    printed, _ = child.communicate(timeout=120)
    assert child.returncode == 0, printed
    return printed


def line_of(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@contextmanager
def writing(path: str) -> Iterator[sqlite3.Connection]:
    """Somebody else holds the write lock."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        connection.close()


def check_integrity(path: str) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    kept = dict(connection.execute("SELECT space, value FROM members WHERE space LIKE '%/!%' AND value > 0"))
    counted = connection.execute("SELECT space, count(*) FROM members WHERE space LIKE '%/#%' GROUP BY space")
    assert kept == {space.replace("/#", "/!"): count for space, count in counted}
    connection.close()

"""The clock of a SQLite file: one time for all of its processes, through wrong wall clocks and restarts."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import pytest

from headgate import Bucket, Concurrency
from headgate.kernel.commands import Admit
from headgate.kernel.plan import Policy
from headgate.stores.sqlite import SqliteStore
from headgate.testing import FakeClock
from tests.support.sqlite import ask, python, told


def anchor(path: str) -> tuple[str, int]:
    connection = sqlite3.connect(path)
    [text] = connection.execute("SELECT value FROM meta WHERE name = 'anchor'").fetchone()
    connection.close()
    boot, offset = json.loads(text)
    return boot, offset


def set_anchor(path: str, boot: str, offset: int) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE meta SET value = ? WHERE name = 'anchor'", (json.dumps([boot, offset]),))
    connection.close()


def test_time_is_the_wall_clock_of_the_first_who_opened_the_file(path: str, store: SqliteStore) -> None:
    assert abs(store.decide(ask())[0] - time.time_ns() // 1000) < 1_000_000
    assert anchor(path)[0] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


WRONG_CLOCK = """
    import sys, time
    wall = time.time_ns
    time.time_ns = lambda: wall() + int(sys.argv[2]) * 10**9
    from headgate.kernel.commands import Admit
    from headgate.limits import Bucket
    from headgate.kernel.plan import Policy
    from headgate.stores.sqlite import SqliteStore
    print(SqliteStore(sys.argv[1]).decide(Admit(Policy("g", [Bucket(5, per="1s")]).plan()))[0])
    """


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_process_whose_wall_clock_is_wrong_by_hours_has_the_time_of_all(
    path: str, store: SqliteStore, hours: int
) -> None:
    before = store.decide(ask())[0]
    theirs = int(told(python(WRONG_CLOCK, path, hours * 3600)))
    after = store.decide(ask())[0]
    assert before <= theirs <= after
    assert after - before < 30_000_000


def test_after_a_restart_of_the_machine_time_is_anchored_anew_by_the_wall_clock(path: str) -> None:
    SqliteStore(path).close()
    set_anchor(path, "another boot", -(10**15))
    store = SqliteStore(path)
    assert abs(store.decide(ask())[0] - time.time_ns() // 1000) < 1_000_000
    assert anchor(path)[0] != "another boot"
    store.close()


def test_after_a_restart_time_does_not_go_back_behind_what_any_gate_has_seen(path: str) -> None:
    ahead = time.time_ns() // 1000 + 7 * 3600 * 10**6
    clock = FakeClock(ahead)
    store = SqliteStore(path, clock=clock)
    for name in ("a", "a-b", "a.b", "ab", "a0", "z"):
        clock.advance(microseconds=1)
        policy = Policy(name, [Concurrency(10, by="org"), Bucket(10, per="1s", name="b")])
        for org in ("x", "y"):
            store.decide(Admit(policy.plan(1, {"org": org}), f"id-{org}", None, 10**6))
    store.close()
    store = SqliteStore(path)  # has no anchor so far: as after a restart
    now = store.decide(ask())[0]
    assert ahead + 6 <= now < ahead + 30_000_000
    time.sleep(0.01)
    assert store.decide(ask())[0] >= now + 10_000
    store.close()

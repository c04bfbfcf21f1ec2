"""State that the store has lost: it is noticed, told, and made up for without going over the limits."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headgate import Bucket, Concurrency, Gate, Quota, Window
from headgate.stores.memory import MemoryStore
from headgate.stores.sqlite import SqliteStore
from headgate.testing import FakeClock
from tests.support.stores import forget

S = 1_000_000


def gate_of(*limits: Any, **more: Any) -> tuple[Gate, FakeClock, MemoryStore]:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    return Gate("g", limits, store=store, **more), clock, store


def count(gate: Gate, **ask: Any) -> int:
    return len(list(iter(lambda: gate.try_acquire(renew=False, **ask), None)))


@pytest.mark.parametrize(
    "limit", [Window(100, per="10s", slack="1s", name="x"), Bucket(100, per="10s", burst=100, slack="1s", name="x")]
)
def test_after_a_loss_rates_grant_in_proportion_to_the_time_passed(limit: Any) -> None:
    gate, clock, store = gate_of(limit)
    count(gate)
    clock.advance("1s")
    forget(store, "g")
    granted = 0
    whole = 10 + (1 if limit.kind == "window" else 0)
    for tenth in range(10 * whole):
        granted += count(gate)
        assert granted <= 100 * tenth / 10 / whole + 1e-9
        clock.advance("100ms")
    assert granted >= 95
    clock.advance("30s")
    assert count(gate) >= 90


def test_before_and_after_a_loss_a_bucket_stays_within_its_burst_and_rate() -> None:
    gate, clock, store = gate_of(Bucket(100, per="10s", burst=100, slack=0, name="b"))
    before = count(gate)
    forget(store, "g")
    for tenth in range(1, 150):
        clock.advance("100ms")
        before += count(gate)
        assert before <= 100 + tenth


def test_after_a_loss_a_quota_takes_what_has_passed_of_its_period_as_spent() -> None:
    gate, clock, store = gate_of(Quota(24, per="day", slack=0, name="q"))
    count(gate)
    clock.advance("18h")
    forget(store, "g")
    assert count(gate) == 6


def test_after_a_loss_every_key_and_class_is_made_up_for() -> None:
    gate, clock, store = gate_of(
        Window(10, per="10s", slack=0, name="w", by="org"), priorities={"live": 1.0, "batch": 0.5}
    )
    for org in "ab":
        count(gate, key={"org": org})
    forget(store, "g")
    for org in "abc":
        for priority in ("batch", "live"):
            assert gate.try_acquire(key={"org": org}, priority=priority) is None
    clock.advance("5s")
    assert count(gate, key={"org": "a"}) <= 5


def test_holders_that_renew_after_a_loss_have_their_slots_again() -> None:
    gate, clock, store = gate_of(Concurrency(2, lease="10s", name="c"))
    permits = [gate.try_acquire(renew=False) for _ in range(2)]
    clock.advance("1s")
    forget(store, "g")
    for permit in permits:
        assert permit is not None
        permit.renew()
    assert gate.try_acquire() is None
    assert [permit.release() for permit in permits if permit] == [True, True]
    assert count(gate) == 2


def test_one_whose_lease_had_expired_before_the_loss_does_not_come_back() -> None:
    gate, clock, _ = gate_of(Concurrency(1, lease="1s", name="c"))
    old = gate.try_acquire(renew=False)
    assert old is not None
    clock.advance("2s")
    new = gate.try_acquire(renew=False)
    assert new is not None
    new.release()
    assert old.release() is False


@pytest.mark.parametrize("kept", [0, 30])
def test_a_file_that_was_set_back_under_a_process_is_noticed_at_its_next_decision(tmp_path: Path, kept: int) -> None:
    clock = FakeClock()
    store = SqliteStore(str(tmp_path / "headgate.db"), clock=clock)
    gate = Gate("g", [Window(1000, per="10s", slack=0, name="w")], store=store)

    def copy(source: str, target: str) -> None:
        with closing(sqlite3.connect(tmp_path / source)) as old, closing(sqlite3.connect(tmp_path / target)) as new:
            old.backup(new)

    for _ in range(kept):
        gate.try_acquire()
    copy("headgate.db", "backup.db")
    for _ in range(40):
        gate.try_acquire()
    copy("backup.db", "headgate.db")
    clock.advance("100ms")
    assert gate.try_acquire() is None
    assert gate.usage()["w"].available < 100
    clock.advance("1s")
    assert 50 <= count(gate) <= 110
    store.close()

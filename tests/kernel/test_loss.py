"""State that the store has lost: it is noticed, told, and made up for without going over the limits."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Bucket, Concurrency, Gate, Quota, Window
from headgate.kernel.commands import Admit, Release, Renew, Reset
from headgate.kernel.commands.base import REMEMBER, compare
from headgate.kernel.model import Grant
from headgate.kernel.plan import Policy
from headgate.kernel.records import DictRecords
from headgate.stores.memory import MemoryStore
from headgate.stores.sqlite import SqliteStore
from headgate.testing import FakeClock
from tests.support.generated import FEWER, generated
from tests.support.oracle import LossOracle
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


# --- processes that come back early and late ---------------------------------------------------------------------------

POLICY = Policy("g", [Concurrency(2, lease="20s", name="c")])

DEEDS = st.one_of(
    st.tuples(
        st.sampled_from(["ask", "ask", "renew", "renew", "renew", "release"]), st.integers(0, 3), st.integers(0, 5)
    ),
    st.tuples(st.sampled_from(["lose", "lose", "reset"]), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("pass"), st.sampled_from([1, S, S, 7 * S, 25 * S, 61 * S]), st.just(0)),
)


class Processes:
    """Processes that share records, and an oracle that is told the same."""

    def __init__(self) -> None:
        self.now = 10**15
        self.records = DictRecords("g")
        self.oracle = LossOracle(2, REMEMBER)
        #: Process → the number and the epoch that it was told.
        self.known = {process: (0, f"session{process}") for process in range(4)}
        self.held: dict[str, tuple[Any, ...]] = {}
        self.steps = 0

    def run(self, process: int, command: Any) -> tuple[Any, bool]:
        lost = compare(self.records, *self.known[process])
        reply = command.apply(self.now, self.records)
        head = self.records.head
        self.known[process] = (max(self.known[process][0], head.seq), head.epoch)
        assert lost == self.oracle.command(process, self.now)
        return reply, lost

    def do(self, deed: str, process: int, number: int) -> None:
        self.steps += 1
        if deed == "pass":
            self.now += process
        elif deed == "lose":
            self.now += 1  # that takes a moment
            self.records = DictRecords("g")
            self.oracle.lose()
        elif deed == "reset":
            self.run(process, Reset("g"))
            self.oracle.reset()
        elif deed == "ask":
            id, plan = f"lease-{self.steps}", POLICY.plan()
            reply, _ = self.run(process, Admit(plan, id, None, plan.lease))
            granted = isinstance(reply, Grant)
            assert granted == self.oracle.ask(self.now, id, self.now + plan.lease)
            if granted:
                self.held[id] = (process, (plan, id, reply.at, plan.lease, reply.fence, None))
        elif self.held:
            id = list(self.held)[-1 - number % len(self.held)]
            holder, row = self.held[id]
            if deed == "renew":
                pulse, lost = self.run(holder, Renew("g", (row,)))
                expected = self.oracle.renew(self.now, id, self.now + row[3], lost)
                assert bool(pulse.expires[id]) == expected
            else:
                ended, _ = self.run(process, Release(POLICY, id, "ok"))
                assert ended.lost != self.oracle.release(self.now, id)
        live = sum(expires > self.now for expires, _ in self.records.leases["c"].scan())
        assert live == (len(self.oracle.live(self.now)) if self.oracle.there else 0)


@pytest.mark.parametrize("examples", [150, pytest.param(5000, marks=pytest.mark.soak)])
def test_whoever_comes_back_after_a_loss_has_its_slot_and_nobody_else_gets_one_back(examples: int) -> None:
    steps = 0

    @generated(examples)
    @given(st.lists(DEEDS, min_size=40, max_size=80))
    def holds(deeds: list[Any]) -> None:
        nonlocal steps
        processes = Processes()
        for deed in deeds:
            processes.do(*deed)
        steps += processes.steps

    holds()
    assert steps >= 40 * examples // FEWER

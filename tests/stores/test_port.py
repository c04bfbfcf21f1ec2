"""The port between gates and stores: what a store declares, how its errors tell what became of a command."""

from __future__ import annotations

import asyncio
import os
import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Denied, Gate, IdConflict, Quota, StoreUnavailable, Window
from headgate.gate.outage import StillAway
from headgate.kernel.commands import Admit
from headgate.stores.base import Capabilities
from headgate.stores.memory import MemoryStore
from headgate.stores.remote.coalescing import OutcomeUnknown
from headgate.testing import FakeClock


class Undeclared:
    """A store of somebody's own from before stores declared what they can do: it has `remote` and `instant`."""

    url = "undeclared://"
    remote = False
    instant = True
    keeper: Any = None

    def __init__(self) -> None:
        self._store = MemoryStore()
        self.session = self._store.session
        for name in ("execute", "aexecute", "decide", "listen", "unlisten", "close"):
            setattr(self, name, getattr(self._store, name))


def test_a_store_that_declares_nothing_is_taken_by_what_stores_once_had() -> None:
    gate = Gate("g", [Concurrency(1)], store=Undeclared())
    with gate.acquire():
        assert gate.try_acquire() is None
    assert gate.store.capabilities == Capabilities(remote=False, instant=True)


def test_what_a_store_declares_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        MemoryStore.capabilities.remote = True  # type: ignore[misc]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StillAway("away"), OutcomeUnknown("lost")])
def test_an_error_says_whether_its_command_was_decided_also_after_it_was_pickled(error: StoreUnavailable) -> None:
    expected = {StoreUnavailable: None, StillAway: False, OutcomeUnknown: True}[type(error)]
    copy = pickle.loads(pickle.dumps(error))
    assert (error.decided, copy.decided, copy.args) == (expected, expected, error.args)


def test_deciding_one_command_raises_the_error_that_a_batch_hands_back() -> None:
    store = MemoryStore()
    gate = Gate("g", [Concurrency(2, name="slots"), Window(9, per="1m", name="w")], store=store)
    gate.acquire(id="mine")
    with pytest.raises(IdConflict):
        gate.acquire(cost=2, id="mine")
    other = Gate("g", [Bucket(9, per="1m", name="w")], store=store)
    from headgate import KindChanged

    [handed_back] = store.execute([Admit(other.policy.plan())])
    assert isinstance(handed_back, KindChanged)
    with pytest.raises(KindChanged):
        store.decide(Admit(other.policy.plan()))


def test_an_object_that_fails_to_begin_anew_in_a_child_keeps_no_other_from_it() -> None:
    from headgate.stores.base import at_fork

    class Broken:
        def begin_in_child(self) -> None:
            raise RuntimeError("on purpose")

    broken = [Broken() for _ in range(20)]
    stores = [MemoryStore() for _ in range(20)]
    for one in broken:
        at_fork.add(one)
    before = [store.session for store in stores]
    child = os.fork()
    if not child:
        os._exit(sum(store.session == was for store, was in zip(stores, before, strict=True)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "so many have kept the session of their parent"
    assert len(broken) == 20


class CountingClock(FakeClock):
    """Says how often a store has asked for the time: once per decision."""

    reads = 0

    def __call__(self) -> int:
        self.reads += 1
        return super().__call__()


LIMITS = {
    "one bucket": [Bucket(1, per="1h", slack=0)],
    "one window": [Window(1, per="1h", slack=0)],
    "a rate and slots": [Window(1, per="1h", slack=0), Concurrency(5)],
    "slots": [Concurrency(1)],
}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_an_ask_that_may_not_wait_is_decided_once_by_a_store_in_the_process(limits: list[Any]) -> None:
    clock = CountingClock()
    gate = Gate("g", limits, store=MemoryStore(clock=clock))
    held = [gate.acquire()]
    before = clock.reads
    assert gate.try_acquire() is None
    assert clock.reads - before <= 2, "the prepared ask, and the rules where that could not decide"
    before = clock.reads
    with pytest.raises(Denied):
        gate.acquire(timeout=0)
    assert clock.reads - before <= 2
    assert held


def test_an_ask_that_must_wait_keeps_the_answer_it_has_and_stands_in_line_with_the_next() -> None:
    clock = CountingClock()
    gate = AsyncGate("g", [Window(1, per="1h", slack=0)], store=MemoryStore(clock=clock))

    async def ask() -> int:
        await gate.acquire()
        before, looks = clock.reads, 1
        waiting = asyncio.ensure_future(gate.acquire())
        while not (await gate.usage()).waiting:
            looks += 1
            await asyncio.sleep(0)
        decisions = clock.reads - before - looks
        waiting.cancel()
        return decisions

    assert asyncio.run(ask()) == 2, "the ask that was refused, and the one that stands in line"


def test_a_gate_is_the_same_for_asyncio_on_the_same_state() -> None:
    gate = Gate(
        "g",
        [Window(20, per="1m", name="w"), Concurrency(3)],
        store=MemoryStore(),
        priorities={"live": 1.0, "batch": 0.5},
        on_store_error="local:0.5",
        patience="5s",
        claim="2s",
    )
    twin = gate.as_async()
    assert type(twin) is AsyncGate
    assert twin.policy.fingerprint == gate.policy.fingerprint
    assert (twin.policy.patience, twin.policy.claim) == (gate.policy.patience, gate.policy.claim)

    async def ask() -> None:
        async with twin.acquire(priority="batch"):
            assert gate.usage()["w"].used == 1
        await twin.aclose()

    asyncio.run(ask())
    gate.acquire(timeout=0).release()  # the other one was closed, and this one was not
    assert gate.usage()["w"].used == 2


def test_a_gate_on_clocks_that_differ_is_made_again_with_the_limits_that_it_was_given() -> None:
    class Apart(MemoryStore):
        capabilities = Capabilities(instant=True, clock_spread_us=50_000)

    gate = Gate("g", [Window(20, per="1m", name="w"), Bucket(5, per="1m", name="b")], store=Apart())
    assert gate.as_async().policy.limits == gate.policy.limits
    window, bucket = gate.at_boundary().policy.limits
    assert isinstance(window, Window)
    assert isinstance(bucket, Bucket)
    assert (window.per, window.slack, bucket.slack) == (60_050_000, 0, 50_000)


def test_a_gate_at_the_boundary_has_no_slack_and_shares_the_state() -> None:
    store = MemoryStore()
    limits = [
        Window(2, per="1m", name="w"),
        Bucket(5, per="1m", name="b"),
        Quota(9, per="day", name="q"),
        Concurrency(3),
    ]
    gate = Gate("g", limits, store=store, priorities={"live": 1.0, "batch": 0.5}, on_store_error="local:0.5")
    inner = gate.at_boundary()
    assert type(inner) is Gate
    assert [getattr(limit, "slack", 0) for limit in inner.policy.limits] == [0, 0, 0, 0]
    assert inner.policy.priorities == gate.policy.priorities
    inner.acquire()
    assert gate.usage()["w"].used == 1
    assert inner.at_boundary() is inner

"""The store that is away, as a program's tests use it."""

from __future__ import annotations

import asyncio

import pytest

from headgate import AsyncGate, Concurrency, Gate, StoreUnavailable
from headgate.events import Event, subscribe
from headgate.testing import UnreachableStore

LIMITS = [Concurrency(2, name="slots", lease="1h")]


def test_a_closed_gate_on_it_raises_and_an_open_one_lets_pass() -> None:
    store = UnreachableStore()
    with pytest.raises(StoreUnavailable, match="cannot be reached, as a test wants it") as told:
        Gate("g", LIMITS, store=store).acquire()
    assert told.value.decided is False
    seen: list[Event] = []
    stop = subscribe(seen.append)
    try:
        for _ in range(5):
            Gate("g", LIMITS, store=store, on_store_error="open").acquire().release()
    finally:
        stop()
    assert [event.kind for event in seen].count("passed_open") == 5
    assert store.failures


def test_a_share_of_each_limit_is_used_without_it() -> None:
    gate = Gate("g", LIMITS, store=UnreachableStore(), on_store_error="local:0.5")
    assert gate.try_acquire() is not None
    assert gate.try_acquire() is None


def test_asyncio_has_the_same() -> None:
    async def main() -> None:
        with pytest.raises(StoreUnavailable):
            await AsyncGate("g", LIMITS, store=UnreachableStore()).acquire()

    asyncio.run(main())


def test_it_comes_back_with_what_it_knew_and_goes_away_again() -> None:
    store = UnreachableStore(reachable=True)
    gate = Gate("g", LIMITS, store=store)
    held = gate.acquire()
    store.reachable = False
    with pytest.raises(StoreUnavailable):
        gate.acquire()
    store.reachable = True
    assert gate.usage()["slots"].used == 1
    held.release()
    assert gate.usage()["slots"].used == 0

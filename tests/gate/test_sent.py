"""The sent stamp of a permit: what it costs, what it tells, and what becomes of it while the store is away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Gate, InvalidInput, LeaseLost, StoreUnavailable, Window
from headgate.events import Event
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.support.own_time import time_of
from tests.support.stores import STORES
from tests.support.waiting import until
from tests.support.workers import Child, children


@pytest.fixture(params=STORES)
def here(request: pytest.FixtureRequest) -> Iterator[tuple[Any, FakeClock]]:
    """A store, and the clock that it and this process go by."""
    clock = FakeClock()
    with STORES[request.param](clock) as store, time_of(clock):
        yield store, clock


def test_a_fresh_grant_is_sent_without_a_command_and_a_stale_one_with_one(here: tuple[Any, FakeClock]) -> None:
    store, clock = here
    gate = Gate("g", [Window(9, per="10s", slack="1s", name="w")], store=store)
    permit = gate.acquire()
    before = gate.usage().seq
    clock.advance("250ms")
    permit.sent()
    assert gate.usage().seq == before
    clock.advance("1ms")
    permit.sent()
    assert gate.usage().seq == before + 1
    clock.advance("250ms")
    permit.sent()
    assert gate.usage().seq == before + 1, "it is fresh again from its stamp on"


def test_a_permit_under_an_id_of_the_callers_may_be_old_and_the_store_says_so(here: tuple[Any, FakeClock]) -> None:
    store, clock = here
    gate = Gate("g", [Window(1, per="10s", slack="1s", name="w")], store=store)
    gate.acquire(id="job")
    clock.advance("5s")
    again = gate.acquire(id="job")  # as a worker does that was started again
    again.sent()
    clock.advance("10999ms")
    assert gate.try_acquire() is None
    clock.advance("1ms")
    assert gate.try_acquire() is not None


def test_a_waiter_that_was_called_is_fresh_from_when_its_call_was_taken(here: tuple[Any, FakeClock]) -> None:
    store, _ = here
    gate = Gate("g", [Window(9, per="10s", slack="1s"), Concurrency(1, name="c")], store=store)
    first = gate.acquire()

    async def second() -> None:
        waiting = AsyncGate("g", [Window(9, per="10s", slack="1s"), Concurrency(1, name="c")], store=store)
        task = asyncio.create_task(waiting.acquire())
        while not (await waiting.usage()).waiting:
            await asyncio.sleep(0.01)
        first.release()
        permit = await task
        before = (await waiting.usage()).seq
        await permit.sent()
        assert (await waiting.usage()).seq == before
        await permit.release()

    asyncio.run(second())


def test_sent_sleeps_until_a_bucket_that_others_have_filled_has_room(here: tuple[Any, FakeClock]) -> None:
    store, clock = here
    gate = Gate("g", [Bucket(1, per="1s", burst=1, slack=0, name="b")], store=store)
    late = gate.acquire()
    clock.advance("1s")
    assert gate.try_acquire() is not None
    begun = clock()
    late.sent()
    assert clock() - begun == 1_000_000
    assert gate.try_acquire() is None


def test_a_large_cost_in_an_empty_bucket_goes_at_once_however_often_it_is_stamped(here: tuple[Any, FakeClock]) -> None:
    store, clock = here
    gate = Gate("g", [Bucket(10, per="10s", burst=10, slack="2s", name="b")], store=store)
    whole = gate.acquire(10)  # more than the 8 that are usable at once
    begun = clock()
    for _ in range(3):
        clock.advance("1s")
        whole.sent()
    assert clock() - begun == 3_000_000


def test_a_promise_is_stamped_at_its_time_and_sleeps_until_then_before_it(here: tuple[Any, FakeClock]) -> None:
    store, clock = here
    gate = Gate("g", [Bucket(1, per="1s", burst=1, slack="100ms", name="b")], store=store, waiting="promise")
    gate.reserve()
    place = gate.reserve()
    assert place.delay > 0.5
    begun = clock()
    place.sent()
    assert clock() - begun == round(place.delay * 1_000_000)


def test_what_has_ended_or_lost_its_lease_is_not_sent() -> None:
    clock = FakeClock()
    gate = Gate("g", [Window(9, per="1m"), Concurrency(9, lease="1s")], store=MemoryStore(clock=clock))
    ended = gate.acquire()
    ended.release()
    with pytest.raises(InvalidInput, match="has ended"):
        ended.sent()
    lost = gate.acquire(renew=False)
    clock.advance("2s")
    with pytest.raises(LeaseLost, match="must not be sent"):
        lost.sent()
    assert lost.release() is False


def test_what_is_confirmed_was_sent_and_what_limits_no_rate_has_nothing_to_stamp() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    gate = Gate("g", [Window(1, per="10s", slack="1s", name="w")], store=store)
    permit = gate.acquire()
    permit.confirm()
    clock.advance("5s")
    permit.sent()
    assert gate.usage()["w"].free_in == 5
    slots = Gate("slots", [Concurrency(1, lease="1h")], store=store)
    held = slots.acquire(renew=False)
    clock.advance("60s")
    before = slots.usage().seq
    held.sent()
    assert slots.usage().seq == before


@pytest.mark.parametrize("wrong", [-1, True, "1", float("nan"), float("inf")])
def test_sent_for_is_a_number_of_seconds(wrong: Any) -> None:
    gate = Gate("g", [Window(9, per="1m", name="w")])
    permit = gate.acquire()
    with pytest.raises(InvalidInput, match="seconds ago"):
        permit.release(sent_for=wrong)
    assert permit.release()


def test_a_report_tells_when_its_call_was_sent_before_it_confirms(here: tuple[Any, FakeClock]) -> None:
    store, clock = here
    gate = Gate("g", [Window(1, per="10s", slack="1s", name="w")], store=store)
    permit = gate.acquire()
    clock.advance("3s")
    permit.report({"status": 200, "headers": {}}, sent_for=0.5)
    assert gate.usage()["w"].free_in == 10, "answered within the slack of its writing: `per` from the answer on"


def test_a_release_that_was_sent_in_time_tells_nothing_of_it(here: tuple[Any, FakeClock]) -> None:
    store, clock = here
    gate = Gate("g", [Window(100, per="10s", slack="1s", name="w")], store=store)
    permit = gate.acquire()
    clock.advance("3s")
    before = gate.usage().seq
    permit.release(sent_for=2.9)
    assert gate.usage().seq - before <= (1 if store.capabilities.in_process else 0)
    assert gate.usage()["w"].resets_in <= 8.01


# --- while the store is away ------------------------------------------------------------------------------------------


@pytest.fixture
def locked(tmp_path: Path) -> Iterator[tuple[str, Callable[[], Child]]]:
    """The URL of a store in a file, and what has another process take that file for itself."""
    path = tmp_path / "gates.db"
    with children() as start:

        def take() -> Child:
            locker: Child = start("locker", path=str(path))
            assert locker.read() == {"locked": True}
            return locker

        yield f"sqlite:///{path}", take


LIMITS = [Window(100, per="1h", slack=0, name="w"), Concurrency(100, name="slots", lease="1h")]


def test_a_closed_gate_raises_where_a_late_call_cannot_be_stamped(locked: Any) -> None:
    url, lock = locked
    gate = Gate("g", LIMITS, store=url)
    permit = gate.acquire()
    locker = lock()
    with pytest.raises(StoreUnavailable):
        permit.sent()
    locker.finish()
    until(lambda: _goes(permit.sent))
    assert permit.release() is True


def test_an_open_gate_lets_a_late_call_pass_and_tells_of_it(locked: Any, events: list[Event]) -> None:
    url, lock = locked
    gate = Gate("g", LIMITS, store=url, on_store_error="open")
    permit = gate.acquire()
    locker = lock()
    permit.sent()
    assert [event.kind for event in events].count("passed_open") == 1
    locker.finish()
    until(lambda: _goes(gate.usage))
    assert permit.release() is True


def test_a_late_call_is_charged_to_the_local_share_like_a_new_ask(locked: Any) -> None:
    url, lock = locked
    # The share is one call a second, and begins as if it had just been used up.
    gate = Gate("g", [Bucket(10, per="1s", slack=0, name="b")], store=url, on_store_error="local:0.1")
    permit = gate.acquire()
    locker = lock()
    begun = time.monotonic()
    permit.sent()
    assert time.monotonic() - begun >= 0.9
    locker.finish()


def _goes(call: Callable[[], Any]) -> bool:
    try:
        call()
    except StoreUnavailable:
        return False
    return True

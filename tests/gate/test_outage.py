"""What gates do while their store cannot be reached: a SQLite file that another program keeps to itself, or is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Denied, Gate, StoreUnavailable, Window
from headgate.events import Event
from tests.support.timing import DECIDES_IN_TIME
from tests.support.waiting import DECIDED, Stopwatch, held_up, says_so_in_time, says_so_to_many, timed, until
from tests.support.workers import Child, children


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "gates.db"


@pytest.fixture
def url(path: Path) -> str:
    path.parent.mkdir()
    return f"sqlite:///{path}"


@pytest.fixture
def lock(path: Path) -> Iterator[Callable[[], Child]]:
    """Another process that takes the file for itself, until it is told to let go."""
    with children() as start:

        def take() -> Child:
            locker: Child = start("locker", path=str(path))
            assert locker.read() == {"locked": True}
            return locker

        yield take


def gate_of(url: str, mode: str = "closed", **more: Any) -> Gate:
    limits = [Window(100, per="1h", name="w"), Concurrency(100, name="slots", lease="1h")]
    return Gate("g", limits, store=url, on_store_error=mode, **more)


# --- closed -----------------------------------------------------------------------------------------------------------


@DECIDES_IN_TIME
def test_a_closed_gate_says_so_in_time_and_does_not_stall_later_calls(url: str, lock: Callable[[], Child]) -> None:
    gate = gate_of(url)
    gate.acquire().release()
    locker = lock()
    says_so_in_time(gate)
    locker.finish()
    until(lambda: not isinstance(timed(gate.acquire)[1], StoreUnavailable))
    assert gate.acquire().release() is True


@DECIDES_IN_TIME
def test_everything_else_of_a_closed_gate_is_refused_in_time_as_well(url: str, lock: Callable[[], Child]) -> None:
    gate = gate_of(url)
    gate.acquire().release()
    locker = lock()
    calls: list[Callable[[], Any]] = [
        lambda: gate.pause(5),
        lambda: gate.resume(),
        lambda: gate.set_limit("slots", 5),
        lambda: gate.reset(),
        lambda: gate.release("whatever"),
    ]
    for call in calls:
        took, answer = timed(call)
        assert isinstance(answer, StoreUnavailable)
        assert took < DECIDED
    locker.finish()
    until(lambda: not isinstance(timed(gate.acquire)[1], StoreUnavailable))
    assert gate.usage().paused_for is None
    assert gate.overrides() == []


@DECIDES_IN_TIME
def test_many_threads_that_find_the_store_away_are_all_told_in_time(url: str, lock: Callable[[], Child]) -> None:
    gate = gate_of(url)
    gate.acquire().release()
    locker = lock()
    says_so_to_many(gate)
    locker.finish()


@DECIDES_IN_TIME
def test_an_async_gate_does_not_block_its_loop_while_the_store_is_away(url: str, lock: Callable[[], Child]) -> None:
    gate = AsyncGate("g", [Concurrency(5, name="slots")], store=url)

    async def main() -> None:
        await (await gate.acquire()).release()
        locker = await asyncio.to_thread(lock)
        async with held_up() as seconds:
            for _ in range(5):
                watch = Stopwatch()
                with pytest.raises(StoreUnavailable):
                    await gate.acquire()
                assert watch.seconds() < DECIDED
                await asyncio.sleep(0.3)
        assert max(seconds) < 0.2
        await asyncio.to_thread(locker.finish)

    asyncio.run(main())


@DECIDES_IN_TIME
def test_a_store_that_is_away_from_the_start_is_found_when_it_comes(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    gate = Gate("g", [Concurrency(1, name="slots")], store=f"sqlite:///{folder}/gates.db")
    took, answer = timed(gate.acquire)
    assert isinstance(answer, StoreUnavailable)
    assert str(folder) in str(answer)
    assert took < DECIDED
    folder.mkdir()
    until(lambda: not isinstance(timed(gate.try_acquire)[1], StoreUnavailable))


@DECIDES_IN_TIME
def test_a_store_whose_folder_was_removed_is_unavailable_until_it_is_back(url: str, path: Path) -> None:
    gate = gate_of(url)
    gate.acquire().release()
    shutil.rmtree(path.parent)
    time.sleep(0.3)  # it is looked every quarter of a second whether the file is still there
    took, answer = timed(gate.acquire)
    assert isinstance(answer, StoreUnavailable)
    assert took < DECIDED
    path.parent.mkdir()
    until(lambda: not isinstance(timed(gate.try_acquire)[1], StoreUnavailable))
    assert gate.try_acquire(cost=50) is None, "what counted is lost with the file: rates come back slowly"


@DECIDES_IN_TIME
@pytest.mark.skipif(os.geteuid() == 0, reason="root reads and writes everything")
def test_a_file_that_must_not_be_written_is_unavailable(url: str, path: Path) -> None:
    gate_of(url).acquire().release()
    path.chmod(0o400)
    took, answer = timed(gate_of(url + "?synchronous=off").acquire)
    assert isinstance(answer, StoreUnavailable)
    assert took < DECIDED


# --- open -------------------------------------------------------------------------------------------------------------


@DECIDES_IN_TIME
def test_an_open_gate_lets_pass_and_tells_of_every_one(
    url: str, lock: Callable[[], Child], events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    gate = gate_of(url, "open")
    gate.acquire().release()
    locker = lock()
    with caplog.at_level(logging.INFO, logger="headgate"):
        took, permit = timed(gate.acquire)
        assert took < DECIDED
        assert permit.release() is True
        begun = time.monotonic()
        for _ in range(50):
            with gate.acquire():
                pass
        assert gate.try_acquire() is not None
        assert time.monotonic() - begun < 2
        kinds = [event.kind for event in events if event.gate == "g"]
        assert kinds.count("passed_open") == 52, "every one is counted"
        assert kinds.count("store_down") == 1, "and the outage is told once"
        locker.finish()
        until(lambda: timed(gate.acquire)[1] is not None and any(event.kind == "store_up" for event in events))
    told = [record.getMessage() for record in caplog.records if "let pass" in record.getMessage()]
    assert len(told) >= 52, "and logged"
    assert gate.usage()["w"].used >= 1


def test_what_passed_an_open_gate_is_not_charged_when_the_store_is_back(url: str, lock: Callable[[], Child]) -> None:
    gate = gate_of(url, "open")
    gate.acquire().release()
    locker = lock()
    permits = [gate.acquire() for _ in range(5)]
    locker.finish()
    time.sleep(0.6)
    for permit in permits:
        assert permit.release() is True
    assert gate.usage()["w"].used == 1
    assert gate.holders() == []


# --- local ------------------------------------------------------------------------------------------------------------


@DECIDES_IN_TIME
def test_a_local_share_starts_as_if_it_had_just_been_used_up(url: str, lock: Callable[[], Child]) -> None:
    gate = Gate("g", [Bucket(1000, per="1s", slack=0, name="b")], store=url, on_store_error="local:0.02")
    gate.acquire()
    locker = lock()
    took, first = timed(gate.try_acquire)
    assert took < DECIDED
    assert first is None, "20 a second, and none of them at once"
    begun = time.monotonic()
    passed = 0
    while passed < 10:
        assert time.monotonic() - begun < 60, "the share does not come back"
        passed += gate.try_acquire() is not None
        assert passed <= 20 * (time.monotonic() - begun) + 1
        time.sleep(0.002)
    locker.finish()
    until(lambda: gate.try_acquire(cost=500) is not None)


def test_a_local_share_of_a_window_comes_back_slowly_and_never_exceeds_it(url: str, lock: Callable[[], Child]) -> None:
    gate = Gate("g", [Window(50, per="1s", slack=0, name="w")], store=url, on_store_error="local:0.2")
    gate.acquire()
    locker = lock()
    asked, granted = [], []  # each was decided between the two
    begun = time.monotonic()
    while len(granted) < 15:
        before = time.monotonic()
        assert before - begun < 60, "the share does not come back"
        if gate.try_acquire() is not None:
            asked.append(before)
            granted.append(time.monotonic())
        time.sleep(0.002)
    assert all(after - first >= 1 for first, after in zip(asked, granted[10:], strict=False))
    assert sum(at - begun < 0.5 for at in granted) <= 6
    locker.finish()


def test_a_local_share_of_slots_is_kept_and_given_back(url: str, lock: Callable[[], Child]) -> None:
    gate = Gate("g", [Concurrency(10, name="slots", lease="1h")], store=url, on_store_error="local:0.2")
    gate.acquire().release()
    locker = lock()
    permits = [gate.try_acquire() for _ in range(4)]
    assert [permit is not None for permit in permits] == [True, True, False, False]
    for permit in permits[:2]:
        assert permit is not None
        assert permit.release() is True
    assert gate.try_acquire() is not None
    locker.finish()


@DECIDES_IN_TIME
def test_a_share_that_is_less_than_a_slot_is_no_slot(url: str, lock: Callable[[], Child]) -> None:
    gate = Gate("g", [Concurrency(10, name="slots", lease="1h")], store=url, on_store_error="local:0.05")
    gate.acquire().release()
    locker = lock()
    took, answer = timed(lambda: gate.acquire(timeout=0))
    assert isinstance(answer, Denied)
    assert took < DECIDED
    locker.finish()


# --- what is under way ------------------------------------------------------------------------------------------------


@DECIDES_IN_TIME
def test_a_release_while_the_store_is_away_is_delivered_later(url: str, lock: Callable[[], Child]) -> None:
    gate = gate_of(url)
    permits = [gate.acquire() for _ in range(3)]
    locker = lock()
    took, _ = timed(lambda: [permit.release() for permit in permits[:2]])
    assert took < 2 * DECIDED
    permits[2].release("unsent")
    locker.finish()
    until(lambda: timed(gate_of(url).holders)[1] == [])
    assert gate_of(url).usage()["w"].used == 2


def test_an_exception_in_a_block_is_not_hidden_by_a_store_that_is_away(url: str, lock: Callable[[], Child]) -> None:
    gate = gate_of(url)
    lockers: list[Child] = []

    def work() -> None:
        with gate.acquire():
            lockers.append(lock())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    lockers[0].finish()
    until(lambda: timed(gate_of(url).holders)[1] == [])


def test_a_lease_outlives_an_outage_that_is_shorter_than_it(url: str, lock: Callable[[], Child]) -> None:
    gate = Gate("g", [Concurrency(1, name="slots", lease="6s")], store=url)
    permit = gate.acquire()
    expires = permit.lease_expires_at
    assert expires is not None
    locker = lock()
    time.sleep(2.5)  # a renewal falls into it
    locker.finish()
    until(lambda: (permit.lease_expires_at or 0) > expires + 3)
    assert not permit.lost
    assert permit.release() is True


def test_a_waiter_whose_store_goes_away_is_told(url: str, lock: Callable[[], Child]) -> None:
    gate = Gate("g", [Window(1, per="1s", slack=0, name="w")], store=url)
    gate.acquire()
    answers: list[Any] = []
    waiter = threading.Thread(target=lambda: answers.append(timed(gate.acquire)[1]))
    waiter.start()
    until(lambda: gate.usage().waiting == 1)
    locker = lock()
    waiter.join(60)
    assert not waiter.is_alive()
    assert isinstance(answers[0], StoreUnavailable)
    locker.finish()
    # What it has left in the store is undone on the next contact.
    until(lambda: timed(lambda: gate_usage_waiting(url))[1] == 0)


def test_the_background_does_not_spin_while_somebody_waits_and_the_store_is_gone(url: str, path: Path) -> None:
    gate = Gate("g", [Concurrency(1, name="slots", lease="1h")], store=url)
    held = gate.acquire()
    waiter = threading.Thread(target=lambda: timed(lambda: gate.acquire(timeout=6)))
    waiter.start()
    until(lambda: gate.usage().waiting == 1)
    shutil.rmtree(path.parent)
    time.sleep(1.5)
    before = time.process_time()
    time.sleep(1)
    assert time.process_time() - before < 0.3
    waiter.join(60)
    assert not waiter.is_alive()
    del held


def gate_usage_waiting(url: str) -> int:
    return Gate("g", [Window(1, per="1s", slack=0, name="w")], store=url).usage().waiting

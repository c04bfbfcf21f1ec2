"""The semaphore and the limiter of nanobanana do what they say, and none of what went wrong there."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import InvalidInput
from headgate.dropin.nanobanana import AdaptiveSemaphore, RPMLimiter


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    with caplog.at_level(logging.INFO, logger="nanobanana"):
        yield lambda: [record.getMessage() for record in caplog.records if record.name == "nanobanana"]


async def held(semaphore: AdaptiveSemaphore, most: int = 50) -> int:
    """How many tasks hold a slot at once when all want one."""
    inside = 0
    enough = asyncio.Event()

    async def one() -> None:
        nonlocal inside
        async with semaphore:
            inside += 1
            await enough.wait()

    tasks = [asyncio.create_task(one()) for _ in range(most)]
    while True:
        before = inside
        for _ in range(20):
            await asyncio.sleep(0)
        if inside == before:
            break
    enough.set()
    found = inside
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return found


def test_it_starts_where_it_was_told_and_lets_in_no_more() -> None:
    async def run() -> None:
        semaphore = AdaptiveSemaphore()
        assert (semaphore.value, semaphore.get_current()) == (8, 8)
        assert await held(semaphore) == 8
        await semaphore.aclose()

    asyncio.run(run())


@pytest.mark.parametrize(("maximum", "starts"), [(1, 1), (3, 3), (20, 8)])
def test_it_starts_with_the_maximum_where_that_is_less(maximum: int, starts: int) -> None:
    async def run() -> None:
        semaphore = AdaptiveSemaphore(max_value=maximum)
        assert semaphore.value == starts
        assert await held(semaphore) == starts
        for _ in range(40):
            await semaphore.report_success()
        await semaphore.report_rate_limit()
        assert 1 <= semaphore.value <= maximum
        await semaphore.aclose()

    asyncio.run(run())


def test_the_tenth_success_adds_one_and_does_not_hang_and_a_refusal_takes_two(lines: Any) -> None:
    async def run() -> None:
        semaphore = AdaptiveSemaphore()
        for _ in range(10):
            await semaphore.report_success()
        assert semaphore.get_current() == 9
        assert await held(semaphore) == 9
        await semaphore.report_rate_limit()
        assert await semaphore.get_current() == 7
        assert await held(semaphore) == 7  # it really shrank: the old one only said so
        await semaphore.aclose()

    asyncio.run(asyncio.wait_for(run(), 60))
    assert lines() == ["Increased concurrency: 8 -> 9", "Decreased concurrency: 9 -> 7"]


def test_nothing_need_be_awaited_but_acquire() -> None:
    async def run() -> None:
        semaphore = AdaptiveSemaphore()
        await semaphore.acquire()
        semaphore.report_rate_limit()
        semaphore.release()
        semaphore.increase_concurrency()
        assert semaphore.value == 7
        semaphore.decrease_concurrency()
        assert semaphore.value == 5
        await semaphore.aclose()

    asyncio.run(run())


def test_it_never_leaves_its_bounds_whatever_is_reported() -> None:
    async def run() -> None:
        semaphore = AdaptiveSemaphore(initial_value=8, min_value=2, max_value=20)
        for _ in range(9):
            await semaphore.decrease_concurrency()
        assert semaphore.value == 2
        for _ in range(500):
            await semaphore.report_success()
        assert semaphore.value == 20
        assert await held(semaphore, 60) == 20  # 26 of 20, once
        await semaphore.aclose()

    asyncio.run(run())


def test_a_burst_of_refusals_is_one_step_down(lines: Any) -> None:
    async def run() -> None:
        semaphore = AdaptiveSemaphore()
        begun = asyncio.Barrier(8)

        async def refused() -> None:
            async with semaphore:
                await begun.wait()
                await semaphore.report_rate_limit()

        await asyncio.gather(*(refused() for _ in range(8)))
        assert semaphore.value == 6
        await refused_later(semaphore)
        assert semaphore.value == 4  # granted after the step down: another congestion
        await semaphore.aclose()

    async def refused_later(semaphore: AdaptiveSemaphore) -> None:
        await asyncio.sleep(0.001)
        await semaphore.acquire()
        await semaphore.report_rate_limit()
        semaphore.release()

    asyncio.run(run())
    assert lines() == ["Decreased concurrency: 8 -> 6", "Decreased concurrency: 6 -> 4"]


def test_releasing_once_too_often_adds_nothing() -> None:
    async def run() -> None:
        semaphore = AdaptiveSemaphore(initial_value=2, min_value=1, max_value=2)
        for _ in range(5):
            semaphore.release()
        await semaphore.acquire()
        semaphore.release()
        semaphore.release()
        assert await held(semaphore) == 2
        await semaphore.aclose()

    asyncio.run(run())


def test_the_limiter_gives_its_first_minute_at_once_and_then_none_for_a_minute() -> None:
    async def run() -> None:
        limiter = RPMLimiter(max_per_minute=5)
        for left in range(5, 0, -1):
            assert limiter.get_available() == left
            await asyncio.wait_for(limiter.acquire(), 60)
        assert await limiter.get_available() == 0
        waiting = asyncio.create_task(limiter.acquire())
        for _ in range(50):
            await asyncio.sleep(0)
        assert (
            not waiting.done()
        )  # the bucket of old would have had a sixth after 12 s, and 99 of 50 in the first minute
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await limiter.aclose()

    asyncio.run(run())


def test_no_slot_is_occupied_while_its_call_waits_for_the_rate_and_none_leaks_when_it_is_cancelled() -> None:
    async def run() -> None:
        semaphore, limiter = AdaptiveSemaphore(initial_value=1, min_value=1, max_value=1), RPMLimiter(1)
        await limiter.acquire()

        async def call() -> None:
            async with semaphore:
                await limiter.acquire()
                raise AssertionError("the rate is used up")

        waits = asyncio.create_task(call())
        free = asyncio.create_task(other(semaphore, waits))
        await asyncio.wait_for(free, 60)
        waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        assert await held(semaphore) == 1
        await semaphore.aclose()
        await limiter.aclose()

    async def other(semaphore: AdaptiveSemaphore, waits: Any) -> None:
        """Gets the only slot, although another task is between `acquire` and `release` of it."""
        for _ in range(20):
            await asyncio.sleep(0)
        assert not waits.done()
        async with semaphore:
            pass

    asyncio.run(run())


def test_processes_share_one_number_and_one_rate_by_a_store(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/gates.db"

    async def run() -> None:
        one, two = (AdaptiveSemaphore(store=store, name="images") for _ in range(2))
        await one.acquire()
        await two.acquire()
        await one.report_rate_limit()
        assert two.get_current() == 6
        await two.report_rate_limit()  # granted before that step down: the same congestion
        assert two.get_current() == one.get_current() == 6
        assert await held(two) == 4  # each has a slot of the six
        rate, same = (RPMLimiter(3, store=store, name="rpm") for _ in range(2))
        await rate.acquire()
        await same.acquire()
        assert rate.get_available() == 1
        for opened in (one, two, rate, same):
            await opened.aclose()

    asyncio.run(run())


@pytest.mark.parametrize("arguments", [{"max_value": 0}, {"initial_value": -1}, {"min_value": 1.5}])
def test_a_number_that_makes_no_sense_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"{next(iter(arguments))} must be a whole number of at least 1"):
        AdaptiveSemaphore(**arguments)
    with pytest.raises(InvalidInput, match="max_per_minute must be"):
        RPMLimiter(0)

"""The SQLite store under asyncio."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from headgate import AsyncGate, Concurrency, Gate, StoreUnavailable
from headgate.kernel.commands import Peek
from headgate.stores.sqlite import SqliteStore
from tests.support.sqlite import ask, rate, writing
from tests.support.timing import DECIDES_IN_TIME


@pytest.mark.timing("how long an event loop is held up can only be measured")
@pytest.mark.usefixtures("patient")
def test_the_event_loop_runs_on_while_another_process_writes(path: str, store: SqliteStore) -> None:
    store.decide(ask())

    async def main() -> tuple[Any, float]:
        gap, last, over = 0.0, time.monotonic(), False

        async def tick() -> None:
            nonlocal gap, last
            while not over:
                await asyncio.sleep(0.001)
                now = time.monotonic()
                gap, last = max(gap, now - last), now

        ticker = asyncio.create_task(tick())
        with writing(path):
            waiting = asyncio.create_task(store.aexecute([ask()]))
            await asyncio.sleep(0.15)
            assert not waiting.done()
        [reply] = await waiting
        over = True
        await ticker
        return reply, gap

    reply, gap = asyncio.run(main())
    assert reply.fence == 2
    assert gap < 0.1


def test_tasks_that_ask_at_the_same_moment_are_decided_together(store: SqliteStore) -> None:
    async def main() -> list[Any]:
        for _ in range(40):  # company is looked for now and then
            replies = await asyncio.gather(*(store.aexecute([ask()]) for _ in range(64)))
        return [reply for [reply] in replies]

    assert len({grant.at for grant in asyncio.run(main())}) == 1


@pytest.mark.usefixtures("patient")
def test_a_task_that_is_cancelled_while_it_waits_has_decided_nothing(path: str, store: SqliteStore) -> None:
    store.decide(ask())

    async def main() -> None:
        with writing(path):
            tasks = [asyncio.create_task(store.aexecute([ask()])) for _ in range(3)]
            await asyncio.sleep(0.02)
            tasks[1].cancel()
            await asyncio.sleep(0.02)
            assert tasks[1].cancelled()
        [[first], [third]] = await tasks[0], await tasks[2]
        assert {first[2], third[2]} == {2, 3}

    asyncio.run(main())
    assert store.decide(Peek(rate())).seq == 3


def test_a_task_that_is_cancelled_just_after_its_decision_gets_it_and_the_cancellation_next(store: SqliteStore) -> None:
    async def main() -> None:
        seen: list[Any] = []

        async def work() -> None:
            [reply] = await store.aexecute([ask()])
            seen.append(reply)
            await asyncio.sleep(10)

        store._transactions.concurrent_callers = 5  # it waits for others, and one of them decides for it
        first, second = asyncio.create_task(work()), asyncio.create_task(work())
        while not seen:
            await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second], timeout=120)
        assert second.cancelled()
        assert len(seen) == 2
        first.cancel()
        await asyncio.wait([first])

    asyncio.run(main())
    assert store.decide(Peek(rate())).seq == 2


@DECIDES_IN_TIME
def test_asyncio_is_told_as_soon_when_nobody_gets_on(path: str, store: SqliteStore) -> None:
    store.decide(ask())

    async def main() -> float:
        with writing(path):
            began = time.monotonic()
            results = await asyncio.gather(*(store.aexecute([ask()]) for _ in range(5)), return_exceptions=True)
            assert all(isinstance(result, StoreUnavailable) for result in results), results
            return time.monotonic() - began

    assert asyncio.run(main()) < 1.5


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("id", [None, "mine"])
def test_a_task_that_is_cancelled_when_another_thread_has_decided_its_ask_keeps_no_slot(
    path: str, store: SqliteStore, id: str | None
) -> None:
    limits = [Concurrency(5, lease="1h", name="slots")]
    watch = Gate("g", limits, store=store)

    async def main() -> None:
        task = asyncio.ensure_future(AsyncGate("g", limits, store=store).acquire(id=id))
        with writing(path):
            while not store._transactions.queue:
                await asyncio.sleep(0)
        watch.acquire().release()  # its transaction decides what is queued, while the loop stands still
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while watch.usage()["slots"].used:
            await asyncio.sleep(0.001)

    asyncio.run(asyncio.wait_for(main(), 60))

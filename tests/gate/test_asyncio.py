"""Gates under asyncio: cancellation at every await, several event loops, loops that end while somebody waits."""

from __future__ import annotations

import asyncio
import gc
import itertools
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Denied, Gate, LeaseLost, Window

NAMES = itertools.count()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://asyncio-tests-{next(NAMES)}"
    return f"sqlite:///{tmp_path}/gates.db"


@pytest.fixture(params=["memory", "sqlite", "contended sqlite"])
def busy_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Also one where another program keeps taking the write lock for a moment, so that every command has to wait."""
    if request.param == "memory":
        yield f"memory://asyncio-tests-{next(NAMES)}"
        return
    url = f"sqlite:///{tmp_path}/gates.db"
    if request.param == "sqlite":
        yield url
        return
    asyncio.run(AsyncGate("g", [slots(1)], store=url).usage())
    over = threading.Event()

    def contend() -> None:
        with closing(sqlite3.connect(tmp_path / "gates.db", isolation_level=None, timeout=5)) as other:
            while not over.wait(0.001):
                other.execute("BEGIN IMMEDIATE")
                time.sleep(0.001)
                other.execute("COMMIT")

    thread = threading.Thread(target=contend)
    thread.start()
    yield url
    over.set()
    thread.join()


def slots(n: int, **more: Any) -> Concurrency:
    return Concurrency(n, name="slots", **more)


async def until(true: Callable[[], Awaitable[bool]], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not await true():
        assert time.monotonic() < end, "it did not come"
        await asyncio.sleep(0.002)


# --- cancelled at every await -----------------------------------------------------------------------------------------


class CancelledAt:
    """Runs an awaitable in the current task, and has that task cancelled at its n-th suspension.

    `late` cancels it in the moment in which what it waits for has come, and before it could hear of it: whatever the
    answer was, it is lost.
    """

    def __init__(self, awaitable: Awaitable[Any], n: int, late: bool) -> None:
        self.awaitable = awaitable
        self.left = n
        self.late = late
        self.fired = False

    def __await__(self) -> Generator[Any, Any, Any]:
        inner = self.awaitable.__await__()
        task = asyncio.current_task()
        assert task is not None
        error: BaseException | None = None
        while True:
            try:
                waits_for: Any = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as done:
                return done.value
            error = None
            if self.left == 0 and not self.fired:
                self.fired = True
                if self.late and waits_for is not None:
                    waits_for.add_done_callback(lambda _: task.cancel())
                else:
                    asyncio.get_running_loop().call_soon(task.cancel)
            self.left -= 1
            try:
                yield waits_for
            except BaseException as caught:
                error = caught


async def at_every_await(
    ask: Callable[[int], Any], before: Callable[[int], Awaitable[Any]], after: Callable[[int, Any], Awaitable[None]],
    late: bool,
) -> int:  # fmt: skip
    """Cancel `ask` at its first suspension, at its second, … until it comes through; returns how often it was cancelled.

    On a busy store the number of suspensions is chance: it must come through several times in a row.
    """
    cancelled = through = 0
    for n in range(200):
        given = await before(n)
        run = CancelledAt(ask(n), n, late)
        permit = None

        async def main(run: CancelledAt = run) -> Any:
            return await run

        task = asyncio.create_task(main())
        with suppress(asyncio.CancelledError):
            permit = await asyncio.wait_for(asyncio.shield(task), 60)
        assert task.done()
        if permit is not None:
            await permit.release("unsent")
        await after(n, given)
        cancelled += run.fired
        through = 0 if run.fired else through + 1
        if through == 4:
            return cancelled
    raise AssertionError("it never came through")


BOTH_WAYS = pytest.mark.parametrize("late", [False, True], ids=["waiting", "as-it-is-answered"])


@BOTH_WAYS
def test_an_ask_that_goes_at_once_can_be_cancelled_at_any_await(busy_store: str, late: bool) -> None:
    gate = AsyncGate("g", [slots(2), Window(5, per="1h", name="w")], store=busy_store)

    async def before(n: int) -> None: ...

    async def clean(n: int, given: Any) -> None:
        async def is_clean() -> bool:
            usage = await gate.usage()
            return (usage["slots"].used, usage["w"].used, usage.waiting) == (0, 0, 0)

        await until(is_clean)

    async def main() -> None:
        await at_every_await(lambda n: gate.acquire(), before, clean, late)
        await at_every_await(lambda n: gate.try_acquire(), before, clean, late)
        await at_every_await(lambda n: gate.acquire(id=f"mine-{n}-{late}"), before, clean, late)

    asyncio.run(main())


@BOTH_WAYS
def test_a_wait_in_line_can_be_cancelled_at_any_await(busy_store: str, late: bool) -> None:
    gate = AsyncGate("g", [slots(1, lease="1h"), Window(1000, per="1h", name="w")], store=busy_store)

    async def before(n: int) -> Any:
        held = await gate.acquire()

        async def let_go() -> None:
            with suppress(AssertionError):
                await until(lambda: waiting(gate), 0.5)
            await held.release("unsent")

        return asyncio.create_task(let_go())

    async def clean(n: int, letting_go: Any) -> None:
        await letting_go

        async def is_clean() -> bool:
            usage = await gate.usage()
            return (usage["slots"].used, usage["w"].used, usage.waiting) == (0, 0, 0)

        await until(is_clean)
        again = await gate.acquire(timeout=60)
        await again.release("unsent")

    async def main() -> None:
        # A machine that takes 50 ms from the first ask to the second leaves nothing to wait for, nor to cancel: once more.
        while not await at_every_await(lambda n: gate.acquire(), before, clean, late):
            pass
        while not await at_every_await(lambda n: gate.acquire(id=f"mine-{next(ids)}"), before, clean, late):
            pass

    ids = itertools.count()
    asyncio.run(main())


async def waiting(gate: AsyncGate) -> bool:
    return (await gate.usage()).waiting > 0


@BOTH_WAYS
def test_a_wait_that_times_out_can_be_cancelled_at_any_await(busy_store: str, late: bool) -> None:
    gate = AsyncGate("g", [slots(1, lease="1h")], store=busy_store)

    async def ask() -> Any:
        with suppress(Denied):
            return await gate.acquire(timeout=0.02)

    async def before(n: int) -> Any:
        return await gate.acquire()

    async def clean(n: int, held: Any) -> None:
        async def gone() -> bool:
            return not await waiting(gate)

        await until(gone)
        assert [holder.id for holder in await gate.holders()] == [held.id]
        await held.release()

    asyncio.run(at_every_await_of(ask, before, clean, late))


async def at_every_await_of(ask: Any, before: Any, after: Any, late: bool) -> None:
    await at_every_await(lambda n: ask(), before, after, late)


@BOTH_WAYS
def test_a_promise_can_be_cancelled_at_any_await(busy_store: str, late: bool) -> None:
    gate = AsyncGate("p", [Bucket(20, per="1s", burst=1, slack=0, name="b")], store=busy_store, waiting="promise")

    async def before(n: int) -> None:
        await until(idle)
        await gate.acquire()

    async def idle() -> bool:
        return await charged(gate) < 0.01

    async def clean(n: int, given: Any) -> None:
        # Nothing but the first ask is left: it has run off after 50 ms, where another promise would take 50 more.
        async def given_back() -> bool:
            return await charged(gate) <= 1

        await until(given_back)

    async def main() -> None:
        assert await at_every_await(lambda n: gate.acquire(), before, clean, late) >= 1
        assert await at_every_await(lambda n: gate.acquire(id=f"mine-{n}"), before, clean, late) >= 1

    asyncio.run(main())


@BOTH_WAYS
def test_a_long_promise_that_is_cancelled_is_given_back(store: str, late: bool) -> None:
    gate = AsyncGate("p", [Bucket(1, per="1h", burst=1, slack=0, name="b")], store=store, waiting="promise")

    async def main() -> None:
        await gate.acquire()
        for id in (None, "mine"):
            task = asyncio.create_task(awaited(gate.acquire(id=id)))
            await until(lambda: promised(2))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: promised(1))
            assert (await gate.explain()).goes_in == pytest.approx(3600, abs=60)

    async def promised(n: int) -> bool:
        return round(await charged(gate)) == n

    asyncio.run(main())


async def charged(gate: AsyncGate) -> float:
    """What counts now, and what is promised."""
    limit = (await gate.usage())["b"]
    return limit.used + limit.promised


async def awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


@BOTH_WAYS
def test_a_release_that_is_cancelled_still_arrives(busy_store: str, late: bool) -> None:
    gate = AsyncGate("g", [slots(1, lease="1h")], store=busy_store)

    async def main() -> None:
        for n in range(200):
            permit = await gate.acquire(timeout=60)
            run = CancelledAt(permit.release(), n, late)
            with suppress(asyncio.CancelledError):
                await asyncio.create_task(awaited(run))
            await until(lambda: nobody(gate))
            if not run.fired and n > 5:
                return
        raise AssertionError("it never came through")

    asyncio.run(main())


async def nobody(gate: AsyncGate) -> bool:
    return await gate.holders() == []


@pytest.mark.parametrize("crowd", [30])
def test_cancelling_a_crowd_at_random_loses_no_slot(store: str, crowd: int) -> None:
    import random

    gate = AsyncGate("g", [slots(3, lease="1h")], store=store)
    inside = most = served = 0

    async def work() -> None:
        nonlocal inside, most, served
        async with gate.acquire():
            inside += 1
            most = max(most, inside)
            try:
                await asyncio.sleep(random.random() * 0.004)
                served += 1
            finally:
                inside -= 1

    async def main() -> None:
        tasks = set()
        for _ in range(300):
            task = asyncio.create_task(work())
            tasks.add(task)
            if random.random() < 0.5:
                asyncio.get_running_loop().call_later(random.random() * 0.02, task.cancel)
            if len(tasks) >= crowd:
                done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                assert all(t.cancelled() or t.exception() is None for t in done)
        await asyncio.gather(*tasks, return_exceptions=True)

        async def is_clean() -> bool:
            usage = await gate.usage()
            return (usage["slots"].used, usage.waiting) == (0, 0)

        await until(is_clean)

    asyncio.run(main())
    assert most <= 3
    assert served > 50


def test_a_task_that_was_called_and_is_cancelled_before_it_runs_passes_the_turn_on(store: str) -> None:
    gate = AsyncGate("g", [slots(1, lease="1h")], store=store, claim="1h")

    async def main() -> None:
        held = await gate.acquire()
        first = asyncio.create_task(awaited(gate.acquire()))
        await until(lambda: stand(1))
        second = asyncio.create_task(awaited(gate.acquire()))
        await until(lambda: stand(2))
        await held.release()
        first.cancel()
        permit = await asyncio.wait_for(second, 60)  # the call was given back: it does not run out for an hour
        await permit.release()
        with suppress(asyncio.CancelledError):
            await (await first).release()

    async def stand(n: int) -> bool:
        return (await gate.usage()).waiting == n

    asyncio.run(main())


# --- blocks -----------------------------------------------------------------------------------------------------------


def test_both_ways_of_asking_work(store: str) -> None:
    gate = AsyncGate("g", [slots(1)], store=store)

    async def main() -> None:
        async with gate.acquire(holder="one") as permit:
            assert [holder.id for holder in await gate.holders()] == [permit.id]
        permit = await gate.acquire()
        async with permit:
            assert await gate.try_acquire() is None
        assert await gate.holders() == []

    asyncio.run(main())


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError, KeyboardInterrupt])
def test_whatever_leaves_the_block_passes_through_and_frees_the_slot(store: str, error: type[BaseException]) -> None:
    gate = AsyncGate("g", [slots(1)], store=store)

    async def main() -> None:
        async with gate.acquire():
            raise error

    with pytest.raises(error):
        asyncio.run(main())
    assert Gate("g", [slots(1)], store=store).holders() == []


def test_gather_wait_for_and_tasks_take_an_acquire(store: str) -> None:
    gate = AsyncGate("g", [slots(10)], store=store)

    async def main() -> None:
        permits = await asyncio.gather(*(gate.acquire() for _ in range(5)))
        permits.append(await asyncio.wait_for(gate.acquire(), 5))
        assert len(await gate.holders()) == 6
        for permit in permits:
            await permit.release()

    asyncio.run(main())


def test_wait_for_that_runs_out_leaves_nothing_behind(store: str) -> None:
    gate = AsyncGate("g", [slots(1, lease="1h")], store=store)

    async def main() -> None:
        held = await gate.acquire()
        for _ in range(5):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await gate.acquire()
        assert (await gate.usage()).waiting == 0
        await held.release()
        assert await gate.try_acquire() is not None

    asyncio.run(main())


def test_a_short_lease_lives_while_the_loop_is_blocked(store: str) -> None:
    gate = AsyncGate("g", [slots(1, lease="2s")], store=store)

    async def main() -> None:
        async with gate.acquire() as permit:
            time.sleep(2.5)  # what users do
            assert not permit.lost
        assert not permit.lost

    asyncio.run(main())


def test_a_lost_lease_is_told(store: str) -> None:
    gate = AsyncGate("g", [slots(1, lease="300ms")], store=store)

    async def main() -> None:
        permit = await gate.acquire()
        await gate.release(permit.id)

        async def lost() -> bool:
            return permit.lost

        await until(lost)
        with pytest.raises(LeaseLost):
            await permit.renew()
        assert await permit.release() is False

    asyncio.run(main())


# --- loops ------------------------------------------------------------------------------------------------------------


def test_two_loops_in_two_threads_and_plain_threads_share_a_gate(store: str) -> None:
    gate, plain = AsyncGate("g", [slots(3)], store=store), Gate("g", [slots(3)], store=store)
    lock, inside, most, served = threading.Lock(), 0, 0, 0

    def enter() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)

    def leave() -> None:
        nonlocal inside, served
        with lock:
            inside -= 1
            served += 1

    async def work() -> None:
        for _ in range(10):
            async with gate.acquire():
                enter()
                await asyncio.sleep(0.001)
                leave()

    async def loop() -> None:
        await asyncio.gather(*(work() for _ in range(8)))

    def threaded() -> None:
        for _ in range(10):
            with plain.acquire():
                enter()
                time.sleep(0.001)
                leave()

    threads = [threading.Thread(target=asyncio.run, args=(loop(),)) for _ in range(2)]
    threads += [threading.Thread(target=threaded) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert served == 200
    assert most == 3
    assert plain.usage().waiting == 0
    assert plain.holders() == []


def test_one_gate_serves_one_loop_after_another(store: str) -> None:
    gate = AsyncGate("g", [slots(1)], store=store)

    async def contended() -> None:
        held = await gate.acquire()
        waiter = asyncio.create_task(awaited(gate.acquire(timeout=60)))
        await until(lambda: waiting(gate))
        await held.release()
        await (await waiter).release()

    for _ in range(3):
        asyncio.run(contended())


def test_a_loop_that_ends_while_somebody_waits_leaves_no_ticket(store: str) -> None:
    gate, plain = AsyncGate("g", [slots(1, lease="1h")], store=store), Gate("g", [slots(1)], store=store)
    held = plain.acquire(lease="1h")

    async def main() -> None:
        asyncio.ensure_future(awaited(gate.acquire()))  # noqa: RUF006  nobody waits for it
        await until(lambda: waiting(gate))

    asyncio.run(main())
    assert plain.usage().waiting == 0
    held.release()
    assert plain.try_acquire() is not None


# What is left of the waiter complains of its closed loop when it is collected, as everything in asyncio does.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_closed_under_a_waiter_leaves_no_ticket(store: str) -> None:
    gate = AsyncGate("g", [slots(1, lease="1h")], store=store, claim="1h")
    plain = Gate("g", [slots(1)], store=store)
    held = plain.acquire(lease="1h")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    task = loop.create_task(awaited(gate.acquire()))
    loop.run_until_complete(until(lambda: waiting(gate)))
    loop.close()
    held.release()  # it is called, and cannot hear it
    del task
    gc.collect()
    plain.acquire(timeout=60).release()  # the call does not run out for an hour
    assert plain.usage().waiting == 0


@pytest.mark.timing("the claim of a waiter that lives and does not come ends by the clock alone")
def test_a_blocked_loop_holds_nobody_up_for_longer_than_a_claim(store: str) -> None:
    gate, plain = AsyncGate("g", [slots(1, lease="1h")], store=store), Gate("g", [slots(1)], store=store)
    held = plain.acquire(lease="1h")
    blocked, go_on = threading.Event(), threading.Event()

    async def main() -> None:
        waiter = asyncio.create_task(awaited(gate.acquire(timeout=120)))
        await until(lambda: waiting(gate))
        blocked.set()
        go_on.wait(120)
        await (await waiter).release()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert blocked.wait(60)
    held.release()  # the waiter in the blocked loop is called
    for _ in range(3):
        permit = plain.acquire(timeout=60)
        assert permit.waited < 3, "at most one claim, and a heartbeat of this process"
        permit.release()
        time.sleep(1.1)  # heartbeats come and go
    go_on.set()
    thread.join(60)
    assert not thread.is_alive(), "and it still gets its turn"
    assert plain.usage().waiting == 0


@asynccontextmanager
async def taken(gate: AsyncGate) -> AsyncIterator[Any]:
    async with gate.acquire() as permit:
        yield permit


def test_a_gate_works_inside_other_context_managers(store: str) -> None:
    gate = AsyncGate("g", [slots(1)], store=store)

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            async with taken(gate):
                raise ZeroDivisionError
        assert await gate.holders() == []

    asyncio.run(main())

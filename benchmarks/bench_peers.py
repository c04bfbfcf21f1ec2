"""Headgate beside other Python limiters: in memory, one process, one key, every ask granted.

Each contender is used as its documentation shows, with a limit that is never reached, fresh in every round. Rounds are
many and short because the log-keeping peers (moving window, pyrate-limiter) keep an entry per grant and slow down as it
grows: at this length they are measured near their best.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import repeat

from benchmarks.floor import make_async_floor, make_floor
from benchmarks.measure import Contender, Run, Table, calling, measure, timing_table

LIMIT = 10**9
OPERATIONS = 2_000


def run(quick: bool) -> list[Table]:
    rounds = 25 if quick else 101
    with asyncio.Runner() as runner:
        sync = measure([*sync_floors(), *sync_headgate(), *sync_peers()], OPERATIONS, rounds)
        looped = measure(
            [*sync_floors(), *async_floors(runner), *async_headgate(runner), *async_peers(runner)], OPERATIONS, rounds
        )
    bounds = {"headgate, one bucket": 3.5, "headgate, window + concurrency": 8.0}
    ours = "headgate, one bucket"
    peers = {name: sync[name] for name in (ours, "limits, moving window", "throttled-py, GCRA")}
    return [
        timing_table("Peers in memory, threads", sync, "floor", bounds),
        *(
            timing_table(f"One bucket against {peer}", {ours: peers[ours], peer: peers[peer]}, peer, {ours: 0.5})
            for peer in peers
            if peer != ours
        ),
        timing_table("Peers in memory, asyncio", looped, "floor", bounds),
    ]


# Headgate ------------------------------------------------------------------------------------------------------------


def sync_headgate() -> list[Contender]:
    from headgate import Bucket, Concurrency, Gate, Window
    from headgate.stores.memory import MemoryStore

    @contextmanager
    def one_bucket() -> Iterator[Run]:
        gate = Gate("bench", [Bucket(1e9, per="1s", slack=0)], store=MemoryStore())

        def run(operations: int) -> None:
            for _ in repeat(None, operations):
                permit = gate.try_acquire()
                if permit is None:
                    raise RuntimeError("refused: only grants are to be timed")
                permit.release()

        yield run

    @contextmanager
    def window_and_concurrency() -> Iterator[Run]:
        gate = Gate("bench", [Window(LIMIT, per="1m"), Concurrency(10**6)], store=MemoryStore())

        def run(operations: int) -> None:
            for _ in repeat(None, operations):
                with gate.acquire():
                    pass

        yield run

    return [
        Contender("headgate, one bucket", one_bucket),
        Contender("headgate, window + concurrency", window_and_concurrency),
    ]


def async_headgate(runner: asyncio.Runner) -> list[Contender]:
    from headgate import AsyncGate, Bucket, Concurrency, Window
    from headgate.stores.memory import MemoryStore

    @contextmanager
    def one_bucket() -> Iterator[Run]:
        gate = AsyncGate("bench", [Bucket(1e9, per="1s", slack=0)], store=MemoryStore())

        async def run(operations: int) -> None:
            for _ in repeat(None, operations):
                permit = await gate.try_acquire()
                if permit is None:
                    raise RuntimeError("refused: only grants are to be timed")
                await permit.release()

        yield lambda operations: runner.run(run(operations))

    @contextmanager
    def window_and_concurrency() -> Iterator[Run]:
        gate = AsyncGate("bench", [Window(LIMIT, per="1m"), Concurrency(10**6)], store=MemoryStore())

        async def run(operations: int) -> None:
            for _ in repeat(None, operations):
                async with gate.acquire():
                    pass

        yield lambda operations: runner.run(run(operations))

    return [
        Contender("headgate, one bucket", one_bucket),
        Contender("headgate, window + concurrency", window_and_concurrency),
    ]


# Floors and peers ----------------------------------------------------------------------------------------------------


def sync_floors() -> list[Contender]:
    return [Contender("floor", calling(make_floor))]


def async_floors(runner: asyncio.Runner) -> list[Contender]:
    return [awaiting("floor as a coroutine, no lock", runner, make_async_floor)]


def sync_peers() -> list[Contender]:
    from limits import RateLimitItemPerMinute
    from limits.storage import MemoryStorage
    from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter
    from pyrate_limiter import Duration, Limiter, Rate
    from throttled import MemoryStore, RateLimiterType, Throttled, per_min

    def limits_with(strategy: type[FixedWindowRateLimiter] | type[MovingWindowRateLimiter]) -> Callable[[], object]:
        limiter = strategy(MemoryStorage())
        item = RateLimitItemPerMinute(LIMIT)
        return lambda: limiter.hit(item, "bench")

    def throttled_gcra() -> Callable[[], object]:
        throttle = Throttled(
            key="bench", using=RateLimiterType.GCRA.value, quota=per_min(LIMIT, burst=LIMIT), store=MemoryStore()
        )
        limit: Callable[[], object] = throttle.limit
        return limit

    @contextmanager
    def pyrate() -> Iterator[Run]:
        with Limiter(Rate(LIMIT, Duration.MINUTE)) as limiter:

            def run(operations: int) -> None:
                for _ in repeat(None, operations):
                    limiter.try_acquire("bench", blocking=False)

            yield run

    return [
        Contender("limits, fixed window", calling(lambda: limits_with(FixedWindowRateLimiter))),
        Contender("limits, moving window", calling(lambda: limits_with(MovingWindowRateLimiter))),
        Contender("throttled-py, GCRA", calling(throttled_gcra)),
        Contender("pyrate-limiter", pyrate),
    ]


def async_peers(runner: asyncio.Runner) -> list[Contender]:
    from aiolimiter import AsyncLimiter

    def aiolimiter() -> Callable[[], Awaitable[object]]:
        acquire: Callable[[], Awaitable[object]] = AsyncLimiter(LIMIT, 60).acquire
        return acquire

    return [awaiting("aiolimiter", runner, aiolimiter)]


def awaiting(name: str, runner: asyncio.Runner, make: Callable[[], Callable[[], Awaitable[object]]]) -> Contender:
    """A contender whose operation is one awaited call of what ``make`` returns."""

    @contextmanager
    def prepare() -> Iterator[Run]:
        operation = make()

        async def run(operations: int) -> None:
            for _ in repeat(None, operations):
                await operation()

        yield lambda operations: runner.run(run(operations))

    return Contender(name, prepare)

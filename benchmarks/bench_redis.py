"""The Redis store: against a bare EVALSHA of a trivial script through the same client, beside peers, and as it grows.

Contenders are measured on one server of their own, in one run, taking turns. Those that use the store without a gate send
commands with an id that is remembered, as a gate does.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import redis
import redis.asyncio

from benchmarks.measure import Contender, Run, Spread, Table, measure, timing_table
from benchmarks.redis_asks import BARE, ENOUGH, bucket, granted, opened, stand, two_limits
from benchmarks.redis_growth import keys, leases, waiters
from benchmarks.redis_waits import handovers, latencies
from headgate import AsyncGate, Gate
from headgate.kernel.limits import Bucket, Limit
from headgate.kernel.plan import Policy
from tests.support.servers import Server

CALLERS = 64
THREADS = 16


def run(quick: bool) -> list[Table]:
    with Server() as server:
        return [
            one_caller(server, quick),
            event_loop(server, quick),
            threads(server, quick),
            processor_time(server, quick),
            prices(server, quick),
            latencies(server, quick),
            handovers(server, quick),
            keys(quick),
            leases(quick),
            waiters(quick),
        ]


def two_buckets() -> Sequence[Limit]:
    return [Bucket(ENOUGH, per="1s", slack=0, name="b"), Bucket(ENOUGH, per="1m", slack=0, name="c")]


# --- one caller -------------------------------------------------------------------------------------------------------


def repeated(operation: Callable[[], object]) -> Run:
    def run(operations: int) -> None:
        for _ in range(operations):
            operation()

    return run


def bare(server: Server) -> Callable[[], AbstractContextManager[Run]]:
    @contextmanager
    def prepare() -> Iterator[Run]:
        client = redis.Redis(port=server.port)
        script = client.script_load("return 1")
        yield repeated(lambda: client.evalsha(script, 1, "key", "argument"))
        client.close()

    return prepare


def on_store(server: Server, limits: Sequence[Limit]) -> Callable[[], AbstractContextManager[Run]]:
    @contextmanager
    def prepare() -> Iterator[Run]:
        with opened(server) as store:
            plan = Policy("bench", limits).plan()
            yield repeated(lambda: granted(store.decide(stand(store, plan))))

    return prepare


def on_gate(
    server: Server, limits: Sequence[Limit], release: bool = False
) -> Callable[[], AbstractContextManager[Run]]:
    @contextmanager
    def prepare() -> Iterator[Run]:
        with opened(server) as store:
            gate = Gate("bench", limits, store=store)
            if release:
                yield repeated(lambda: gate.acquire(renew=False).release())
            else:
                yield repeated(lambda: gate.acquire(renew=False))

    return prepare


def limits_peer(server: Server, times: int) -> Callable[[], AbstractContextManager[Run]]:
    @contextmanager
    def prepare() -> Iterator[Run]:
        from limits import RateLimitItemPerHour, RateLimitItemPerMinute
        from limits.storage import RedisStorage
        from limits.strategies import FixedWindowRateLimiter

        server.command("FLUSHALL", "SYNC")
        limiter = FixedWindowRateLimiter(RedisStorage(f"redis://127.0.0.1:{server.port}"))
        items = [RateLimitItemPerMinute(ENOUGH), RateLimitItemPerHour(ENOUGH)][:times]
        yield repeated(lambda: [limiter.hit(item, "bench") for item in items])

    return prepare


def throttled_peer(server: Server, times: int) -> Callable[[], AbstractContextManager[Run]]:
    @contextmanager
    def prepare() -> Iterator[Run]:
        from throttled import RateLimiterType, Throttled, per_hour, per_min
        from throttled import RedisStore as Peer

        server.command("FLUSHALL", "SYNC")
        quotas = [per_min(ENOUGH, burst=ENOUGH), per_hour(ENOUGH, burst=ENOUGH)][:times]
        store = Peer(server=f"redis://127.0.0.1:{server.port}/0")
        using = RateLimiterType.GCRA.value
        throttles = [
            Throttled(key=f"bench{at}", using=using, quota=quota, store=store) for at, quota in enumerate(quotas)
        ]
        yield repeated(lambda: [throttle.limit() for throttle in throttles])

    return prepare


def one_caller(server: Server, quick: bool) -> Table:
    samples = measure(
        [
            Contender(BARE, bare(server)),
            Contender("one bucket, by the store", on_store(server, bucket())),
            Contender("one bucket, by a gate", on_gate(server, bucket())),
            Contender("window + concurrency, by a gate", on_gate(server, two_limits())),
            Contender("window + concurrency and its release", on_gate(server, two_limits(), release=True)),
            Contender("limits, fixed window", limits_peer(server, 1)),
            Contender("throttled-py, GCRA", throttled_peer(server, 1)),
        ],
        operations=300,
        rounds=9 if quick else 41,
    )
    note = "0.7 of the speed of a bare EVALSHA is a ratio of 1.43. A release is a round trip of its own."
    return timing_table("Redis, one caller", samples, BARE, {"one bucket, by the store": 1.43}, note)


# --- many callers -----------------------------------------------------------------------------------------------------


def looped(runner: asyncio.Runner, operation: Callable[[], Awaitable[object]]) -> Run:
    async def caller(operations: int) -> None:
        for _ in range(operations):
            await operation()

    async def together(operations: int) -> None:
        await asyncio.gather(*(caller(max(1, operations // CALLERS)) for _ in range(CALLERS)))

    return lambda operations: runner.run(together(operations))


def bare_loop(server: Server, runner: asyncio.Runner) -> Callable[[], AbstractContextManager[Run]]:
    async def load(client: redis.asyncio.Redis) -> str:
        return str(await client.script_load("return 1"))

    @contextmanager
    def prepare() -> Iterator[Run]:
        client = redis.asyncio.Redis(port=server.port)
        script = runner.run(load(client))
        yield looped(runner, lambda: client.evalsha(script, 1, "key", "argument"))
        runner.run(client.aclose())

    return prepare


def store_loop(
    server: Server, runner: asyncio.Runner, limits: Sequence[Limit]
) -> Callable[[], AbstractContextManager[Run]]:
    @contextmanager
    def prepare() -> Iterator[Run]:
        with opened(server) as store:
            plan = Policy("bench", limits).plan()
            yield looped(runner, lambda: store.aexecute([stand(store, plan)]))

    return prepare


def gate_loop(
    server: Server, runner: asyncio.Runner, limits: Sequence[Limit]
) -> Callable[[], AbstractContextManager[Run]]:
    @contextmanager
    def prepare() -> Iterator[Run]:
        with opened(server) as store:
            gate = AsyncGate("bench", limits, store=store)
            yield looped(runner, lambda: gate.acquire(renew=False))

    return prepare


def event_loop(server: Server, quick: bool) -> Table:
    with asyncio.Runner() as runner:
        samples = measure(
            [
                Contender(BARE, bare_loop(server, runner)),
                Contender("one bucket, by the store", store_loop(server, runner, bucket())),
                Contender("one bucket, by a gate", gate_loop(server, runner, bucket())),
                Contender("window + concurrency, by a gate", gate_loop(server, runner, two_limits())),
            ],
            operations=CALLERS * (40 if quick else 100),
            rounds=7 if quick else 31,
        )
    bounds = {"one bucket, by the store": 1 / 6}
    return timing_table(
        f"Redis, {CALLERS} callers on one event loop", samples, BARE, bounds, "6 times is a ratio of 0.17."
    )


def spread_out(prepare: Callable[[], AbstractContextManager[Run]]) -> Callable[[], AbstractContextManager[Run]]:
    """A contender's operation in many threads at once."""

    @contextmanager
    def prepared() -> Iterator[Run]:
        with prepare() as one:

            def run(operations: int) -> None:
                share = max(1, operations // THREADS)
                started = [threading.Thread(target=one, args=(share,)) for _ in range(THREADS)]
                for thread in started:
                    thread.start()
                for thread in started:
                    thread.join()

            yield run

    return prepared


def threads(server: Server, quick: bool) -> Table:
    samples = measure(
        [
            Contender(BARE, spread_out(bare(server))),
            Contender("one bucket, by the store", spread_out(on_store(server, bucket()))),
            Contender("one bucket, by a gate", spread_out(on_gate(server, bucket()))),
            Contender("window + concurrency, by a gate", spread_out(on_gate(server, two_limits()))),
        ],
        operations=THREADS * (40 if quick else 100),
        rounds=7 if quick else 31,
    )
    bounds = {"one bucket, by the store": 1 / 3}
    return timing_table(f"Redis, {THREADS} threads", samples, BARE, bounds, "3 times is a ratio of 0.33.")


def server_cpu(server: Server) -> float:
    """Seconds of processor time that the server has used."""
    lines = (line.partition(":") for line in server.command("INFO", "cpu").decode().splitlines())
    return sum(float(value) for name, _, value in lines if name in ("used_cpu_user", "used_cpu_sys"))


def processor_time(server: Server, quick: bool) -> Table:
    """Processor time of an ask in both processes. Other programs on the machine change it less than its duration."""
    rows = []
    rounds = 5 if quick else 15
    with asyncio.Runner() as runner:
        callers: dict[str, tuple[int, dict[str, Callable[[], AbstractContextManager[Run]]]]] = {
            "one caller": (600, {BARE: bare(server), "one bucket": on_store(server, bucket())}),
            f"{CALLERS} callers on one event loop": (
                100 * CALLERS,
                {BARE: bare_loop(server, runner), "one bucket": store_loop(server, runner, bucket())},
            ),
            f"{THREADS} threads": (
                100 * THREADS,
                {BARE: spread_out(bare(server)), "one bucket": spread_out(on_store(server, bucket()))},
            ),
        }
        for label, (operations, contenders) in callers.items():
            spent: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
            for _ in range(rounds):
                for name, prepare in contenders.items():
                    with prepare() as run:
                        run(operations // 10)
                        here, there = time.process_time(), server_cpu(server)
                        run(operations)
                        here, there = time.process_time() - here, server_cpu(server) - there
                        spent[name].append((1e6 * here / operations, 1e6 * there / operations))
            for name, both in spent.items():
                ours, theirs = (Spread.of([pair[side] for pair in both]).median for side in (0, 1))
                rows.append([f"{label}, {name}", f"{ours:.1f}", f"{theirs:.1f}", f"{ours + theirs:.1f}"])
    return Table("Redis, processor time per ask in µs", ["", "client", "server", "both"], rows)


def prices(server: Server, quick: bool) -> Table:
    """What a second limit costs."""
    rows = []
    for name, one, both in (
        ("headgate", on_gate(server, bucket()), on_gate(server, two_buckets())),
        ("limits, fixed window", limits_peer(server, 1), limits_peer(server, 2)),
        ("throttled-py, GCRA", throttled_peer(server, 1), throttled_peer(server, 2)),
    ):
        samples = measure([Contender("one", one), Contender("two", both)], 200, 7 if quick else 31)
        times = Spread.of([two / alone for two, alone in zip(samples["two"], samples["one"], strict=True)])
        kept = "" if name != "headgate" else f"at most 1.25: {'kept' if times.median <= 1.25 else 'MISSED'}"
        rows.append([name, f"{times.median:.2f}", f"{times.low:.2f} to {times.high:.2f}", kept])
    return Table("Redis, two limits for the price of one", ["", "× one limit", "middle half", "bound"], rows)

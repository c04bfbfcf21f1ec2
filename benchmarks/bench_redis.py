"""The Redis store: against a bare EVALSHA of a trivial script through the same client, beside peers, and as it grows.

Everything is measured on one server of its own, in one run, contenders taking turns. What calls the store itself uses
commands with an id that is remembered, as a gate sends them.
"""

import asyncio
import multiprocessing
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from itertools import count
from multiprocessing.connection import Connection
from typing import Any

import redis
import redis.asyncio

from benchmarks.measure import Contender, Run, Samples, Spread, Table, measure, ratio, timing_table
from headgate import AsyncGate, Gate
from headgate.commands import Admit, Command, Settle, Stand
from headgate.limits import Bucket, Concurrency, Limit, Window
from headgate.model import Wait
from headgate.plan import Plan, Policy
from headgate.stores.redis import RedisStore
from tests.servers import Server

ENOUGH = 10**9
CALLERS = 64
THREADS = 16
PATIENT = "?timeout=30s"
BARE = "bare EVALSHA"

_numbers = count()


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


def bucket() -> Sequence[Limit]:
    return [Bucket(ENOUGH, per="1s", slack=0, name="b")]


def two_limits() -> Sequence[Limit]:
    return [Window(ENOUGH, per="1m", name="w"), Concurrency(10**6, name="c")]


def two_buckets() -> Sequence[Limit]:
    return [Bucket(ENOUGH, per="1s", slack=0, name="b"), Bucket(ENOUGH, per="1m", slack=0, name="c")]


def stand(store: RedisStore, plan: Plan) -> Stand:
    """The ask that a gate sends."""
    id = f"{store.session}-{next(_numbers)}"
    ask = Stand(plan, id, None, plan.lease, waits=True, session=store.session, remembered=True)
    ask.fresh = True
    return ask


def granted(reply: object) -> tuple[int, int, int, bool]:
    if not isinstance(reply, tuple):
        raise RuntimeError(f"refused: only grants are to be timed, and this was {reply!r}")
    return reply


@contextmanager
def opened(server: Server) -> Iterator[RedisStore]:
    server.command("FLUSHALL", "SYNC")
    store = RedisStore(server.url + PATIENT)
    try:
        yield store
    finally:
        store.close()


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
    """The same operation in many threads at once."""

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
    """What an ask costs in both processes. Who else is running matters less here than for the time that it takes."""
    rows = []
    rounds = 5 if quick else 15
    with asyncio.Runner() as runner:
        crowds: dict[str, tuple[int, dict[str, Callable[[], AbstractContextManager[Run]]]]] = {
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
        for crowd, (operations, contenders) in crowds.items():
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
                rows.append([f"{crowd}, {name}", f"{ours:.1f}", f"{theirs:.1f}", f"{ours + theirs:.1f}"])
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


# --- latency ----------------------------------------------------------------------------------------------------------


def percentiles(times: list[float]) -> list[str]:
    ordered = sorted(times)
    return [f"{1e6 * ordered[int(len(ordered) * share)]:,.0f}" for share in (0.5, 0.99)]


def latencies(server: Server, quick: bool) -> Table:
    """One ask after the other, alone and beside an event loop in another thread that asks as fast as it can."""
    amount = 500 if quick else 3_000
    rows = []
    with opened(server) as store:
        client = redis.Redis(port=server.port)
        script = client.script_load("return 1")
        gate = Gate("bench", two_limits(), store=store)
        for loaded in (False, True):
            ending = threading.Event()
            load = threading.Thread(target=saturate, args=(server, ending))
            if loaded:
                load.start()
                time.sleep(0.3)
            ours, theirs = [], []
            for _ in range(amount):
                begun = time.perf_counter()
                client.evalsha(script, 1, "key", "argument")
                theirs.append(time.perf_counter() - begun)
                begun = time.perf_counter()
                permit = gate.acquire(renew=False)
                ours.append(time.perf_counter() - begun)
                permit.release()
            ending.set()
            if loaded:
                load.join()
            where = "beside a saturated gate" if loaded else "alone"
            rows.append([f"window + concurrency, {where}", *percentiles(ours)])
            rows.append([f"{BARE}, {where}", *percentiles(theirs)])
        client.close()
    return Table("Redis, latency of one ask in µs", ["", "p50", "p99"], rows)


def saturate(server: Server, ending: threading.Event) -> None:
    """Another gate, by a process of its own as far as the server can tell."""
    store = RedisStore(server.url + PATIENT)
    gate = AsyncGate("load", bucket(), store=store)

    async def caller() -> None:
        while not ending.is_set():
            await gate.acquire()

    async def main() -> None:
        await asyncio.gather(*(caller() for _ in range(16)))

    asyncio.run(main())
    store.close()


def wait_for_turns(url: str, told: Connection) -> None:
    """A waiter: whenever it is told to, it waits for the slot, and tells when it was granted."""
    store = RedisStore(url)
    gate = Gate("line", one_slot(), store=store)
    while told.recv():
        permit = gate.acquire()
        granted_at = time.perf_counter()  # one clock for all processes
        permit.release()
        told.send(granted_at)
    store.close()


def one_slot() -> Sequence[Limit]:
    return [Concurrency(1, lease="1h")]


@contextmanager
def apart(server: Server) -> Iterator[None]:
    """The server has a core of its own, as on a machine of its own, and what is started here has the others."""
    every = os.sched_getaffinity(0)
    first = min(every)
    assert server.process is not None
    for thread in os.listdir(f"/proc/{server.process.pid}/task"):
        os.sched_setaffinity(int(thread), {first})
    os.sched_setaffinity(0, every - {first})
    try:
        yield
    finally:
        os.sched_setaffinity(0, every)


def handovers(server: Server, quick: bool) -> Table:
    """From a release to the grant of the next waiter, who sleeps in another process, as in a fleet, or in this one."""
    rows = handed_over(server, quick, "")
    if hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1:
        with Server() as other, apart(other):
            rows = handed_over(other, quick, ", server apart") + rows
    note = (
        "An ask is one round trip. Server apart: it has a core of its own, as it has in a fleet. Otherwise all share two: "
        "the server has to give way to whoever has released before it can tell the one who waits."
    )
    columns = ["", "p50", "p99", "× an ask", "bound"]
    return Table("Redis, from a release to the next waiter's grant, in µs", columns, rows, note)


def handed_over(server: Server, quick: bool, how: str) -> list[list[str]]:
    waiters: dict[str, Callable[..., Any]] = {
        "in another process": multiprocessing.get_context("spawn").Process,
        "in another thread": threading.Thread,
    }
    trips: list[float] = []
    took: dict[str, list[float]] = {where: [] for where in waiters}
    ends = {}
    with opened(server) as store:
        holding = Gate("line", one_slot(), store=store)
        free = Gate("free", [Concurrency(10**6, lease="1h")], store=store)
        for where, begin in waiters.items():
            ends[where], theirs = multiprocessing.Pipe()
            begin(target=wait_for_turns, args=(server.url + PATIENT, theirs), daemon=True).start()
        for round in range(-5, 50 if quick else 300):
            for where, waiter in ends.items():
                held = holding.acquire()
                waiter.send(True)
                while not holding.usage().waiting:
                    time.sleep(0.001)
                time.sleep(0.002)
                begun = time.perf_counter()
                free.acquire(renew=False)
                trip = time.perf_counter() - begun
                time.sleep(0.002)  # as before the ask: what comes right after another finds everything warm
                begun = time.perf_counter()
                held.release()
                granted_at = waiter.recv()
                if round >= 0:
                    trips.append(trip)
                    took[where].append(granted_at - begun)
        for waiter in ends.values():
            waiter.send(False)
    rows = [[f"an ask that can go{how}", *percentiles(trips), "", ""]]
    for where, times in took.items():
        ratio = Spread.of(times).median / Spread.of(trips).median
        kept = f"at most 3: {'kept' if ratio <= 3 else 'MISSED'}"
        rows.append([f"from release to grant {where}{how}", *percentiles(times), f"{ratio:.2f}", kept])
    return rows


# --- growth -----------------------------------------------------------------------------------------------------------

Operation = Callable[[], object]

#: What is kept flat may cost at most so many times what it costs at the smallest size.
FLAT = 1.5

#: So many leases, or waiters.
LEASED = (10, 100, 1_000, 10_000)


class Floor:
    """What a decision does at least: bare scripts on plain rows of a hash and their order in a sorted set."""

    fill = """for at = ARGV[1], ARGV[2] do
        redis.call('HSET', KEYS[1], at, ('-'):rep(50))
        redis.call('ZADD', KEYS[2], at, at)
    end"""
    touch = "return redis.call('HSET', KEYS[1], ARGV[1], redis.call('HGET', KEYS[1], ARGV[1]))"
    add = "redis.call('HSET', KEYS[1], ARGV[1], ('-'):rep(50)) return redis.call('ZADD', KEYS[2], ARGV[1], ARGV[1])"
    take = "redis.call('HDEL', KEYS[1], ARGV[1]) return redis.call('ZREM', KEYS[2], ARGV[1])"
    shift = "return redis.call('HDEL', KEYS[1], redis.call('ZPOPMIN', KEYS[2])[1])"

    def __init__(self, client: redis.Redis, size: int) -> None:
        self._scripts = {text: client.register_script(text) for text in (self.touch, self.add, self.take, self.shift)}
        self._numbers = count(size + 1)
        self.size = size
        for first in range(1, size + 1, 10_000):
            client.eval(self.fill, 2, "floor", "floor:z", first, min(size, first + 9_999))

    def run(self, text: str, number: int = 0) -> None:
        self._scripts[text](["floor", "floor:z"], [number])

    def any_row(self) -> None:
        self.run(self.touch, random.randint(1, self.size))

    def row_more_and_less(self) -> None:
        number = next(self._numbers)
        self.run(self.add, number)
        self.run(self.take, number)

    def first_for_last(self) -> None:
        self.run(self.shift)
        self.run(self.add, next(self._numbers))


def script_time(server: Server) -> int:
    """Microseconds that the server was busy with script calls since it started."""
    spent = 0
    for line in server.command("INFO", "commandstats").decode().splitlines():
        if line.startswith(("cmdstat_fcall:", "cmdstat_evalsha:")):
            spent += int(line.partition("usec=")[2].partition(",")[0])
    return spent


def server_time(server: Server, operation: Operation, times: int) -> float:
    """Microseconds of script calls, per operation."""
    for _ in range(times // 10):
        operation()
    before = script_time(server)
    for _ in range(times):
        operation()
    return (script_time(server) - before) / times


def growth(
    title: str,
    sizes: Sequence[int],
    rounds: int,
    fill: Callable[[RedisStore, int], Operation],
    least: Callable[[Floor], None],
    note: str,
) -> Table:
    """Server time of the same operation among more and more.

    Each size has a server of its own, and all are measured in turn, so that a ratio is of figures of one moment. So has the
    floor, filled as much: what it costs more among many is the machine's, whose caches are too small.
    """
    ours: dict[str, list[float]] = {f"{size:,}": [] for size in sizes}
    floors: dict[str, list[float]] = {name: [] for name in ours}
    memory: dict[int, int] = {}
    turns = []
    with ExitStack() as stack:
        for size, name in zip(sizes, ours, strict=True):
            server = stack.enter_context(Server())
            store = stack.enter_context(closing(RedisStore(server.url + PATIENT)))
            other = stack.enter_context(Server())
            client = stack.enter_context(closing(redis.Redis(port=other.port)))
            if size >= 100_000:
                sys.stderr.write(f"{title}: filling {name} ...\n")
            operation = fill(store, size)
            memory[size] = used_memory(server)
            turns.append((ours[name], server, operation))
            turns.append((floors[name], other, partial(least, Floor(client, size))))
        for _, server, operation in turns:
            server_time(server, operation, 300)  # what is made on first use is made now
        for _ in range(rounds):
            for samples, server, operation in random.sample(turns, len(turns)):
                samples.append(server_time(server, operation, 40))
    rows = []
    smallest, first = sizes[0], next(iter(ours))
    for size, name in zip(sizes, ours, strict=True):
        row = [name, *told(ours, name, first), *told(floors, name, first)]
        if size == smallest:
            rows.append([*row, "", ""])
        else:
            each = (memory[size] - memory[smallest]) / (size - smallest)
            kept = "kept" if ratio(ours, name, first).median <= FLAT else "MISSED"
            rows.append([*row, f"{each:,.0f}", f"at most {FLAT:g}: {kept}"])
    of_each = [f"× {first}", "middle half"]
    columns = ["", "server µs per operation", *of_each, "floor, µs", *of_each, "bytes each", "bound"]
    return Table(title, columns, rows, f"The floor is {note}.")


def told(samples: Samples, name: str, first: str) -> list[str]:
    times = ratio(samples, name, first)
    return [f"{Spread.of(samples[name]).median:.1f}", f"{times.median:.2f}", f"{times.low:.2f} to {times.high:.2f}"]


def used_memory(server: Server) -> int:
    return int(server.command("INFO", "memory").decode().partition("used_memory:")[2].split()[0])


def execute(store: RedisStore, commands: Iterator[Command]) -> None:
    batch: list[Command] = []
    for command in commands:
        batch.append(command)
        if len(batch) == 200:
            store.execute(batch)
            batch.clear()
    if batch:
        store.execute(batch)


def keys(quick: bool) -> Table:
    """One bucket per key, all of them live, drawn at random."""
    policy = Policy("bench", [Bucket(ENOUGH, per="24h", slack=0, by="org")])

    def fill(store: RedisStore, size: int) -> Operation:
        execute(store, (Admit(policy.plan(1, {"org": f"org-{at}"})) for at in range(size)))
        return lambda: granted(store.decide(stand(store, policy.plan(1, {"org": f"org-{random.randrange(size)}"}))))

    sizes = [10, 1_000, 100_000] if quick else [10, 1_000, 100_000, 1_000_000]
    note = "a script that reads and writes one row of a hash, drawn at random of as many"
    return growth("Redis, live keys", sizes, 9 if quick else 61, fill, Floor.any_row, note)


def leases(quick: bool) -> Table:
    """A grant and its release, among so many live leases."""
    plan = Policy("bench", [Concurrency(10**6, lease="24h")]).plan()

    def fill(store: RedisStore, size: int) -> Operation:
        execute(store, (stand(store, plan) for _ in range(size)))

        def pair() -> None:
            ask = stand(store, plan)
            at, _, _, _ = granted(store.decide(ask))
            store.decide(Settle(plan, at, ask.id, "ok"))

        return pair

    note = "two scripts: one puts a row into a hash and a sorted set of as many, one takes it out again"
    return growth("Redis, live leases", LEASED, 9 if quick else 61, fill, Floor.row_more_and_less, note)


def waiters(quick: bool) -> Table:
    """One goes, the next is called and takes its call, and another comes to the end of the line."""
    plan = Policy("bench", [Concurrency(1, lease="24h", name="slots")]).plan()

    def fill(store: RedisStore, size: int) -> Operation:
        first = stand(store, plan)
        holding = (first, granted(store.decide(first))[0])
        line = deque(stand(store, plan) for _ in range(size))
        execute(store, iter(line))

        def turn() -> None:
            nonlocal holding
            ask, at = holding
            store.decide(Settle(plan, at, ask.id, "ok"))
            following = line.popleft()
            following.fresh = False  # it is known: it stands in line
            holding = (following, granted(store.decide(following))[0])
            last = stand(store, plan)
            assert isinstance(store.decide(last), Wait)
            line.append(last)

        return turn

    title = "Redis, waiters (a release, the taking of the call, a new ticket)"
    note = "two scripts: one takes the first row of a hash and a sorted set of as many, one puts another at the end"
    return growth(title, LEASED, 9 if quick else 61, fill, Floor.first_for_last, note)

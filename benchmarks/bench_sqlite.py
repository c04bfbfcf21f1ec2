"""The SQLite store: against the least that a decision in a database file can cost, under contention, and as it grows.

Everything here uses the store without a gate, with commands that were made before: what a gate adds is in other tables.
"""

import json
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.floor import make_sqlite_floor
from benchmarks.measure import Contender, Run, Table, measure, timing_table
from headgate.kernel.commands import Admit, Command, Settle, Stand
from headgate.kernel.limits import Bucket, Concurrency, Window
from headgate.kernel.model import Grant, Wait
from headgate.kernel.plan import Plan, Policy
from headgate.stores.sqlite import SqliteStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headgate.clock import Clock
    from headgate.stores.base import Store

ENOUGH = 10**9


def run(quick: bool) -> list[Table]:
    return [
        singles(quick),
        batches(quick),
        processes(quick),
        keys(quick),
        leases(quick),
        waiters(quick),
    ]


# --- one caller ---------------------------------------------------------------------------------------------------


def bucket_plan() -> Plan:
    return Policy("bench", [Bucket(ENOUGH, per="1s", slack=0)]).plan()


def two_limits_plan() -> Plan:
    return Policy("bench", [Window(ENOUGH, per="1m"), Concurrency(10**6)]).plan()


def granted(reply: object) -> Grant:
    if not isinstance(reply, Grant):
        raise RuntimeError(f"refused: only grants are to be timed, and this was {reply!r}")
    return reply


@contextmanager
def opened() -> Iterator[SqliteStore]:
    with TemporaryDirectory() as folder:
        store = SqliteStore(str(Path(folder, "gates.db")))
        try:
            yield store
        finally:
            store.close()


@contextmanager
def floor() -> Iterator[Run]:
    with TemporaryDirectory() as folder:
        take = make_sqlite_floor(str(Path(folder, "floor.db")))

        def run(operations: int) -> None:
            for _ in range(operations):
                take()

        yield run
        take.close()


def on_store(prepare: Callable[[SqliteStore], Callable[[], object]]) -> Callable[[], AbstractContextManager[Run]]:
    """A contender's `prepare` for an operation on a store of its own."""

    @contextmanager
    def prepared() -> Iterator[Run]:
        with opened() as store:
            operation = prepare(store)

            def run(operations: int) -> None:
                for _ in range(operations):
                    operation()

            yield run

    return prepared


def one_bucket(store: SqliteStore) -> Callable[[], object]:
    command = Admit(bucket_plan())
    return lambda: granted(store.decide(command))


def two_limits(store: SqliteStore) -> Callable[[], object]:
    plan, numbers = two_limits_plan(), count()
    return lambda: granted(store.decide(Admit(plan, f"{store.session}-{next(numbers)}", None, plan.lease)))


def two_limits_and_release(store: SqliteStore) -> Callable[[], object]:
    plan, numbers = two_limits_plan(), count()

    def operation() -> None:
        id = f"{store.session}-{next(numbers)}"
        at = granted(store.decide(Admit(plan, id, None, plan.lease))).at
        store.decide(Settle(plan, at, id, "ok", False))

    return operation


def singles(quick: bool) -> Table:
    samples = measure(
        [
            Contender("BEGIN IMMEDIATE; SELECT; UPDATE; COMMIT", floor),
            Contender("one bucket", on_store(one_bucket)),
            Contender("window + concurrency", on_store(two_limits)),
            Contender("window + concurrency, and its release", on_store(two_limits_and_release)),
        ],
        operations=1_000,
        rounds=15 if quick else 61,
    )
    bounds = {"one bucket": 2.0, "window + concurrency": 3.33}
    note = (
        "A release is a transaction of its own; the floor is one transaction. 0.5 of the floor's speed is a ratio of 2."
    )
    return timing_table("SQLite, one process", samples, "BEGIN IMMEDIATE; SELECT; UPDATE; COMMIT", bounds, note)


def batches(quick: bool) -> Table:
    def batch(store: SqliteStore) -> Callable[[], object]:
        commands = [Admit(bucket_plan()) for _ in range(64)]
        return lambda: store.execute(commands)

    samples = measure(
        [Contender("one decision", on_store(one_bucket)), Contender("64 in one transaction", on_store(batch))],
        operations=500,
        rounds=15 if quick else 61,
    )
    return timing_table("SQLite, a batch on one gate", samples, "one decision", {"64 in one transaction": 8.0})


# --- several processes --------------------------------------------------------------------------------------------

WORKER = """
import json, sys, time
from benchmarks.bench_sqlite import saturate
print(json.dumps(saturate(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))))
"""


def saturate(path: str, begin: float, seconds: float) -> tuple[int, float]:
    """Decide as fast as possible. Returns the number of decisions, and the seconds of the longest."""
    store = SqliteStore(path)
    command = Admit(bucket_plan())
    store.decide(command)
    time.sleep(max(0.0, begin - time.time()))
    decided, longest = 0, 0.0
    now = time.monotonic()
    end = now + seconds
    while now < end:
        store.decide(command)
        decided += 1
        before, now = now, time.monotonic()
        longest = max(longest, now - before)
    store.close()
    return decided, longest


def together(workers: int, seconds: float) -> list[tuple[int, float]]:
    with TemporaryDirectory() as folder:
        arguments = [str(Path(folder, "gates.db")), str(time.time() + 1.5), str(seconds)]
        started = [
            subprocess.Popen([sys.executable, "-c", WORKER, *arguments], stdout=subprocess.PIPE, text=True)
            for _ in range(workers)
        ]
        return [tuple(json.loads(worker.communicate()[0])) for worker in started]


def processes(quick: bool) -> Table:
    seconds, rounds = (1.5, 1) if quick else (4.0, 5)
    rows = []
    for _ in range(rounds):
        alone = together(1, seconds)[0][0]
        four = together(4, seconds)
        total = sum(decided for decided, _ in four)
        shares = [4 * decided / total for decided, _ in four]
        longest = max(longest for _, longest in four)
        kept = min(shares) >= 0.7 and max(shares) <= 1.3 and longest <= 0.25 and total >= alone * 2 / 3
        rows.append(
            [
                f"{alone / seconds:,.0f} per second alone",
                f"{total / seconds:,.0f}",
                f"{total / alone:.2f}",
                f"{min(shares):.2f} to {max(shares):.2f}",
                f"{1000 * longest:.0f}",
                "kept" if kept else "MISSED",
            ]
        )
    return Table(
        "SQLite, four saturated processes on one gate",
        ["", "together, per second", "× alone", "shares", "longest wait, ms", "bound"],
        rows,
        "Bounds: shares within 30 % of even, no wait over 250 ms, at least 0.67 of one process's throughput.",
    )


# --- growth -------------------------------------------------------------------------------------------------------


def growth(
    title: str,
    sizes: Sequence[int],
    operation: dict[int, Callable[[], object]],
    rounds: int,
    bound: float,
    note: str = "",
) -> Table:
    """One operation on stores of different sizes, in turns; ratios to the smallest."""
    samples: dict[str, list[float]] = {f"{size:,}": [] for size in sizes}
    for _ in range(rounds):
        for size in random.sample(sizes, len(sizes)):
            run = operation[size]
            times = []
            for _ in range(50):
                before = time.perf_counter_ns()
                run()
                times.append(time.perf_counter_ns() - before)
            samples[f"{size:,}"].append(sum(times) / len(times))
    smallest = f"{sizes[0]:,}"
    bounds = {name: bound for name in samples if name != smallest}
    return timing_table(title, samples, smallest, bounds, note)


def fill(store: SqliteStore, commands: Iterator[Command]) -> None:
    batch: list[Command] = []
    for command in commands:
        batch.append(command)
        if len(batch) == 512:
            store.execute(batch)
            batch.clear()
    if batch:
        store.execute(batch)


@contextmanager
def several(sizes: Sequence[int], clock: "Clock | None" = None) -> Iterator[dict[int, SqliteStore]]:
    with TemporaryDirectory() as folder:
        stores = {size: SqliteStore(str(Path(folder, f"{size}.db")), clock=clock) for size in sizes}
        try:
            yield stores
        finally:
            for store in stores.values():
                store.close()


def keys(quick: bool) -> Table:
    """One bucket per key, all of them live, drawn at random."""
    sizes = [10, 1_000, 100_000] if quick else [10, 1_000, 100_000, 1_000_000]
    policy = Policy("bench", [Bucket(ENOUGH, per="24h", slack=0, by="org")])
    weights = []

    def draw(store: SqliteStore, size: int) -> Callable[[], object]:
        def operation() -> None:
            granted(store.decide(Admit(policy.plan(1, {"org": f"org-{random.randrange(size)}"}))))

        return operation

    with several(sizes) as stores:
        for size, store in stores.items():
            fill(store, (Admit(policy.plan(1, {"org": f"org-{number}"})) for number in range(size)))
            store.close()  # writes back the log
            weights.append(f"{Path(store.path).stat().st_size / size:,.0f} at {size:,}")
        operations = {size: draw(store, size) for size, store in stores.items()}
        for run in operations.values():
            for _ in range(300):
                run()
        note = f"Bytes of file per key: {', '.join(weights)}."
        return growth("SQLite, live keys", sizes, operations, 20 if quick else 200, 1.5, note)


def leases(quick: bool) -> Table:
    """A grant and its release, among so many live leases."""
    sizes = [1, 100, 10_000]
    plan = Policy("bench", [Concurrency(10**6, lease="24h")]).plan()

    def pair(store: SqliteStore) -> Callable[[], object]:
        numbers = count()

        def operation() -> None:
            id = f"{store.session}-{next(numbers)}"
            at = granted(store.decide(Admit(plan, id, None, plan.lease))).at
            store.decide(Settle(plan, at, id, "ok", False))

        return operation

    with several(sizes) as stores:
        for size, store in stores.items():
            fill(store, (Admit(plan, f"held-{number}", None, plan.lease) for number in range(size)))
            store.close()
        operations = {size: pair(store) for size, store in stores.items()}
        return growth("SQLite, live leases", sizes, operations, 40 if quick else 200, 1.5)


def waiters(quick: bool) -> Table:
    """One goes, the next is called and takes its call, and another comes to the end of the line."""
    sizes = [10, 1_000] if quick else [10, 1_000, 10_000]
    tables = []
    for lanes, bound in ((1, 1.5), (10**9, 3.0)):
        # Time stands still, or calls would run out while another store has its turn.
        with several(sizes, lambda: 10**15) as stores:
            operations = {size: turn(store, size, lanes) for size, store in stores.items()}
            where = "one lane" if lanes == 1 else "a lane each"
            tables.append(growth(f"waiters in {where}", sizes, operations, 10 if quick else 60, bound))
    first, second = tables
    rows = [[f"{row[0]} in one lane", *row[1:]] for row in first.rows]
    rows += [[f"{row[0]}, a lane each", *row[1:]] for row in second.rows]
    return Table(
        "SQLite, waiters", first.columns, rows, "An operation is a release, the taking of the call, and a new ticket."
    )


def turn(store: "Store", size: int, lanes: int) -> Callable[[], object]:
    policy = Policy(
        "bench", [Concurrency(1, lease="24h", name="slots"), Bucket(ENOUGH, per="1s", slack=0, name="org", by="org")]
    )
    called: deque[str] = deque()
    plans: dict[str, Plan] = {}
    numbers = count()

    def stand() -> None:
        number = next(numbers)
        ticket = f"ticket-{number}"
        plans[ticket] = plan = policy.plan(1, {"org": f"org-{number % min(lanes, size)}"})
        store.listen(ticket, lambda delay: called.append(ticket) if delay is None else None)
        reply = store.decide(Stand(plan, ticket, None, plan.lease, waits=True, session=store.session))
        if number:
            assert isinstance(reply, Wait), reply
        else:
            called.append(ticket)

    def release(ticket: str) -> None:
        plan = plans.pop(ticket)
        at = granted(store.decide(Stand(plan, ticket, None, plan.lease, waits=True, session=store.session))).at
        store.unlisten(ticket)
        store.decide(Settle(plan, at, ticket, "ok", False))

    first = policy.plan(1, {"org": "first"})
    at = granted(store.decide(Admit(first, "first", None, first.lease))).at
    next(numbers)
    for _ in range(size):
        stand()
    store.decide(Settle(first, at, "first", "ok", False))

    def operation() -> None:
        release(called.popleft())
        stand()

    return operation

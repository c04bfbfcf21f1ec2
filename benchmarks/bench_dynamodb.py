"""The DynamoDB store on a real server: against a bare write, with many callers in one process, and what a permit costs.

The server is an emulator on this machine, so its latency is not AWS's. Its counts are: requests, and the capacity units
that its answers tell.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from heapq import heappop, heappush
from itertools import count
from statistics import quantiles

from benchmarks.measure import Table
from headgate import Concurrency, Gate, Permit, Window
from headgate.kernel.limits import Limit
from headgate.stores.dynamodb import DynamoStore
from headgate.testing import FakeClock
from tests.support.dynamo_servers import CREDENTIALS, Server, client, make_table, serving

#: Dollars per million request units on demand (us-east-1, standard table class): writes and reads.
WRITE_PRICE, READ_PRICE = 0.625, 0.125

READS, WRITES = ("get_item",), ("put_item", "update_item")

_tables = count()


def run(quick: bool) -> list[Table]:
    os.environ.update(CREDENTIALS)
    with serving() as server:
        return [callers(server, quick), operations(server, quick), waits(server, quick), costs(server, quick)]


@contextmanager
def opened(server: Server, processes: int = 1, clock: FakeClock | None = None) -> Iterator[list[DynamoStore]]:
    """Stores on a table of their own, each as another process would have it."""
    name = f"bench-{next(_tables)}"
    make_table(server.endpoint, name)
    stores = [
        DynamoStore(name, endpoint=server.endpoint, timeout=30, spread=0.5, clock=clock) for _ in range(processes)
    ]
    try:
        yield stores
    finally:
        for store in stores:
            store.close()


# --- throughput -------------------------------------------------------------------------------------------------------


def per_second(work: Callable[[], object], threads: int, seconds: float) -> float:
    done = [0] * threads
    end = time.perf_counter() + seconds

    def go(number: int) -> None:
        while time.perf_counter() < end:
            work()
            done[number] += 1

    running = [threading.Thread(target=go, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return sum(done) / seconds


def callers(server: Server, quick: bool) -> Table:
    """Decisions per second of one process, next to bare conditional writes of a small item through the same driver."""
    seconds = 1.5 if quick else 3.0
    rows = []
    make_table(server.endpoint, "bare")
    driver = client(server.endpoint)
    numbers = count()

    def write() -> None:
        driver.put_item(TableName="bare", Item={"counter_id": {"S": "x"}, "n": {"N": str(next(numbers))}})

    floor = per_second(write, 1, seconds)
    rows.append(["bare PutItem, one caller", f"{floor:,.0f}", "1.00", ""])
    for threads in (1, 16, 64):
        with opened(server) as [store]:
            gate = Gate("bench", [Window(10**9, per="1s", name="w")], store=store)
            for _ in range(4):
                gate.acquire()
            store.table.requests.clear()
            rate = per_second(gate.acquire, threads, seconds)
            writes = store.table.requests["put_item"]
            share = rate * seconds / max(1, writes)
            rows.append([f"permits, {threads} threads", f"{rate:,.0f}", f"{rate / floor:.2f}", f"{share:.1f}"])
    return Table(
        "DynamoDB, callers of one process",
        ["", "per second", "× bare", "permits per write"],
        rows,
        "Every id is remembered for a minute, so a gate that grants thousands a second outgrows its item: take Redis then.",
    )


# --- one operation ----------------------------------------------------------------------------------------------------


def requests_of(stores: list[DynamoStore]) -> Counter[str]:
    return sum((store.table.requests for store in stores), Counter())


def operations(server: Server, quick: bool) -> Table:
    """What one operation requests of DynamoDB, and how long it takes when nothing else goes on."""
    times = 100 if quick else 400
    limits: list[Limit] = [Window(10_000, per="1m", name="rpm"), Concurrency(5_000, name="in_flight", lease="2m")]
    rows = []
    for title, processes in (("alone", 1), ("two processes that take turns", 2)):
        with opened(server, processes) as stores:
            gates = [Gate("bench", limits, store=store) for store in stores]
            for gate in gates:
                for _ in range(4):
                    gate.acquire(renew=False).release()
            permits: list[Permit] = []
            take = [partial(taken, gates[number % processes], permits) for number in range(times)]
            rows.append(timed(f"acquire, {title}", stores, take))
            rows.append(timed(f"release, {title}", stores, [permit.release for permit in permits]))
            if processes == 1:
                rows += [timed("a look (`usage`)", stores, [gates[0].usage] * times), *bare(stores, times)]
    return Table(
        "DynamoDB, one call",
        ["", "reads", "writes", "p50 ms", "p99 ms"],
        rows,
        "The server is on this machine: add what AWS takes for each read and write, some milliseconds.",
    )


def taken(gate: Gate, permits: list[Permit]) -> None:
    permits.append(gate.acquire(renew=False))


def bare(stores: list[DynamoStore], times: int) -> list[list[str]]:
    """A refusal, and what the driver takes to read and write the same item."""
    full = Gate("full", [Window(1, per="1h")], store=stores[0])
    full.acquire()
    table = stores[0].table
    item = {**(table.get("headgate:bench") or {}), table.key: {"S": "bare"}}
    write = partial(table.request, "put_item", TableName=table.name, Item=item)
    return [
        timed("refused at once", stores, [full.try_acquire] * times),
        timed("a bare read of that item", stores, [partial(table.get, "headgate:bench")] * times),
        timed("a bare write of that item", stores, [write] * times),
    ]


def timed(title: str, stores: list[DynamoStore], works: Sequence[Callable[[], object]]) -> list[str]:
    before = requests_of(stores)
    took = []
    for work in works:
        began = time.perf_counter()
        work()
        took.append((time.perf_counter() - began) * 1000)
    asked = requests_of(stores) - before
    cuts = quantiles(took, n=100)
    reads, writes = asked["get_item"] / len(works), asked["put_item"] / len(works)
    return [title, f"{reads:.2f}", f"{writes:.2f}", f"{cuts[49]:.1f}", f"{cuts[98]:.1f}"]


# --- waiting ----------------------------------------------------------------------------------------------------------


def waits(server: Server, quick: bool) -> Table:
    """What a fleet requests of DynamoDB while it waits for a window, and when its time comes."""
    per = 10.0 if quick else 20.0
    rows = [waiting(server, processes, threads, per) for processes, threads in ((4, 25), (8, 1), (20, 1))]
    return Table(
        "DynamoDB, what waiting costs",
        ["", "waited, s", "reads meanwhile", "writes meanwhile", "reads to go", "writes to go", "went within, s"],
        rows,
        "Requests of the whole fleet, from when all wait until the first goes, and from then until all have gone.",
    )


def waiting(server: Server, processes: int, threads: int, per: float) -> list[str]:
    waiters = processes * threads
    limits: list[Limit] = [Window(waiters + 1, per=per, slack=0.1, name="w")]
    with opened(server, processes) as stores:
        gates = [Gate("bench", limits, store=store) for store in stores]
        gates[0].acquire(waiters + 1)
        went: list[float] = []
        before: list[Counter[str]] = []

        def wait(gate: Gate) -> None:
            gate.acquire()
            before.append(requests_of(stores))
            went.append(time.perf_counter())

        running = [threading.Thread(target=wait, args=(gate,)) for gate in gates for _ in range(threads)]
        for thread in running:
            thread.start()
        while gates[0].usage().waiting < waiters:
            time.sleep(0.05)
        began, at_first = time.perf_counter(), requests_of(stores)
        for thread in running:
            thread.join()
        meanwhile, going = before[0] - at_first, requests_of(stores) - before[0]
    return [
        f"{waiters} in {processes} processes",
        f"{min(went) - began:.1f}",
        *(str(sum(asked[kind] for kind in kinds)) for asked in (meanwhile, going) for kinds in (READS, WRITES)),
        f"{max(went) - min(went):.1f}",
    ]


# --- cost -------------------------------------------------------------------------------------------------------------


def costs(server: Server, quick: bool) -> Table:
    permits = 300 if quick else 600
    s0: list[Limit] = [Window(190, per="1m", name="rpm"), Concurrency(150, name="in_flight", lease="2m")]
    orgs: list[Limit] = [Concurrency(20, name="org", by="org", lease="2m"), Concurrency(100, name="global", lease="2m")]
    rows = [
        cost(server, "S0: 190 a minute, 150 in flight, one process", s0, 1, permits, 190 / 60, 0),
        cost(server, "the same, 20 processes that take turns", s0, 20, permits, 190 / 60, 0),
        cost(server, "a window alone, 190 a minute, one process", s0[:1], 1, permits, 190 / 60, 0),
        cost(server, "slots by org (30 orgs) and in all, 5 a second", orgs, 4, permits, 5.0, 30),
    ]
    return Table(
        "DynamoDB, what a permit costs",
        ["", "writes", "reads", "write units", "read units", "item, bytes", "$ per million"],
        rows,
        f"Per permit that is acquired and released after 5 to 40 s, without waiting, counted by the server. On demand at "
        f"${WRITE_PRICE} and ${READ_PRICE} per million write and read units. Asks that come together share a write.",
    )


def cost(
    server: Server, title: str, limits: list[Limit], processes: int, permits: int, rate: float, orgs: int
) -> list[str]:
    """Permits at a steady rate under a clock of the benchmark's own, each released by the process that took it."""
    clock = FakeClock()
    chance = random.Random(1)
    with opened(server, processes, clock) as stores:
        gates = [Gate("bench", limits, store=store) for store in stores]
        due: list[tuple[int, int, Callable[[], object]]] = []
        served = -permits // 2  # until as much runs off as comes in
        while served < permits:
            if served == 0:
                for store in stores:
                    store.table.count_capacity = True
                    store.table.requests.clear()
            clock.advance(microseconds=int(chance.expovariate(rate) * 1e6))
            while due and due[0][0] <= clock.now:
                heappop(due)[2]()
            key = {"org": f"org-{chance.randrange(orgs)}"} if orgs else None
            permit = chance.choice(gates).try_acquire(key=key, renew=False)
            if permit is not None:
                served += 1
                heappush(due, (clock.now + int(chance.uniform(5, 40) * 1e6), id(permit), permit.release))
        asked = requests_of(stores)
        used: Counter[str] = sum((store.table.capacity for store in stores), Counter())
        item = client(server.endpoint).get_item(
            TableName=stores[0].table.name, Key={"counter_id": {"S": "headgate:bench"}}
        )["Item"]
    writes = asked["put_item"] + asked["transact_write_items"]
    reads = asked["get_item"] + asked["batch_get_item"]
    written = (used["put_item"] + used["transact_write_items"]) / permits
    read = (used["get_item"] + used["batch_get_item"]) / permits
    return [
        title,
        f"{writes / permits:.2f}",
        f"{reads / permits:.2f}",
        f"{written:.1f}",
        f"{read:.1f}",
        f"{len(item['s']['B']):,}",
        f"{written * WRITE_PRICE + read * READ_PRICE:.2f}",
    ]

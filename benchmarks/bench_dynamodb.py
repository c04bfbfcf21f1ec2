"""The DynamoDB store on a real server: against a bare write, with many callers in one process, and what a permit costs.

The server is an emulator on this machine, so its latency is not AWS's; what is counted is: requests, and the capacity units
that its answers tell.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count

from benchmarks.measure import Table
from headgate import Concurrency, Gate, Window
from headgate.limits import Limit
from headgate.stores.dynamodb import DynamoStore
from headgate.testing import FakeClock
from tests.dynamo_servers import CREDENTIALS, Server, client, make_table, serving

#: Dollars per million request units on demand (us-east-1, standard table class): writes and reads.
WRITE_PRICE, READ_PRICE = 0.625, 0.125

_tables = count()


def run(quick: bool) -> list[Table]:
    os.environ.update(CREDENTIALS)
    with serving() as server:
        return [callers(server, quick), costs(server, quick)]


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
    bare = client(server.endpoint)
    numbers = count()

    def write() -> None:
        bare.put_item(TableName="bare", Item={"counter_id": {"S": "x"}, "n": {"N": str(next(numbers))}})

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
        asked = sum((store.table.requests for store in stores), start=stores[0].table.requests.__class__())
        used = sum((store.table.capacity for store in stores), start=stores[0].table.capacity.__class__())
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

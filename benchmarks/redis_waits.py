"""How long asks of the Redis store take: those that can go, and those of waiters that are called."""

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import redis

from benchmarks.measure import Spread, Table
from benchmarks.redis_asks import BARE, PATIENT, bucket, opened, two_limits
from headgate import AsyncGate, Gate
from headgate.kernel.limits import Concurrency, Limit
from headgate.stores.redis import RedisStore
from tests.support.servers import Server


def percentiles(times: list[float]) -> list[str]:
    ordered = sorted(times)
    return [f"{1e6 * ordered[int(len(ordered) * share)]:,.0f}" for share in (0.5, 0.99)]


def latencies(server: Server, quick: bool) -> Table:
    """One ask after the other, uncontended and beside an event loop in another thread that asks as fast as it can."""
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
    """Ask another gate as fast as possible, on a store of its own, which the server takes for another process."""
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
    """A waiter: at each message it waits for the slot, and sends back the moment of the grant."""
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
    """Pin the server to a core of its own, as on a machine of its own, and everything started here to the others."""
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
    """From a release to the grant of the next waiter, which sleeps in another process, as in a fleet, or in this one."""
    rows = handed_over(server, quick, "")
    if hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1:
        with Server() as other, apart(other):
            rows = handed_over(other, quick, ", server apart") + rows
    note = (
        "An ask is one round trip. Server apart: it has a core of its own, as it has in a fleet. Otherwise all share the "
        "same: the server has to give way to the process that released before it can wake the waiter."
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

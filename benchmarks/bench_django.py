"""The Django app beside a faithful build of the system that it replaces, in one run on the same Redis."""

import threading
import time
from collections.abc import Callable
from uuid import uuid4

import redis

from benchmarks.measure import Table
from benchmarks.seed_tenants import SeedLimiter
from headgate import Concurrency
from headgate.contrib.django import LimitReached, Tenants, release, slot
from headgate.contrib.django.conf import Conf
from headgate.events import switch_on
from tests.support.servers import Server

#: Takes a slot of an organisation under an id; whether it was had.
Take = Callable[[str, str], bool]
End = Callable[[str, str], object]

CALLERS, ORGANIZATIONS = 50, 5

#: Requests a second of all callers together, where both designs keep up.
PACE = 250


def run(quick: bool) -> list[Table]:
    switch_on()  # refusals are measured here, not told
    with Server() as server:
        return [
            round_trips(server),
            latencies(server, quick),
            paced(server, quick),
            locked_out(server, quick),
            memory(server),
        ]


def ours(server: Server, limit: int, total: int) -> tuple[Take, End]:
    limits = (
        Concurrency(limit, name="org", by="org", lease="10m"),
        Concurrency(total, name="global", lease="10m"),
    )
    owner = Tenants(Conf(gate=f"tenants-{uuid4().hex[:8]}", limits=limits, store=server.url))

    def take(org: str, id: str) -> bool:
        try:
            slot(org, id, tenants=owner).take()
            return True
        except LimitReached:
            return False

    return take, lambda org, id: release(id, tenants=owner)


def theirs(server: Server, limit: int, total: int, blocking: float = 5.0) -> tuple[Take, End]:
    limiter = SeedLimiter(redis.Redis(port=server.port, max_connections=CALLERS * 2), limit, total, blocking)
    return lambda org, id: limiter.check_and_acquire(org, id)[0], limiter.release_slot


def reads(server: Server) -> int:
    """How often the server read from a client: once per round trip, where one waits for its answer."""
    info = server.command("INFO", "stats").decode()
    return int(info.partition("total_reads_processed:")[2].split()[0])


def round_trips(server: Server) -> Table:
    """Counted by the server, which has seen each design before."""
    rows, amount = [], 100
    looking = -reads(server) + reads(server)  # what a look itself adds
    for name, (take, end) in (("seed", theirs(server, 1_000, 10_000)), ("headgate", ours(server, 1_000, 10_000))):
        ids = [uuid4().hex for _ in range(amount)]
        take("warm", "warm")
        end("warm", "warm")
        begun = reads(server)
        for id in ids:
            assert take("acme", id)
        taken = reads(server)
        for id in ids:
            end("acme", id)
        ended = reads(server)
        rows.append([name, f"{(taken - begun - looking) / amount:.2f}", f"{(ended - taken - looking) / amount:.2f}"])
    return Table(
        "Tenants in Django: round trips per request",
        ["", "to take", "to release"],
        rows,
        "Counted by the server (total_reads_processed) over 100 requests, one after the other. A refusal costs ours "
        "a second one, for its words.",
    )


def latencies(server: Server, quick: bool) -> Table:
    """Fifty callers at once, of five organisations with room for all."""
    each = 20 if quick else 200
    rows = []
    for name, (take, end) in (("seed", theirs(server, 1_000, 10_000)), ("headgate", ours(server, 1_000, 10_000))):
        took: list[float] = []
        together = threading.Barrier(CALLERS)

        def call(
            number: int,
            take: Take = take,
            end: End = end,
            took: list[float] = took,
            together: threading.Barrier = together,
        ) -> None:
            org = f"org-{number % ORGANIZATIONS}"
            take(org, f"warm-{number}")
            end(org, f"warm-{number}")
            together.wait()
            for _ in range(each):
                id = uuid4().hex
                begun = time.perf_counter()
                take(org, id)
                end(org, id)
                took.append(time.perf_counter() - begun)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rate = len(took) / (time.perf_counter() - begun)
        took.sort()
        shown = [sum(took) / len(took), *(took[int(len(took) * share)] for share in (0.5, 0.99))]
        rows.append([name, *(f"{1000 * seconds:,.1f}" for seconds in shown), f"{rate:,.0f}"])
    return Table(
        "Tenants in Django: added latency per request, ms",
        ["", "mean", "p50", "p99", "requests a second"],
        rows,
        f"Taking and releasing one slot, {CALLERS} threads of one process at once, {ORGANIZATIONS} organisations. A "
        "thread that misses the seed's lock sleeps for 100 ms, so most requests are those of the few that are awake.",
    )


def paced(server: Server, quick: bool) -> Table:
    """Fifty callers that come by a timetable, at a rate at which neither design falls behind."""
    each = 5 if quick else 40
    rows = []
    for name, (take, end) in (("seed", theirs(server, 1_000, 10_000)), ("headgate", ours(server, 1_000, 10_000))):
        took: list[float] = []
        begin = time.perf_counter() + 1.0

        def call(
            number: int, take: Take = take, end: End = end, took: list[float] = took, begin: float = begin
        ) -> None:
            org = f"org-{number % ORGANIZATIONS}"
            take(org, f"warm-{number}")
            end(org, f"warm-{number}")
            for turn in range(each):
                # Five come at the same moment, one of each organisation.
                due = begin + (turn * CALLERS + number - number % ORGANIZATIONS) / PACE
                time.sleep(max(0.0, due - time.perf_counter()))
                id = uuid4().hex
                begun = time.perf_counter()
                take(org, id)
                end(org, id)
                took.append(time.perf_counter() - begun)

        threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took.sort()
        shown = [sum(took) / len(took), *(took[int(len(took) * share)] for share in (0.5, 0.99))]
        rows.append([name, *(f"{1000 * seconds:,.1f}" for seconds in shown)])
    return Table(
        f"Tenants in Django: added latency per request at {PACE} requests a second, ms",
        ["", "mean", "p50", "p99"],
        rows,
        f"The same {CALLERS} threads, each by a timetable, five at the same moment: what a request pays where the process "
        "is not saturated.",
    )


def locked_out(server: Server, quick: bool) -> Table:
    """The lock of an organisation is held by somebody who hangs, for longer than others wait for it."""
    blocking, limit, asks = 0.5 if quick else 5.0, 5, 20
    rows = []
    for name, (take, _) in (("seed", theirs(server, limit, 100, blocking)), ("headgate", ours(server, limit, 100))):
        server.command("FLUSHALL")
        server.command("SET", "lock:rate_limit:org:acme", "somebody", "PX", int(blocking * 3000))
        admitted: list[bool] = []
        threads = [
            threading.Thread(target=lambda take=take, admitted=admitted: admitted.append(take("acme", uuid4().hex)))
            for _ in range(asks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        rows.append([name, str(sum(admitted)), str(limit)])
    return Table(
        "Tenants in Django: admitted while the organisation's lock is not to be had",
        ["", f"admitted of {asks}", "limit"],
        rows,
        "The seed's lock is held by a process that hangs, and each request passes uncounted after its blocking timeout. "
        "Headgate has no lock.",
    )


def memory(server: Server) -> Table:
    """All keys of 1,000 live runs of ten organisations."""
    rows = []
    for name, make in (("seed", theirs), ("headgate", ours)):
        server.command("FLUSHALL")
        take, _ = make(server, 1_000, 10_000)
        for number in range(1_000):
            assert take(f"org_{number % 10:016d}", str(uuid4()))
        keys = server.command("KEYS", "*")
        size = sum(server.command("MEMORY", "USAGE", key.decode(), "SAMPLES", 0) for key in keys)
        rows.append([name, f"{size / 1024:,.0f}", f"{size / 1000:,.0f}"])
    return Table(
        "Tenants in Django: memory of 1,000 live runs",
        ["", "KB", "bytes per run"],
        rows,
        "MEMORY USAGE of all keys. The seed's own figure is 100 KB. Ours knows who holds what since when, and "
        "remembers ids, so that a retry is free.",
    )

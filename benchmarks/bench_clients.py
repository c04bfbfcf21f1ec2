"""Clients that take permits: what a transport costs beside the bare client; fleets by the upstream's books."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import httpx2

from benchmarks.measure import Table
from headgate import AsyncGate, Concurrency, Window
from headgate.clients.httpx import AsyncHttpxTransport
from headgate.clients.httpx2 import AsyncHttpx2Transport
from headgate.simulate import upstreams
from tests.support.servers import Server

AT_A_TIME = 64
PROCESSES = 3


def run(quick: bool) -> list[Table]:
    return [throughput(quick), cold_pool(quick), sdk_fleet(quick)]


def throughput(quick: bool) -> Table:
    """The same GET through each client, 64 at a time, in turns."""
    requests, rounds = (300, 3) if quick else (1000, 5)
    costs: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        upstream = stack.enter_context(upstreams.start_process("window", ["requests=1000000000/1s,sliding"]))
        url = f"{upstream.url}/work"
        stores = {"memory": "memory://", "Redis": stack.enter_context(Server()).url + "?timeout=10s"}
        for _ in range(rounds):
            for library in (httpx, httpx2):
                name = library.__name__
                costs.setdefault(name, []).append(asyncio.run(timed(library, None, url, requests)))
                for store, where in stores.items():
                    title = f"{name}, transport on {store}"
                    costs.setdefault(title, []).append(asyncio.run(timed(library, where, url, requests)))
    rows = []
    for title, found in costs.items():
        bare = costs[title.partition(",")[0]]
        wall = median(theirs[0] / mine[0] for mine, theirs in zip(found, bare, strict=True))
        cpu = median(theirs[1] / mine[1] for mine, theirs in zip(found, bare, strict=True))
        on_a_core = median(mine[1] for mine in found)
        rows.append([title, f"{1 / on_a_core:,.0f}", f"{cpu:.2f}", f"{wall:.2f}"])
    note = (
        f"{requests:,} requests, {AT_A_TIME} at a time, {rounds} rounds in turns; a window and slots that never bind. On "
        f"one core: by the processor time that the client's process took, so that other programs do not count."
    )
    columns = ["", "requests/s on one core", "of the bare client", "of it by the wall clock"]
    return Table("Clients: requests a second against the bare client", columns, rows, note)


async def timed(library: Any, store: str | None, url: str, requests: int) -> tuple[float, float]:
    """Seconds for a request, by the wall clock and of the processor."""
    gate = None
    options: dict[str, Any] = {"limits": library.Limits(max_connections=1000, max_keepalive_connections=100)}
    if store is not None:
        gate = AsyncGate("bench", [Window(10**9, per="1s", name="rpm"), Concurrency(10**6)], store=store)
        kind = AsyncHttpxTransport if library is httpx else AsyncHttpx2Transport
        options = {"transport": kind(gate)}
    async with library.AsyncClient(timeout=60, **options) as client:
        await asyncio.gather(*(client.get(url) for _ in range(AT_A_TIME)))  # the pool is warm
        left = iter(range(requests))

        async def call() -> None:
            for _ in left:
                assert (await client.get(url)).status_code == 200

        begun, before = time.perf_counter(), time.process_time()
        await asyncio.gather(*(call() for _ in range(AT_A_TIME)))
        took, worked = time.perf_counter() - begun, time.process_time() - before
    if gate is not None:
        await gate.aclose()
    return took / requests, worked / requests


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """So many processes that do nothing but use a processor."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def fleet(jobs: list[dict[str, Any]]) -> list[dict[str, int]]:
    command = [sys.executable, "-m", "benchmarks.client_worker"]
    working = [subprocess.Popen([*command, json.dumps(job)], stdout=subprocess.PIPE, text=True) for job in jobs]
    done = []
    for process in working:
        said, _ = process.communicate(timeout=600)
        assert process.returncode == 0, said
        done.append(json.loads(said))
    return done


def cold_pool(quick: bool) -> Table:
    """Real calls on pools that were never used, while both cores are busy with something else."""
    calls, limit, per = (120, 40, 4) if quick else (500, 40, 4)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        upstream = stack.enter_context(upstreams.start_process("window", [f"requests={limit}/{per}s,sliding"]))
        stack.enter_context(busy_cores(2))
        job = {"kind": "cold", "url": upstream.url, "limit": limit, "per": per, "tasks": 20}
        store = f"sqlite:///{Path(folder) / 'gate.db'}"
        shares = [calls // PROCESSES + (number < calls % PROCESSES) for number in range(PROCESSES)]
        fleet([{**job, "store": store, "calls": share} for share in shares])
        books = upstream.books()
    row = [f"{calls} calls", str(books["accepted"]), str(books["refused"]), f"{100 * books['utilisation']:.1f} %"]
    note = (
        f"{PROCESSES} processes, 20 tasks each, {limit} in any {per} s by the upstream's own books, default slack, gate on "
        f"SQLite; two more processes spin on the two cores."
    )
    return Table("Clients: a cold pool on a busy machine", ["", "accepted", "refused", "utilisation"], [row], note)


def sdk_fleet(quick: bool) -> Table:
    """openai, anthropic and google-genai together, with requests and tokens, for scaled minutes."""
    per, seconds = 10, (20 if quick else 50)
    rows = []
    for binds, requests, tokens in (("requests", 100, 10**6), ("tokens", 10**6, 5_000)):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            policies = [f"requests={requests}/{per}s,sliding", f"tokens={tokens}/{per}s,sliding"]
            upstream = stack.enter_context(upstreams.start_process("llm", policies, delay=0.02))
            store = f"sqlite:///{Path(folder) / 'gate.db'}"
            job = {"kind": "sdks", "url": upstream.url, "store": store, "requests": requests, "tokens": tokens}
            fleet([{**job, "per": per, "tasks": 20, "seconds": seconds, "longest": 64}] * PROCESSES)
            books = upstream.books()
        used = f"{100 * books['utilisation']:.1f} %"
        rows.append(
            [f"{binds} bind", str(books["accepted"]), f"{books['units']['tokens']:,.0f}", str(books["refused"]), used]
        )
    note = (
        f"{PROCESSES} processes, 20 tasks each, a third of them on each SDK; a minute is {per} s long, {seconds} s in all; "
        f"100 requests, or 5,000 tokens, in any scaled minute by the upstream's own books; gate on SQLite."
    )
    title = "Clients: openai, anthropic and google-genai under one gate"
    return Table(title, ["", "accepted", "tokens", "refused", "utilisation of what binds"], rows, note)

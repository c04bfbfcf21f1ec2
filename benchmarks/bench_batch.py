"""Batch runs: what they cost beside a bare loop, and how other ways to make a batch of calls treat one upstream."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks.measure import Table
from headgate import AsyncGate, Concurrency, Window
from headgate.batch import AsyncAttempt, arun
from headgate.simulate.upstreams import start_process
from headgate.stores.memory import MemoryStore

AT_ONCE = 64

# The upstream of the comparison, and the calls that are made there.
LIMIT, PER_S, CALLS, CALLERS = 40, 2.0, 160, 16
IDEAL_S = (CALLS / LIMIT - 1) * PER_S


def run(quick: bool) -> list[Table]:
    return [no_op_calls(10_000 if quick else 100_000, 1 if quick else 3), on_one_upstream()]


# --- what a run costs ---------------------------------------------------------------------------------------------------


async def nothing(item: int) -> int:
    return item


async def gathered(number: int) -> None:
    """What most scripts do: a task for every item, and a semaphore."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(item: int) -> None:
        async with slots:
            await nothing(item)

    await asyncio.gather(*(one(item) for item in range(number)))


async def bounded(number: int) -> None:
    """The same with a task only where there is a slot, so that memory does not grow with the items."""
    slots = asyncio.Semaphore(AT_ONCE)
    tasks = set()

    async def one(item: int) -> None:
        try:
            await nothing(item)
        finally:
            slots.release()

    for item in range(number):
        await slots.acquire()
        task = asyncio.create_task(one(item))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)


async def batch(number: int, **options: Any) -> None:
    gate = AsyncGate("bench", [Concurrency(AT_ONCE)], store=MemoryStore())
    await arun(iter(range(number)), nothing, gate=gate, workers=AT_ONCE, **options)


async def journalled(number: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        await batch(number, journal=Path(folder, "run.db"))


def no_op_calls(number: int, rounds: int) -> Table:
    ways: dict[str, Callable[[int], Awaitable[None]]] = {
        "a task per item, asyncio.Semaphore": gathered,
        "a task per slot, asyncio.Semaphore": bounded,
        "headgate.batch": batch,
        "headgate.batch, a result per item": lambda number: batch(number, on_result=lambda result: None),
        "headgate.batch, with a journal": journalled,
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begun = perf_counter()
            asyncio.run(way(number))  # type: ignore[arg-type]
            took[name].append(perf_counter() - begun)
    names = list(ways)

    def against(name: str, other: str) -> str:
        return f"{median(theirs / ours for ours, theirs in zip(took[name], took[other], strict=True)):.2f}"

    rows = [
        [name, f"{number / median(took[name]):,.0f}", against(name, names[0]), against(name, names[1])]
        for name in names
    ]
    columns = ["", "calls/s", "of a task per item", "of a task per slot"]
    title = f"Batch: {number:,} async calls that do nothing, {AT_ONCE} at a time"
    return Table(title, columns, rows, "At least 0.8 of a bare semaphore loop is wanted, without a journal.")


# --- on one upstream ----------------------------------------------------------------------------------------------------


class TooMany(Exception):
    """The upstream refused."""


async def with_headgate(url: str) -> None:
    import httpx

    gate = AsyncGate("api", [Window(LIMIT, per=PER_S), Concurrency(CALLERS)], store=MemoryStore())
    async with httpx.AsyncClient() as client:

        async def call(item: int, attempt: AsyncAttempt) -> httpx.Response:
            async def trace(event: str, info: object) -> None:
                if event == "http11.send_request_headers.started":
                    await attempt.sent()  # with the connection behind it

            return await client.get(url, extensions={"trace": trace})

        await arun(range(CALLS), call, gate=gate)


async def with_aiometer(url: str) -> None:
    import aiometer
    import httpx

    async with httpx.AsyncClient() as client:
        await aiometer.run_on_each(
            lambda item: client.get(url), range(CALLS), max_at_once=CALLERS, max_per_second=LIMIT / PER_S
        )


def with_requests_ratelimiter(sqlite: bool) -> Callable[[str], Awaitable[None]]:
    """Its window of one second, with the limit's share of that: it has none of two seconds."""

    async def way(url: str) -> None:
        from pyrate_limiter import SQLiteBucket
        from requests_ratelimiter import LimiterSession

        folder = tempfile.mkdtemp()
        stored = {"bucket_class": SQLiteBucket, "bucket_kwargs": {"path": f"{folder}/limits.db"}} if sqlite else {}
        session = LimiterSession(per_second=LIMIT / PER_S, per_host=False, **stored)
        with ThreadPoolExecutor(CALLERS) as pool:
            await asyncio.to_thread(lambda: list(pool.map(lambda item: session.get(url), range(CALLS))))

    return way


async def with_tenacity(url: str) -> None:
    import httpx
    from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

    slots = asyncio.Semaphore(CALLERS)
    async with httpx.AsyncClient() as client:

        async def once(item: int) -> None:
            async with slots:
                if (await client.get(url)).status_code == 429:
                    raise TooMany

        one = retry(
            wait=wait_random_exponential(multiplier=PER_S / 60, max=PER_S),
            stop=stop_after_attempt(30),
            retry=retry_if_exception_type(TooMany),
        )(once)
        await asyncio.gather(*(one(item) for item in range(CALLS)))


async def with_genai(url: str) -> None:
    from google import genai
    from google.genai import types

    retries = types.HttpRetryOptions(attempts=10, initial_delay=PER_S / 60, max_delay=PER_S, http_status_codes=[429])
    client = genai.Client(api_key="none", http_options=types.HttpOptions(base_url=url, retry_options=retries))
    slots = asyncio.Semaphore(CALLERS)

    async def one(item: int) -> None:
        async with slots:
            await client.aio.models.generate_content(model="gemini", contents="x")

    await asyncio.gather(*(one(item) for item in range(CALLS)))
    await client.aio.aclose()


async def with_the_cookbook(url: str) -> None:
    """OpenAI's api_request_parallel_processor.py: a bucket that is full at the start, and 15 s of rest after a refusal."""
    import httpx

    capacity, updated, rested_at = float(LIMIT), perf_counter(), -1e9
    waiting: list[int] = list(range(CALLS))
    tasks: set[asyncio.Task[None]] = set()
    rest_s = 15.0 / 60 * PER_S
    async with httpx.AsyncClient() as client:

        async def one(item: int) -> None:
            nonlocal rested_at
            if (await client.get(url)).status_code == 429:
                rested_at = perf_counter()
                waiting.append(item)

        while waiting or tasks:
            now = perf_counter()
            capacity = min(capacity + LIMIT * (now - updated) / PER_S, LIMIT)
            updated = now
            if waiting and capacity >= 1:
                capacity -= 1
                task = asyncio.create_task(one(waiting.pop(0)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            await asyncio.sleep(0.001)
            if (left := rest_s - (perf_counter() - rested_at)) > 0:
                await asyncio.sleep(left)


def on_one_upstream() -> Table:
    ways: dict[str, Callable[[str], Awaitable[None]]] = {
        "headgate.batch": with_headgate,
        "aiometer": with_aiometer,
        "requests-ratelimiter, memory": with_requests_ratelimiter(False),
        "requests-ratelimiter, SQLite": with_requests_ratelimiter(True),
        "tenacity + semaphore": with_tenacity,
        "google-genai's retries + semaphore": with_genai,
        "OpenAI cookbook": with_the_cookbook,
    }
    rows = []
    for name, way in ways.items():
        with start_process("window", policies=[f"requests={LIMIT}/{PER_S:g}s"]) as upstream:
            try:
                asyncio.run(way(f"{upstream.url}/work"))  # type: ignore[arg-type]
                ended = ""
            except Exception as error:  # a way that gives up is a result, too
                ended = f"gave up: {type(error).__name__}"
            books = upstream.books()
        done, refused, took = books["accepted"], books["refused"], books["seconds"]
        rows.append([name, f"{done} of {CALLS}", str(refused), f"{took:.1f}", f"{books['utilisation']:.0%}", ended])
    title = f"Batch: {CALLS} calls to an upstream that allows {LIMIT} in any {PER_S:g} s, {CALLERS} at a time"
    note = (
        f"By the upstream's books. The makespan is from the first to the last acceptance, at the least {IDEAL_S:g} s."
    )
    return Table(title, ["", "done", "429s", "makespan, s", "utilisation", ""], rows, note)

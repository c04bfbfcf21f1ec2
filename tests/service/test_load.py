"""Ten thousand who wait at one guard: in bounded memory, in their order, and with a flood behind them refused at once."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import time
from pathlib import Path

import pytest

from tests.support.guard_client import LOOPBACK, Client
from tests.support.guards import GuardProcess

WAITERS = 10_000
#: Bytes of the guard's memory that one waiting client may cost, its connection included.
EACH = 40_000

CONFIG = """\
store = "STORE"

[serve]
max_wait = "10m"
max_waiters = WAITERS

[gates.slots]
limits = [{ concurrency = 1, name = "slots", lease = "10m" }]

[gates.free]
limits = [{ bucket = 100000, per = "1s", name = "rate" }]
"""


def memory_of(guard: GuardProcess) -> int:
    """Bytes that the process has in memory."""
    assert guard.process is not None
    text = Path(f"/proc/{guard.process.pid}/status").read_text(encoding="ascii")
    return int(text.partition("VmRSS:")[2].split()[0]) * 1024


def request(path: str, body: object) -> bytes:
    sent = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent


async def answered(reader: asyncio.StreamReader) -> tuple[int, dict[str, object]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
    return int(head.split()[1]), json.loads(await reader.readexactly(length))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("store", ["memory://", "sqlite:///gates.db"])
def test_ten_thousand_waiters_are_held_in_bounded_memory_and_a_flood_behind_them_is_refused_at_once(
    tmp_path: Path, store: str
) -> None:
    crowded_run(tmp_path, store)


@pytest.mark.soak  # figures of a machine that has nothing else to do
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("store", ["memory://", "sqlite:///gates.db"])
def test_ten_thousand_waiters_hold_nobody_up(tmp_path: Path, store: str) -> None:
    took = crowded_run(tmp_path, store)
    assert took["the flood was refused"] < 10
    assert took["one who need not wait was served"] < 2
    assert took["all had left"] < 20, "they leave together, not one by one"


def crowded_run(tmp_path: Path, store: str) -> dict[str, float]:
    """Ten thousand wait, some are served, all leave. How many seconds parts of it took."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the guard inherits it
    waiters = WAITERS if most == resource.RLIM_INFINITY else min(WAITERS, (most - 500) // 200 * 200)
    if waiters < WAITERS and os.environ.get("CI"):
        pytest.fail(f"{WAITERS} clients need {WAITERS + 500} open files, and {most} are allowed: raise `ulimit -Hn`")
    guard = GuardProcess(tmp_path, CONFIG.replace("STORE", store).replace("WAITERS", str(waiters)))
    try:
        client = Client(guard.port)
        held = str(client.acquire("slots").json["id"])
        client.acquire("slots", wait=0.01)
        before = memory_of(guard)
        return asyncio.run(_crowd(guard, client, held, before, waiters))
    finally:
        guard.kill()


async def _crowd(guard: GuardProcess, client: Client, held: str, before: int, waiters: int) -> dict[str, float]:
    took: dict[str, float] = {}
    connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    ask = request("/v1/gates/slots/acquire", {"wait": 500})
    for number in range(0, waiters, 200):
        connections += await asyncio.gather(*(asyncio.open_connection(LOOPBACK, guard.port) for _ in range(200)))
        for _, writer in connections[number:]:
            writer.write(ask)
    while (there := await asyncio.to_thread(client.waiting, "slots")) < waiters:
        assert there <= waiters
        await asyncio.sleep(0.1)
    grown = memory_of(guard) - before
    assert grown < waiters * EACH, f"{grown / waiters:.0f} bytes each"

    # The flood: as many again, all at once. None of them waits, and those who need not wait are served all the while.
    begun = time.monotonic()
    refused = await asyncio.gather(*(_refused(guard) for _ in range(200)))
    assert refused == [429] * 200
    took["the flood was refused"] = time.monotonic() - begun
    begun = time.monotonic()
    assert (await asyncio.to_thread(client.acquire, "free")).status == 200
    took["one who need not wait was served"] = time.monotonic() - begun
    assert memory_of(guard) - before < waiters * EACH

    # Those inside are served, each by the release of the one before.
    first = [asyncio.create_task(answered(reader)) for reader, _ in connections[:200]]
    for _ in range(50):
        await asyncio.to_thread(client.release, held)
        [done], first = await _next(first)
        status, permit = done.result()
        assert status == 200
        held = str(permit["id"])
    for task in first:
        task.cancel()

    # All hang up: they leave together, not one by one, and the line is empty again.
    begun = time.monotonic()
    for _, writer in connections:
        writer.transport.abort()
    while await asyncio.to_thread(client.waiting, "slots"):
        await asyncio.sleep(0.1)
    took["all had left"] = time.monotonic() - begun
    return took


async def _next(tasks: list[asyncio.Task[tuple[int, dict[str, object]]]]) -> tuple[list, list]:  # type: ignore[type-arg]
    done, left = await asyncio.wait(tasks, timeout=120, return_when=asyncio.FIRST_COMPLETED)
    return list(done), list(left)


async def _refused(guard: GuardProcess) -> int:
    reader, writer = await asyncio.open_connection(LOOPBACK, guard.port)
    writer.write(request("/v1/gates/slots/acquire", {"wait": 500}))
    status, problem = await answered(reader)
    assert str(problem["type"]).endswith("too-many-waiters")
    writer.close()
    return status

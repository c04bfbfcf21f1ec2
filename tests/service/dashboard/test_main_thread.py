"""What the dashboard takes of the browser's main thread at 40 gates, 500 keys and 2,000 waiters."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncGate, Denied, load
from tests.support import ROOT
from tests.support.browser import running
from tests.support.dashboard import SOON, expect

GATES, KEYS, WAITERS, SLOTS = 40, 500, 2000, 300
#: Milliseconds of the main thread that a second of updates may take.
AT_MOST = 200
SECONDS = 15

CONFIG = "store = 'sqlite:///gates.db'\n" + "".join(
    f"[gates.gate-{number:02d}]\nlimits = [{{ concurrency = 4, name = 'slots', lease = '1h' }}, "
    f"{{ window = 600, per = '1m', name = 'rpm' }}]\n"
    for number in range(GATES)
)
CONFIG += (
    f"[gates.api]\nlimits = [{{ window = 1000, per = '1h', name = 'hourly', by = 'org' }}, "
    f"{{ concurrency = {SLOTS}, name = 'slots', lease = '1h' }}]\n"
)


async def waits(gate: AsyncGate, number: int, held: Any) -> None:
    with suppress(Denied):
        async with gate.acquire(key={"org": f"org-{number % KEYS}"}, holder=f"job {number}"):
            await held.wait()


async def goes(gate: AsyncGate, over: threading.Event) -> None:
    """Calls one after the other, so that every gate has something new in every second."""
    while not over.is_set():
        async with gate.acquire():
            await asyncio.sleep(0.2)


async def fleet(path: Path, over: threading.Event) -> None:
    held = asyncio.Event()
    with load(path) as gates:
        api = gates.async_gate("api")
        tasks = [asyncio.create_task(waits(api, number, held)) for number in range(SLOTS + WAITERS)]
        tasks += [
            asyncio.create_task(goes(gates.async_gate(f"gate-{number:02d}"), over)) for number in range(0, GATES, 2)
        ]
        while not over.is_set():
            await asyncio.sleep(0.2)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def busy(path: Path) -> Iterator[None]:
    """A fleet on the same file as the guard, in a thread of its own."""
    over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(fleet(path, over)))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def main_thread(watching: Any) -> float:
    """Seconds of processor time that the page's main thread has used."""
    found = watching.send("Performance.getMetrics")["metrics"]
    return float(next(metric["value"] for metric in found if metric["name"] == "TaskDuration"))


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("hash", ["", "#gate=api", "#gate=api&key=org-7"], ids=["overview", "gate", "key"])
def test_updates_take_little_of_the_main_thread(tmp_path: Path, watched: Any, hash: str) -> None:
    with running(tmp_path, CONFIG) as guard, busy(tmp_path / "headgate.toml"):
        deadline = time.monotonic() + 300
        while guard.ask("GET", "/v1/gates/api")["waiting"] < WAITERS:
            assert time.monotonic() < deadline, "the fleet does not stand in line"
            time.sleep(1)
        page = watched().page
        page.goto(f"{guard.url}/{hash}")
        expect(page.locator("#state")).to_have_text("live", timeout=SOON)
        if "key" not in hash:
            expect(page.locator("body")).to_contain_text(f"{WAITERS:,} wait", timeout=SOON)
        watching = page.context.new_cdp_session(page)
        # By the thread's own clock: time in which another program had the processor does not count.
        watching.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.wait_for_timeout(3000)  # what the first sight of the page takes is over
        before, began = main_thread(watching), time.monotonic()
        page.wait_for_timeout(SECONDS * 1000)
        used = (main_thread(watching) - before) / (time.monotonic() - began) * 1000
        expect(page.locator("#state")).to_have_text("live", timeout=SOON)
        if hash == "#gate=api":
            target = ROOT / "docs" / "img" if os.environ.get("HEADGATE_SCREENSHOTS") else tmp_path
            page.set_viewport_size({"width": 1240, "height": 900})
            page.screenshot(path=target / "dashboard-waiters.png")
        sys.stderr.write(f"\n{hash or 'overview'}: {used:.0f} ms of the main thread a second\n")
        assert used < AT_MOST

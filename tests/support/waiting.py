"""What tests of faults wait for, and how long a gate may take to decide."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from headgate import StoreUnavailable

#: Seconds within which a decision is made while the store is away, with the time that a busy machine takes to say so.
DECIDED = 0.25 + 0.25


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that it took, without those for which this thread had no processor, and what came of it: an error too."""
    watch = Stopwatch("thread-self")
    try:
        answer = call()
    except Exception as error:
        answer = error
    return watch.seconds(), answer


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something that must come. The limit ends a test that fails, and judges nothing."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.003)


def stop(process: subprocess.Popen[Any]) -> None:
    """SIGSTOP, and wait until all of its threads stand still: one that still runs would answer."""
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


def says_so_in_time(gate: Any) -> None:
    """A closed gate whose store is away: each ask is told in time, and one of many tries the store."""
    for ask in (gate.acquire, gate.try_acquire):
        took, answer = timed(ask)
        assert isinstance(answer, StoreUnavailable)
        assert took < DECIDED
    took, answers = timed(lambda: [timed(gate.acquire)[1] for _ in range(100)])
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    assert took < 2, "a hundred calls, of which one in half a second tries the store"


def says_so_to_many(gate: Any) -> None:
    """The same for twenty threads at a time."""
    took: list[float] = []

    def ask() -> None:
        for _ in range(5):
            seconds, answer = timed(gate.acquire)
            assert isinstance(answer, StoreUnavailable)
            took.append(seconds)

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(took) == 100
    assert max(took) < 2 * DECIDED, "one attempt that others wait for, and one's own"


def starved(threads: str = "self/task") -> float:
    """Seconds for which threads were ready to run and had no processor: what a busy machine adds to a time.

    `self/task` is all threads of this process, `thread-self` the calling one. Linux counts them; elsewhere there is
    nothing to subtract.
    """
    waited = 0
    with suppress(OSError):
        places = (
            [threads] if threads == "thread-self" else [f"{threads}/{name}" for name in os.listdir(f"/proc/{threads}")]
        )
        for place in places:
            with suppress(OSError), open(f"/proc/{place}/schedstat") as counted:  # it may have ended
                waited += int(counted.read().split()[1])
    return waited / 1e9


class Stopwatch:
    """Seconds since it was made, without those for which the machine was busy with others."""

    def __init__(self, threads: str = "self/task") -> None:
        self._threads = threads
        self._begun, self._starved = time.monotonic(), starved(threads)

    def seconds(self) -> float:
        return time.monotonic() - self._begun - (starved(self._threads) - self._starved)


@asynccontextmanager
async def held_up() -> AsyncIterator[list[float]]:
    """For how long the running event loop did nothing else, each time that it looked: the largest is what counts."""
    seconds: list[float] = []

    async def look() -> None:
        while True:
            watch = Stopwatch()
            await asyncio.sleep(0.005)
            seconds.append(watch.seconds())

    looking = asyncio.create_task(look())
    try:
        yield seconds
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking

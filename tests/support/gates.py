"""What tests of gates need: an async gate used like the other kind, a clock set by hand, slots, threads that are joined."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
import time
from collections.abc import Callable
from typing import Any

from headgate import Concurrency, Gate

NAMES = itertools.count()


class Blocking:
    """An AsyncGate, or what it gives, used as if it were the other kind: every awaitable is run to its end."""

    def __init__(self, runner: asyncio.Runner, thing: Any) -> None:
        self._runner = runner
        self._thing = thing

    def _finish(self, value: Any) -> Any:
        async def finish() -> Any:
            return await value

        if inspect.isawaitable(value):
            value = self._runner.run(finish())
        return Blocking(self._runner, value) if type(value).__name__ in ("AsyncPermit", "AsyncPlace") else value

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        if name == "permit":
            return Blocking(self._runner, value)
        if not callable(value):
            return value
        return lambda *args, **kwargs: self._finish(value(*args, **kwargs))

    def __enter__(self) -> Any:
        return Blocking(self._runner, self._runner.run(self._thing.__aenter__()))

    def __exit__(self, *error: Any) -> None:
        self._runner.run(self._thing.__aexit__(*error))


class HandClock:
    """A clock that a test sets, in seconds. The core counts microseconds."""

    def __init__(self) -> None:
        self.us = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.us

    def forward(self, seconds: float) -> None:
        self.us += round(seconds * 1e6)


def slots(n: int, **more: Any) -> Concurrency:
    return Concurrency(n, name="slots", **more)


class Crowd:
    """Threads that are joined, and whose errors are the test's."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def start(self, target: Callable[..., None], *args: Any) -> threading.Thread:
        def run() -> None:
            try:
                target(*args)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def join(self, seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
            assert not thread.is_alive(), "a thread still waits"
        assert self.errors == []


def nothing_left(gate: Gate) -> None:
    assert gate.holders() == []
    assert gate.usage().waiting == 0
    permits = [gate.try_acquire() for _ in range(int(gate.usage()["slots"].limit))]
    assert all(permits), "a slot was lost"
    for permit in permits:
        assert permit is not None
        permit.release("unsent")

"""Threads for calls that block. They are daemons: a call that never ends does not keep the process from ending."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from queue import SimpleQueue

from ..background import start_daemon

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Job = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class Threads:
    """Runs functions in at most so many threads, which are started as they are needed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._started = 0
        self._idle = 0

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """What the function returns or raises. A cancelled caller does not stop a function that runs."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._jobs.put((future, function, args))
        if self._idle:
            self._idle -= 1
        elif self._started < self._most:
            self._started += 1
            start_daemon(f"headgate batch {self._started}", self._work)
        try:
            return await future
        finally:
            self._idle += 1

    def close(self) -> None:
        """Have every thread end after what it is doing."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function, args = job
            value, error = None, None
            try:
                value = function(*args)
            except BaseException as raised:  # it is the caller's, whatever it is
                error = raised
            del function, args, job
            with suppress(RuntimeError):  # the loop was closed: the run was stopped, and nobody waits
                self._loop.call_soon_threadsafe(_tell, future, value, error)
            del future, value, error


def _tell(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration):  # which a future does not take
        future.set_exception(RuntimeError("the call raised StopIteration"))
    else:
        future.set_exception(error)

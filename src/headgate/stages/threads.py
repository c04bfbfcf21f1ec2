"""Daemon threads that run functions for an event loop.

Not `ThreadPoolExecutor`: a handler that hangs must neither keep others from running nor the process from ending. A thread
that never comes back is left behind, and a new one takes its place.
"""

from __future__ import annotations

import asyncio
from queue import SimpleQueue

from ..background import start_daemon

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Call = tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[Any]]


class DaemonThreads:
    """As many threads as calls are under way; those that are idle are used again. To be used on one event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._idle: list[SimpleQueue[Call | None]] = []

    def run(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a function in a thread; the future has its result. To cancel the future does not end the function."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._idle:
            self._idle.pop().put((function, args, future))
        else:
            calls: SimpleQueue[Call | None] = SimpleQueue()
            calls.put((function, args, future))
            if start_daemon(self._name, self._work, calls) is None:
                future.set_exception(RuntimeError("the interpreter is ending: no thread can be started"))
        return future

    def _work(self, calls: SimpleQueue[Call | None]) -> None:
        while (call := calls.get()) is not None:
            function, args, future = call
            result, error = None, None
            try:
                result = function(*args)
            except BaseException as raised:  # SystemExit of a handler too: it ends the work, not the worker
                error = raised
            try:
                self._loop.call_soon_threadsafe(self._done, calls, future, result, error)
            except RuntimeError:
                return  # the loop has ended meanwhile
            del call, function, args, future, result, error

    def _done(
        self,
        calls: SimpleQueue[Call | None],
        future: asyncio.Future[Any],
        result: Any,
        error: BaseException | None,
    ) -> None:
        self._idle.append(calls)
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, Exception):
            future.set_exception(error)
        else:  # a future would raise it out of the event loop
            future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        """End the idle threads. The others end when their function returns and the loop is gone."""
        while self._idle:
            self._idle.pop().put(None)

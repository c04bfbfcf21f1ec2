"""`memory:`: queues in this process, gone with it. For tests, and for work that is made again when the process starts."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import replace

from ...clock import anchored_clock
from ...errors import InvalidInput
from .database import QueueDatabase, SqlQueue
from .rows import SCHEMA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...clock import Clock

_open: dict[str, MemoryQueues] = {}
_lock = threading.Lock()


class MemoryDatabase:
    """A SQL database in memory, with what queues need of a `DatabaseFile`. It runs the same statements."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.execute: Callable[..., Any] = self._connection.cursor().execute
        self.now: Clock = clock or anchored_clock()[0]
        for statement in SCHEMA:
            self.execute(statement)

    def begin_when_free(self) -> None:
        self.execute("BEGIN")

    def commit(self, rows: int) -> None:
        self.execute("COMMIT")

    def roll_back(self) -> None:
        if self._connection.in_transaction:
            self.execute("ROLLBACK")

    def close(self) -> None:
        self._connection.close()

    def __del__(self) -> None:
        self.close()


class MemoryQueues(QueueDatabase):
    """The queues of one name in this process. Closing one keeps what is in it: it is gone with the process."""

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        self._clock = clock
        super().__init__(url)

    def _open(self) -> MemoryDatabase:
        return MemoryDatabase(self._clock)

    def queue(self, name: str) -> SqlQueue:
        queue = super().queue(name)
        queue.semantics = replace(SqlQueue.semantics, durable=False)
        return queue

    def close(self) -> None:
        pass


def open_url(url: str, name: str) -> SqlQueue:
    """`memory:` or `memory://`; a name after it keeps the queues of one program apart: `memory://tests`."""
    place = url.removeprefix("memory:").removeprefix("//")
    if "?" in place or "/" in place:
        raise InvalidInput(f"{url!r}: write memory: or memory://NAME; queues in memory take no path and no options")
    with _lock:
        queues = _open.get(place)
        if queues is None:
            queues = _open[place] = MemoryQueues(url)
    return queues.queue(name)

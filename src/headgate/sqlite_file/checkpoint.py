"""Checkpoints a database: writes SQLite's log back into the file, in the background.

SQLite itself does it within a commit, which then waits for the disk: tens of milliseconds when many keys are in use, in
which an event loop would stand still. Here only a thread of its own waits.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import suppress
from time import monotonic
from urllib.parse import quote

from ..background import is_ending, start_daemon

#: Rows that this process writes between two checkpoints. A long log is slow to search for pages that change all the time.
EVERY = 1000
#: Pages of log from which on all writers wait a moment, so that it can begin anew: as long as they go on, it cannot. The
#: slower the disk, the longer it gets: so many pages for each millisecond that they would have to wait.
LONG = 1000
#: Pages that are checkpointed so quickly that writers can wait for it, and how many passes are made to come down to that.
SMALL, PASSES = 250, 4
#: The pause after a checkpoint, as a multiple of the time that it took: a slow disk is not kept busy with it alone.
REST = 1


class Checkpointer:
    """One daemon thread with a connection of its own, started when there is something to do."""

    def __init__(self, path: str, synchronous: str) -> None:
        self._path = path
        self._synchronous = synchronous
        self._rows = 0
        self._due = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def grown(self, rows: int) -> None:
        """So many rows were committed."""
        self._rows += rows
        if self._rows >= EVERY:
            self._rows = 0
            if self._thread is None:
                with suppress(RuntimeError):  # there can be no more threads
                    self._thread = start_daemon("headgate-checkpoint", self._run)
            self._due.set()

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        self._stop.set()
        self._due.set()
        if thread is not None and thread is not threading.current_thread() and not is_ending():
            thread.join()

    def abandon(self) -> None:
        """Forget the thread and its connection, which must not be closed.

        After a fork there is no such thread in the child; after a replacement of the file it waits for ever.
        """
        self._thread = None

    def _run(self) -> None:
        # An error here is not reported: the next commit meets the same one, and raises it to a caller.
        with suppress(sqlite3.Error):
            connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode=rw", uri=True, timeout=0.05, isolation_level=None
            )
            try:
                connection.execute(f"PRAGMA synchronous = {self._synchronous}")
                while self._due.wait() and not self._stop.is_set():
                    self._due.clear()
                    began = monotonic()
                    with suppress(sqlite3.OperationalError):
                        _checkpoint(connection)
                    self._stop.wait(min(REST * (monotonic() - began), 1.0))
            finally:
                connection.close()


def _checkpoint(connection: sqlite3.Connection) -> None:
    # The bulk while writers go on, and what they have written meanwhile, in ever smaller parts; then, if the log is long,
    # the rest while they wait.
    done = 0
    for _ in range(PASSES):
        before, began = done, monotonic()
        _, pages, done = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        took = monotonic() - began
        if pages - before < SMALL:
            break
    if pages >= LONG * max(1.0, 1000 * took):
        connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()

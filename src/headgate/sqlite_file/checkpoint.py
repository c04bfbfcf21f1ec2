"""Writes SQLite's log back into the database file, in the background.

SQLite itself does it within a commit, which then waits for the disk: tens of milliseconds when many keys are in use, in
which an event loop would stand still. Here nobody waits but a thread of its own.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import suppress
from time import monotonic
from urllib.parse import quote

#: After how many rows that this process has written. A long log is slow to search for pages that change all the time.
EVERY = 1000
#: Pages of log from which on all writers wait a moment, so that it can begin anew: as long as they go on, it cannot. The
#: slower the disk, the longer it gets: so many pages for each millisecond that they would have to wait.
LONG = 1000
#: Pages that are written back so quickly that others can wait for it, and how often it is tried to come down to that.
SMALL, PASSES = 250, 4
#: For at least so many times as long as it took, it is not done again: a slow disk is not kept busy with it alone.
REST = 1


class Checkpointer:
    """One daemon thread with a connection of its own, started when there is something to do."""

    def __init__(self, path: str, synchronous: str) -> None:
        self._path = path
        self._synchronous = synchronous
        self._rows = 0
        self._bell = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def grown(self, rows: int) -> None:
        """So many rows were committed."""
        self._rows += rows
        if self._rows >= EVERY:
            self._rows = 0
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="headgate-checkpoint", daemon=True)
                with suppress(RuntimeError):  # there can be no more threads, or the interpreter ends
                    thread.start()
                    self._thread = thread
            self._bell.set()

    def stop(self) -> None:
        thread, self._thread = self._thread, None
        self._stop.set()
        self._bell.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def abandon(self) -> None:
        """As `stop`, where its connection must not be closed; the thread is not there any more, or waits for ever."""
        self._thread = None

    def _run(self) -> None:
        # Whatever goes wrong here goes wrong for the next commit too, which tells it to somebody who can act.
        with suppress(sqlite3.Error):
            connection = sqlite3.connect(
                f"file:{quote(self._path)}?mode=rw", uri=True, timeout=0.05, isolation_level=None
            )
            try:
                connection.execute(f"PRAGMA synchronous = {self._synchronous}")
                while self._bell.wait() and not self._stop.is_set():
                    self._bell.clear()
                    began = monotonic()
                    with suppress(sqlite3.OperationalError):
                        _write_back(connection)
                    self._stop.wait(min(REST * (monotonic() - began), 1.0))
            finally:
                connection.close()


def _write_back(connection: sqlite3.Connection) -> None:
    # The bulk while others go on writing, and what they have written meanwhile, in ever smaller parts; then, if there is
    # need, the rest while they wait.
    done = 0
    for _ in range(PASSES):
        before, began = done, monotonic()
        _, pages, done = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        took = monotonic() - began
        if pages - before < SMALL:
            break
    if pages >= LONG * max(1.0, 1000 * took):
        connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()

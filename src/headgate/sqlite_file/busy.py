"""Waiting for a write lock that another process has: how long to pause, and when the other one counts as stuck.

Contention is no outage. As long as other processes commit, a caller waits for its turn. Where none commits, the process
that has the lock is looked at. One that uses a processor, waits for one, or waits for the disk is slow and is waited for.
One that is stopped or sleeps is stuck, and the file counts as unavailable until that is over.
"""

from __future__ import annotations

import os
import sqlite3
import time
from random import random

from ..errors import StoreUnavailable
from .explain import is_busy
from .holder import ON_DISK, RUNNING, LockHolder, find_holder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .file import DatabaseFile

#: Seconds for which a caller retries while no process commits, where the one that has the lock shows no sign of life or is
#: not to be seen. While that waits for the disk, or a checkpoint is running, the caller retries for longer.
PATIENCE, SLOW_DISK = 0.2, 1.0

#: Seconds of a processor after which a holder that has committed nothing is stuck: it does something else. A transaction
#: of a store needs a hundredth of that, and a garbage collection in its midst rarely so much.
TOO_BUSY = 1.0

#: Seconds after which no holder is waited for, also one that waits for a processor.
LONGEST = 10.0

#: Seconds between two looks; and the most that the time between two looks counts for. A caller that had no processor, or
#: whose event loop was busy, has not seen what the holder did meanwhile.
LOOK_EVERY, LOOK_COUNTS = 0.01, 0.05
#: Seconds without a look after which a wait begins anew.
FORGET = 1.0


def is_being_made(path: str, since: float) -> bool:
    """Whether another process that makes or upgrades a file has it locked and is getting on. `since`: monotonic seconds."""
    pid = find_holder(path)
    alive = pid is not None and pid != os.getpid() and LockHolder(pid).state() in (RUNNING, ON_DISK)
    return alive and time.monotonic() - since < LONGEST


class BusyRetry:
    """The wait of one process for the write lock. It ends, and is thrown away, when the process gets the lock."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._checked_at = time.monotonic()
        #: Seconds to sleep before the next attempt.
        self.pause_s = 0.0
        self._begin(self._version())

    def _begin(self, version: int) -> None:
        self._seen_version = version
        #: Seconds without a commit; and how many they were at the last sign of life of the holder.
        self._quiet_s = self._alive_s = 0.0
        self._holder: LockHolder | None = None

    def check(self) -> None:
        """Choose the next pause. Raises StoreUnavailable when the process that has the lock is stuck.

        The pause is random and short. SQLite's own busy handler sleeps ever longer, and so starves a caller that has
        waited for long.
        """
        self.pause_s = random() * 0.0002
        now = time.monotonic()
        since = now - self._checked_at
        if since <= LOOK_EVERY:
            return
        self._checked_at = now
        version = self._version()
        if version != self._seen_version or since > FORGET:
            self._begin(version)
            return
        self._quiet_s += min(since, LOOK_COUNTS)
        if self._quiet_s <= PATIENCE / 2:
            return
        state = self._look()
        if self._quiet_s > PATIENCE and not self._is_alive(state):
            holder = "somebody" if self._holder is None else f"process {self._holder.pid} ({state})"
            raise StoreUnavailable(
                f"{self._file.path}: {holder} has held the write lock for {PATIENCE * 1000:.0f} ms or longer and has "
                f"written nothing; end it if it hangs (a stopped worker, a shell with an open transaction)"
            )

    def _look(self) -> str:
        """What the process that has the lock is doing; empty where that cannot be known."""
        if self._holder is None:
            pid = find_holder(self._file.path)
            # This process runs, of course, whatever its other connection does: that is no sign of life.
            if pid is None or pid == os.getpid():
                return ""
            self._holder = LockHolder(pid)
        state = self._holder.state()
        if state == RUNNING or (state == ON_DISK and self._quiet_s <= SLOW_DISK):
            self._alive_s = self._quiet_s
        return state

    def _is_alive(self, state: str) -> bool:
        """Whether the holder is to be waited for; also where another process has become the holder."""
        if self._holder is None:
            return self._quiet_s <= SLOW_DISK and self._file.is_being_checkpointed()
        if self._quiet_s > LONGEST or self._holder.used_s() > TOO_BUSY:
            return False
        if self._quiet_s - self._alive_s <= PATIENCE / 2:
            return True
        if find_holder(self._file.path) == self._holder.pid:
            return False
        self._begin(self._seen_version)
        return True

    def _version(self) -> int:
        try:
            return self._file.version()
        except sqlite3.OperationalError as error:
            if is_busy(error):
                return -1
            raise

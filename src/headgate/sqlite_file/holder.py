"""Which process holds the write lock of a database, and whether it is getting on: by what Linux tells in /proc.

Elsewhere, and where the holder cannot be seen (it runs in another container), there is no such evidence.
"""

from __future__ import annotations

import os

#: The byte of the `-shm` file that SQLite locks for the connection that writes, in WAL mode.
_WRITE_LOCK = 120

#: How many threads of the holder are looked at. A thread that works is found sooner or later: one look is not the last.
_THREADS = 64

RUNNING, ON_DISK, STOPPED, ASLEEP = "running", "waiting for the disk", "stopped", "asleep"

_STATES = {b"R": RUNNING, b"D": ON_DISK, b"T": STOPPED, b"t": STOPPED}


def find_holder(path: str) -> int | None:
    """The process that has the write lock of the database at this path; None where that cannot be known.

    That is a byte of the `-shm` file in WAL mode, which a database is in once it is made, and before a lock on itself.
    It reads /proc/locks. To ask by fcntl, this process would have to open the file, and closing it again would drop the
    locks that SQLite has on it.
    """
    try:
        with open("/proc/locks", "rb") as file:
            lines = file.read().splitlines()
        itself, shared = (_inode(name) for name in (path, f"{path}-shm"))
    except OSError:
        return None
    for line in lines:
        # `1: POSIX  ADVISORY  WRITE 4711 fe:00:2146553 120 120`
        fields = line.split()
        if len(fields) != 8 or fields[3] != b"WRITE":
            continue
        inode = fields[5].rpartition(b":")[2]
        if inode == itself or (inode == shared and fields[6] == b"%d" % _WRITE_LOCK):
            return int(fields[4])
    return None


def _inode(path: str) -> bytes:
    try:
        return b"%d" % os.stat(path).st_ino
    except FileNotFoundError:
        return b""


class LockHolder:
    """Another process that has the write lock, as it is seen from here."""

    __slots__ = ("_folder", "_used_s", "pid")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._folder = f"/proc/{pid}"
        self._used_s = self._processor_s()

    def state(self) -> str:
        """RUNNING where one of its threads uses a processor or waits for one; else ON_DISK, STOPPED or ASLEEP.

        It cannot be known which of its threads has the lock; and one that waits for Python's interpreter lock sleeps, while
        the thread that has that runs.
        """
        found = ASLEEP
        try:
            for thread in os.listdir(f"{self._folder}/task")[:_THREADS]:
                state = _STATES.get(_stat(f"{self._folder}/task/{thread}")[0], ASLEEP)
                if state is RUNNING:
                    return state
                if state is not ASLEEP and found is not ON_DISK:
                    found = state
        except (OSError, IndexError):
            pass  # it, or a thread of it, ends at this moment
        return found

    def used_s(self) -> float:
        """Seconds of a processor that it has used since it was first seen here."""
        return self._processor_s() - self._used_s

    def _processor_s(self) -> float:
        try:
            fields = _stat(self._folder)
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, IndexError):
            return 0.0


def _stat(folder: str) -> list[bytes]:
    """The fields of a `stat` file from the state on: the name of the program before it may have blanks in it."""
    with open(f"{folder}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()

"""The floor: the least that a rate decision can cost in plain Python. Every ratio in the results is a ratio to it.

A lock, a dict, a clock and one GCRA step. No validation, no permit, no release, no second limit: what a user would
write by hand for one limit in one process. It is not slowed anywhere, and names are bound in closures because that is
how one would write it fast. Written once and left alone, so that results of different days can be compared.
"""

import sqlite3
import threading
from collections.abc import Awaitable, Callable
from time import monotonic_ns

# One unit per nanosecond with a second of burst: no benchmark runs into the limit, so that only grants are timed.
INTERVAL_NS = 1
TOLERANCE_NS = 1_000_000_000


def make_floor() -> Callable[[], bool]:
    """A rate limiter for one key, safe under threads: true is a grant."""
    lock = threading.Lock()
    arrivals: dict[str, int] = {}
    clock = monotonic_ns
    key = "bench"

    def take() -> bool:
        with lock:
            now = clock()
            arrival = arrivals.get(key, 0)
            if arrival < now:
                arrival = now
            if arrival - now > TOLERANCE_NS:
                return False
            arrivals[key] = arrival + INTERVAL_NS
            return True

    return take


def make_async_floor() -> Callable[[], Awaitable[bool]]:
    """A rate limiter for one event loop: no lock, because nothing is awaited between the read and the write."""
    arrivals: dict[str, int] = {}
    clock = monotonic_ns
    key = "bench"

    async def take() -> bool:
        now = clock()
        arrival = arrivals.get(key, 0)
        if arrival < now:
            arrival = now
        if arrival - now > TOLERANCE_NS:
            return False
        arrivals[key] = arrival + INTERVAL_NS
        return True

    return take


class SqliteFloor:
    """One decision on one row of a database file, in a transaction of its own; call it to take."""

    def __init__(self, path: str, synchronous: str) -> None:
        self._connection = sqlite3.connect(path, timeout=30, isolation_level=None, cached_statements=16)
        self._execute = self._connection.execute
        self._execute("PRAGMA journal_mode = WAL")
        self._execute(f"PRAGMA synchronous = {synchronous}")
        self._execute("CREATE TABLE IF NOT EXISTS floor (key TEXT PRIMARY KEY, arrival INTEGER NOT NULL) WITHOUT ROWID")
        self._execute("INSERT OR IGNORE INTO floor VALUES ('bench', 0)")

    def __call__(self) -> bool:
        execute = self._execute
        execute("BEGIN IMMEDIATE")
        now = monotonic_ns()
        arrival: int = execute("SELECT arrival FROM floor WHERE key = ?", ("bench",)).fetchone()[0]
        if arrival < now:
            arrival = now
        granted = arrival - now <= TOLERANCE_NS
        if granted:
            execute("UPDATE floor SET arrival = ? WHERE key = ?", (arrival + INTERVAL_NS, "bench"))
        execute("COMMIT")
        return granted

    def close(self) -> None:
        self._connection.close()


def make_sqlite_floor(path: str, synchronous: str = "NORMAL") -> SqliteFloor:
    """A limiter in a database file: ``BEGIN IMMEDIATE; SELECT; UPDATE; COMMIT``, in WAL. Close it when done.

    ``synchronous`` is SQLite's own setting (OFF, NORMAL, FULL): compare only stores with the same one.
    """
    return SqliteFloor(path, synchronous)

"""One open database file: its connection, its transactions, its clock.

No code opens the file other than through SQLite: POSIX drops all locks that a process has on a file as soon as it closes
any descriptor of it, those of SQLite too.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import suppress
from random import random
from typing import NamedTuple
from urllib.parse import quote

from ..errors import InvalidInput, StoreFormatError, StoreUnavailable
from .anchor import META, anchor, clock_at
from .busy import PATIENCE, BusyRetry, is_being_made
from .checkpoint import Checkpointer
from .explain import explained, is_busy, is_no_database, no_database

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ..clock import Clock

    #: `execute(statement, parameters)` of a connection or a cursor.
    Execute = Callable[..., Any]

SYNCHRONOUS = ("normal", "full", "off")

#: Small pages: a decision changes a few short rows, and every page that it touches is copied and checksummed as a whole.
_PAGE = 1024
#: Bytes: no SQLite database is smaller, but SQLite would take a smaller file for an empty one.
_SMALLEST = 512
#: Bytes of the file that a connection caches: enough for the upper levels of a tree of a million keys.
_CACHE = 32 * 2**20
#: The log is checkpointed in the background. Should that fail, a commit does it from this length on (in pages).
_LONGEST_LOG = 65536


class FileFormat(NamedTuple):
    """What the files of one application hold, and how they are recognised."""

    #: In the header of every file of this kind.
    application_id: int
    #: The format that this version writes, 1 or higher. Lower ones are upgraded, higher ones refused.
    number: int
    #: Statements that make an empty file one of this format. The table `meta` is added to them.
    schema: Sequence[str]
    #: By format number: makes a file of the next format of it, inside a transaction.
    upgrades: Mapping[int, Callable[[Execute], None]]
    #: The latest time (µs) in the file. After the machine was restarted, the file's clock goes on from there at least.
    latest_us: Callable[[Execute], int]
    #: For messages: what such a file is, and how one might be called.
    noun: str
    example: str


class DatabaseFile:
    """One open database. One thread at a time may use it.

    `clock` (microseconds) is for tests; by default `now` is the machine's steady clock, anchored in the file.
    """

    def __init__(self, path: str, format: FileFormat, synchronous: str = "normal", clock: Clock | None = None) -> None:
        self.path = path
        self._format = format
        self._connection: sqlite3.Connection | None = None
        try:
            self._connection = connection = _open_when_made(path, format, synchronous)
            found = os.stat(path)
            self._identity = (found.st_dev, found.st_ino)
            cursor = connection.cursor()
            self.execute: Execute = cursor.execute
            self.execute_many: Execute = cursor.executemany
            self._clock = clock
            self.now: Clock = clock or clock_at(anchor(self, format.latest_us))
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise explained(error, path) from error
        except BaseException:
            self.close()
            raise
        self._checkpointer = Checkpointer(path, synchronous)

    # --- transactions -----------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Begin a transaction that writes; False while another connection has the write lock."""
        try:
            self.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if is_busy(error):
                return False
            raise
        return True

    def begin_when_free(self) -> None:
        """Begin a transaction that writes, retrying while other processes make progress. Blocks the thread.

        Raises StoreUnavailable when they make none.
        """
        if self.begin():
            return
        retry = BusyRetry(self)
        while not self.begin():
            retry.check()
            time.sleep(retry.pause_s)

    def begin_reading(self) -> bool:
        """Begin a transaction that reads; False while SQLite recovers the log after a crash."""
        self.execute("BEGIN")
        try:
            self.version()
        except sqlite3.OperationalError as error:
            self.roll_back()
            if is_busy(error):
                return False
            raise
        return True

    def commit(self, rows: int) -> None:
        """Commit. `rows` is about how many rows were written: the next checkpoint is timed by it."""
        self.execute("COMMIT")
        self._checkpointer.grown(rows)

    def update_one(self, statement: str, parameters: tuple[Any, ...]) -> bool | None:
        """A transaction of one UPDATE: True where it changed its row, False where no row matched.

        None while another connection has the write lock.
        """
        try:
            if self.execute(statement, parameters).rowcount != 1:
                return False
        except sqlite3.OperationalError as error:
            if is_busy(error):
                return None
            raise
        self._checkpointer.grown(1)
        return True

    def roll_back(self) -> None:
        if self._connection is not None and self._connection.in_transaction:
            self.execute("ROLLBACK")

    @property
    def in_transaction(self) -> bool:
        return self._connection is not None and self._connection.in_transaction

    def version(self) -> int:
        """A number that changes when another connection has committed."""
        [version] = self.execute("PRAGMA data_version").fetchone()
        return int(version)

    def is_being_checkpointed(self) -> bool:
        """Whether another connection is checkpointing the log, for which the disk may take its time."""
        busy, _, _ = self.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return bool(busy)

    # --- the file itself --------------------------------------------------------------------------------------------

    def is_current(self) -> bool:
        """Whether the path still leads to this file. Its clock is read anew: a backup restored in place has another."""
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        if (found.st_dev, found.st_ino) != self._identity:
            return False
        if self._clock is None:
            self.now = clock_at(anchor(self, self._format.latest_us))
        return True

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if checkpointer := getattr(self, "_checkpointer", None):
                checkpointer.stop()
            connection.close()

    def abandon(self) -> None:
        """Never use or close it again: the last to close a database deletes the log that lies beside its *path*.

        After a fork that is the parent's log, after a replacement the new file's.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            self._checkpointer.abandon()
            _leak(connection, self.execute, self.execute_many)

    def __del__(self) -> None:
        self.close()


# --- opening ------------------------------------------------------------------------------------------------------


def _open_when_made(path: str, format: FileFormat, synchronous: str) -> sqlite3.Connection:
    """Open a file, and wait for another process that makes it and gets on, however slowly."""
    began, timeout_s = time.monotonic(), PATIENCE
    while True:
        try:
            return _open(path, format, synchronous, timeout_s)
        except sqlite3.OperationalError as error:
            if not is_busy(error) or not timeout_s:
                raise
            if not is_being_made(path, began):
                timeout_s = 0.0  # or it was made at this very moment: one more attempt tells


def _open(path: str, format: FileFormat, synchronous: str, timeout_s: float) -> sqlite3.Connection:
    if os.path.isdir(path):
        raise InvalidInput(
            f"{path} is a directory; {format.noun} is a file, such as {os.path.join(path, format.example)}"
        )
    if os.path.exists(path) and (size := os.path.getsize(path)):
        _probe(path, size, format)
    else:
        # SQLite would let every user of the machine read it. Its log takes over the permissions of the file. What keeps
        # it from being made here is told by SQLite below.
        with suppress(OSError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=rwc",
        uri=True,
        timeout=timeout_s,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
    )
    try:
        execute = connection.execute
        execute(f"PRAGMA page_size = {_PAGE}")
        execute("BEGIN")
        number = _number(execute, path, format)
        execute("COMMIT")
        if number != format.number:
            _make(execute, path, format)
        _use_wal(execute, path)
        execute(f"PRAGMA synchronous = {synchronous}")
        execute(f"PRAGMA cache_size = {-_CACHE // 1024}")
        execute(f"PRAGMA wal_autocheckpoint = {_LONGEST_LOG}")
        execute(f"PRAGMA journal_size_limit = {_LONGEST_LOG * _PAGE // 4}")
        execute("PRAGMA busy_timeout = 0")
    except BaseException:
        connection.close()
        raise
    return connection


def _make(execute: Execute, path: str, format: FileFormat) -> None:
    """Make an empty file, or one of a lower format, one of this format.

    In one transaction, and before it becomes a WAL database: also after a crash a file is empty or wholly of a format.
    """
    execute("BEGIN EXCLUSIVE")
    if not (number := _number(execute, path, format)):
        for statement in (*format.schema, META):
            execute(statement)
        execute(f"PRAGMA application_id = {format.application_id}")
    else:
        for older in range(number, format.number):
            format.upgrades[older](execute)
    execute(f"PRAGMA user_version = {format.number}")
    execute("COMMIT")


def _probe(path: str, size: int, format: FileFormat) -> None:
    """Refuse a file of another application before it is opened for writing."""
    if size < _SMALLEST:
        raise no_database(path)
    # Without a log beside it, no process has it open in WAL mode, and it can be read without leaving a trace.
    how = "mode=ro" if os.path.exists(f"{path}-wal") else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(path)}?{how}", uri=True, timeout=PATIENCE, isolation_level=None)
    try:
        connection.execute("BEGIN")
        _number(connection.execute, path, format)
    except sqlite3.DatabaseError as error:
        if is_no_database(error):
            raise no_database(path) from error
        # It cannot be read without writing (a crash left a journal): opening it for good will tell.
    finally:
        connection.close()


def _number(execute: Execute, path: str, format: FileFormat) -> int:
    """The format number of the file, 0 for an empty one; raises StoreFormatError where it is another application's.

    To be called in a transaction: otherwise another process may make the tables in between.
    """
    [application] = execute("PRAGMA application_id").fetchone()
    [number] = execute("PRAGMA user_version").fetchone()
    if application == format.application_id:
        if number > format.number:
            raise StoreFormatError(
                f"{path} is of format {number}, and this version of Headgate knows formats up to {format.number}; "
                f"upgrade Headgate here, or use another file"
            )
        if number >= 1:
            return int(number)
    tables = [name for (name,) in execute("SELECT name FROM sqlite_master ORDER BY name LIMIT 3")]
    if application or number or tables:
        has = f" (it has {', '.join(tables)} …)" if tables else ""
        raise StoreFormatError(
            f"{path} is a SQLite database of another application{has}, and was left as it is; "
            f"name a file that does not exist yet, or one that Headgate made"
        )
    return 0


def _use_wal(execute: Execute, path: str) -> None:
    began = time.monotonic()
    while True:
        try:
            [mode] = execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            # Processes that open the file at the same moment are in each other's way for an instant.
            if not is_busy(error) or time.monotonic() - began > PATIENCE:
                raise
            time.sleep(random() * 0.002)
            continue
        if mode.lower() != "wal":
            raise StoreUnavailable(
                f"{path}: this file system cannot share memory between processes, which SQLite's WAL needs; "
                f"use a local disk"
            )
        return


def _leak(*things: object) -> None:
    """Keep things for ever: the end of the interpreter would close them."""
    import ctypes

    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))

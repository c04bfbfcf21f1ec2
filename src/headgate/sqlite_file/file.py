"""A database file of ours: opened, told from those that are not, and its clock.

Nothing here opens the file other than through SQLite: POSIX drops all locks that a process has on a file as soon as it
closes any descriptor of it, those of SQLite too.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from functools import cache
from random import random
from urllib.parse import quote

from ..clock import steady_ns
from ..errors import InvalidInput, StoreFormatError, StoreUnavailable
from ..stores.sqlite.records import FORMAT, SCHEMA, SWAP_HEAD, from_format_1, newest
from ..stores.sqlite.space import decode_json, encode_json
from .checkpoint import Checkpointer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..clock import Clock
    from ..errors import HeadgateError

#: "hdgt": in the header of every file of ours.
APPLICATION_ID = 0x68646774

SYNCHRONOUS = ("normal", "full", "off")

#: Seconds for which nobody may have made progress before the file counts as out of reach; while the log is written back,
#: which is progress of a kind, rather more.
PATIENCE, SLOW_DISK = 0.2, 1.0

#: Small pages: a decision changes a few short rows, and every page that it touches is copied and summed up as a whole.
_PAGE = 1024
#: Bytes: no SQLite database is smaller, but SQLite would take a smaller file for an empty one.
_SMALLEST = 512
#: Bytes of the file that a connection keeps in memory: enough for the upper levels of a tree of a million keys.
_CACHE = 32 * 2**20
#: The log is written back in the background. Should that fail, it is done at a commit from this length on (in pages).
_LONGEST_LOG = 65536

_META = "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID"


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else holds a lock: no failure, if they make progress."""
    return _kind(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def survives(error: sqlite3.Error) -> bool:
    """Whether the connection can be used after this error."""
    return is_busy(error) or _kind(error) == sqlite3.SQLITE_FULL


def _kind(error: BaseException) -> int:
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


class DatabaseFile:
    """One open database. Its connection is to be used by one thread at a time."""

    def __init__(self, path: str, synchronous: str, clock: Clock | None) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = None
        try:
            self._connection = connection = _open(path, synchronous)
            found = os.stat(path)
            self._identity = (found.st_dev, found.st_ino)
            cursor = connection.cursor()
            self.execute: Callable[..., Any] = cursor.execute
            self.execute_many: Callable[..., Any] = cursor.executemany
            self._clock = clock
            self.now: Clock = clock or _clock_of(_anchor(self))
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise explained(error, path) from error
        except BaseException:
            self.close()
            raise
        self._checkpointer = Checkpointer(path, synchronous)

    def begin(self) -> bool:
        """Begin to write; False while somebody else does."""
        try:
            self.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if is_busy(error):
                return False
            raise
        return True

    def begin_reading(self) -> bool:
        """Begin to look; False while nobody can (the log is being recovered after a crash)."""
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
        self.execute("COMMIT")
        self._checkpointer.grown(rows)

    def swap_head(self, heads: tuple[str, int, str]) -> bool | None:
        """A transaction of one statement: the new head, its row, the one that has to be there. False where it is not.

        None while somebody else is writing.
        """
        try:
            if self.execute(SWAP_HEAD, heads).rowcount != 1:
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
        """Another number after somebody else has written."""
        [version] = self.execute("PRAGMA data_version").fetchone()
        return int(version)

    def is_written_back(self) -> bool:
        """Whether somebody is writing the log back to the file, for which the disk may take its time."""
        busy, _, _ = self.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return bool(busy)

    def is_current(self) -> bool:
        """Whether the path still leads to this file, and its clock is still the one we go by."""
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        if (found.st_dev, found.st_ino) != self._identity:
            return False
        if self._clock is None:
            self.now = _clock_of(_anchor(self))
        return True

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if checkpointer := getattr(self, "_checkpointer", None):
                checkpointer.stop()
            connection.close()

    def abandon(self) -> None:
        """Never use or close it again: the last to close a database deletes the log that lies beside its *path*.

        After a fork that was the parent's, after a replacement it is the new file's.
        """
        connection, self._connection = self._connection, None
        if connection is not None:
            self._checkpointer.abandon()
            _leak(connection, self.execute, self.execute_many)

    def __del__(self) -> None:
        self.close()


class Waiting:
    """How long a caller has been kept from writing while nobody else made progress."""

    def __init__(self, file: DatabaseFile) -> None:
        self._file = file
        self._version = self._current()
        self._since = self._looked = time.monotonic()
        #: Seconds to sleep before the next attempt.
        self.pause = 0.0

    def look(self) -> None:
        """See whether it is worth waiting: others write. Raises StoreUnavailable when nothing has moved for long.

        The pause is random and short. SQLite's own busy handler sleeps ever longer, and so starves who waits for long.
        """
        self.pause = random() * 0.0002
        now = time.monotonic()
        if now - self._looked > 0.01:
            self._looked = now
            version = self._current()
            if version != self._version:
                self._version, self._since = version, now
            elif now - self._since > PATIENCE and (now - self._since > SLOW_DISK or not self._file.is_written_back()):
                raise StoreUnavailable(
                    f"{self._file.path}: somebody has held the write lock for {PATIENCE * 1000:.0f} ms and has written "
                    f"nothing; end it if it hangs (a stopped worker, a shell with an open transaction)"
                )

    def _current(self) -> int:
        try:
            return self._file.version()
        except sqlite3.OperationalError as error:
            if is_busy(error):
                return -1
            raise


# --- opening ------------------------------------------------------------------------------------------------------


def _open(path: str, synchronous: str) -> sqlite3.Connection:
    if os.path.isdir(path):
        raise InvalidInput(f"{path} is a directory; a SQLite store is a file, such as {os.path.join(path, 'gates.db')}")
    if os.path.exists(path) and (size := os.path.getsize(path)):
        _probe(path, size)
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode=rwc",
        uri=True,
        timeout=PATIENCE,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=64,
    )
    try:
        execute = connection.execute
        execute(f"PRAGMA page_size = {_PAGE}")
        execute("BEGIN")
        format = _format(execute, path)
        execute("COMMIT")
        if format != FORMAT:
            execute("BEGIN EXCLUSIVE")
            # All at once, and before it becomes a WAL database: a file is of nobody or wholly ours, also after a crash.
            if not (format := _format(execute, path)):
                for statement in (*SCHEMA, _META):
                    execute(statement)
                execute(f"PRAGMA application_id = {APPLICATION_ID}")
            elif format == 1:
                from_format_1(execute)
            execute(f"PRAGMA user_version = {FORMAT}")
            execute("COMMIT")
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


def _probe(path: str, size: int) -> None:
    """Refuse what is not ours before anything is opened for writing."""
    if size < _SMALLEST:
        raise _no_database(path)
    # Without a log beside it, nobody has it open as we would, and it can be read without leaving a trace.
    how = "mode=ro" if os.path.exists(f"{path}-wal") else "mode=ro&immutable=1"
    connection = sqlite3.connect(f"file:{quote(path)}?{how}", uri=True, timeout=PATIENCE, isolation_level=None)
    try:
        connection.execute("BEGIN")
        _format(connection.execute, path)
    except sqlite3.DatabaseError as error:
        if _kind(error) == sqlite3.SQLITE_NOTADB:
            raise _no_database(path) from error
        # It cannot be read without writing (a crash left a journal): opening it for good will tell.
    finally:
        connection.close()


def _format(execute: Callable[..., Any], path: str) -> int:
    """Of which format the file is, 0 for an empty one; raises StoreFormatError when it is neither that nor ours.

    To be asked in a transaction: in between, somebody else may make it ours.
    """
    [application] = execute("PRAGMA application_id").fetchone()
    [version] = execute("PRAGMA user_version").fetchone()
    if application == APPLICATION_ID:
        if version > FORMAT:
            raise StoreFormatError(
                f"{path} is of format {version}, and this version of Headgate knows formats up to {FORMAT}; "
                f"upgrade Headgate here, or use another file"
            )
        if version >= 1:
            return int(version)
    tables = [name for (name,) in execute("SELECT name FROM sqlite_master ORDER BY name LIMIT 3")]
    if application or version or tables:
        has = f" (it has {', '.join(tables)} …)" if tables else ""
        raise StoreFormatError(
            f"{path} is a SQLite database of another application{has}, and was left as it is; "
            f"name a file that does not exist yet, or one that Headgate made"
        )
    return 0


def _use_wal(execute: Callable[..., Any], path: str) -> None:
    began = time.monotonic()
    while True:
        try:
            [mode] = execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            # Others who open the file at the same moment are in the way for an instant.
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


# --- the clock ----------------------------------------------------------------------------------------------------


def _anchor(file: DatabaseFile) -> int:
    """What is added to the system-wide steady clock: the same for all processes, since it is kept in the file.

    Whoever comes first after the machine was started sets it by the wall clock, but so that time does not go back behind
    what any gate has seen. From then on the wall clock is not looked at.
    """
    boot = boot_id()
    offset = _stored_anchor(file, boot)
    if offset is not None:
        return offset
    waiting = Waiting(file)
    while not file.begin():
        waiting.look()
        time.sleep(waiting.pause)
    try:
        offset = _stored_anchor(file, boot)
        if offset is None:
            offset = max(time.time_ns() // 1000, newest(file.execute)) - steady_ns() // 1000
            file.execute("REPLACE INTO meta VALUES ('anchor', ?)", (encode_json((boot, offset)),))
        file.execute("COMMIT")
    except BaseException:
        file.roll_back()
        raise
    return offset


def _stored_anchor(file: DatabaseFile, boot: str) -> int | None:
    row = file.execute("SELECT value FROM meta WHERE name = 'anchor'").fetchone()
    if row is None:
        return None
    [of_boot, offset], _ = decode_json(row[0], 0)
    return offset if of_boot == boot else None


def _clock_of(offset: int) -> Clock:
    def now() -> int:
        return steady_ns() // 1000 + offset

    return now


@cache
def boot_id() -> str:
    """Another text each time the machine is started, the same for all of its processes."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        import subprocess

        found = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=False)
        if found.stdout.strip():
            return found.stdout.strip()
    # Elsewhere: the hour in which the machine was started, by its wall clock. Two starts within an hour look like one, and
    # a wall clock that is set anew like a start. Then gates may stand still for as long as the clocks differ, but time
    # does not go back, and nothing is granted twice.
    return f"hour {(time.time_ns() - steady_ns()) // 3_600_000_000_000}"


# --- what went wrong ----------------------------------------------------------------------------------------------


def explained(error: BaseException, path: str) -> HeadgateError:
    """An error of SQLite or the system in our words: what, where, and what would be right."""
    kind = _kind(error)
    if isinstance(error, OSError):
        return StoreUnavailable(f"{path}: {error.strerror or error}")
    if kind == sqlite3.SQLITE_NOTADB:
        return _no_database(path)
    if kind == sqlite3.SQLITE_CORRUPT:
        return StoreFormatError(
            f"{path} is damaged ({error}); restore it from a backup, or move it away with its -wal and -shm "
            f"and start anew"
        )
    if kind == sqlite3.SQLITE_ERROR:
        return StoreFormatError(f"{path} is not as Headgate made it ({error}); restore it from a backup, or start anew")
    if kind == sqlite3.SQLITE_FULL:
        return StoreUnavailable(f"{path}: the disk is full; nothing was changed. Free some space, and go on")
    if kind in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreUnavailable(f"{path}: {_why_not(path)}")
    if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable(f"{path}: another process keeps it locked ({error}); end it if it hangs")
    return StoreUnavailable(f"{path}: {error}; nothing was changed. Look after the disk, then go on")


def _no_database(path: str) -> StoreFormatError:
    return StoreFormatError(
        f"{path} is not a SQLite database, and was left as it is; name a file that does not exist yet, "
        f"or one that Headgate made"
    )


def _why_not(path: str) -> str:
    """Why a file cannot be opened or written."""
    folder = os.path.dirname(path)
    if not os.path.isdir(folder):
        return f"the directory {folder} does not exist; make it, or name another"
    if os.path.exists(path) and not os.access(path, os.R_OK | os.W_OK):
        return "the file cannot be read and written by this user; change its owner or mode"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"this user cannot write to {folder}, where SQLite keeps its log beside the file; change its mode"
    return "it cannot be opened or written, though its mode allows it; see whether its file system is mounted read-only"

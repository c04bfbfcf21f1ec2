"""Errors of SQLite and of the system in words: what, where, and what would be right."""

from __future__ import annotations

import os
import sqlite3

from ..errors import StoreFormatError, StoreUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..errors import HeadgateError


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection holds a lock: no failure, as long as it makes progress."""
    return _kind(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_no_database(error: sqlite3.Error) -> bool:
    return _kind(error) == sqlite3.SQLITE_NOTADB


def survives(error: sqlite3.Error) -> bool:
    """Whether the connection can be used after this error."""
    return is_busy(error) or _kind(error) == sqlite3.SQLITE_FULL


def _kind(error: BaseException) -> int:
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def explained(error: BaseException, path: str) -> HeadgateError:
    """The error to raise for one of SQLite or of the system."""
    kind = _kind(error)
    if isinstance(error, OSError):
        return StoreUnavailable(f"{path}: {error.strerror or error}")
    if kind == sqlite3.SQLITE_NOTADB:
        return no_database(path)
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


def no_database(path: str) -> StoreFormatError:
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

"""A SQLite file that several processes of one machine share: opened, recognised, locked, timed and checkpointed.

It knows no schema. Its user (the SQLite store; a queue) hands in a `FileFormat`: an application id, a format number, the
statements that make the tables. It gets a `DatabaseFile` with a connection in WAL mode, a clock that all processes share,
and a thread that checkpoints the log. A `WakeSocket` notifies other processes that have the same file open.
"""

from __future__ import annotations

from .busy import BusyRetry
from .explain import explained, is_busy, survives
from .file import SYNCHRONOUS, DatabaseFile, FileFormat
from .fork import register_for_fork_and_exit
from .turns import DECIDE_FOR, Turn
from .wake import WakeSocket, wake_folder

__all__ = [
    "DECIDE_FOR",
    "SYNCHRONOUS",
    "BusyRetry",
    "DatabaseFile",
    "FileFormat",
    "Turn",
    "WakeSocket",
    "explained",
    "is_busy",
    "register_for_fork_and_exit",
    "survives",
    "wake_folder",
]

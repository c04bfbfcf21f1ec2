"""`sqlite:///pipeline.db`: queues in one file, for any number of processes on one machine.

Messages, dead letters and ledger are in one file, so that hand-off and acknowledgement are one transaction. A process that
waits is woken by a datagram to its socket beside the file.
"""

from __future__ import annotations

import os
import threading
from urllib.parse import parse_qsl, unquote

from ...background import LONGEST_END_S
from ...errors import InvalidInput
from ...sqlite_file import SYNCHRONOUS, DatabaseFile, FileFormat, WakeSocket, register_for_fork_and_exit
from ...stores import absolute
from .database import QueueDatabase, SqlQueue
from .rows import SCHEMA, latest_us

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...clock import Clock

QUEUE_FORMAT = FileFormat(
    application_id=0x68646771,  # "hdgq"
    number=1,
    schema=SCHEMA,
    upgrades={},
    latest_us=latest_us,
    noun="a file of queues",
    example="pipeline.db",
)

_open: dict[str, SqliteQueues] = {}
_lock = threading.Lock()


class SqliteQueues(QueueDatabase):
    """The queues of a file. `synchronous` is SQLite's: `normal` may lose the last moments in a power cut, but nothing in
    a crash of processes; `full` waits for the disk on every change. `clock` (µs) is for tests."""

    def __init__(self, path: str, synchronous: str = "normal", clock: Clock | None = None) -> None:
        self.path = os.path.abspath(path)
        self._synchronous = synchronous
        self._clock = clock
        super().__init__(self.path)
        register_for_fork_and_exit(self)

    def begin_in_process(self) -> None:
        super().begin_in_process()
        self._waker = WakeSocket(self.path, self.session, self.heard, self.waiters)

    def _open(self) -> DatabaseFile:
        return DatabaseFile(self.path, QUEUE_FORMAT, self._synchronous, self._clock)

    def send(self, process: str, queue: str) -> bool:
        return self._waker.send(process, queue.encode())

    def add_event(self, name: str, event: threading.Event) -> None:
        super().add_event(name, event)
        self._waker.open()

    def close(self) -> None:
        with _lock:
            for place, queues in list(_open.items()):
                if queues is self:
                    del _open[place]
        super().close()
        self._waker.close()

    # --- ending, and forking --------------------------------------------------------------------------------------

    def end(self) -> None:
        # A thread that hangs in the file with the lock must not keep the process: SQLite mends what is left by itself.
        if self._lock.acquire(timeout=LONGEST_END_S):
            self._lock.release()
            self.close()

    def before_fork(self) -> None:
        self._forking = self._lock.acquire(timeout=1.0)
        if self._forking and self._database is not None:
            self._database.close()
            self._database = None

    def after_fork_in_parent(self) -> None:
        if self._forking:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        self._waker.abandon()
        if isinstance(self._database, DatabaseFile):
            self._database.abandon()
        self.begin_in_process()


def open_url(url: str, name: str) -> SqlQueue:
    """`sqlite:///relative.db` or `sqlite:////absolute/path.db`, with `?synchronous=normal|full|off`."""
    rest, _, query = absolute(url).removeprefix("sqlite://").partition("?")
    path = unquote(rest.removeprefix("/"))
    if not rest.startswith("/") or not path or path.endswith("/") or "\0" in path or path == ":memory:":
        raise InvalidInput(
            f"{url!r} names no file; write sqlite:///pipeline.db for one in the working directory, "
            f"sqlite:////var/lib/pipeline.db (with four slashes) for an absolute path, or memory: for none"
        )
    synchronous = "normal"
    for option, synchronous in parse_qsl(query, keep_blank_values=True):
        if option != "synchronous" or synchronous not in SYNCHRONOUS:
            raise InvalidInput(
                f"{url!r}: {option}={synchronous} is not known; queues in a file take synchronous={'|'.join(SYNCHRONOUS)}"
            )
    place = f"{os.path.abspath(path)}?{synchronous}"
    with _lock:
        queues = _open.get(place)
        if queues is None:
            queues = _open[place] = SqliteQueues(path, synchronous)
    return queues.queue(name)

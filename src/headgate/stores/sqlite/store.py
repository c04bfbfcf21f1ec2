"""`sqlite:///path.db`: the state of gates in one file, for any number of processes on one machine.

    SqliteStore     the port: takes the lock, decides, wakes waiters                                this module
    Transactions    what is decided under the lock: one command, or the queued jobs at a time       transactions.py, jobs.py
    SqliteRecords   the records of one gate, cached between transactions                            records.py
    SqliteSpace     one space of them: a few rows of the table;  Permits: many ids to a row         space.py, permits.py
    DatabaseFile    the file, its locks, its clock, its checkpoints                                 headgate.sqlite_file

A thread that finds the lock free decides its command from the cached records, and commits if no other process has written
since. Otherwise it queues a job; the thread that gets the lock decides all queued jobs in one transaction. Where another
process is writing, threads and tasks retry after short random pauses for as long as that one makes progress; a process that
has much to write leaves gaps in which the others get their turn.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from random import random

from ...background import LONGEST_END_S, at_end, check_free, is_ending, is_late
from ...errors import InvalidInput, StoreUnavailable
from ...kernel.head import is_epoch
from ...sqlite_file import SYNCHRONOUS, DatabaseFile, register_for_fork_and_exit
from .. import absolute, url_of
from ..base import Capabilities, Listeners, Seen, checked, ignore_loss, new_session
from .jobs import SqliteJob
from .schema import STORE_FORMAT
from .transactions import CONCURRENT_FOR, CONTENDED, Transactions
from .wakes import TicketWaker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...clock import Clock
    from ...kernel.commands import Command
    from ...kernel.model import Wake
    from ..base import Listener

#: While there is no sign of concurrent callers, one of so many requests on an event loop yields to the loop before it is
#: decided, to find out whether other tasks join it. Of requests that `at_once` can decide fewer do: uncontended, they need
#: no turn of the loop.
PROBE_EVERY = 16
PROBE_UNCONTENDED = 8 * PROBE_EVERY

#: Seconds that a task sleeps while another thread of its process has the lock.
BRIEFLY = 0.0002


class SqliteStore:
    """State in a SQLite database (WAL). Not for network file systems: use `redis://…` for more than one machine.

    `synchronous` is SQLite's: with `normal` a power cut may lose the last moments (a crash of processes loses nothing),
    `full` waits for the disk on each decision. `clock` (microseconds) is for tests; otherwise time is the machine's steady
    clock, anchored in the file. After `close` the next request opens the file again.
    """

    capabilities = Capabilities(forwards_wakes=True, compares_seen=True, decides_at_once=True)
    keeper: Any = None

    def __init__(
        self, path: str, *, synchronous: str = "normal", clock: Clock | None = None, url: str | None = None
    ) -> None:
        if synchronous not in SYNCHRONOUS:
            raise InvalidInput(f"synchronous is one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}")
        #: The file, absolute.
        self.path = os.path.abspath(path)
        self.url = url_of("sqlite", self.path) if url is None else url
        self.on_loss: Callable[[str], None] = ignore_loss
        self._synchronous = synchronous
        self._clock = clock
        #: Gate → its sequence number and its epoch, as this process has last seen them.
        self._seen: dict[str, int] = {}
        self._told: dict[str, str] = {}
        self._listeners = Listeners()
        self._begin()
        register_for_fork_and_exit(self)
        with suppress(StoreUnavailable):  # the first request raises it; a file of another application is refused here
            self._transactions.ready()

    def _begin(self) -> None:
        """Make what each process has of its own: at the start, and in the child of a fork."""
        self._lock = threading.Lock()
        self.session = new_session()
        self._transactions = Transactions(self.path, self._open, self._seen, self._told, self.session)
        self._requests = 0
        self._listeners.clear()
        self._waker = TicketWaker(self.path, self.session, self._listeners)

    def _open(self) -> DatabaseFile:
        return DatabaseFile(self.path, STORE_FORMAT, self._synchronous, self._clock)

    # --- deciding -------------------------------------------------------------------------------------------------

    def decide(self, command: Command) -> Any:
        if is_ending():
            check_free(self._lock, self.url)
        if command.writes and not self._lock.locked():
            # `with`, because Ctrl-C can come between an `acquire` and its `try`.
            with self._lock:
                reply = self._transactions.try_optimistic(command)
            if reply is not CONTENDED:
                self._tell()
                return checked(reply)
        [reply] = self._run(SqliteJob((command,)))
        return checked(reply)

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        if is_ending():
            check_free(self._lock, self.url)
        return self._run(SqliteJob(commands)) if commands else []

    def _run(self, job: SqliteJob) -> list[Any]:
        transactions = self._transactions
        # The thread that has the lock decides all queued jobs: most threads find theirs done when they get it.
        if job.writes:
            transactions.queue.append(job)
        try:
            with self._lock:
                while not job.done:
                    if pause_s := transactions.attempt(job):
                        if is_ending() and is_late():
                            raise at_end(self.url)
                        time.sleep(pause_s)
        except BaseException:
            transactions.withdraw(job)
            transactions.wake_first()
            raise
        self._tell()
        return job.result()

    def at_once(self, command: Command) -> Any:
        """For an event loop: the reply of a command that writes, while there is no contention; None: `aexecute` it.

        An error is returned in the place of a reply.
        """
        requests = self._requests + 1
        if self._transactions.concurrent_callers or not requests % PROBE_UNCONTENDED or self._lock.locked():
            return None
        with self._lock:
            reply = self._transactions.try_optimistic(command)
        if reply is CONTENDED:
            return None
        self._requests = requests
        self._tell()
        return reply

    def all_at_once(self, commands: Sequence[Command]) -> list[Any] | None:
        """For an event loop: the replies of commands that arrived together, decided in one transaction; None where
        another thread or process is writing: `aexecute` them. Raises StoreUnavailable.
        """
        if self._lock.locked():
            return None
        job, transactions = SqliteJob(commands), self._transactions
        self._requests += 1
        with self._lock:
            transactions.attempt(job)
            if not job.done:
                transactions.withdraw(job)
                return None
            if len(commands) > 1:
                transactions.concurrent_callers = CONCURRENT_FOR
        self._tell()
        return job.result()

    async def aexecute(self, commands: Sequence[Command]) -> list[Any]:
        """`execute` without blocking the event loop: while another process is writing, the task sleeps between attempts.

        When the task is cancelled, nothing was decided; or if it was, the reply is returned, and the cancellation comes at
        the next `await` of the task.
        """
        if not commands:
            return []
        if is_ending():
            return self.execute(commands)  # nobody else runs, and nothing can be imported
        import asyncio

        job, transactions = SqliteJob(commands), self._transactions
        if job.writes:
            transactions.queue.append(job)
        self._requests += 1
        try:
            if transactions.concurrent_callers or not self._requests % PROBE_EVERY:
                await asyncio.sleep(0)  # let the tasks that are ready put theirs into the same transaction
            pause_s = BRIEFLY
            if transactions.is_behind(job):
                await self._pause(job, pause_s)
            while not job.done:
                if not self._lock.locked():
                    with self._lock:
                        if not job.done:
                            pause_s = transactions.attempt(job) or BRIEFLY
                if not job.done:
                    await self._pause(job, pause_s)
        except asyncio.CancelledError as cancelled:
            withdrawn = transactions.withdraw(job)
            transactions.wake_first()
            if withdrawn or not job.writes:
                raise
            with self._lock:  # another thread has begun to decide it, and ends in a moment
                pass
            task = asyncio.current_task()
            if not job.done or task is None:
                raise
            task.uncancel()
            task.cancel(*cancelled.args)
        self._tell()
        return job.result()

    async def _pause(self, job: SqliteJob, seconds: float) -> None:
        """Sleep until the job is done, or for so long if it is the oldest in the queue, or until it is that.

        The task that gets to write decides the others' jobs too: thousands that retry all the time would keep it from its
        work. They retry now and then, the more of them the less often, for the case that its event loop has ended.
        """
        import asyncio

        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        queue = self._transactions.queue
        if job.writes and queue and queue[0] is not job:
            seconds = min(seconds * 2 * random() * len(queue), 1.0 + random())
        timer = loop.call_later(seconds, wake)
        job.on_done = lambda: loop.call_soon_threadsafe(wake)
        try:
            if not job.done:
                await woken
        finally:
            job.on_done = None
            timer.cancel()

    # --- waking -----------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """Report lost state and wake waiters, now that the transaction is committed and the lock is free."""
        transactions = self._transactions
        while transactions.lost:
            with suppress(KeyError):  # another thread was faster
                self.on_loss(transactions.lost.pop())
        while transactions.wakes:
            with suppress(IndexError):
                self._waker.tell(transactions.wakes.popleft())

    def listen(self, ticket: str, listener: Listener) -> None:
        self._listeners.add(ticket, listener)
        self._waker.open()

    def unlisten(self, ticket: str) -> None:
        self._listeners.remove(ticket)

    def adopt(self, session: str, tell: Callable[[Wake], None]) -> None:
        self._listeners.adopt(session, tell)
        self._waker.open()
        self._waker.add_name(session)

    def disown(self, session: str) -> None:
        self._listeners.disown(session)
        self._waker.remove_name(session)

    def saw(self, gate: str, number: int = 0, epoch: str = "") -> Seen:
        """A client has seen this of the gate; a file that is behind it was put back, and one of another epoch made anew."""
        known, told = self._seen.get(gate, 0), self._told.get(gate, "")
        if number > known or (epoch and epoch != told):
            with self._lock:
                self._seen[gate] = known = max(known, number)
                self._told[gate] = told = epoch or told or self.session
                self._transactions.compare_again(gate)
        return Seen(known, told if is_epoch(told) else "")

    # --- ending, and forking ----------------------------------------------------------------------------------------

    def close(self) -> None:
        from .. import forget_store

        forget_store(self)
        if self.keeper is not None:
            self.keeper.drop_sweeps()
        with self._lock:
            self._transactions.shut()
        self._waker.close()

    def end(self) -> None:
        # A thread that hangs in the file with the lock must not keep the process: SQLite mends what is left by itself.
        if self._lock.acquire(timeout=LONGEST_END_S):
            self._lock.release()
            self.close()

    def before_fork(self) -> None:
        self._forking = self._lock.acquire(timeout=1.0)
        if self._forking:
            self._transactions.shut()

    def after_fork_in_parent(self) -> None:
        if self._forking:
            self._lock.release()

    def after_fork_in_child(self) -> None:
        self._waker.abandon()
        self._transactions.abandon()
        self._begin()


def open_url(url: str) -> SqliteStore:
    """`sqlite:///relative.db` or `sqlite:////absolute/path.db`, with `?synchronous=normal|full|off`.

    A relative path starts at the working directory; in a configuration file it was made absolute before.
    """
    from urllib.parse import parse_qsl, unquote

    rest, _, query = url.removeprefix("sqlite://").partition("?")
    path = unquote(rest.removeprefix("/"))
    if not rest.startswith("/") or not path or path.endswith("/") or "\0" in path:
        raise InvalidInput(
            f"{url!r} names no file; write sqlite:///gates.db for one beside the configuration (in code: in the "
            f"working directory), or sqlite:////var/lib/gates.db (with four slashes) for an absolute path"
        )
    if path == ":memory:":
        raise InvalidInput(f"{url!r}: use memory:// for state that is gone with the process")
    synchronous = "normal"
    for name, synchronous in parse_qsl(query, keep_blank_values=True):
        if name != "synchronous" or synchronous not in SYNCHRONOUS:
            raise InvalidInput(
                f"{url!r}: {name}={synchronous} is not known; a SQLite store takes synchronous={'|'.join(SYNCHRONOUS)}"
            )
    return SqliteStore(path, synchronous=synchronous, url=absolute(url))

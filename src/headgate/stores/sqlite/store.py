"""`sqlite:///path.db`: the state of gates in one file, for any number of processes on one machine."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from random import random

from ...errors import InvalidInput, StoreUnavailable
from ...sqlite_file import SYNCHRONOUS, BusyRetry, DatabaseFile, register_for_fork_and_exit
from ..base import Capabilities, Listeners, checked, ignore_loss, new_session
from .schema import STORE_FORMAT
from .transactions import COMPANY, NOT_ALONE, Job, Raised, Transactions
from .wakes import TicketWaker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...clock import Clock
    from ...kernel.commands import Command
    from ...kernel.model import Wake
    from ..base import Listener

#: Of so many calls on an event loop one waits for others to join it, when there is no sign of any; of those that can be
#: decided at once fewer do: who is alone should not wait for company.
PROBE_EVERY = 16
PROBE_ALONE = 8 * PROBE_EVERY


class SqliteStore:
    """State in a SQLite database (WAL). Not for network file systems: use `redis://…` for more than one machine.

    Each transaction takes all that is waiting to be decided in this process. `synchronous` is SQLite's: with `normal` a
    power cut may lose the last moments (a crash of processes loses nothing), `full` waits for the disk on each decision.
    `clock` (microseconds) is for tests; otherwise time is the machine's steady clock, anchored in the file. After `close`
    the next call opens the file again.
    """

    capabilities = Capabilities(forwards_wakes=True, compares_seen=True, decides_at_once=True)
    keeper: Any = None
    on_loss: Callable[[str], None] = staticmethod(ignore_loss)

    def __init__(
        self, path: str, *, synchronous: str = "normal", clock: Clock | None = None, url: str | None = None
    ) -> None:
        if synchronous not in SYNCHRONOUS:
            raise InvalidInput(f"synchronous is one of {', '.join(SYNCHRONOUS)}, not {synchronous!r}")
        self._path = os.path.abspath(path)
        self.url = f"sqlite:///{self._path}" if url is None else url
        self._synchronous = synchronous
        self._clock = clock
        self._seen: dict[str, int] = {}
        self._listeners = Listeners()
        self._begin()
        register_for_fork_and_exit(self)
        with suppress(StoreUnavailable):  # whoever asks first is told so; a file that is not ours is refused here
            self._transactions.ready()

    def _begin(self) -> None:
        """What each process has of its own."""
        self._lock = threading.Lock()
        self._transactions = Transactions(self._path, self._open, self._seen)
        self._calls = 0
        self._listeners.clear()
        self.session = new_session()
        self._waker = TicketWaker(self._path, self.session, self._listeners)

    def _open(self) -> DatabaseFile:
        return DatabaseFile(self._path, STORE_FORMAT, self._synchronous, self._clock)

    # --- deciding -------------------------------------------------------------------------------------------------

    def decide(self, command: Command) -> Any:
        if command.writes and not self._lock.locked():
            # `with`, because Ctrl-C can come between an `acquire` and its `try`.
            with self._lock:
                reply = self._transactions.alone(command)
            if reply is not NOT_ALONE:
                self._tell()
                return checked(reply.error if reply.__class__ is Raised else reply)
        [reply] = self._run(Job((command,)))
        return checked(reply)

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        return self._run(Job(commands)) if commands else []

    def _run(self, job: Job) -> list[Any]:
        transactions = self._transactions
        # Whoever has the lock decides for all who wait for it: most find that theirs is done when they get it.
        if job.writes:
            transactions.queue.append(job)
        try:
            with self._lock:
                waiting: BusyRetry | None = None
                while not job.done:
                    if waiting is not None:
                        time.sleep(waiting.pause_s)
                    waiting = transactions.attempt(job, waiting)
        except BaseException:
            transactions.withdraw(job)
            raise
        self._tell()
        return job.result()

    def at_once(self, command: Command) -> Any:
        """For an event loop: the reply of a command that writes, while nobody else is there; None: `aexecute` it.

        An error is handed back in the place of a reply.
        """
        calls = self._calls + 1
        if self._transactions.company or not calls % PROBE_ALONE or self._lock.locked():
            return None
        with self._lock:
            reply = self._transactions.alone(command)
        if reply is NOT_ALONE:
            return None
        self._calls = calls
        self._tell()
        return reply.error if reply.__class__ is Raised else reply

    def all_at_once(self, commands: Sequence[Command]) -> list[Any] | None:
        """The same for many that came together, in one transaction. Raises StoreUnavailable."""
        if self._lock.locked():
            return None
        job, transactions = Job(commands), self._transactions
        self._calls += 1
        with self._lock:
            if transactions.attempt(job, None) is not None:
                transactions.withdraw(job)
                return None
            if len(commands) > 1:
                transactions.company = COMPANY
        self._tell()
        return job.result()

    async def aexecute(self, commands: Sequence[Command]) -> list[Any]:
        """The same without blocking the event loop: it waits for other processes between attempts.

        When it is cancelled, nothing was decided; or if it was, the reply is returned, and the cancellation comes at the
        next `await` of the task.
        """
        import asyncio

        if not commands:
            return []
        job, transactions = Job(commands), self._transactions
        if job.writes:
            transactions.queue.append(job)
        self._calls += 1
        try:
            if transactions.company or not self._calls % PROBE_EVERY:
                await asyncio.sleep(0)  # let the tasks that are ready put theirs into the same transaction
            waiting: BusyRetry | None = None
            while not job.done:
                if not self._lock.locked():
                    with self._lock:
                        if not job.done:
                            waiting = transactions.attempt(job, waiting)
                if not job.done:
                    await self._pause(job, 0.0002 if waiting is None else waiting.pause_s)
        except asyncio.CancelledError as cancelled:
            if not job.writes or transactions.withdraw(job):
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

    async def _pause(self, job: Job, seconds: float) -> None:
        """Until a job is done, or for about so long. Whoever gets to write decides for all who are queued, so of many each
        tries the more seldom: thousands that try all the time would keep the one who writes from its work."""
        import asyncio

        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        company = len(self._transactions.queue) if job.writes else 1
        timer = loop.call_later(seconds * 2 * random() * max(1, company), wake)
        job.bell = lambda: loop.call_soon_threadsafe(wake)
        try:
            if not job.done:
                await woken
        finally:
            job.bell = None
            timer.cancel()

    # --- waking -----------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        """What became known by a transaction, now that it stands and the lock is free."""
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

    def saw(self, gate: str, number: int) -> int:
        """Somebody was told that the gate had come so far; a file that is behind that was put back."""
        known = self._seen.get(gate, 0)
        if number > known:
            self._seen[gate] = known = number
        return known

    # --- ending, and forking ----------------------------------------------------------------------------------------

    def close(self) -> None:
        from .. import forget_store

        forget_store(self)
        with self._lock:
            self._transactions.shut()
        self._waker.close()

    # An open connection must not get into the child: SQLite would believe that the child has the parent's locks. So it is
    # closed before, and both open their own when they need it.

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
    """`sqlite:///relative.db` or `sqlite:////absolute/path.db`, with `?synchronous=normal|full|off`."""
    from urllib.parse import parse_qsl, unquote

    rest, _, query = url.removeprefix("sqlite://").partition("?")
    path = unquote(rest.removeprefix("/"))
    if not rest.startswith("/") or not path or path.endswith("/") or "\0" in path:
        raise InvalidInput(
            f"{url!r} names no file; write sqlite:///gates.db for one in the working directory, "
            f"or sqlite:////var/lib/gates.db (with four slashes) for an absolute path"
        )
    if path == ":memory:":
        raise InvalidInput(f"{url!r}: use memory:// for state that is gone with the process")
    synchronous = "normal"
    for name, synchronous in parse_qsl(query, keep_blank_values=True):
        if name != "synchronous" or synchronous not in SYNCHRONOUS:
            raise InvalidInput(
                f"{url!r}: {name}={synchronous} is not known; a SQLite store takes synchronous={'|'.join(SYNCHRONOUS)}"
            )
    return SqliteStore(path, synchronous=synchronous, url=url)

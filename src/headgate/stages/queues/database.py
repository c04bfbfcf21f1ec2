"""Queues that share one SQL database: its lock, its transactions, and who is woken when a message comes."""

from __future__ import annotations

import sqlite3
import threading
from itertools import count
from time import monotonic

from ...background import at_end, is_ending
from ...sqlite_file import explained
from ...stores.base import new_session
from ..message import BadMessage
from ..outcomes import SECOND, Return
from .base import Arrival, QueueBase, Semantics
from .rows import QueueRows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any, Protocol, TypeVar

    from ..message import DeadLetter, Delivery, MessageHistory, NewMessage, QueueStats
    from .base import DeadFilter, Ending, PutResult, WaitHandle

    Result = TypeVar("Result")

    class Database(Protocol):
        """What `DatabaseFile` has, as far as queues need it."""

        execute: Callable[..., Any]
        now: Callable[[], int]

        def begin_when_free(self) -> None: ...
        def commit(self, rows: int) -> None: ...
        def roll_back(self) -> None: ...
        def close(self) -> None: ...


#: Seconds after which a process that waits looks by itself: a wake may have gone to a process that was stopped meanwhile.
LOOK_EVERY_S = 30.0

#: Processes that are woken at most by one operation: those wake others when they put and hand on.
MOST_WOKEN = 64

#: Bytes of a body at most. Larger ones are slow for every other message of the file.
LARGEST_BODY = 4 * 2**20


class QueueDatabase:
    """One database and the queues in it, for all threads of a process."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._queues: dict[str, SqlQueue] = {}
        self.begin_in_process()

    def begin_in_process(self) -> None:
        """Make what each process has of its own: at the start, and in the child of a fork."""
        self._lock = threading.Lock()
        self._database: Database | None = None
        self.session = new_session()
        self._tokens = count()
        #: By name of a queue: the events of the threads of this process that wait for a message.
        self._waiting: dict[str, set[threading.Event]] = {}

    def _open(self) -> Database:
        raise NotImplementedError

    def send(self, process: str, queue: str) -> bool:
        """Wake another process. False where it is surely gone."""
        return False

    def queue(self, name: str) -> SqlQueue:
        found = self._queues.get(name)
        if found is None:
            found = self._queues.setdefault(name, SqlQueue(self, name))
        return found

    def names(self) -> list[str]:
        """The queues that the database has."""
        return self.write(lambda execute, now: [name for (name,) in execute("SELECT name FROM queues ORDER BY name")])

    def new_token(self) -> str:
        return f"{self.session}-{next(self._tokens)}"

    def now(self) -> int:
        with self._lock:
            return self._ready().now()

    def _ready(self) -> Database:
        if self._database is None:
            for queue in self._queues.values():
                queue.rows.forget()
            self._database = self._open()
        return self._database

    def write(self, work: Callable[[Callable[..., Any], int], Result], rows: int = 1) -> Result:
        """Run `work(execute, now)` in one transaction: all of it is done, or nothing."""
        if is_ending() and self._lock.locked():
            raise at_end(self.url)
        with self._lock:
            database = self._ready()
            try:
                database.begin_when_free()
                result = work(database.execute, database.now())
                database.commit(rows)
            except BaseException as error:
                self._undo(database)
                if isinstance(error, sqlite3.Error):
                    raise explained(error, self.url) from error
                raise
            return result

    def _undo(self, database: Database) -> None:
        for queue in self._queues.values():
            queue.rows.forget()
        try:
            database.roll_back()
        except sqlite3.Error:
            self._database = None
            database.close()

    def close(self) -> None:
        with self._lock:
            database, self._database = self._database, None
            if database is not None:
                database.close()

    # --- waking ---------------------------------------------------------------------------------------------------

    def write_and_wake(
        self,
        work: Callable[[Callable[..., Any], int], Result],
        came: Callable[[Result], dict[str, int]],
        rows: int = 1,
    ) -> Result:
        """`write` for work that brings messages: `came` tells from its result how many came to which queue.

        As many waiters are woken, those of this process first. Processes to be woken are chosen in the transaction.
        """
        chosen: list[tuple[str, str]] = []

        def whole(execute: Callable[..., Any], now: int) -> Result:
            result = work(execute, now)
            for name, messages in came(result).items():
                elsewhere = messages - self._asleep_here(name)
                if elsewhere > 0:
                    processes = self.queue(name).rows.take_waiters(execute, min(elsewhere, MOST_WOKEN))
                    chosen.extend((process, name) for process in processes)
            return result

        result = self.write(whole, rows)
        for name, messages in came(result).items():
            self._wake_here(name, messages)
        for process, name in chosen:
            self._wake_elsewhere(process, name)
        return result

    def _asleep_here(self, name: str) -> int:
        return sum(not event.is_set() for event in list(self._waiting.get(name, ())))

    def _wake_here(self, name: str, most: int) -> None:
        for event in [event for event in list(self._waiting.get(name, ())) if not event.is_set()][:most]:
            event.set()

    def _wake_elsewhere(self, process: str, name: str) -> None:
        """Wake this process; where it is gone, the next one on the list."""
        while not (process != self.session and self.send(process, name)):
            others = self.write(lambda execute, now: self.queue(name).rows.take_waiters(execute, 1))
            if not others:
                return
            [process] = others

    def add_event(self, name: str, event: threading.Event) -> None:
        self._waiting.setdefault(name, set()).add(event)

    def remove_event(self, name: str, event: threading.Event) -> None:
        self._waiting.get(name, set()).discard(event)

    def heard(self, message: bytes) -> None:
        """A datagram of another process: the name of a queue that has a message."""
        for event in list(self._waiting.get(message.decode(errors="replace"), ())):
            event.set()

    def waiters(self) -> int:
        return sum(map(len, list(self._waiting.values())))


class SqlQueue(QueueBase):
    """One queue of a `QueueDatabase`."""

    semantics = Semantics(
        durable=True, ordered=True, deduplicates=True, lanes=True, wakes=True, largest_body=LARGEST_BODY
    )

    def __init__(self, database: QueueDatabase, name: str) -> None:
        self.name = name
        self.url = database.url
        self.rows = QueueRows(name)
        self._database = database
        #: This process stands on the list of those to be woken.
        self._registered = False

    @property
    def home(self) -> object:
        return self._database

    def now(self) -> int:
        return self._database.now()

    # --- the port -------------------------------------------------------------------------------------------------

    def put(self, messages: Sequence[NewMessage]) -> list[PutResult]:
        for message in messages:
            if len(message.body) > LARGEST_BODY // 4 and len(message.body.encode()) > LARGEST_BODY:
                raise BadMessage(f"queue {self.name}: a message has more than {LARGEST_BODY:,} bytes")
        return self._database.write_and_wake(
            lambda execute, now: self.rows.put(execute, now, messages),
            lambda results: {self.name: sum(result.is_new for result in results)},
            rows=3 * len(messages),
        )

    def lease(self, most: int, for_us: int, lane: str | None = None) -> list[Delivery]:
        token = self._database.new_token()

        def work(execute: Callable[..., Any], now: int) -> list[Delivery]:
            if self._registered:
                self._registered = False
                self.rows.remove_waiter(execute, self._database.session)
            return self.rows.lease(execute, now, most, for_us, lane, token)

        return self._database.write(work, rows=most)

    def lanes(self, most: int) -> list[str]:
        def work(execute: Callable[..., Any], now: int) -> list[str]:
            self.rows.promote(execute, now)
            return [] if self.rows.is_paused(execute) else self.rows.lanes(execute, most)

        return self._database.write(work)

    def extend(self, deliveries: Sequence[Delivery], for_us: int) -> list[bool]:
        return self._database.write(
            lambda execute, now: self.rows.extend(execute, now, deliveries, for_us), rows=len(deliveries)
        )

    def record(self, delivery: Delivery, outputs: tuple[str, ...]) -> bool:
        return self._database.write(lambda execute, now: self.rows.record(execute, now, delivery, outputs))

    def settle(self, endings: Sequence[Ending]) -> list[bool]:
        database = self._database

        def came(settled: list[bool]) -> dict[str, int]:
            """Where messages came to: outputs to the next queue, and what went back to this one."""
            found: dict[str, int] = {}
            for ending, ok in zip(endings, settled, strict=True):
                if ok and ending.hand_off is not None:
                    found[ending.hand_off.queue] = found.get(ending.hand_off.queue, 0) + len(ending.hand_off.messages)
                elif ok and isinstance(ending.verdict, Return):
                    found[self.name] = found.get(self.name, 0) + 1
            return found

        return database.write_and_wake(
            lambda execute, now: self.rows.settle(execute, now, endings, lambda name: database.queue(name).rows),
            came,
            rows=4 * len(endings),
        )

    # --- waiting --------------------------------------------------------------------------------------------------

    def wait(self, handle: WaitHandle, timeout_s: float, for_us: int, beyond: Collection[str] = ()) -> Arrival:
        database, until = self._database, monotonic() + timeout_s
        database.add_event(self.name, handle.woken)
        try:
            while True:
                handle.woken.clear()
                if handle.interrupted:
                    return Arrival(False)
                pause_s = min(self._until_due_s(beyond), until - monotonic())
                if pause_s <= 0:
                    return Arrival(monotonic() < until)
                handle.woken.wait(pause_s)
        finally:
            database.remove_event(self.name, handle.woken)

    def _until_due_s(self, beyond: Collection[str]) -> float:
        """Seconds until a message may be ready, 0 where one is. Otherwise this process stands on the list of waiters."""

        def work(execute: Callable[..., Any], now: int) -> float:
            self.rows.promote(execute, now)
            if self.rows.has_ready(execute, beyond):
                return 0.0
            self.rows.add_waiter(execute, self._database.session)
            self._registered = True
            due = None if self.rows.is_paused(execute) else self.rows.next_due(execute)
            return LOOK_EVERY_S if due is None else min(LOOK_EVERY_S, max(1, due - now) / SECOND)

        return self._database.write(work)

    # --- looking, and what operators do ---------------------------------------------------------------------------

    def stats(self) -> QueueStats:
        return self._database.write(self.rows.stats)

    def peek(self, most: int) -> list[tuple[str, str, str, MessageHistory]]:
        return self._database.write(lambda execute, now: self.rows.peek(execute, now, most))

    def pause(self, reason: str) -> None:
        self._database.write(lambda execute, now: self.rows.pause(execute, reason))

    def resume(self) -> None:
        self._database.write_and_wake(
            lambda execute, now: self.rows.pause(execute, None), lambda done: {self.name: MOST_WOKEN}
        )

    def purge(self) -> int:
        return self._database.write(self.rows.purge)

    def dead_letters(self, which: DeadFilter, most: int) -> list[DeadLetter]:
        return self._database.write(lambda execute, now: self.rows.dead_letters(execute, now, which, most))

    def redrive(self, ids: Sequence[str], every_us: int = 0) -> int:
        return self._database.write_and_wake(
            lambda execute, now: self.rows.redrive(execute, now, ids, every_us), lambda moved: {self.name: moved}
        )

    def drop(self, ids: Sequence[str]) -> int:
        return self._database.write(lambda execute, now: self.rows.drop(execute, ids))

    def close(self) -> None:
        self._database.close()

    def __repr__(self) -> str:
        return f"<queue {self.name} at {self.url}>"

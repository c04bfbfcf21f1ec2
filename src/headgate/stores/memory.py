"""`memory://`: the state of gates in this process, under one lock."""

from __future__ import annotations

import threading
from time import monotonic_ns

from ..background import check_free, is_ending
from ..clock import anchored_clock
from ..errors import HeadgateError
from ..kernel.commands.base import begin, compare
from ..kernel.records import DictRecords
from .base import Capabilities, Here, Listeners, Seen, at_fork, ignore_loss, new_session, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..clock import Clock
    from ..kernel.commands import Command
    from ..kernel.model import Wake
    from ..kernel.plan import Plan
    from .base import Listener


class MemoryStore:
    """State in dicts. Gone with the process: use `sqlite:///…` for many processes or to outlive a restart.

    After a fork the child goes on with a copy of its own, as with everything in memory.
    """

    capabilities = Capabilities(instant=True, in_process=True, forwards_wakes=True, compares_seen=True)
    keeper: Any = None

    def __init__(self, clock: Clock | None = None, url: str = "memory://") -> None:
        self.url = url
        self.on_loss: Callable[[str], None] = ignore_loss
        self._clock, self._offset = anchored_clock() if clock is None else (clock, 0)
        self._gates: dict[str, DictRecords] = {}
        self._listeners = Listeners()
        self._lock = threading.RLock()
        self.begin_in_child()
        at_fork.add(self)

    def begin_in_child(self) -> None:
        # A lock that another thread held at the fork would never be released in the child. It is the same lock: what was
        # made ready goes by it.
        self._lock._at_fork_reinit()  # type: ignore[attr-defined]
        self._listeners.clear()
        self.session = new_session()

    def _records(self, gate: str) -> DictRecords:
        records = self._gates.get(gate)
        if records is None:
            records = self._gates[gate] = DictRecords(gate, self.session)
        return records

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        replies = []
        touched = set()
        if is_ending():
            check_free(self._lock, self.url)
        with self._lock:
            now = self._clock()
            for command in commands:
                records = self._records(command.gate)
                replies.append(run(command, now, records))
                if records.wakes:
                    touched.add(command.gate)
        for gate in touched:
            self._wake(self._gates[gate])
        return replies

    async def aexecute(self, commands: Sequence[Command]) -> list[Any]:
        return self.execute(commands)  # nothing here waits for anything but a short lock

    def decide(self, command: Command) -> Any:
        records = self._gates.get(command.gate) or self._records(command.gate)
        wakes = None
        if is_ending():
            check_free(self._lock, self.url)
        with self._lock:
            try:  # as in `run`, without its call
                reply = command.apply(self._clock(), records)
            except HeadgateError as error:
                reply = error
            if records.wakes:
                wakes = records.wakes[:]
                records.wakes.clear()
        if wakes is not None:
            for wake in wakes:
                self._listeners.tell(wake)
        if isinstance(reply, HeadgateError):  # as in `checked`
            raise reply
        return reply

    def caller(self, gate: str) -> Callable[..., Any]:
        """`decide` without a command object, for the two decisions that are made most: `admit` and `end`."""
        records = self._records(gate)
        offset, clock, wakes = self._offset, self._clock, records.wakes

        def call(decision: Callable[..., Any], plan: Plan, id: str, third: Any, fourth: Any) -> Any:
            lock = self._lock
            if is_ending():
                check_free(lock, self.url)
            # `with` would take twice as long. A KeyboardInterrupt may come right after `acquire`, so that is inside, and a
            # lock that knows its owner tells whether it was taken.
            try:
                lock.acquire()
                now = monotonic_ns() // 1000 + offset if offset else clock()
                reply = decision(now, records, plan, id, third, fourth)
                lock.release()
            except BaseException:
                if lock._is_owned():  # type: ignore[attr-defined]
                    lock.release()
                raise
            if wakes:
                self._wake(records)
            return reply

        return call

    def prepared(self, gate: str, prepare: Callable[[Here], Any]) -> Any:
        """What `prepare` makes of the state of a gate in this process: asks that are all alike, as one function."""
        records, clock = self._records(gate), self._clock
        ticks = monotonic_ns if self._offset else lambda: clock() * 1000
        return prepare(Here(self._lock, records, ticks, self._offset))

    def now(self) -> int:
        return self._clock()

    def _wake(self, records: DictRecords) -> None:
        with self._lock:
            wakes = records.wakes[:]
            records.wakes.clear()
        for wake in wakes:
            self._listeners.tell(wake)

    def listen(self, ticket: str, listener: Listener) -> None:
        self._listeners.add(ticket, listener)

    def unlisten(self, ticket: str) -> None:
        self._listeners.remove(ticket)

    def adopt(self, session: str, tell: Callable[[Wake], None]) -> None:
        self._listeners.adopt(session, tell)

    def disown(self, session: str) -> None:
        self._listeners.disown(session)

    def saw(self, gate: str, number: int = 0, epoch: str = "") -> Seen:
        """Another process was told this of the gate. If it is not so any more, this process has lost state by a restart."""
        lost = False
        with self._lock:
            records = self._records(gate)
            head = records.head
            before = (head.epoch, head.lost_before)
            if (number or epoch) and compare(records, number, epoch or self.session):
                begin(self._clock(), records)
                lost = (head.epoch, head.lost_before) != before  # else a loss that was noticed before
            seen = Seen(head.seq, head.epoch)
        if lost:
            self.on_loss(gate)
        return seen

    def close(self) -> None:
        """Nothing to let go of."""


def open_url(url: str) -> MemoryStore:
    """`memory://`, or `memory://NAME` for one of several in the same process."""
    return MemoryStore(url=url)

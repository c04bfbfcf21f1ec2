"""When a process whose tickets wait reads the line again. DynamoDB cannot wake a process, so each polls.

A poll is one read per gate for all waiters of the process, timed for when its first waiter should be called: for a rate
that is exact, counting the tickets ahead; for slots it is estimated from the age of the leases (they will take about as
long again as they have lasted so far). The ticket that keeps the line's timer comes by itself and serves the line; the
polls of other processes find that their tickets were called.
"""

from __future__ import annotations

import threading
import time
from itertools import islice

from ...background import start_daemon
from ...errors import HeadgateError
from ...kernel.commands.permits import read_lease
from ...kernel.line import CALLED, HIDDEN, MISSED, Ticket, find, line_state
from ...kernel.model import NEVER, SECOND
from ...kernel.plan import recall
from .backoff import CHANCE
from .records import Missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .records import DynamoRecords
    from .store import DynamoStore

#: Where a ticket has its arrival number: a poll reads that of thousands.
ARRIVAL = Ticket._fields.index("arrival")

#: Seconds. The ticket that keeps the timer goes first, and the polls of other processes spread out behind it, the further
#: the more processes there are: of those that write at the same moment one succeeds, and the others must retry.
AFTER_S, JITTER_S, JITTER_EACH_S = 0.02, 0.1, 0.02
#: No two polls of a gate are closer than the first, and where no time is certain no further apart than the second, which
#: must be shorter than the time for which a call is held.
CLOSEST_S, FURTHEST_S = 0.1, 3.0
#: Seconds after which another ticket stands in for the one that keeps the timer and does not come.
OVERDUE_S = 0.25
#: The thread ends after so many seconds without a gate to poll.
LINGER_S = 5.0


class Polling:
    """One thread per store, while tickets of this process wait."""

    def __init__(self, store: DynamoStore) -> None:
        self._store = store
        self._condition = threading.Condition(threading.Lock())
        #: gate → when to poll, in seconds of this process's monotonic clock
        self._due: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._due.clear()
            self._condition.notify()

    # --- when ---------------------------------------------------------------------------------------------------

    def plan(self, gate: str, records: DynamoRecords) -> None:
        """The line of a gate was read: poll again when the first waiter of this process should be called."""
        try:
            delay_s = self._until_called(records)
        except (Missing, HeadgateError):
            delay_s = FURTHEST_S  # what is kept for some value of a key was not read, or cannot be: poll now and then
        with self._condition:
            if delay_s is None or self._closed:
                self._due.pop(gate, None)
                return
            now = time.monotonic()
            jitter = CHANCE.random() * min(JITTER_S + JITTER_EACH_S * len(records.sessions), FURTHEST_S)
            at = max(now + delay_s, self._last.get(gate, 0.0) + CLOSEST_S) + AFTER_S + jitter
            self._due[gate] = at
            if self._thread is None:
                self._thread = start_daemon("headgate-polling", self._work)
            else:
                self._condition.notify()

    def _until_called(self, records: DynamoRecords) -> float | None:
        """Seconds until the first ticket of this process that waits should be called; None: there is none."""
        now, tickets = records.head.now, records.tickets
        mine = None
        for _, id in records.session_tickets[self._store.session].scan():
            ticket = tickets.get(id)
            if ticket is not None and not ticket[CALLED] and ticket[HIDDEN] != MISSED:
                mine = find(records, id)
                break
        if mine is None:
            return None
        # Arrival numbers are the order within a lane and class; between them it is near enough.
        ahead = sum(1 for other in tickets.values() if not other[HIDDEN] and other[ARRIVAL] < mine.arrival)
        plan = recall(records, mine.ref)
        steps = plan.current(records) if records.head.overrides else plan.steps
        at = max(now, records.head.paused)
        if at > now and ahead:
            at += 1
        for step in steps:
            limit, member, cost, value = step.limit, step.member, step.cost, step.value
            if limit.leased:
                at = max(at, now + round(self._slot_free_in(records, member, value, now, ahead + 1) * SECOND))
            else:
                together = min(cost * (ahead + 1), max(cost, value // cost * cost))
                then = limit.earliest(records, now, member, together, value, now)
                at = max(at, then if then < NEVER else now)
        state = line_state(records)
        if state.timer_at < NEVER and state.timer != mine.id:
            at = max(at, min(state.timer_at, now + round(FURTHEST_S * SECOND)))
        return (at - now) / SECOND

    def _slot_free_in(self, records: DynamoRecords, member: str, value: float, now: int, place: int) -> float:
        """Seconds until so many slots have become free, judged by the age of the leases."""
        leases = records.leases[member]
        if len(leases) < value:
            return 0.0
        rows = list(islice(leases.values(), 64))
        age = sum(max(0, now - read_lease(row).at) for row in rows) / max(1, len(rows)) / SECOND
        return min(FURTHEST_S, place * age / max(1, len(leases)))

    # --- polling ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._condition:
                now = time.monotonic()
                due = [gate for gate, at in self._due.items() if at <= now]
                if not due:
                    pause = min(self._due.values(), default=now + LINGER_S) - now
                    if not self._condition.wait(pause) and not self._due:
                        self._thread = None
                        return
                    continue
                for gate in due:
                    del self._due[gate]
                    self._last[gate] = now
            for gate in due:
                try:
                    self._poll(gate)
                except Exception:
                    # The store is away, or holds something that cannot be read: the next command is told. Poll again.
                    with self._condition:
                        self._due.setdefault(gate, time.monotonic() + FURTHEST_S)

    def _poll(self, gate: str) -> None:
        records = self._store.read_gate(gate)
        first = self.notice(gate, records)
        if first and line_state(records).timer_at + OVERDUE_S * SECOND < self._store.approximate_time():
            self._store.wake_ticket(first, 0)

    def notice(self, gate: str, records: DynamoRecords) -> str:
        """The line was read: wake the waiters here whose tickets were called or are gone, and plan the next poll.

        Returns the first of the tickets that go on waiting, "" where there is none.
        """
        get = records.tickets.get
        first = ""
        for id in self._store.tickets_waiting(gate):
            ticket = get(id)
            if ticket is None or ticket[CALLED] or ticket[HIDDEN] == MISSED:
                self._store.wake_ticket(id, None)
            elif not first:
                first = id
        self.plan(gate, records)
        return first

"""When a process that waits looks at the line again. Nobody can wake another process through DynamoDB.

A look is one read for all who wait at a gate in this process, at the time that its first waiter's turn should come: for a
rate that is exact, counting those ahead; for slots it is what the age of the leases tells (they will take about as long
again as they have lasted so far). The first in order keeps its own timer and serves the line; the others find that they
were called.
"""

from __future__ import annotations

import threading
import time
from itertools import islice

from ...errors import HeadgateError
from ...kernel.line import CALLED, HIDDEN, MISSED, find, meta_of
from ...kernel.model import NEVER, SECOND
from ...kernel.plan import recall
from ...kernel.records import busy
from .batch import CHANCE
from .records import Missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .records import DynamoRecords
    from .store import DynamoStore

#: Seconds. Who keeps the timer goes first, and the others spread out behind it, the further the more processes they are:
#: those who come together write together, and one of them is first.
AFTER, JITTER, JITTER_EACH = 0.02, 0.1, 0.02
#: No two looks at a gate are closer than the first, and where no time is certain no further apart than the second, which
#: must be shorter than a claim.
CLOSEST, FURTHEST = 0.1, 3.0
#: Seconds after which somebody else takes the place of who keeps the timer and does not come.
OVERDUE = 0.25
#: A thread without anybody to look for ends after so many seconds.
LINGER = 5.0


class Looks:
    """One thread per store, while somebody waits."""

    def __init__(self, store: DynamoStore) -> None:
        self._store = store
        self._bell = threading.Condition(threading.Lock())
        #: gate → when to look, on this process's clock
        self._due: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def close(self) -> None:
        with self._bell:
            self._closed = True
            self._due.clear()
            self._bell.notify()

    # --- when ---------------------------------------------------------------------------------------------------

    def plan(self, gate: str, records: DynamoRecords) -> None:
        """The line of a gate was seen: look again when the first who waits here should have its turn."""
        try:
            delay = self._turn(records)
        except (Missing, HeadgateError):
            delay = FURTHEST  # what is kept for some key was not read, or cannot be: look now and then
        with self._bell:
            if delay is None or self._closed:
                self._due.pop(gate, None)
                return
            now = time.monotonic()
            jitter = CHANCE.random() * min(JITTER + JITTER_EACH * len(records.space("sessions")), FURTHEST)
            at = max(now + delay, self._last.get(gate, 0.0) + CLOSEST) + AFTER + jitter
            self._due[gate] = at
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="headgate-looks", daemon=True)
                self._thread.start()
            else:
                self._bell.notify()

    def _turn(self, records: DynamoRecords) -> float | None:
        """Seconds until the turn of the first ticket of this process that waits; None: there is none."""
        now, tickets = records.head[1], records.space("tickets")
        mine = None
        for _, id in records.space("of", self._store.session).scan():
            ticket = tickets.get(id)
            if ticket is not None and not ticket[CALLED] and ticket[HIDDEN] != MISSED:
                mine = find(records, id)
                break
        if mine is None:
            return None
        # Arrival numbers are the order within a lane and class; between them it is near enough.
        ahead = sum(1 for other in tickets.values() if not other[HIDDEN] and other[ARRIVAL] < mine.arrival)
        plan = recall(records, mine.ref)
        steps = plan.current(records) if busy(records)[2] else plan.steps
        at = max(now, busy(records)[0])
        if at > now and ahead:
            at += 1
        for limit, member, cost, value, _, _, _, _ in steps:
            if limit.leased:
                at = max(at, now + round(self._slot(records, member, value, now, ahead + 1) * SECOND))
            else:
                together = min(cost * (ahead + 1), max(cost, value // cost * cost))
                then = limit.earliest(records, now, member, together, value, now)
                at = max(at, then if then < NEVER else now)
        meta = meta_of(records)
        if meta.timer_at < NEVER and meta.timer != mine.id:
            at = max(at, min(meta.timer_at, now + round(FURTHEST * SECOND)))
        return (at - now) / SECOND

    def _slot(self, records: DynamoRecords, member: str, value: float, now: int, place: int) -> float:
        leases = records.leases[member]
        if len(leases) < value:
            return 0.0
        rows = list(islice(leases.values(), 64))
        age: float = sum(max(0, now - row[1]) for row in rows) / max(1, len(rows)) / SECOND
        return min(FURTHEST, place * age / max(1, len(leases)))

    # --- looking ------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._bell:
                now = time.monotonic()
                due = [gate for gate, at in self._due.items() if at <= now]
                if not due:
                    pause = min(self._due.values(), default=now + LINGER) - now
                    if not self._bell.wait(pause) and not self._due:
                        self._thread = None
                        return
                    continue
                for gate in due:
                    del self._due[gate]
                    self._last[gate] = now
            for gate in due:
                try:
                    self._look(gate)
                except Exception:
                    # The store is away, or has something that cannot be read: whoever decides is told. Look again.
                    with self._bell:
                        self._due.setdefault(gate, time.monotonic() + FURTHEST)

    def _look(self, gate: str) -> None:
        records = self._store.seen_now(gate)
        first = self.notice(gate, records)
        if first and meta_of(records).timer_at + OVERDUE * SECOND < self._store.rough_time():
            self._store.tell_ticket(first, 0)

    def notice(self, gate: str, records: DynamoRecords) -> str:
        """The line was seen: tell those of this process whose turn it is. Returns the first of those who go on waiting."""
        get = records.space("tickets").get
        first = ""
        for id in self._store.waiting(gate):
            ticket = get(id)
            if ticket is None or ticket[CALLED] or ticket[HIDDEN] == MISSED:
                self._store.tell_ticket(id, None)
            elif not first:
                first = id
        self.plan(gate, records)
        return first


#: Where a ticket says when it came.
ARRIVAL = 7

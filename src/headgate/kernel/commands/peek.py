"""PURE. Looking without touching."""

from __future__ import annotations

from dataclasses import replace
from heapq import merge, nsmallest
from itertools import islice

from .. import line
from ..model import NEVER, HeldLease, Override, Refusal, Snapshot, Wait, WaitingTicket
from ..overlay import Overlay
from ..overrides import lapse, listed, value_of
from ..plan import recall
from .admit import Admit
from .base import Command, lose, steps_in_force

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..limits import Limit
    from ..model import LimitUsage
    from ..plan import Plan, Policy, Step, Steps
    from ..records import Records


#: At most so many waiters are listed, those that have waited longest. How many there are is always told.
WAITERS = 50

#: At most so many keys of a limit are looked at.
KEYS = 10_000


class Question(Admit):
    """What would become of an ask that does not wait: decided by the rules of `Admit`, and a grant is not charged."""

    __slots__ = ()
    latest = 0

    def ask(self, records: Records, now: int) -> Wait | Refusal | None:
        """None where it would go now. `records` are changed, so they are those of a look."""
        reply = self._apply(now, records)
        if isinstance(reply, Refusal) and reply.at < NEVER:  # of a promise gate: its time is still to come
            reason = "paused" if reply.limit is None else ""
            return Wait(reply.at, reply.limit, records.head.tickets + 1, now=now, reason=reason)
        return reply  # type: ignore[return-value]

    def _grant(self, records: Records, now: int, steps: Steps, at: int, promised: int = 0) -> Any:
        return None


class Peek(Command):
    """Look without touching: usage, leases, waiters, overrides, and what would become of an ask (`plan`)."""

    __slots__ = ("keys", "leases", "plan", "policy", "search", "top", "waiters")
    writes = False

    def __init__(
        self,
        policy: Policy,
        *,
        plan: Plan | None = None,
        leases: bool = False,
        waiters: bool = False,
        keys: str | None = None,
        top: int = 0,
        search: str = "",
    ) -> None:
        self.gate = policy.name
        self.policy = policy
        self.plan = plan
        self.leases = leases
        self.waiters = waiters
        #: The limit by a key of which the `top` fullest keys are wanted, of those that have `search` in them.
        self.keys = keys
        self.top = top
        self.search = search

    def apply(self, now: int, records: Records) -> Snapshot:
        view = Overlay(records)
        head, plan = view.head, self.plan
        now = head.now = max(now, head.now)
        if head.seq < view.seen:
            lose(now, view)
        if head.overrides:
            lapse(view)
        overdue = 0
        if head.tickets and now >= (due_at := line.line_state(view).timer_at):
            overdue = due_at
            line.serve(view, now)  # as the next decision will: calls and processes that are over leave, patience ends
        # Before the rest, which may make up for lost state of a key that is not used.
        keys = () if self.keys is None else self._keys(view, now, self.policy.limit(self.keys))
        decision: Any = None
        blocking: str | None = None
        steps = steps_in_force(view, now, plan or self.policy.everything())
        limits = tuple(self._describe(view, now, step) for step in steps if plan is not None or not step.by)
        if plan is not None:
            decision = Question(plan).ask(view, now)
            if self.leases and decision is not None:
                blocking = self._blocking(view, now, steps, decision)
        leases = self._leases(view, now, blocking) if self.leases else ()
        values: tuple[Override, ...] = ()
        if head.overrides:
            values = listed(view, now)
        waiters = self._waiters(view, now) if self.waiters and head.tickets else ()
        until = head.paused if head.paused > now else 0
        return Snapshot(
            now,
            records.head.seq,
            until,
            head.reason,
            head.tickets,
            limits,
            leases,
            values,
            decision,
            waiters,
            overdue,
            keys,
        )

    def _keys(self, records: Records, now: int, limit: Limit) -> tuple[LimitUsage, ...]:
        """The keys that use most of a limit: many are looked at roughly, and of those a few times `top` are described."""
        overridden = records.head.overrides
        found = []
        for member in islice(records.keyed(f"{limit.name}|"), KEYS):
            if self.search not in member.partition("|")[2]:
                continue
            state = records.states.get(member)
            if state is not None and state[0] == limit.kind:
                value = value_of(records, limit.name, member, limit.limit) if overridden else limit.limit
                found.append((-limit.rough_use(records, now, member, state) / value, member, value))
        few = nsmallest(4 * self.top, found)
        rows = [limit.describe(records, now, member, value) for _, member, value in few]
        used = [row for row in rows if row.used > 0 or row.promised > 0]
        return tuple(sorted(used, key=lambda row: (-row.utilisation, row.key or ""))[: self.top])

    def _describe(self, records: Records, now: int, step: Step) -> LimitUsage:
        usage = step.limit.describe(records, now, step.member, step.value)
        if step.rank < 0:
            return usage
        return replace(usage, name=step.member.partition("|")[0])

    def _blocking(self, records: Records, now: int, steps: Steps, decision: Wait | Refusal) -> str | None:
        """The member of the limit that is waited for, whose holders are of interest; None where it is no limit."""
        last: Step | None = None
        at = now
        for step in steps:
            if step.base == decision.limit:
                then = step.limit.earliest(records, now, step.member, step.cost, step.value, now)
                if last is None or then > at:
                    at, last = then, step
        return None if last is None else last.member

    def _leases(self, records: Records, now: int, blocking: str | None) -> tuple[HeldLease, ...]:
        """The holders of the blocking limit, or of all."""
        rows = {}
        for member in records.names("leases") if blocking is None else [blocking]:
            leases = records.leases[member]
            get = leases.get
            for expires, id in leases.scan(now + 1):
                ref, at, _, holder, *_ = get(id)  # a LeaseRow, and there may be thousands
                rows[id] = HeldLease(id, holder, dict(ref[3]), at, expires, ref[1])
        return tuple(sorted(rows.values(), key=lambda row: (row.granted_at, row.id)))

    def _waiters(self, records: Records, now: int) -> tuple[WaitingTicket, ...]:
        """The waiters, the oldest first: at most so many of each process are read."""
        of = [islice(records.space("of", session).scan(), WAITERS) for _, session in records.space("sessions").scan()]
        rows: list[WaitingTicket] = []
        waiting: list[tuple[int, int, int, WaitingTicket, line.Ticket]] = []
        lanes: dict[tuple[int, str], int] = {}
        tickets = records.tickets
        for _, id in islice(merge(*of), WAITERS):
            ticket = tickets.get(id)
            ticket = ticket if ticket.__class__ is line.Ticket else line.Ticket(*ticket)
            state = "called" if ticket.called else "skipped" if ticket.hidden else "waits"
            _, rank, costs, key = ticket.ref
            row = WaitingTicket(id, ticket.holder, dict(key), ticket.since, rank, dict(costs), state, None, 0.0, now)
            rows.append(row)
            if state == "waits":
                lane = (ticket.tier, ticket.lane)
                before = lanes[lane] = lanes.get(lane, -1) + 1
                waiting.append((ticket.tier, before, ticket.arrival, row, ticket))
        # About as the line takes turns: the higher tier first, then the first of each lane, the second of each lane, …
        waiting.sort(key=lambda turn: turn[:3])
        at = line.line_state(records).free_at
        paused = max(records.head.paused, now)
        alike: dict[Any, tuple[str | None, float, int, float, float]] = {}
        for tier, before, _, row, ticket in waiting:
            asked = (ticket.ref[0], tier, ticket.rank, ticket.lane, *row.cost.items())
            terms = alike.get(asked) or alike.setdefault(asked, self._terms_of(records, now, ticket))
            row.limit, row.left, due, own, pace = terms
            if due:
                row.goes_at = due + int(before * own)
            else:
                row.goes_at, at = at, at + int(pace)
            row.goes_at = max(row.goes_at, paused)
        return tuple(rows)

    def _terms_of(self, records: Records, now: int, ticket: line.Ticket) -> tuple[str | None, float, int, float, float]:
        """What tickets like this one wait for: the limit, what is left of it, when its lane is looked at again (0 where it
        is not parked); and the microseconds that one takes of the limit that it is parked at, and of those all share."""
        state, head = line.line_state(records), records.head
        plan = recall(records, ticket.ref, self.policy)
        parked = (records.lanes.get(f"{ticket.tier}.{ticket.rank}.{ticket.lane}") or (0, ""))[1]
        limit, left, due, own, pace = None, 0.0, 0, 0.0, 0.0
        for step in plan.current(records) if head.overrides else plan.steps:
            takes = 0.0 if step.limit.leased else step.cost * step.limit.pace(step.value)
            if not step.by:
                pace = max(pace, takes)
            if step.member == parked or (not parked and step.base == state.limit):
                available = step.limit.describe(records, now, step.member, step.value).available
                if limit is None or available < left:
                    limit, left = step.base, available
            if step.member == parked:
                due, own = records.looks_due.score(parked) or now, takes
        return limit, left, due, own, pace

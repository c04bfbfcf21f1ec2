"""PURE. Looking without touching."""

from __future__ import annotations

from dataclasses import replace
from heapq import merge, nsmallest
from itertools import islice

from .. import line, model
from ..head import Head
from ..model import NEVER, Refusal, Wait
from ..overlay import FORGETTING, Overlay
from ..overrides import lapse, listed, value_of
from ..plan import recall
from .admit import Admit
from .base import Command, lose, steps_in_force

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..limits import Limit
    from ..model import HeldLease, LimitUsage, Override, Snapshot, WaitingTicket
    from ..plan import Plan, Policy, Step, Steps
    from ..records import Records

    #: The limit, what is left of it, when its lane is looked at again, what a ticket takes of the two paces, and when the
    #: first of its slots ends by itself.
    Terms = tuple[str | None, float, int, float, int, int]


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
        head, plan, overdue = records.head, self.plan, 0
        now = max(now, head.now)
        due_at = line.line_state(records).timer_at if head.tickets else NEVER
        # What the next decision would change is changed on an overlay. Mostly that is what limits forget as they are asked,
        # and what is only listed can be read below it.
        below: Records
        if now < due_at and not head.lost and not head.overrides and head.seq >= records.seen:
            view, below = Overlay(records, head, FORGETTING), records
        else:
            view = below = Overlay(records, Head(*head.stored(), *head.stored_epoch()))
            head = view.head
            head.now = now
            if head.seq < view.seen:
                lose(now, view)
            if head.overrides:
                lapse(view)
                due_at = line.line_state(view).timer_at if head.tickets else NEVER
            if now >= due_at and head.tickets:
                overdue = due_at
                line.serve(view, now)  # as the next decision will: the dead and what is over leave, patience ends
        # Before the rest, which may make up for lost state of a key that is not used.
        keys = () if self.keys is None else self._keys(view, now, self.policy.limit(self.keys))
        decision: Any = None
        blocking: str | None = None
        steps = steps_in_force(view, now, plan or self.policy.everything())
        limits = tuple([self._describe(view, now, step) for step in steps if plan is not None or not step.by])
        if plan is not None:
            decision = Question(plan).ask(view, now)
            if self.leases and decision is not None:
                blocking = self._blocking(view, now, steps, decision)
        leases = self._leases(below, now, blocking) if self.leases else ()
        values: tuple[Override, ...] = ()
        if head.overrides:
            values = listed(view, now)
        waiters = self._waiters(below, view, now) if self.waiters and head.tickets else ()
        until = head.paused if head.paused > now else 0
        return model.Snapshot(
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
                rows[id] = model.HeldLease(id, holder, dict(ref[3]), at, expires, ref[1])
        return tuple(sorted(rows.values(), key=lambda row: (row.granted_at, row.id)))

    def _waiters(self, records: Records, view: Records, now: int) -> tuple[WaitingTicket, ...]:
        """The waiters, the oldest first: at most so many of each process are read. `view` is for asking limits."""
        of = [islice(records.space("of", session).scan(), WAITERS) for _, session in records.space("sessions").scan()]
        rows: list[WaitingTicket] = []
        waiting = []
        lanes: dict[Any, int] = {}
        get = records.tickets.get
        for _, id in islice(of[0] if len(of) == 1 else merge(*of), WAITERS):
            ticket = get(id)
            # By position: a line has thousands, and a page asks every second.
            _, _, ref, lane, _, tier, since, arrival, _, _, holder, _, _, called, hidden, *_ = ticket
            _, rank, costs, key = ref
            state = "called" if called else "skipped" if hidden else "waits"
            row = model.WaitingTicket(id, holder, dict(key), since, rank, dict(costs), state, None, 0.0, now)
            rows.append(row)
            if state == "waits":
                before = lanes[tier, lane] = lanes.get((tier, lane), -1) + 1
                waiting.append((tier, before, arrival, row, ticket))
        # About as the line takes turns: the higher tier first, then the first of each lane, the second of each lane, …
        waiting.sort()  # an arrival is one ticket's alone, so that rows are never compared
        at = line.line_state(records).free_at
        paused = max(records.head.paused, now)
        terms_of = WaitTerms(self.policy, records, view, now).of
        last_ref, last_tier = None, -1
        for tier, before, _, row, ticket in waiting:
            if ticket[2] is not last_ref or tier != last_tier:  # of one process the refs of tickets alike are one
                last_ref, last_tier = ticket[2], tier
                limit, left, due, own, pace, free_at = terms_of(ticket)
            row.limit, row.left = limit, left
            if due:
                goes_at = due + int(before * own)
            else:
                goes_at = at if at > free_at else free_at
                at = goes_at + pace
            row.goes_at = goes_at if goes_at > paused else paused
        return tuple(rows)


class WaitTerms:
    """What tickets wait for, looked up once for all that are alike: of a thousand keys most differ in the key alone."""

    __slots__ = ("_alike", "_below", "_lanes", "_limit", "_now", "_policy", "_view")

    def __init__(self, policy: Policy, below: Records, view: Records, now: int) -> None:
        self._policy = policy
        self._below = below
        self._lanes = below.lanes.get
        self._view = view
        self._now = now
        self._limit = line.line_state(below).limit
        #: By policy, class and costs where the key makes no difference, and by the lane besides where it does.
        self._alike: dict[Any, Terms] = {}

    def of(self, ticket: Any) -> Terms:
        """The limit that it waits for, what is left of it, when its lane is looked at again (0 where it is not parked); and
        the microseconds that one ticket takes of the limit that it is parked at, and of those that all share; and when the
        first slot ends that it waits for (0 for rates): renewals move that, and the line does not hear of them."""
        _, _, ref, lane, rank, tier, *_ = ticket
        policy, asked_rank, costs, _ = ref
        if costs.__class__ is not tuple:  # as some stores keep it
            costs = tuple(map(tuple, costs))
        found = self._lanes(f"{tier}.{rank}.{lane}")
        parked = "" if found is None else found[1]
        terms = self._alike.get((policy, asked_rank, costs, None if not parked else lane))
        if terms is None:
            terms = self._alike.get((policy, asked_rank, costs, lane))
        if terms is None:
            terms, by_key = self._find(ref, parked)
            self._alike[policy, asked_rank, costs, lane if by_key else None] = terms
        return terms

    def _find(self, ref: Any, parked: str) -> tuple[Terms, bool]:
        """Those of a ref, and whether they depend on its key."""
        below, view, now = self._below, self._view, self._now
        changed = below.head.overrides
        plan = recall(below, ref, self._policy)
        limit, left, due, own, pace, free_at, by_key = None, 0.0, 0, 0.0, 0.0, 0, bool(parked or changed)
        for step in plan.current(below) if changed else plan.steps:
            takes = 0.0 if step.limit.leased else step.cost * step.limit.pace(step.value)
            if not step.by:
                pace = max(pace, takes)
            if step.member == parked or (not parked and step.base == self._limit):
                by_key = by_key or bool(step.by)
                available = step.limit.describe(view, now, step.member, step.value).available
                if limit is None or available < left:
                    limit, left = step.base, available
                if step.limit.leased and not parked:
                    then = step.limit.earliest(view, now, step.member, step.cost, step.value, now)
                    free_at = max(free_at, then if then < NEVER else 0)
            if step.member == parked:
                due, own = below.looks_due.score(parked) or now, takes
        return (limit, left, due, own, int(pace), free_at), by_key

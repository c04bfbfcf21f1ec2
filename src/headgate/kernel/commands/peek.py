"""PURE. Looking without touching."""

from __future__ import annotations

from dataclasses import replace
from heapq import merge
from itertools import islice

from .. import line
from ..model import Override, Refusal, Snapshot, Wait
from ..plan import Plan, earliest
from .admit import earliest_now
from .base import Command, too_large
from .permits import read_lease

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model import LimitUsage
    from ..plan import Policy, Step
    from ..records import Records


#: At most so many waiters are listed, those that have waited longest. How many there are is always told.
WAITERS = 50


class Peek(Command):
    """Look without touching: usage, leases, waiters, overrides, and what would become of an ask (`plan`)."""

    __slots__ = ("leases", "plan", "policy", "waiters")
    writes = False

    def __init__(
        self, policy: Policy, *, plan: Plan | None = None, leases: bool = False, waiters: bool = False
    ) -> None:
        self.gate = policy.name
        self.policy = policy
        self.plan = plan
        self.leases = leases
        self.waiters = waiters

    def apply(self, now: int, records: Records) -> Snapshot:
        head = records.head
        paused, overrides, tickets = head.paused, head.overrides, head.tickets
        now = max(now, head.now)
        plan = self.plan
        decision: Any = None
        blocking: str | None = None
        if plan is not None:
            steps = plan.current(records) if overrides else plan.steps
            limits = tuple(self._describe(records, now, step) for step in steps)
            excessive = plan.too_large(steps)
            promising = self.policy.waiting == "promise"  # on its grid; in a line the answer is exact, as in `Admit`
            at: int = now
            step: Step | None = None
            if excessive is None:  # what never fits has no earliest moment, and looking for it would take as long
                at, step = earliest(records, now, steps, now) if promising else earliest_now(records, now, steps)
            if excessive is not None:
                decision = Refusal(excessive.base, too_large(excessive, plan), now=now)
            elif paused > now and paused >= at:
                decision = Wait(paused, None, tickets + 1, now=now, reason="paused")
            elif at > now:
                assert step is not None
                decision = Wait(at, step.base, tickets + 1, now=now)
                blocking = step.member
            elif tickets and line.is_behind(records, plan, state := line.line_state(records)):
                decision = Wait(max(now + 1, state.free_at), state.limit or None, tickets + 1, now=now, reason="line")
        else:
            limits = self._limits(records, now)
        leases = self._leases(records, now, blocking) if self.leases else ()
        listed = records.space("overrides")
        values = tuple(
            Override(name.partition("|")[0], name.partition("|")[2] or None, listed.get(name))
            for _, name in (listed.scan() if overrides else ())
        )
        waiters = self._waiters(records) if self.waiters and tickets else ()
        until = paused if paused > now else 0
        overdue = 0
        if tickets and (due_at := line.line_state(records).timer_at) <= now:
            overdue = due_at
        return Snapshot(now, head.seq, until, head.reason, tickets, limits, leases, values, decision, waiters, overdue)

    def _describe(self, records: Records, now: int, step: Step) -> LimitUsage:
        usage = step.limit.describe(records, now, step.member, step.value)
        if step.rank < 0:
            return usage
        return replace(usage, name=step.member.partition("|")[0])

    def _limits(self, records: Records, now: int) -> tuple[LimitUsage, ...]:
        """Every limit that is not by a key, with the shares of the classes."""
        lowest = list(self.policy.priorities)[-1] if self.policy.priorities else None
        plain = dict.fromkeys(self.policy.keys, "-")
        plan = self.policy.plan(dict.fromkeys(self.policy.units, 1.0), plain or None, lowest)
        steps = plan.current(records) if records.head.overrides else plan.steps
        return tuple(self._describe(records, now, step) for step in steps if not step.by)

    def _leases(self, records: Records, now: int, blocking: str | None) -> tuple[Any, ...]:
        """(id, holder, key, granted at, expires, rank) of the holders of the blocking limit, or of all."""
        rows = {}
        for member in records.names("leases") if blocking is None else [blocking]:
            leases = records.leases[member]
            for expires, id in leases.scan(now + 1):
                row = read_lease(leases.get(id))
                rows[id] = (id, row.holder, dict(row.ref[3]), row.at, expires, row.ref[1])
        return tuple(sorted(rows.values(), key=lambda row: (row[3], row[0])))

    def _waiters(self, records: Records) -> tuple[Any, ...]:
        """(id, holder, key, since, rank) of the waiters, the oldest first: at most so many of each process are read."""
        of = [islice(records.space("of", session).scan(), WAITERS) for _, session in records.space("sessions").scan()]
        rows = []
        for _, id in islice(merge(*of), WAITERS):
            ticket = line.find(records, id)
            assert ticket is not None
            rows.append((id, ticket.holder, dict(ticket.ref[3]), ticket.since, ticket.rank))
        return tuple(rows)

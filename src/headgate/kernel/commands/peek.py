"""PURE. Looking without touching."""

from __future__ import annotations

from dataclasses import replace
from heapq import merge
from itertools import islice

from .. import line
from ..model import NEVER, HeldLease, Override, Refusal, Snapshot, Wait, WaitingTicket
from ..overlay import Overlay
from .admit import Admit
from .base import Command, lose, steps_in_force
from .permits import read_lease

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model import LimitUsage
    from ..plan import Plan, Policy, Step, Steps
    from ..records import Records


#: At most so many waiters are listed, those that have waited longest. How many there are is always told.
WAITERS = 50


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
        view = Overlay(records)
        head, plan = view.head, self.plan
        now = head.now = max(now, head.now)
        if head.seq < view.seen:
            lose(now, view)
        if head.tickets and now >= line.line_state(view).timer_at:
            line.serve(view, now)  # as the next decision will: calls and processes that are over leave, patience ends
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
            listed = view.space("overrides")
            values = tuple(
                Override(name.partition("|")[0], name.partition("|")[2] or None, listed.get(name))
                for _, name in listed.scan()
            )
        waiters = self._waiters(view) if self.waiters and head.tickets else ()
        until = head.paused if head.paused > now else 0
        return Snapshot(
            now, records.head.seq, until, head.reason, head.tickets, limits, leases, values, decision, waiters
        )

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
            for expires, id in leases.scan(now + 1):
                row = read_lease(leases.get(id))
                rows[id] = HeldLease(id, row.holder, dict(row.ref[3]), row.at, expires, row.ref[1])
        return tuple(sorted(rows.values(), key=lambda row: (row.granted_at, row.id)))

    def _waiters(self, records: Records) -> tuple[WaitingTicket, ...]:
        """The waiters, the oldest first: at most so many of each process are read."""
        of = [islice(records.space("of", session).scan(), WAITERS) for _, session in records.space("sessions").scan()]
        rows = []
        for _, id in islice(merge(*of), WAITERS):
            ticket = line.find(records, id)
            assert ticket is not None
            rows.append(WaitingTicket(id, ticket.holder, dict(ticket.ref[3]), ticket.since, ticket.rank))
        return tuple(rows)

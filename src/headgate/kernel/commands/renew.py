"""PURE. The heartbeat of a process."""

from __future__ import annotations

from .. import line
from ..limits import prune
from ..model import Pulse
from ..plan import Plan, recall
from .base import Command, begin, lost_before
from .permits import LeaseRow, lease_of, permit_of, read_lease, stored_lease, stored_permit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..plan import Policy
    from ..records import Records


class Renew(Command):
    """One heartbeat for a process: its leases live on, and its tickets keep their places. With neither it serves the line.

    A heartbeat never shortens a lease: another process may have extended it by its id (`exactly` is for that).
    `leases` are (plan, id, granted at, length, fence, holder). Replies with the new expiries, the ids whose leases had
    already ended, and what its tickets should know: those that were called or are gone, and which keeps the timer.
    """

    __slots__ = ("exactly", "leases", "session", "tickets")

    def __init__(
        self,
        gate: str,
        leases: tuple[Any, ...] = (),
        session: str = "",
        tickets: tuple[str, ...] = (),
        exactly: bool = False,
    ) -> None:
        self.gate = gate
        self.leases = leases
        self.session = session
        self.tickets = tickets
        self.exactly = exactly

    def apply(self, now: int, records: Records) -> Pulse:
        now = begin(now, records)
        waiting = records.head.tickets
        before = lost_before(records)
        expires: dict[str, int] = {}
        for plan, id, at, length, fence, holder in self.leases:
            expires[id] = self._renew(records, now, before, plan, id, at, length, fence, holder)
        called: list[str] = []
        unknown: list[str] = []
        if waiting:
            # Also where it has no ticket here: those in line may all be dead.
            woke = self.tickets and line.hear(records, now, self.session)
            if woke or now >= line.line_state(records).timer_at:
                line.serve(records, now)
        if self.tickets:
            line.look_up(records, self.tickets, called, unknown)
        state = line.line_state(records)
        gone = tuple([id for id, until in expires.items() if not until]) if expires else ()
        sessions = len(records.sessions) if self.tickets else 0
        return Pulse(now, expires, gone, tuple(called), tuple(unknown), state.timer, state.timer_at, sessions)

    def _renew(
        self, records: Records, now: int, before: int, plan: Plan, id: str, at: int, length: int, fence: int,
        holder: str | None,
    ) -> int:  # fmt: skip
        expires = now + length
        slots = [step for step in plan.steps if step.limit.leased]
        permit = permit_of(records, id)
        if permit is not None and (permit.ended or permit.fence != fence):
            return 0  # it has ended, and the id may be another permit's by now
        for step in slots:
            leases = records.leases[step.member]
            prune(leases, now)
            row = leases.get(id)
            # Where the store lost its state, the holder has not lost its slot: it registers again.
            if not at < before if row is None else read_lease(row).fence != fence:
                return 0
            if not self.exactly:
                expires = max(expires, leases.score(id) or 0)
        for step in slots:
            known = records.leases[step.member].get(id)
            told = (0, 0) if known is None else read_lease(known)[4:]
            row = stored_lease(LeaseRow(plan.ref, at, fence, holder, *told))
            step.limit.charge(records, now, step.member, 1.0, step.value, at, (id, expires, row))
        if permit is not None:
            records.space("permits")[id] = stored_permit(permit._replace(ends=expires))
        return expires


class Extend(Command):
    """Renew one lease by its id alone, from any process, for `length` microseconds from now (0: its gate's own length).

    The reply is that of `Renew`. An id made by a gate tells its key after a `~`, as with `Release`.
    """

    __slots__ = ("id", "length", "policy")

    def __init__(self, policy: Policy, id: str, length: int = 0) -> None:
        self.gate = policy.name
        self.policy = policy
        self.id = id
        self.length = length

    def apply(self, now: int, records: Records) -> Pulse:
        known = permit_of(records, self.id)
        found = known or lease_of(records, self.policy, self.id)
        row = None
        if found is not None and not (known is not None and known.ended):
            plan = recall(records, found.ref, self.policy)
            member = next((step.member for step in plan.steps if step.limit.leased), None)
            row = None if member is None else records.leases[member].get(self.id)
        if row is None:
            return Pulse(begin(now, records), {self.id: 0}, (self.id,), (), (), "", 0, 0)
        held = read_lease(row)
        lease = (plan, self.id, held.at, self.length or plan.lease, held.fence, held.holder)
        pulse = Renew(self.gate, (lease,), exactly=True).apply(now, records)
        if records.head.tickets:
            # It may end sooner than before, and a ticket may wait for just that.
            line.freed(records, pulse.now, plan.steps)
            line.serve(records, pulse.now)
        return pulse

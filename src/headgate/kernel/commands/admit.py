"""PURE. Asking for a permit."""

from __future__ import annotations

from ...errors import AttemptOver, IdConflict, KindChanged
from .. import line
from ..ahead import ahead_of, goes, paced
from ..limits import NO_LEASE
from ..model import EARLIEST, ESTIMATE, EXACT, NEVER, Grant, Refusal, Wait
from ..overrides import lifts_at
from ..plan import Plan, charge, check_kinds, earliest, remember
from .base import REAP_MASK, Command, begin, steps_in_force, too_large
from .permits import REMEMBER, bury_attempts, is_buried, join, name_of, permit_lives, permit_of, put_permit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model import Decision
    from ..plan import Ref, Step, Steps
    from ..records import Records
    from .permits import PermitRecord

#: A grant from its parts: naming them takes longer.
_new = tuple.__new__


def admit(now: int, records: Records, plan: Plan, id: str, holder: str | None, lease: int) -> Decision | Exception:
    """`Admit` without the object: what a store in this process may call directly.

    Decides at once where nothing but the limits matters: most gates, nearly always. The rest is `Admit._apply`, which is
    also where the rules are: this gives the same answer sooner. A refusal leaves nothing behind, not even its number.
    """
    head = records.head
    seq = head.seq
    if not head.quiet or not seq & REAP_MASK or not plan.plain or seq < records.seen:
        return Admit(plan, id, holder, lease)._apply(begin(now, records), records)
    if now < head.now:
        now = head.now
    slots = plan.slots
    if slots:
        # Occupancy is the number of leases. When in doubt whether one of them has expired, or whether this is the
        # limit that was here before, the limit itself decides.
        states, leases = records.states, records.leases
        for member, free in slots:
            state = states.get(member)
            if state is None or len(leases[member]) > free or state[0] != "concurrency":
                return Admit(plan, id, holder, lease)._apply(begin(now, records), records)
    others = plan.others
    for asks, _, member, cost, value in others:
        if asks(records, now, member, cost, value, now) > now:
            return _not_now(now, records, plan)
    worth = False
    if (final := plan.final) is not None:
        take, member = final
        if at := take(records, now, member):
            if at > 0:
                return _not_now(now, records, plan)
            worth = True
    for _, charges, member, cost, value in others:
        if charges(records, now, member, cost, value, now, NO_LEASE):
            worth = True
    seq += 1
    head.seq = seq
    head.now = now
    if not slots:
        return _new(Grant, (now, 0, seq, worth, 0))
    expires = now + lease
    held = (plan.ref, now, seq, holder)
    for member, _ in slots:
        leases[member].put(id, held, expires)
    return _new(Grant, (now, expires, seq, worth, 0))


def _not_now(now: int, records: Records, plan: Plan) -> Wait:
    at, step = earliest_now(records, now, plan.steps)
    assert step is not None
    return Wait(at, step.base, 1, None, now, "", EARLIEST if step.limit.leased else EXACT)


class Admit(Command):
    """Ask for a permit now, and leave nothing behind if it cannot go. `lease` is its length in µs, 0 for rates alone.

    The attributes that `Stand` can set: `waits` makes a ticket of what cannot go now; the same ask with the same id again
    then takes its call. `remembered` says that the id was given by a caller, or that the reply may be lost: the grant is on
    record under it, and while the permit lives, the same ask again gets the same permit. `attempt` is which call of a
    caller's it is, where the id is the caller's: after the end of the permit another attempt is a new ask, and the same
    attempt is over (`AttemptOver`). On a promise gate the grant may lie in the future, but not more than `latest`
    microseconds.
    """

    __slots__ = ("holder", "id", "lease", "plan")
    waits = False
    session = ""
    remembered = False
    latest = NEVER
    attempt = ""
    #: Nothing but the limits themselves decides about it, unless the head says otherwise.
    plain = True

    def __init__(self, plan: Plan, id: str = "", holder: str | None = None, lease: int = 0) -> None:
        self.gate = plan.policy.name
        self.plan = plan
        self.id = id
        self.holder = holder
        self.lease = lease

    def apply(self, now: int, records: Records) -> Decision | Exception:
        if self.plain:
            return admit(now, records, self.plan, self.id, self.holder, self.lease)
        return self._apply(begin(now, records), records)

    def _apply(self, now: int, records: Records) -> Decision | Exception:
        plan = self.plan
        if self.remembered and (reply := self._known(now, records)) is not None:
            return reply
        head = records.head
        if head.tickets:
            state = line.line_state(records)
            ticket = line.find(records, self.id) if self.id else None
            heard = False
            if ticket is not None:
                if self.waits and (ticket.session != self.session or ticket.attempt != self.attempt):
                    ticket = line.adopt(records, ticket, self.session, self.attempt)
                heard = line.hear(records, now, ticket.session, ticket)
            if heard or now >= state.timer_at:
                taken: Grant | None = line.serve(records, now, self if self._goes_by(records, ticket) else None)
                if taken is not None:
                    return taken
                state = line.line_state(records)
                ticket = line.find(records, self.id) if self.id else None
            if ticket is not None:
                return self._ticket(records, now, ticket)
        paused, tickets = head.paused, head.tickets
        steps = steps_in_force(records, now, plan) if head.overrides or head.lost else plan.steps
        if (step := plan.too_large(steps)) is not None:
            lifts = NEVER if plan.too_large(plan.steps) is not None else lifts_at(records, step.base, step.member)
            return Refusal(step.base, too_large(step, plan, lifts), lifts, now)
        if plan.policy.waiting == "promise":
            return self._promise(records, now, steps)
        last: Step | None = None
        if tickets and not self.waits and line.is_behind(records, plan, state):
            return self._behind(records, now, steps, state)
        if paused > now:
            at, last = earliest_now(records, now, steps)
            if at <= paused:
                at, last = paused, None
        elif tickets and line.is_behind(records, plan, state):
            check_kinds(records, steps)
        else:
            at, last = earliest_now(records, now, steps)
            if at <= now:
                return self._grant(records, now, steps, now)
        if not self.waits:
            return self._wait(records, now, at, last)
        remember(records, plan.policy)
        if line.stand(
            records, now, plan, self.id, self.session, self.holder, self.lease, self.remembered, self.attempt
        ):
            taken = line.serve(records, now, self)
            if taken is not None:
                return taken
            ticket = line.find(records, self.id)
            if ticket is None:
                check_kinds(records, steps)  # another kind was called first, under a name that had no state before
            assert ticket is not None
            return self._ticket(records, now, ticket)
        return self._in_line(records, state, now, tickets + 1)

    def _goes_by(self, records: Records, ticket: line.Ticket | None) -> bool:
        """Whether it asks for what its ticket does, with the limits that the line goes by."""
        if ticket is None or records.head.lost:
            return False
        ref = self.plan.ref
        return ticket.ref is ref or (ticket.ref[0] == ref[0] and same(ticket.ref, ref))

    def take(self, records: Records, now: int, steps: Steps) -> Grant:
        """Its turn has come while it is here."""
        self._drop_own_wakes(records)
        return self._grant(records, now, steps, now)

    def _grant(self, records: Records, now: int, steps: Steps, at: int, promised: int = 0) -> Grant:
        """Charge every limit from `at` on. `promised` is the time of the decision on a promise gate, and 0 on others."""
        expires = now + self.lease if self.lease else 0
        seq = records.head.seq
        worth = charge(records, now, steps, at, (self.id, expires, (self.plan.ref, now, seq, self.holder)))
        if expires or self.remembered:
            remember(records, self.plan.policy)
        if self.remembered:
            if self.attempt:
                bury_attempts(records, self.id)
            put_permit(records.space("permits"), self.id, self.plan.ref, at, expires, seq, worth, self.attempt)
        return _new(Grant, (at, expires, seq, worth, promised))

    def _known(self, now: int, records: Records) -> Grant | Exception | None:
        """What is to be answered without deciding anything: the permit that lives under the id, or that it is over."""
        id, attempt = self.id, self.attempt
        if attempt and is_buried(records, name_of(id, attempt), now):
            return attempt_over(self.gate, id)
        known = permit_of(records, id)
        if known is None:
            return None
        if known.ends + REMEMBER <= now:
            records.space("permits").delete(id)  # forgotten, and only not yet reaped
            return None
        if permit_lives(known, now):
            return self._again(now, records, known)
        return attempt_over(self.gate, id) if not attempt or attempt in known.attempts.split() else None

    def _again(self, now: int, records: Records, known: PermitRecord) -> Grant | Exception:
        if not same(known.ref, self.plan.ref):
            return self._conflict()
        if self.attempt or known.attempts:
            join(records, now, self.id, known, self.attempt)
        if self.plan.policy.waiting == "promise":
            return Grant(known.sent or known.at, 0, known.fence, known.worth_confirming, now)
        return Grant(known.at, known.ends if known.leased else 0, known.fence, known.worth_confirming, 0)

    def _conflict(self) -> IdConflict:
        return IdConflict(
            f"gate {self.gate!r}: the id {self.id!r} stands for another ask; use a new id for each ask, "
            f"and the same id only to repeat one"
        )

    def _ticket(self, records: Records, now: int, ticket: line.Ticket) -> Grant | Wait | Exception:
        if ticket.ref is not self.plan.ref and not same(ticket.ref, self.plan.ref):
            return self._conflict()
        if ticket.called:
            # Taking a call: what was held goes, and the charge is stamped now.
            steps = steps_in_force(records, now, self.plan)
            check_kinds(records, steps)  # another version of the configuration may ask now than stood in line
            line.remove(records, now, ticket)
            grant = self._grant(records, now, steps, now)
            if records.head.tickets and not line.is_certain(records, now, self.plan, ticket.called):
                line.serve(records, now)
            self._drop_own_wakes(records)
            return grant
        state = line.line_state(records)
        if state.timer == self.id:
            self._drop_own_wakes(records)
        head = records.head
        place, tickets = ticket.place, head.tickets
        return self._in_line(records, state, now, place if place < tickets else tickets)

    def _in_line(self, records: Records, state: line.LineState, now: int, place: int) -> Wait:
        """The reply to an ask that stands in line."""
        _, _, timer, timer_at, _, _, limit, free_at = state
        plan = self.plan
        return Wait(
            paced(free_at if free_at > now else now + 1, plan.steps, ahead_of(records, plan)),
            limit or None,
            place,
            timer_at if timer == self.id else None,
            now,
            "paused" if records.head.paused > now else "line",
            ESTIMATE,
        )

    def _behind(self, records: Records, now: int, steps: Steps, state: line.LineState) -> Wait:
        """The reply to an ask that does not stand in line, and would have to."""
        ahead, paused = ahead_of(records, self.plan), records.head.paused
        at, last, timing = goes(records, now, self.plan, steps, ahead)
        reason = "line"
        if paused > now:
            reason, timing = "paused", ESTIMATE
        # What blocks is what the first in order waits for; what takes longest for all of them may be another limit.
        limit = state.limit or (last.base if last is not None else None)
        return Wait(max(at, paused, state.free_at, now + 1), limit, ahead.tickets + 1, None, now, reason, timing)

    def _drop_own_wakes(self, records: Records) -> None:
        """The asker learns it from the reply."""
        if wakes := records.wakes:
            id = self.id
            wakes[:] = [wake for wake in wakes if wake.ticket != id]

    def _wait(self, records: Records, now: int, at: int, step: Step | None) -> Wait:
        head = records.head
        reason = "paused" if head.paused > now and step is None else ""
        timing = EARLIEST if step is not None and step.limit.leased else EXACT
        return Wait(at, step.base if step else None, head.tickets + 1, None, now, reason, timing)

    def _promise(self, records: Records, now: int, steps: Steps) -> Grant | Refusal:
        at, step = earliest(records, now, steps, max(now, records.head.paused))
        if at >= NEVER:
            return Refusal(
                step.base if step else None, "what is left of it is less, and nothing comes back", NEVER, now
            )
        if at - now > self.latest:
            return Refusal(step.base if step else None, "its time would come too late", at, now)
        return self._grant(records, now, steps, at, now)


class Stand(Admit):
    """Ask for a permit in all generality: stand in line for it, go by an id that is remembered, take a promise."""

    __slots__ = ("asked", "attempt", "fresh", "latest", "remembered", "session", "waits")
    plain = False

    def __init__(
        self,
        plan: Plan,
        id: str = "",
        holder: str | None = None,
        lease: int = 0,
        *,
        waits: bool = False,
        session: str = "",
        remembered: bool = False,
        latest: int = NEVER,
        attempt: str = "",
    ) -> None:
        # What Admit does, without asking for it: there is one of these for every ask that may wait.
        self.gate = plan.policy.name
        self.plan = plan
        self.id = id
        self.holder = holder
        self.lease = lease
        self.waits = waits
        self.session = session
        self.remembered = remembered
        self.latest = latest
        self.attempt = attempt
        #: The id was made for this very command, so no other command has asked under it: its caller says so.
        self.fresh = False
        #: When it was sent by the caller's own clock, where that was before the caller asked; 0: it was not.
        self.asked = 0

    def apply(self, now: int, records: Records) -> Decision | Exception:
        if records.head.quiet and (grant := self._at_once(now, records)) is not None:
            return grant
        return self._apply(begin(now, records), records)

    def _at_once(self, now: int, records: Records) -> Grant | None:
        """The grant where nothing but the limits matters, and all of them say now: the same records, sooner."""
        seq = records.head.seq
        plan, id = self.plan, self.id
        if not seq & REAP_MASK or not plan.plain or seq < records.seen or not self.remembered:
            return None
        permits = records.space("permits")
        if not self.fresh and permits.get(id) is not None:
            return None
        if (attempt := self.attempt) and permits.get(f"{id} {attempt}") is not None:  # `name_of`
            return None
        for member, free in plan.slots:  # as in `admit`, which would refuse there in its own way
            state = records.states.get(member)
            if state is None or len(records.leases[member]) > free or state[0] != "concurrency":
                return None
        try:
            grant = admit(now, records, plan, id, self.holder, self.lease)
        except KindChanged:
            return None  # which `_apply` says, and counts
        if grant.__class__ is not Grant:
            return None
        at, expires, fence, worth, _ = grant
        remember(records, plan.policy)
        put_permit(permits, id, plan.ref, at, expires, fence, worth, attempt)
        return grant


def earliest_now(records: Records, now: int, steps: Steps) -> tuple[int, Step | None]:
    """The first moment at which every limit of a line gate allows it, and the limit that is last."""
    at, last = now, None
    for step in steps:
        then = step.limit.earliest(records, now, step.member, step.cost, step.value, now)
        if then > at:
            at, last = then, step
    return at, last


def attempt_over(gate: str, id: str) -> AttemptOver:
    return AttemptOver(
        f"gate {gate!r}: this ask under the id {id!r} is over: its permit has ended, or it was cancelled; ask again, "
        f"which is another ask, to be admitted anew"
    )


def same(ref: Any, other: Ref) -> bool:
    """Whether two refs ask for the same, whatever version of the configuration asked."""
    if ref is other:
        return True
    return bool(dict(ref[2]) == dict(other[2]) and dict(ref[3]) == dict(other[3]) and ref[1] == other[1])

"""PURE. The end of a permit, and what is given back before it."""

from __future__ import annotations

from .. import line
from ..limits import prune
from ..model import OUTCOMES, Adapted, Ended, checked_outcome
from ..plan import Plan, is_another_kind, recall
from .base import ENDED, LOST, REAP_MASK, Command, begin, pause
from .permits import (
    bury,
    end_permit,
    lease_of,
    name_of,
    permit_lives,
    permit_of,
    read_lease,
    stored_lease,
    stored_permit,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..plan import Policy, Steps
    from ..records import Records
    from .permits import PermitRecord


def end(now: int, records: Records, plan: Plan, id: str, at: int, worth: bool) -> Ended:
    """A leased permit ended with `ok`: `Settle` without the object, where no ticket waits and nothing adapts."""
    head = records.head
    seq = head.seq
    if not head.quiet or plan.adapts or seq < records.seen or not seq & REAP_MASK:
        return Settle(plan, at, id, "ok", False, worth=worth).apply(now, records)
    if now < head.now:
        now = head.now
    head.seq = seq + 1
    head.now = now
    reply = ENDED
    for member, _ in plan.slots:
        if worth and (row := records.leases[member].get(id)) is not None:
            at = read_lease(row).sent or at
        expires = records.leases[member].delete(id)
        if expires is None or expires <= now:
            reply = LOST
    if worth and reply is ENDED:
        for step in plan.steps:
            step.limit.confirm(records, now, step.member, step.cost, step.value, at)
    return reply


def lives(records: Records, now: int, steps: Steps, id: str) -> bool:
    """Whether the lease is still its holder's: it is in the set, and has not expired unseen."""
    alive = True
    for step in steps:
        if step.limit.leased:
            leases = records.leases[step.member]
            prune(leases, now)
            if leases.get(id) is None:
                alive = False
    return alive


def charged_at(records: Records, steps: Steps, permit: PermitRecord | None, id: str, at: int) -> int:
    """From when on a permit is charged that was granted at `at`: its sent stamp may have moved that."""
    if permit is not None:
        return permit.sent or at
    for step in steps:
        if step.limit.leased and (row := records.leases[step.member].get(id)) is not None:
            return read_lease(row).sent or at
    return at


class Settle(Command):
    """A permit ends (`outcome`), is confirmed (neither), or is settled to what it really cost (`actual`).

    `at` is when it was granted, in the store's time, unless a sent stamp is on record; `id` is empty where nothing in the
    store goes by it. `fence` is that of the permit where its id is a caller's, who may have another permit under it by now;
    0: whichever is there. Delays are in microseconds.
    """

    __slots__ = ("actual", "at", "confirmed", "fence", "id", "outcome", "plan", "remembered", "retry_after", "worth")

    def __init__(
        self,
        plan: Plan,
        at: int,
        id: str,
        outcome: str | None,
        remembered: bool = True,
        retry_after: int = 0,
        actual: Mapping[str, float] | None = None,
        confirmed: int = 0,
        worth: bool = True,
        fence: int = 0,
    ) -> None:
        self.gate = plan.policy.name
        self.plan = plan
        self.at = at
        self.id = id
        self.outcome = outcome
        self.retry_after = retry_after
        self.actual = actual
        #: When it was confirmed before, in the store's time.
        self.confirmed = confirmed
        #: Whether the id may be on record; when in doubt, True.
        self.remembered = remembered
        #: What the grant said of a confirmation; when in doubt, True.
        self.worth = worth
        self.fence = fence

    def apply(self, now: int, records: Records) -> Ended:
        plan, outcome = self.plan, self.outcome
        now = begin(now, records)
        head = records.head
        steps = plan.current(records) if head.overrides else plan.steps
        permit, confirmed = None, self.confirmed
        if self.remembered and (permit := permit_of(records, self.id)) is not None:
            if permit.ended or (self.fence and permit.fence != self.fence):
                return LOST  # releasing twice is harmless, and the second release is told
            # A confirmation that is said again, since its reply was lost, must not shorten what another permit was charged.
            confirmed = confirmed or permit.confirmed
        if self.fence and self._is_anothers(records, steps):
            return LOST
        lost = bool(plan.lease) and not lives(records, now, steps, self.id)
        at = charged_at(records, steps, permit, self.id, self.at)
        if outcome is None and self.actual is None:
            return self._confirm(records, now, steps, permit, lost, confirmed, at)
        adapted = () if outcome is None else self._end_lease(records, now, steps, lost)
        self._amounts(records, now, steps, lost, confirmed, at)
        if outcome is not None and permit is not None:
            end_permit(records.space("permits"), self.id, permit, now)
        if self.retry_after and outcome is not None and OUTCOMES[outcome].pauses:
            pause(records, now + self.retry_after, f"upstream: {outcome}")
        if head.tickets:
            line.freed(records, now, steps)
            line.serve(records, now)
        if outcome is None:
            return Ended(lost, at=now)
        return Ended(lost, adapted) if lost or adapted else ENDED

    def _confirm(
        self, records: Records, now: int, steps: Steps, permit: Any, lost: bool, confirmed: int, at: int
    ) -> Ended:
        plan = self.plan
        if not (lost or confirmed):
            if self.worth:
                for step in steps:
                    step.limit.confirm(records, now, step.member, step.cost, step.value, at)
            if plan.lease or permit is not None:
                self._mark_confirmed(records, now, steps, permit)
        if records.head.tickets and not line.is_early(records, now, plan):
            line.freed(records, now, steps)
            line.serve(records, now)
        return Ended(lost, at=confirmed or now)

    def _mark_confirmed(self, records: Records, now: int, steps: Steps, permit: Any) -> None:
        """Leave it with the lease and the id: a release from elsewhere must not confirm it a second time."""
        for step in steps:
            if step.limit.leased:
                leases = records.leases[step.member]
                leases[self.id] = stored_lease(read_lease(leases.get(self.id))._replace(confirmed=now))
        if permit is not None:
            records.space("permits")[self.id] = stored_permit(permit._replace(confirmed=now))

    def _is_anothers(self, records: Records, steps: Steps) -> bool:
        """Whether the lease under its id is that of another permit: the id was asked again after this one had ended."""
        for step in steps:
            if step.limit.leased and (row := records.leases[step.member].get(self.id)) is not None:
                return read_lease(row).fence != self.fence
        return False

    def _end_lease(self, records: Records, now: int, steps: Steps, lost: bool) -> tuple[Adapted, ...]:
        # One that was lost on one limit (it was reset) may still hold a slot of another.
        adapted: tuple[Adapted, ...] = ()
        assert self.outcome is not None
        for step in steps:
            limit, member = step.limit, step.member
            if limit.leased:
                if not lost and (moved := limit.feedback(records, now, member, step.value, self.outcome, self.at)):
                    adapted += (Adapted(step.base, member.partition("|")[2] or None, *moved),)
                records.leases[member].delete(self.id)
        return adapted

    def _amounts(self, records: Records, now: int, steps: Steps, lost: bool, confirmed: int, at: int) -> None:
        # A lost lease may have been released by another process, and all of this done then. Doing it again would give back,
        # or shorten, what others were charged; so only what it cost in addition is charged.
        outcome, actual = self.outcome, self.actual
        refunds = outcome is not None and OUTCOMES[outcome].refunds
        told = outcome is not None and OUTCOMES[outcome].answered and self.worth and not (lost or confirmed)
        for step in steps:
            limit, member, cost, value = step.limit, step.member, step.cost, step.value
            if limit.leased or is_another_kind(records, step):
                continue
            if refunds:
                if not lost:
                    limit.refund(records, now, member, cost, value, at, confirmed)
                continue
            if actual is not None and limit.unit in actual:
                back = cost - actual[limit.unit]
                if back < 0 or not lost:
                    limit.refund(records, now, member, back, value, at, confirmed)
                cost = min(cost, actual[limit.unit])
            if told:
                limit.confirm(records, now, member, cost, value, at)


class Release(Command):
    """End a permit by its id alone, from any process. An id made here tells its key after a `~`.

    Where it could not be told when it was said, it was `ago` microseconds ago: a permit that was granted since is another
    one, and stays. (On a promise gate nothing says when a promise was made, so whichever is there ends.)
    """

    __slots__ = ("actual", "asked", "id", "outcome", "policy", "retry_after", "since", "told_ago")

    def __init__(
        self,
        policy: Policy,
        id: str,
        outcome: str,
        retry_after: int = 0,
        actual: Mapping[str, float] | None = None,
        ago: int = 0,
    ) -> None:
        self.gate = policy.name
        self.policy = policy
        self.id = id
        self.outcome = checked_outcome(outcome)
        self.retry_after = retry_after
        self.actual = actual
        self.told_ago = ago
        #: When it was said by the caller's own clock; 0: not known.
        self.asked = 0
        #: Where it is told late: how long ago that is by then, asked for whenever it is sent.
        self.since: Callable[[], int] | None = None

    @property
    def ago(self) -> int:
        return self.told_ago if self.since is None else self.since()

    def apply(self, now: int, records: Records) -> Ended:
        known = permit_of(records, self.id)
        permit = known or lease_of(records, self.policy, self.id)
        if permit is None or (known is not None and known.ended) or self._came_later(permit.at, now, records):
            begin(now, records)
            return Ended(lost=True)
        plan = recall(records, permit.ref, self.policy)
        settle = Settle(plan, permit.at, self.id, self.outcome, True, self.retry_after, self.actual, permit.confirmed)
        return settle.apply(now, records)

    def _came_later(self, granted_at: int, now: int, records: Records) -> bool:
        """Whether a permit was granted after this release was said."""
        ago = self.ago
        if not ago or self.policy.waiting == "promise":
            return False
        return granted_at > max(now, records.head.now) - ago


class Cancel(Command):
    """Give up: a ticket leaves the line, a promise is given back, an ask whose reply was lost is undone.

    `attempt` is that of the ask, where its id is a caller's: what others got under the id stays theirs. The ask may be on
    its way still, and arrive after this: it is over then, and admits nothing. `answered` says that it is not on its way,
    nor will be again, so nothing needs to be remembered.
    """

    __slots__ = ("answered", "attempt", "id", "policy")

    def __init__(self, policy: Policy, id: str, attempt: str = "", answered: bool = False) -> None:
        self.gate = policy.name
        self.policy = policy
        self.id = id
        self.attempt = attempt
        self.answered = answered

    def apply(self, now: int, records: Records) -> Ended:
        id, attempt = self.id, self.attempt
        ticket = line.find(records, id)
        if ticket is not None and ticket.attempt == attempt:
            now = begin(now, records)
            line.hear(records, now, ticket.session)
            line.remove(records, now, line.find(records, id) or ticket)
            line.serve(records, now)
            self._remember(records, now)
            return Ended()
        permit = permit_of(records, id)
        alive = permit is not None and permit_lives(permit, max(now, records.head.now))
        if not attempt if permit is None else alive and permit.attempts == attempt:
            reply = Release(self.policy, id, "unsent").apply(now, records)
            if permit is None and reply.lost:
                self._remember(records, records.head.now)
            return reply
        now = begin(now, records)
        names = [] if permit is None else permit.attempts.split()
        if permit is not None and alive and attempt in names:
            names.remove(attempt)
            records.space("permits")[id] = stored_permit(permit._replace(attempts=" ".join(names)))
        if attempt or not names:
            self._remember(records, now)
        return Ended(lost=True)

    def _remember(self, records: Records, now: int) -> None:
        if not self.answered:
            bury(records.space("permits"), name_of(self.id, self.attempt), now)

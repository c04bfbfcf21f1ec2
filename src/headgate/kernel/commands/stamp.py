"""PURE. The sent stamp: a permit's request is about to be written, or was."""

from __future__ import annotations

from .. import line
from ..limits import NO_LEASE
from ..model import Ended, Wait
from ..plan import charge, earliest, is_another_kind, recall
from .base import LOST, Command, begin, lost_before, steps_in_force
from .permits import PermitRecord, lease_of, permit_of, read_lease, stored_lease, stored_permit
from .settle import charged_at, lives

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..plan import Plan, Policy, Step, Steps
    from ..records import Records


class Stamp(Command):
    """The request of a permit is written now, or was `ago` microseconds ago: from then on it is charged.

    A permit is found by its `id` where that is on record or has a lease; `plan` and `at` (when it is charged, in the
    store's time) are for one that is not. `fence` is as in `Settle`. A grant that is fresh stays as it is. Replies with an
    `Ended`, lost or with the moment from which it is charged; or with a `Wait`, where it must not be written before
    `Wait.at`: stamp it again then.
    """

    __slots__ = ("ago", "at", "fence", "id", "plan", "policy")

    def __init__(
        self, policy: Policy, id: str, plan: Plan | None = None, at: int = 0, ago: int = 0, fence: int = 0
    ) -> None:
        self.gate = policy.name
        self.policy = policy
        self.id = id
        self.plan = plan
        self.at = at
        #: Told afterwards: it was written so long ago, and does not wait any more.
        self.ago = ago
        self.fence = fence

    def apply(self, now: int, records: Records) -> Ended | Wait:
        now = begin(now, records)
        id = self.id
        permit = permit_of(records, id) if id else None
        found = permit or (lease_of(records, self.policy, id) if id else None)
        if (permit is not None and permit.ended) or (found is not None and self.fence not in (0, found.fence)):
            return LOST
        plan = self.plan or (None if found is None else recall(records, found.ref, self.policy))
        if plan is None:
            return LOST
        granted = self.at if found is None else found.at
        steps = steps_in_force(records, now, plan)
        # Where the store lost its state, the holder has not lost its slot: it registers again with its next heartbeat.
        if id and plan.lease and not lives(records, now, steps, id) and not granted < lost_before(records):
            return LOST
        at = charged_at(records, steps, permit, id, granted)
        sent = max(at, now - self.ago) if self.ago else now
        if (found is not None and found.confirmed) or 0 <= sent - at <= plan.template.fresh:
            return Ended(at=at)
        rates = tuple(
            step for step in steps if not step.limit.leased and step.cost > 0 and not is_another_kind(records, step)
        )
        go_at, last = now, None
        if plan.policy.waiting == "promise" and not self.ago:
            if at > now:
                return Wait(at, None, 0, None, now)  # its time is still to come
            go_at, last = self._promise_again(records, now, rates, at)
            sent = go_at
        else:
            for step in rates:
                then = step.limit.restamp(records, now, step.member, step.cost, step.value, at, sent)
                if then > go_at:
                    go_at, last = then, step
        self._mark(records, steps, permit, sent)
        if records.head.tickets:
            # It frees nothing; but by another version of the configuration the same state may have room.
            line.freed(records, now, steps)
            line.serve(records, now)
        return Ended(at=sent) if self.ago or last is None else Wait(go_at, last.base, 0, None, now)

    def _promise_again(self, records: Records, now: int, rates: Steps, at: int) -> tuple[int, Step | None]:
        """Another time, since it has missed its own: what was promised to others meanwhile goes before it."""
        for step in rates:
            step.limit.refund(records, now, step.member, step.cost, step.value, at)
        go_at, last = earliest(records, now, rates, now)
        if go_at > now and records.head.paused > go_at:
            go_at, last = earliest(records, now, rates, records.head.paused)
        charge(records, now, rates, go_at, NO_LEASE)
        return go_at, last or rates[0] if go_at > now else None

    def _mark(self, records: Records, steps: Steps, permit: PermitRecord | None, sent: int) -> None:
        """Leave it with the lease and the id: its end must find what it was charged where that is now."""
        id = self.id
        for step in steps if id else ():
            if step.limit.leased and (row := records.leases[step.member].get(id)) is not None:
                records.leases[step.member][id] = stored_lease(read_lease(row)._replace(sent=sent))
        if permit is not None:
            ends = permit.ends if permit.leased else max(permit.ends, sent)
            records.space("permits")[id] = stored_permit(permit._replace(sent=sent, ends=ends))

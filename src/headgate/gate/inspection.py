"""Inspection at a gate and changing it: the commands for that, and what is made of the replies. Sends nothing itself."""

from __future__ import annotations

from .. import duration
from ..errors import InvalidInput, LeaseLost
from ..kernel.commands import Configure, Extend, Pause, Peek, Release, Reset
from ..kernel.model import SECOND, UNTIL_RESUMED, Explanation, Holder, Refusal, Usage, Wait, Waiter
from .permit import checked_actual

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..kernel.model import Pulse, Snapshot
    from ..kernel.plan import Policy
    from .base import Cost, Duration, Key
    from .keeper import Keeper


class Inspection:
    """Looking at a gate and changing it: what `Gate` and `AsyncGate` share of it."""

    name: str
    _policy: Policy
    _keeper: Keeper

    def _note(self, snapshot: Snapshot) -> None:
        """A look changes nothing itself. Where it shows that no command has served the line in time, one is sent."""
        if snapshot.overdue:
            self._keeper.sweep(self.name)

    def _peek_key(self, key: Key | None) -> Peek:
        if key is None:
            return Peek(self._policy)
        plan = self._policy.plan(dict.fromkeys(self._policy.units, 1.0), key, None)
        return Peek(self._policy, plan=plan)

    def _usage_of(self, snapshot: Snapshot) -> Usage:
        self._note(snapshot)
        return Usage(
            gate=self.name,
            limits=snapshot.limits,
            waiting=snapshot.waiting,
            paused_for=(snapshot.paused_until - snapshot.now) / SECOND if snapshot.paused_until else None,
            pause_reason=snapshot.pause_reason,
            seq=snapshot.seq,
        )

    def _holders_of(self, snapshot: Snapshot) -> list[Holder]:
        names: list[str | None] = [*self._policy.priorities] or [None]
        return [
            Holder(
                id=id,
                holder=holder,
                key=key,
                held_for=(snapshot.now - at) / SECOND,
                expires_in=(expires - snapshot.now) / SECOND,
                priority=names[rank] if rank < len(names) else None,
            )
            for id, holder, key, at, expires, rank in snapshot.leases
        ]

    def _waiters_of(self, snapshot: Snapshot) -> list[Waiter]:
        self._note(snapshot)
        names: list[str | None] = [*self._policy.priorities] or [None]
        return [
            Waiter(id, holder, key, (snapshot.now - since) / SECOND, names[rank] if rank < len(names) else None)
            for id, holder, key, since, rank in snapshot.waiters
        ]

    def _question(self, cost: Cost, key: Key | None, priority: str | None) -> Peek:
        return Peek(self._policy, plan=self._policy.plan(cost, key, priority), leases=True)

    def _explanation_of(self, snapshot: Snapshot) -> Explanation:
        self._note(snapshot)
        decision = snapshot.decision
        goes_in: float | None = 0.0
        limit, reason = None, "it would go now"
        if isinstance(decision, Refusal):
            goes_in, limit, reason = None, decision.limit, decision.reason
        elif isinstance(decision, Wait):
            goes_in, limit = decision.retry_after, decision.limit
            reason = {
                "paused": f"the gate is paused: {snapshot.pause_reason or 'no reason given'}",
                "line": f"{snapshot.waiting} {'waits' if snapshot.waiting == 1 else 'wait'} before it",
            }.get(decision.reason, f"limit {limit!r} is used up")
        return Explanation(
            gate=self.name,
            granted=decision is None,
            goes_in=goes_in,
            limit=limit,
            reason=reason,
            limits=snapshot.limits,
            holders=tuple(self._holders_of(snapshot)),
            waiting=snapshot.waiting,
        )

    def _release_of(self, permit_id: str, outcome: str, retry_after: Duration | None, cost: Cost | None) -> Release:
        self._check_id("a permit is released", permit_id)
        delay = 0 if retry_after is None else duration.parse(retry_after, what="retry_after", zero=True)
        return Release(self._policy, permit_id, outcome, delay, checked_actual(self._policy, cost))

    def _extension_of(self, permit_id: str, lease: Duration | None) -> Extend:
        self._check_id("a lease is renewed", permit_id)
        leased = next((limit for limit in self._policy.limits if limit.leased), None)
        if leased is None:
            raise InvalidInput(f"gate {self.name!r} has no concurrency limit, so there is no lease to renew")
        return Extend(self._policy, permit_id, 0 if lease is None else checked_lease(self.name, lease))

    def _check_id(self, what: str, permit_id: str) -> None:
        # Ids that gates make have the values of keys in them, so one may be long; but a lone surrogate is not even text.
        if not isinstance(permit_id, str) or not permit_id or not permit_id.isprintable():
            raise InvalidInput(f"gate {self.name!r}: {what} by its id (permit.id), not by {permit_id!r}")

    def _extended(self, permit_id: str, pulse: Pulse) -> float:
        expires = pulse.expires[permit_id]
        if not expires:
            raise LeaseLost(f"gate {self.name!r}: the lease of permit {permit_id!r} had already ended")
        return expires / SECOND

    def _override(self, name: str, value: float, key: Key | None) -> Configure:
        member = self._policy.member(name, key)
        return Configure(self.name, member, self._policy.limit(name).checked_value(self.name, value))

    def _own_value(self, name: str, key: Key | None) -> Configure:
        return Configure(self.name, self._policy.member(name, key), None)

    def _pause_for(self, seconds: Duration | None, reason: str) -> Pause:
        told = str(reason)[:200].encode("utf-8", "replace").decode()  # often what an upstream answered, as it came
        return Pause(self.name, UNTIL_RESUMED if seconds is None else duration.parse(seconds, what="pause"), told)

    def _reset_of(self, limit: str | None) -> Reset:
        if limit is not None:
            self._policy.limit(limit)
        return Reset(self.name, limit)


def checked_lease(gate: str, lease: Duration) -> int:
    length = duration.parse(lease, what="lease")
    if length < 10_000:
        raise InvalidInput(f"gate {gate!r}: a lease below 10 ms cannot be renewed in time, and {lease!r} is that")
    return length

"""Inspection at a gate and changing it: the commands for that, and what is made of the replies. Sends nothing itself."""

from __future__ import annotations

from .. import duration
from ..errors import InvalidInput, LeaseLost
from ..kernel.commands import Configure, Extend, Pause, Peek, Release, Reset
from ..kernel.model import EXACT, SECOND, Explanation, Holder, Refusal, Usage, Wait, Waiter
from .permit import checked_actual, tell_adapted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..kernel.model import Ended, Pulse, Snapshot
    from ..kernel.plan import Policy
    from .base import Cost, Duration, Key


class Inspection:
    """Looking at a gate and changing it: what `Gate` and `AsyncGate` share of it."""

    name: str
    _policy: Policy

    def _peek_key(self, key: Key | None) -> Peek:
        if key is None:
            return Peek(self._policy)
        plan = self._policy.plan(dict.fromkeys(self._policy.units, 1.0), key, None)
        return Peek(self._policy, plan=plan)

    def _usage_of(self, snapshot: Snapshot) -> Usage:
        return Usage(
            gate=self.name,
            limits=snapshot.limits,
            waiting=snapshot.waiting,
            paused_until=(snapshot.paused_until - snapshot.now) / SECOND if snapshot.paused_until else None,
            pause_reason=snapshot.pause_reason,
            seq=snapshot.seq,
        )

    def _holders_of(self, snapshot: Snapshot) -> list[Holder]:
        names: list[str | None] = [*self._policy.priorities] or [None]
        return [
            Holder(
                id=lease.id,
                holder=lease.holder,
                key=lease.key,
                since=(snapshot.now - lease.granted_at) / SECOND,
                expires=(lease.expires_at - snapshot.now) / SECOND,
                priority=names[lease.rank] if lease.rank < len(names) else None,
            )
            for lease in snapshot.leases
        ]

    def _waiters_of(self, snapshot: Snapshot) -> list[Waiter]:
        names: list[str | None] = [*self._policy.priorities] or [None]
        return [
            Waiter(
                id=ticket.id,
                holder=ticket.holder,
                key=ticket.key,
                since=(snapshot.now - ticket.since) / SECOND,
                priority=names[ticket.rank] if ticket.rank < len(names) else None,
            )
            for ticket in snapshot.waiters
        ]

    def _question(self, cost: Cost, key: Key | None, priority: str | None) -> Peek:
        return Peek(self._policy, plan=self._policy.plan(cost, key, priority), leases=True)

    def _explanation_of(self, snapshot: Snapshot) -> Explanation:
        decision = snapshot.decision
        after: float | None = 0.0
        limit, reason, position, timing = None, "it would go now", 1, EXACT
        if isinstance(decision, Refusal):
            after, limit, reason = None, decision.limit, decision.reason
        elif isinstance(decision, Wait):
            after, limit, timing = decision.retry_after, decision.limit, decision.timing
            before = decision.position - 1 if decision.reason == "line" else 0
            position = before + 1
            reason = {
                "paused": f"the gate is paused: {snapshot.pause_reason or 'no reason given'}",
                "line": f"{before} {'waits' if before == 1 else 'wait'} before it",
            }.get(decision.reason, f"limit {limit!r} is used up")
        return Explanation(
            gate=self.name,
            granted=decision is None,
            after=after,
            limit=limit,
            reason=reason,
            limits=snapshot.limits,
            holders=tuple(self._holders_of(snapshot)),
            waiting=snapshot.waiting,
            position=position,
            timing=timing,
        )

    def _release_of(self, permit_id: str, outcome: str, retry_after: Duration | None, cost: Cost | None) -> Release:
        self._check_id("a permit is released", permit_id)
        delay = 0 if retry_after is None else duration.parse(retry_after, what="retry_after", zero=True)
        return Release(self._policy, permit_id, outcome, delay, checked_actual(self._policy, cost))

    def _released(self, command: Release, ended: Ended) -> bool:
        """Whether there was a permit to end."""
        tell_adapted(self.name, ended, command.outcome)
        return not ended.lost

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

    def _pause_for(self, seconds: Duration, reason: str) -> Pause:
        told = str(reason)[:200].encode("utf-8", "replace").decode()  # often what an upstream answered, as it came
        return Pause(self.name, duration.parse(seconds, what="pause"), told)

    def _reset_of(self, limit: str | None) -> Reset:
        if limit is not None:
            self._policy.limit(limit)
        return Reset(self.name, limit)


def checked_lease(gate: str, lease: Duration) -> int:
    length = duration.parse(lease, what="lease")
    if length < 10_000:
        raise InvalidInput(f"gate {gate!r}: a lease below 10 ms cannot be renewed in time, and {lease!r} is that")
    return length

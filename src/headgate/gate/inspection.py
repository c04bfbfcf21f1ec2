"""Inspection at a gate and changing it: the commands for that, and what is made of the replies. Sends nothing itself."""

from __future__ import annotations

from .. import duration
from ..errors import InvalidInput, LeaseLost
from ..events import emit
from ..kernel import model
from ..kernel.commands import Configure, Extend, Pause, Peek, Release, Reset, Tighten
from ..kernel.model import EXACT, SECOND, UNTIL_RESUMED, Refusal, Wait, label_of
from ..kernel.why import why_ask, why_gate
from .permit import checked_actual, tell_adapted
from .stamping import steady

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..kernel.model import Ended, Explanation, Holder, Pulse, Snapshot, Usage, Waiter
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
        return model.Usage(
            gate=self.name,
            limits=snapshot.limits,
            waiting=snapshot.waiting,
            paused_for=(snapshot.paused_until - snapshot.now) / SECOND if snapshot.paused_until else None,
            pause_reason=label_of(snapshot.pause_reason) or "",  # whoever wrote it: it is shown on terminals
            seq=snapshot.seq,
        )

    def _holders_of(self, snapshot: Snapshot) -> list[Holder]:
        names: list[str | None] = [*self._policy.priorities] or [None]
        return [
            model.Holder(
                id=lease.id,
                holder=lease.holder,
                key=lease.key,
                held_for=(snapshot.now - lease.granted_at) / SECOND,
                expires_in=(lease.expires_at - snapshot.now) / SECOND,
                priority=names[lease.rank] if lease.rank < len(names) else None,
            )
            for lease in snapshot.leases
        ]

    def _waiters_of(self, snapshot: Snapshot) -> list[Waiter]:
        self._note(snapshot)
        names: list[str | None] = [*self._policy.priorities] or [None]
        return [
            model.Waiter(
                id=ticket.id,
                holder=ticket.holder,
                key=ticket.key,
                waiting_for=(snapshot.now - ticket.since) / SECOND,
                priority=names[ticket.rank] if ticket.rank < len(names) else None,
                cost=ticket.cost,
                state=ticket.state,
                limit=ticket.limit,
                goes_in=(ticket.goes_at - snapshot.now) / SECOND,
            )
            for ticket in snapshot.waiters
        ]

    def _look_for_why(self) -> Peek:
        return Peek(self._policy, waiters=True)

    def _why_of(self, snapshot: Snapshot) -> str:
        return why_gate(self._policy, snapshot)

    def _look_for_keys(self, limit: str, top: int, search: str) -> Peek:
        checked_search(self._policy, limit, top, search)
        return Peek(self._policy, keys=limit, top=top, search=search)

    def _question(self, cost: Cost, key: Key | None, priority: str | None) -> Peek:
        return Peek(self._policy, plan=self._policy.plan(cost, key, priority), leases=True)

    def _explanation_of(self, snapshot: Snapshot) -> Explanation:
        self._note(snapshot)
        decision = snapshot.decision
        goes_in: float | None = 0.0
        limit, position, timing = None, 1, EXACT
        if isinstance(decision, Refusal):
            goes_in, limit = None, decision.limit
        elif isinstance(decision, Wait):
            goes_in, limit, timing = decision.retry_after, decision.limit, decision.timing
            position = decision.position if decision.reason == "line" else 1
        governed = {(usage.name, usage.key) for usage in snapshot.limits}
        return model.Explanation(
            gate=self.name,
            granted=decision is None,
            goes_in=goes_in,
            limit=limit,
            reason=why_ask(snapshot),
            limits=snapshot.limits,
            holders=tuple(self._holders_of(snapshot)),
            waiting=snapshot.waiting,
            position=position,
            timing=timing,
            overrides=tuple(one for one in snapshot.overrides if one.key is None or (one.limit, one.key) in governed),
        )

    def _release_of(self, permit_id: str, outcome: str, retry_after: Duration | None, cost: Cost | None) -> Release:
        self._check_id("a permit is released", permit_id)
        delay = 0 if retry_after is None else duration.parse(retry_after, what="retry_after", zero=True)
        command = Release(self._policy, permit_id, outcome, delay, checked_actual(self._policy, cost))
        command.asked = steady()
        if outcome == "rate_limited":
            emit("rate_limited", self.name)
        return command

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

    def _override(
        self, name: str, value: float, key: Key | None, reason: str | None, expires_in: Duration | None
    ) -> Configure:
        member, checked = self._policy.member(name, key), self._policy.limit(name).checked_value(self.name, value)
        length = 0 if expires_in is None else duration.parse(expires_in, what="expires_in")
        return Configure(self.name, member, checked, length, label_of(reason) or "")

    def _tightening(
        self, name: str, value: float, key: Key | None, reason: str | None, expires_in: Duration
    ) -> Tighten:
        limit, member = self._policy.limit(name), self._policy.member(name, key)
        length = checked_tightening(self.name, duration.parse(expires_in, what="expires_in"))
        checked = limit.checked_value(self.name, value)
        return Tighten(self.name, member, checked, limit.limit, length, label_of(reason) or "")

    def _own_value(self, name: str, key: Key | None, tightened: bool) -> Configure:
        return Configure(self.name, self._policy.member(name, key), None, tightened=tightened)

    def _pause_for(self, seconds: Duration | None, reason: str) -> Pause:
        told = label_of(reason) or ""  # often what an upstream answered, as it came
        return Pause(self.name, UNTIL_RESUMED if seconds is None else duration.parse(seconds, what="pause"), told)

    def _reset_of(self, limit: str | None) -> Reset:
        if limit is not None:
            self._policy.limit(limit)
        return Reset(self.name, limit)


#: The most keys that a look tells of.
MOST_KEYS = 1000


def checked_search(policy: Policy, limit: object, top: object, search: object) -> None:
    """Raises InvalidInput where there are no keys to be listed by this."""
    if not isinstance(limit, str) or policy.limit(limit).by is None:
        known = ", ".join(one.name for one in policy.limits if one.by) or "none"
        raise InvalidInput(f"gate {policy.name!r}: limit {limit!r} is not by a key; those that are: {known}")
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= MOST_KEYS:
        raise InvalidInput(f"gate {policy.name!r}: top is a whole number from 1 to {MOST_KEYS}, not {top!r}")
    if not isinstance(search, str) or len(search) > 200:
        raise InvalidInput(
            f"gate {policy.name!r}: search is a part of a key, of at most 200 characters, not {search!r}"
        )


#: For how long a limit can be tightened at once: what nobody takes back has to end soon by itself.
LONGEST_TIGHTENING = 24 * 3600 * SECOND


def checked_tightening(gate: str, length: int) -> int:
    """How long a tightening lasts, or an InvalidInput that names the other way."""
    if length > LONGEST_TIGHTENING:
        raise InvalidInput(
            f"gate {gate!r}: a limit is tightened for at most a day at once, not for {length / SECOND:g} s; say it again "
            f"in time, or use set_limit, which an operator takes back"
        )
    return length


def checked_lease(gate: str, lease: Duration) -> int:
    length = duration.parse(lease, what="lease")
    if length < 10_000:
        raise InvalidInput(f"gate {gate!r}: a lease below 10 ms cannot be renewed in time, and {lease!r} is that")
    return length

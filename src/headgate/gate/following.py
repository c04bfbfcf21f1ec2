"""Gates whose limits are their store's: a guard's. They take its policy when they are made, and follow its changes."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic

from ..errors import HeadgateError, InvalidInput, LeaseLost, UnknownGate
from ..events import emit
from ..kernel.commands import Release, Settle, Stamp
from ..stores.base import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..errors import PolicyChanged
    from ..kernel.commands import Command
    from ..kernel.plan import Plan, Policy
    from ..stores.base import Capabilities, PolicySource, Store
    from .permit import BasePermit


class PolicyFollower:
    """What a gate does with a policy that its store tells of."""

    name: str
    _store: Store
    _can: Capabilities
    _policy: Policy
    _use: Callable[[Policy], None]
    _prepare: Callable[[], None]
    #: Its limits are the store's, and none were given here.
    _follows: bool
    #: The differences from the store's policy that were told last.
    _differences: Sequence[str] = ()
    #: When the store was asked for its policy because an ask made no sense with the one known here.
    _looked_at = -1.0

    def _found_policy(self, given: list[str]) -> Policy:
        """The policy that the store has for this gate. `given` are arguments that the store's policy leaves no room for."""
        where = f"gate {self.name!r}"
        if not self._can.has_policies:
            raise InvalidInput(
                f"{where} has no limits; give it some, such as [Window(190, per='1m')]. Without limits a gate takes those "
                f"of its guard, and {shown(self._store.url)} is none"
            )
        if given:
            raise InvalidInput(
                f"{where} takes its limits from {shown(self._store.url)}, and {', '.join(given)} with them: leave that out "
                f"here, or give the limits too"
            )
        policy_source: PolicySource = self._store  # type: ignore[assignment]
        found = policy_source.policies()
        if self.name not in found:
            names = ", ".join(found) or "none"
            raise UnknownGate(
                f"{shown(self._store.url)} has no gate {self.name!r}",
                remedy=f"its gates are {names}; see the guard's file",
            )
        return found[self.name]

    def _adopt(self, policy: Policy, differences: Sequence[str], fits: bool) -> None:
        """The store decides by another policy than this gate asked with: from now on the gate asks with that one.

        Where the limits were given here, the differences are told once; and where asks made with them make no sense there,
        the gate keeps them, and its asks are refused with the difference.
        """
        if not self._follows and not fits:
            return
        before = self._policy
        if policy.fingerprint == before.fingerprint:
            return
        values = {limit.name: limit.limit for limit in before.limits}
        self._use(policy)
        self._prepare()
        if self._follows:
            for limit in policy.limits:
                if values.get(limit.name) != limit.limit:
                    emit("value_changed", self.name, limit=limit.name, value=limit.limit)
        elif differences and tuple(differences) != self._differences:
            self._differences = tuple(differences)
            emit("limits_differ", self.name, differences="; ".join(differences))

    def _looked_again(self) -> bool:
        """Whether the store has another policy than the one that this gate took from it. Asks it at most once a second."""
        if not self._follows or monotonic() < self._looked_at + 1.0:
            return False
        self._looked_at = monotonic()
        policy_source: PolicySource = self._store  # type: ignore[assignment]
        before = self._policy
        with suppress(HeadgateError):
            if (policy := policy_source.policies().get(self.name)) is not None:
                self._adopt(policy, (), True)
        return self._policy is not before

    def _planned_again(self, plan: Plan, error: PolicyChanged) -> Plan:
        """The same ask with the policy that the store told of. Raises the error where there is none."""
        if not self._follows or plan.policy.fingerprint == self._policy.fingerprint:
            raise error
        _, rank, costs, key = plan.ref
        classes = list(plan.policy.priorities)
        return self._policy.plan(dict(costs), dict(key) or None, classes[rank] if classes else None)

    def _ending(self, permit: BasePermit, command: Command) -> Release | Stamp:
        """The end or the stamp of a permit by its id alone, where its plan makes no sense to the guard any more.

        Raises LeaseLost for what only the plan could say: that it goes on.
        """
        if isinstance(command, Stamp):
            return Stamp(self._policy, command.id, ago=command.ago)
        if not isinstance(command, Settle) or command.outcome is None or not command.id:
            raise LeaseLost(
                f"gate {self.name!r}: the guard has other limits now than permit {permit.id!r} was granted under"
            )
        return Release(self._policy, command.id, command.outcome, command.retry_after, command.actual)

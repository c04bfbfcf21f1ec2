"""PURE. At most `limit` live leases. Occupancy is the set of live leases; there is no counter that could drift."""

from __future__ import annotations

from itertools import takewhile

from ... import duration
from ...errors import InvalidInput, KindChanged
from ..model import NEVER, SECOND
from .aimd import Aimd
from .base import Limit
from .probing import Probing
from .rule import AdaptiveRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..model import LimitUsage
    from ..records import Records, Space
    from .base import Duration, Lease, Moved

#: For how long an unused adaptive limit remembers what it has learned.
MEMORY = 24 * 3600 * SECOND

#: How a working limit may move, by the name that a configuration gives the rule; the first is the default.
RULES: dict[str, type[AdaptiveRule]] = {rule.name: rule for rule in (Aimd, Probing)}

#: An occupancy within this of a fractional limit (a class's share of it) is rounding.
DUST = 1e-9


class Concurrency(Limit):
    """At most `limit` permits at once, one slot each whatever their cost.

    A slot is a lease of length `lease` that its holder renews in the background every third of it; a holder that died
    gives its slot back after at most one lease. With `adaptive` (`Aimd(…)` or `Probing(…)`) the working limit moves
    between the rule's `minimum` and `limit` by outcomes, one working limit for the whole fleet. Use a rate where the
    upstream counts calls, not how many are under way.
    """

    # State: ("concurrency", working, streak, shrunk, until, *what else the rule has learned); working 0.0 means: not
    # adaptive so far. State of earlier versions ends with `until`.
    # Space leases[member]: lease id → (ref, granted at, fence, holder[, confirmed at]), in order of expiry.
    # A class's share of an adaptive limit has no working limit of its own: it goes by that of `whole`, which is filed under
    # the same member without the class.
    __slots__ = ("adaptive", "lease", "share", "whole")
    kind = "concurrency"
    fields = ("limit", "lease", "adaptive", "name", "by")
    tables: Mapping[str, Mapping[str, Callable[..., Any]]] = {"adaptive": RULES}
    leased = True

    def __init__(
        self,
        limit: int,
        lease: Duration = "30s",
        adaptive: AdaptiveRule | None = None,
        name: str | None = None,
        by: str | None = None,
    ) -> None:
        super().__init__(limit, name, "requests", by)
        if self.limit < 1 or self.limit != int(self.limit):
            raise InvalidInput(f"concurrency {self.name!r}: the limit is a whole number of slots, not {limit!r}")
        self.lease = duration.parse(lease, what=f"lease of concurrency {self.name!r}")
        if self.lease < 10_000:
            raise InvalidInput(f"concurrency {self.name!r}: a lease below 10 ms cannot be renewed in time")
        if adaptive is not None and not isinstance(adaptive, AdaptiveRule):
            raise InvalidInput(f"concurrency {self.name!r}: adaptive must be Aimd(…) or Probing(…), not {adaptive!r}")
        if adaptive is not None and adaptive.minimum > self.limit:
            raise InvalidInput(
                f"concurrency {self.name!r}: the adaptive minimum ({adaptive.minimum}) is above the limit ({limit})"
            )
        self.adaptive = adaptive
        #: Of a class's share of an adaptive limit: that limit, and the share.
        self.whole: Concurrency | None = None
        self.share = 1.0

    def spec(self) -> tuple[Any, ...]:
        adaptive = self.adaptive.spec() if self.adaptive else None
        return (self.kind, self.limit, self.lease, adaptive, self.name, self.by)

    @classmethod
    def from_spec(cls, spec: Any) -> Concurrency:
        _, limit, lease, adaptive, name, by = spec
        made = cls(max(1, int(limit)), lease / 1e6, _rule(adaptive) if adaptive else None, name, by)
        made.limit = limit  # a class's share of the slots need not be whole
        return made

    def scaled(self, share: float) -> Concurrency:
        # Only the limit itself adapts: a share of it, as of what one process may use, is a fixed number.
        return self.from_spec((self.kind, round(self.limit * share, 9), self.lease, None, self.name, self.by))

    def share_for_class(self, share: float) -> Concurrency:
        part = self.scaled(share)
        if self.adaptive is not None:
            part.whole, part.share = self, share
        return part

    def checked_value(self, gate: str, value: float) -> float:
        value = super().checked_value(gate, value)
        if value != int(value):
            raise InvalidInput(f"gate {gate!r}: limit {self.name!r} is a whole number of slots, not {value!r}")
        return value

    def per_minute(self, cost: float, call_s: float) -> float:
        return self.limit * 60.0 / call_s

    def numbers(self) -> tuple[Any, ...]:
        return (self.lease, self.adaptive.spec() if self.adaptive else None)

    def remembers(self) -> int:
        return max(self.lease, MEMORY)

    def largest(self, value: float) -> float:
        return NEVER if value + DUST >= 1.0 else 0.0

    def in_force(self, records: Records, member: str, state: Any, value: float) -> float:
        """The working limit: what an adaptive limit has come to, but never above `value`.

        Of a class's share that part of the working limit, but no less than one slot: a class must not stop for ever, since
        its own outcomes may be the only ones by which the limit can grow again.
        """
        if self.whole is not None:
            name, bar, key = member.partition("|")
            whole = records.states.get(f"{name.partition('@')[0]}{bar}{key}")
            assert self.whole.adaptive is not None
            working = whole[1] if whole is not None and whole[1] else self.whole.adaptive.start
            return float(min(max(1.0, round(working * self.share, 9)), value))
        if self.adaptive is None:
            return value
        working = state[1] if state is not None and state[1] else self.adaptive.begin(value)
        return float(min(working, value))

    def earliest(self, records: Records, now: int, member: str, cost: float, value: float, start: int) -> int:
        state = records.states.get(member)
        if state is None:
            return start
        if state[0] != "concurrency":
            raise KindChanged(gate=records.gate, limit=member, was=state[0], now="concurrency")
        leases = records.leases[member]
        if self.adaptive is not None or self.whole is not None:
            value = self.in_force(records, member, state, value)
        value += DUST - 1.0
        if len(leases) <= value:
            return start
        prune(leases, now)
        excess = len(leases) - value
        if excess <= 0.0:
            return start
        for expires, _ in leases.scan():
            excess -= 1.0
            if excess <= 0.0:
                return max(start, int(expires))
        return NEVER

    def pace(self, value: float) -> float:
        return self.lease / value  # at the slowest: each slot is free again within a lease

    def charge(self, records: Records, now: int, member: str, cost: float, value: float, at: int, lease: Lease) -> bool:
        if records.states.get(member) is None:
            until = now + MEMORY
            records.states.put(member, ("concurrency", 0.0, 0, 0, until), until)
        records.leases[member].put(lease[0], lease[2], lease[1])
        return False

    @staticmethod
    def until(records: Records, member: str, state: Any) -> int:
        # The last expiry would do; the first is found at once, and looking again later is cheap.
        first = records.leases[member].first()
        return int(state[4]) if first is None else max(int(state[4]), first[0] + 1)

    def refund(
        self, records: Records, now: int, member: str, cost: float, value: float, at: int, confirmed: int = 0
    ) -> None:
        """A slot comes back by ending its lease, not by an amount."""

    def hold(self, records: Records, now: int, member: str, cost: float, lease: Lease) -> None:
        if cost > 0:
            self.charge(records, now, member, cost, 0.0, now, lease)
        else:
            records.leases[member].delete(lease[0])

    def feedback(
        self, records: Records, now: int, member: str, value: float, outcome: str, granted: int
    ) -> Moved | None:
        """Move an adaptive limit by how a permit ended (before its lease goes)."""
        if self.adaptive is None or (state := self._state(records, member)) is None:
            return None
        working = self.in_force(records, member, state, value)
        prune(records.leases[member], now)
        in_use = len(records.leases[member])
        learned = (working, *state[2:4], *state[5:])
        after = self.adaptive.next(learned, outcome, granted, now, in_use, value)
        records.states[member] = ("concurrency", *after[:3], now + MEMORY, *after[3:])
        return None if after[0] == working else (working, after[0])

    @classmethod
    def rough_use(cls, records: Records, now: int, member: str, state: Any) -> float:
        return float(len(records.leases[member]))

    def describe(self, records: Records, now: int, member: str, value: float) -> LimitUsage:
        state = self._state(records, member)
        in_force = self.in_force(records, member, state, value)
        free_in = self.earliest(records, now, member, 1.0, value, now) - now
        used = 0
        if state is not None:
            leases = records.leases[member]
            used, first = len(leases), leases.first()
            if first is not None and first[0] <= now:
                # Those that have expired and were not looked at since are in the set, but no longer live.
                used -= sum(1 for _ in takewhile(lambda pair: pair[0] <= now, leases.scan()))
        return self._usage(member, used, in_force, free_in, maximum=value if self.adaptive or self.whole else None)


def _rule(spec: Any) -> AdaptiveRule:
    """The rule that `spec()` described: its arguments and its name, which `Aimd` leaves out."""
    *arguments, name = spec if isinstance(spec[-1], str) else (*spec, Aimd.name)
    if name not in RULES:
        raise InvalidInput(
            f"there is no rule {name!r} for an adaptive limit in this process, which has {', '.join(RULES)}"
        )
    return RULES[name](*arguments)


def prune(leases: Space, now: int) -> None:
    """Leases whose holders stopped renewing them go."""
    while (first := leases.first()) is not None and first[0] <= now:
        leases.delete(first[1])

"""A kind of limit that is not Headgate's own, written by the recipe of ARCHITECTURE.md: one class, one line in `KINDS`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headgate.kernel.model import LimitUsage
from headgate.limits import KINDS, RateLimit

if TYPE_CHECKING:
    from headgate.kernel.records import Records


class Tumbling(RateLimit):
    """At most `limit` units in a period of length `per` that begins with its first ask; then the next ask begins one.

    For upstreams that count so. It is for line gates: a promise is never made by it.
    """

    # State: ("tumbling", began, used, held).
    __slots__ = ()
    kind = "tumbling"
    fields = ("limit", "per", "slack", "name", "unit", "by")
    held_index = 3
    frees = "begins anew"

    def __init__(
        self,
        limit: float,
        per: str | float,
        slack: str | float | None = None,
        name: str | None = None,
        unit: str = "requests",
        by: str | None = None,
    ) -> None:
        super().__init__(limit, per, slack, name, unit, by)

    def spec(self) -> tuple[Any, ...]:
        return (self.kind, self.limit, self.per, self.slack, self.name, self.unit, self.by)

    @classmethod
    def from_spec(cls, spec: Any) -> Tumbling:
        _, limit, per, slack, name, unit, by = spec
        return cls(limit, per / 1e6, slack / 1e6, name, unit, by)

    def _now(self, records: Records, now: int, member: str) -> tuple[int, float, float]:
        """When the period began, what is used of it, and what called tickets hold."""
        state = self._state(records, member)
        if state is None:
            return now, 0.0, 0.0
        _, began, used, held = state
        return (now, 0.0, held) if now >= began + self.per + self.slack else (began, used, held)

    def _put(self, records: Records, member: str, began: int, used: float, held: float) -> None:
        records.states.put(member, (self.kind, began, used, held), began + self.per + self.slack)

    def earliest(self, records: Records, now: int, member: str, cost: float, value: float, start: int) -> int:
        began, used, held = self._now(records, now, member)
        return start if used + held + cost <= value else max(start, began + self.per + self.slack)

    def charge(self, records: Records, now: int, member: str, cost: float, value: float, at: int, lease: Any) -> bool:
        began, used, held = self._now(records, now, member)
        self._put(records, member, began, used + cost, held)
        return False

    def refund(
        self, records: Records, now: int, member: str, cost: float, value: float, at: int, confirmed: int = 0
    ) -> None:
        began, used, held = self._now(records, now, member)
        if at >= began:
            self._put(records, member, began, max(0.0, used - cost), held)

    def hold(self, records: Records, now: int, member: str, cost: float, lease: Any) -> None:
        began, used, held = self._now(records, now, member)
        self._put(records, member, began, used, max(0.0, held + cost))

    @staticmethod
    def until(records: Records, member: str, state: Any) -> int:
        return int(records.states.score(member) or 0)

    def assume_used(self, records: Records, now: int, member: str, value: float, lost: int) -> None:
        self._put(records, member, lost, value, 0.0)

    def describe(self, records: Records, now: int, member: str, value: float) -> LimitUsage:
        began, used, held = self._now(records, now, member)
        free_in = self.earliest(records, now, member, min(1.0, value), value, now) - now
        left = began + self.per + self.slack - now if used else 0
        return self._usage(member, used + held, value, free_in, left)


@contextmanager
def registered() -> Iterator[None]:
    """Where a process that has a kind of its own says so."""
    KINDS[Tumbling.kind] = Tumbling
    try:
        yield
    finally:
        del KINDS[Tumbling.kind]

"""PURE. The calendar quota: so many units a day, a month …, reset at the start of the period in a time zone."""

from __future__ import annotations

from ...errors import InvalidInput, KindChanged
from ..model import NEVER, SECOND
from .base import NO_LEASE, Limit, default_slack, fitting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import datetime
    from typing import Any, Literal

    #: The names of `PERIODS`.
    Period = Literal["minute", "hour", "day", "week", "month", "year", "ever"]

    from ..model import LimitUsage
    from ..records import Records
    from .base import Duration, Lease

#: Period name → its rough length in microseconds (for the default slack).
PERIODS = {
    "minute": 60 * SECOND,
    "hour": 3600 * SECOND,
    "day": 86_400 * SECOND,
    "week": 7 * 86_400 * SECOND,
    "month": 30 * 86_400 * SECOND,
    "year": 365 * 86_400 * SECOND,
    #: Never reset: a budget that is spent once.
    "ever": NEVER,
}


class Quota(Limit):
    """`limit` units per calendar period (`minute`, `hour`, `day`, `week` from Monday, `month`, `year`) in `zone`.

    `ever` is a budget that never comes back: what exceeds it is denied for good.

    Around a reset, for `slack` (default: 1 % of the period, at least 100 ms, at most 1 s), both periods bind: a call
    granted just before midnight may be counted after it. Use `Window` where the upstream has no calendar.
    """

    # State: ("quota", ((start, used), …), held, until): usage of the periods that can still bind, oldest first.
    __slots__ = ("_last", "_zone", "per", "slack", "zone")
    kind = "quota"
    fields = ("limit", "per", "zone", "slack", "name", "unit", "by")
    held_index = 2
    frees = "resets"

    def __init__(
        self,
        limit: float,
        per: Period = "day",
        zone: str = "UTC",
        slack: Duration | None = None,
        name: str | None = None,
        unit: str = "requests",
        by: str | None = None,
    ) -> None:
        super().__init__(limit, name, unit, by)
        if not isinstance(per, str) or per not in PERIODS:
            raise InvalidInput(f"quota {self.name!r}: per must be one of {', '.join(PERIODS)}, not {per!r}")
        self.per = per
        self.zone = zone
        self._zone = _load_zone(self.name, zone)
        if per == "ever":
            self.slack = 0  # there is no reset that it could be about
        elif slack is None:
            self.slack = default_slack(PERIODS[per])
        else:
            from ... import duration

            self.slack = duration.parse(slack, what=f"slack of quota {self.name!r}", zero=True)
        self._last = (0, 0)

    def spec(self) -> tuple[Any, ...]:
        return (self.kind, self.limit, self.per, self.zone, self.slack, self.name, self.unit, self.by)

    @classmethod
    def from_spec(cls, spec: Any) -> Quota:
        _, limit, per, zone, slack, name, unit, by = spec
        return cls(limit, per, zone, slack / 1e6, name, unit, by)

    def per_minute(self, cost: float, call_s: float) -> float:
        return self.limit / cost * 60.0 * SECOND / PERIODS[self.per]

    def numbers(self) -> tuple[Any, ...]:
        return (self.per, self.zone, self.slack)

    def remembers(self) -> int:
        return PERIODS[self.per] + self.slack

    def period(self, at: int) -> tuple[int, int]:
        """Start and end of the period that `at` lies in."""
        last = self._last
        if last[0] <= at < last[1]:
            return last
        self._last = last = _bounds(self.per, self._zone, at)
        return last

    def _binding(self, at: int) -> tuple[int, ...]:
        """The starts of the periods that count a grant at `at`."""
        start, end = self.period(at)
        if at >= end - self.slack:
            return (start, end)
        if at < start + self.slack and start > 0:
            return (self.period(start - 1)[0], start)
        return (start,)

    def earliest(self, records: Records, now: int, member: str, cost: float, value: float, start: int) -> int:
        state = records.states.get(member)
        if state is None:
            return start
        if state[0] != "quota":
            raise KindChanged(gate=records.gate, limit=member, was=state[0], now="quota")
        _, periods, held, _ = state
        if cost + held > value:
            return self.period(start)[1]
        at = start
        for _ in range(2 * len(periods) + 2):
            full = [first for first in self._binding(at) if _used(periods, first) + held + cost > value]
            if not full:
                return at
            end = self.period(full[-1])[1]
            # The full period stops binding `slack` after its end; a neighbour binds until then as well.
            at = max(at + 1, end + self.slack if full[-1] != self.period(at)[1] else end)
        return at

    def after(self, records: Records, now: int, member: str, cost: float, value: float, ahead: int, size: float) -> int:
        total = ahead * size + cost
        if total <= value:
            at = self.earliest(records, now, member, total, value, now)
            if at <= now:
                return at
        # Some of those ahead go now, then as many as fit at every reset.
        most = fitting(value, size)
        state = records.states.get(member)
        free = value - (_used(state[1], self.period(now)[0]) + state[2] if state is not None else 0.0)
        here = min(most, max(0, int(free / size + 1e-9)))
        reset = self.earliest(records, now, member, max(cost, most * size), value, now)
        if reset <= now:
            reset = self.period(now)[1] + self.slack
        return int(reset + max(0, ahead - here) // most * PERIODS[self.per])

    def pace(self, value: float) -> float:
        return PERIODS[self.per] / value

    def charge(self, records: Records, now: int, member: str, cost: float, value: float, at: int, lease: Lease) -> bool:
        state = records.states.get(member)
        _, periods, held, until = state or ("quota", (), 0.0, 0)
        used = {first: amount for first, amount in periods if self.period(first)[1] + self.slack > now}
        for first in self._binding(at):
            used[first] = used.get(first, 0.0) + cost
        until = max(until, self.period(max(used))[1] + self.slack)
        records.states.put(member, ("quota", tuple(sorted(used.items())), held, until), until)
        return False

    @staticmethod
    def until(records: Records, member: str, state: Any) -> int:
        return int(state[3])

    def refund(
        self, records: Records, now: int, member: str, cost: float, value: float, at: int, confirmed: int = 0
    ) -> None:
        if cost < 0:
            self.charge(records, now, member, -cost, value, at if at > now else now, NO_LEASE)
            return
        state = records.states.get(member)
        if state is None or state[0] != "quota":
            return
        _, periods, held, until = state
        binding = self._binding(at)
        kept = tuple((first, max(0.0, used - cost) if first in binding else used) for first, used in periods)
        records.states[member] = ("quota", kept, held, until)

    def restamp(self, records: Records, now: int, member: str, cost: float, value: float, at: int, sent: int) -> int:
        charged = self._binding(at)
        if all(first in charged for first in self._binding(sent)):
            return now  # every period that may count it has it
        return super().restamp(records, now, member, cost, value, at, sent)

    def hold(self, records: Records, now: int, member: str, cost: float, lease: Lease) -> None:
        state = records.states.get(member)
        if state is None:
            state = ("quota", (), 0.0, self.period(now)[1] + self.slack)
            records.states.put(member, state, state[3])
        _, periods, held, until = state
        records.states[member] = ("quota", periods, max(0.0, held + cost), until)

    def assume_used(self, records: Records, now: int, member: str, value: float, lost: int) -> None:
        # Nothing tells how much of the period's amount was spent: as much as the time that has passed of it.
        start, end = self.period(lost)
        state = self._state(records, member)
        spent = value * (lost - start) / (end - start) - (_used(state[1], start) if state else 0.0)
        if spent > 0:
            self.charge(records, lost, member, spent, value, lost, NO_LEASE)

    @classmethod
    def rough_use(cls, records: Records, now: int, member: str, state: Any) -> float:
        return float((state[1][-1][1] if state[1] and state[3] > now else 0.0) + state[2])

    def describe(self, records: Records, now: int, member: str, value: float) -> LimitUsage:
        start, end = self.period(now)
        state = self._state(records, member)
        used = _used(state[1], start) + state[2] if state else 0.0
        free_in = self.earliest(records, now, member, min(1.0, value), value, now) - now
        to_come = 0.0
        for first, amount in state[1] if state else ():
            if first >= end:
                to_come += amount
        return self._usage(member, used, value, free_in, None if end >= NEVER else end - now, promised=to_come)


def _used(periods: Any, start: int) -> float:
    for first, used in periods:
        if first == start:
            return float(used)
    return 0.0


def _load_zone(name: str, zone: object) -> Any:
    from zoneinfo import ZoneInfo

    if not isinstance(zone, str):
        raise InvalidInput(f"quota {name!r}: zone must be a name such as 'UTC' or 'Europe/Paris', not {zone!r}")
    try:
        return ZoneInfo(zone)
    except (KeyError, ValueError, OSError) as error:
        raise InvalidInput(
            f"quota {name!r}: there is no time zone {zone!r} on this machine; use a name such as 'UTC' or 'Europe/Paris'"
        ) from error


def _bounds(per: str, zone: Any, at: int) -> tuple[int, int]:
    from datetime import datetime, timedelta

    if per == "ever":
        return 0, NEVER
    local = datetime.fromtimestamp(at // SECOND, zone)
    if per in ("minute", "hour"):
        # Minutes and hours are counted in real time: where a clock is set back, one hour happens twice, as two.
        length = PERIODS[per]
        offset = round(zone.utcoffset(local).total_seconds()) * SECOND
        start = (at + offset) // length * length - offset
        return start, start + length
    midnight = local.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if per == "day":
        first, then = midnight, midnight + timedelta(days=1)
    elif per == "week":
        first = midnight - timedelta(days=midnight.weekday())
        then = first + timedelta(days=7)
    elif per == "month":
        first = midnight.replace(day=1)
        then = (first + timedelta(days=32)).replace(day=1)
    else:
        first = midnight.replace(month=1, day=1)
        then = first.replace(year=first.year + 1)
    return _moment(first), _moment(then)


def _moment(local: datetime) -> int:
    return round(local.timestamp()) * SECOND

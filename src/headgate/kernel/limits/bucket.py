"""PURE. The token bucket, for upstreams that are one: at most `burst + rate × t` units in any t."""

from __future__ import annotations

from math import ceil

from ...errors import InvalidInput, KindChanged
from ..model import NEVER
from .base import NO_LEASE, TAKEN, RateLimit, positive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model import LimitUsage
    from ..records import Records, Space
    from .base import Duration, Lease, Taker

#: An amount below this is rounding, not usage.
DUST = 1e-9

#: A bucket whose rate was overridden is remembered so many times as long: its state knows the limit's own rate only.
SLOWER = 1000

#: So many promises are looked at for another one, at most. Beyond it an ask goes after the last of them.
LOOKED = 2000

#: In how many steps of `per` it is remembered how low the level was.
FLOORS = 16


class Bucket(RateLimit):
    """`limit` units per `per`, at most `burst` at once (default: `limit`). Costs may be fractional.

    `slack` is the spread of the time from a grant to the moment the upstream counts it (default: 1 % of `per`, at least
    100 ms, at most 1 s). The bucket uses `burst - rate × slack`, so that jitter does not trip the upstream; that costs no
    long-run throughput while a single cost is below that. Use `Window` where the upstream counts "in any minute".
    """

    # State: ("bucket", used, at, held, drain, promised, floor). `used` is the level just after the last charge, at `at`;
    # it runs off at the rate. `drain` is (µs per unit, slack): when the state says nothing any more follows from it, and
    # is only worked out when somebody looks. A single ask above `burst - rate × slack` waits for a time below empty:
    # `used` is not clamped at 0 in `earliest`, which is what keeps it exact for costs up to the whole burst.
    #
    # `floor` is None until something is given back, and again when the bucket was empty; else (low, since, older low,
    # since, …): from each moment to the next the level has not been below that. What still counts of a charge is the
    # least of it and of the level ever since; giving back more would let others in for units that have long run off.
    __slots__ = ("burst", "drain", "per_unit", "usable")
    kind = "bucket"
    fields = ("limit", "per", "burst", "slack", "name", "unit", "by")
    moving = ("limit", "burst")
    held_index = 3

    def __init__(
        self,
        limit: float,
        per: Duration,
        burst: float | None = None,
        slack: Duration | None = None,
        name: str | None = None,
        unit: str = "requests",
        by: str | None = None,
    ) -> None:
        super().__init__(limit, per, slack, name, unit, by)
        self.burst = self.limit if burst is None else positive(f"burst of bucket {self.name!r}", burst)
        if self.limit / self.per > 1e9:
            raise InvalidInput(f"bucket {self.name!r}: more than a billion units a microsecond cannot be counted")
        self.usable, self.per_unit = self.in_force(self.limit)
        self.drain = (self.per_unit, self.slack)

    def spec(self) -> tuple[Any, ...]:
        return (self.kind, self.limit, self.per, self.burst, self.slack, self.name, self.unit, self.by)

    @classmethod
    def from_spec(cls, spec: Any) -> Bucket:
        _, limit, per, burst, slack, name, unit, by = spec
        return cls(limit, per / 1e6, burst, slack / 1e6, name, unit, by)

    def with_limit(self, limit: float) -> Bucket:
        burst = self.burst * (limit / self.limit)
        return self.from_spec((self.kind, limit, self.per, burst, self.slack, self.name, self.unit, self.by))

    def numbers(self) -> tuple[Any, ...]:
        return (self.per, self.burst, self.slack)

    def remembers(self) -> int:
        return int(self.per * max(1.0, self.burst / self.limit)) + self.slack

    def in_force(self, value: float) -> tuple[float, float]:
        """For a value: the burst less what slack takes, and the microseconds that a unit takes to run off."""
        return self.burst * (value / self.limit) - value / self.per * self.slack, self.per / value

    @staticmethod
    def until(records: Records, member: str, state: Any) -> int:
        last, units = state[2], state[1] + state[3]
        if state[5]:
            charges = records.promised[member]
            for time, _ in charges.scan():
                last, units = time, units + charges.get(time)
        return int(last + units * state[4][0] + state[4][1]) + 1

    @staticmethod
    def until_overridden(state: Any, until: int) -> int:
        return until + (until - state[2]) * SLOWER  # type: ignore[no-any-return]

    def largest(self, value: float) -> float:
        return self.burst * (value / self.limit)

    def earliest(self, records: Records, now: int, member: str, cost: float, value: float, start: int) -> int:
        state = records.states.get(member)
        if state is None:
            return start
        if state[0] != "bucket":
            raise KindChanged(gate=records.gate, limit=member, was=state[0], now="bucket")
        _, used, at, held, _, promised, _ = state
        if promised:
            return self._among(records, now, member, cost, value, start)
        usable, per_unit = (self.usable, self.per_unit) if value == self.limit else self.in_force(value)
        at += ceil((used + held + cost - usable) * per_unit)
        if held and held + cost > usable:
            # What called tickets hold does not run off, however long the bucket was idle before.
            at = max(at, start + ceil((held + cost - usable) * per_unit))
        return at if at > start else start

    def after(self, records: Records, now: int, member: str, cost: float, value: float, ahead: int, size: float) -> int:
        return self.earliest(records, now, member, cost + ahead * size, value, now)

    def pace(self, value: float) -> float:
        return self.per / value

    def taker(self, cost: float, value: float) -> Taker:
        # For the commonest case there is; whatever is unusual goes the long way.
        usable, per_unit = self.in_force(value)
        drain = self.drain
        cost = float(cost)
        otherwise = super().taker(cost, value)

        def take(records: Records, now: int, member: str) -> int:
            states = records.states
            state = states.get(member)
            if state is None or state[0] != "bucket":
                return otherwise(records, now, member)
            _, used, last, held, _, promised, floor = state
            elapsed = now - last
            if promised or elapsed < 0 or floor is not None:
                return otherwise(records, now, member)
            short = (used + held + cost - usable) * per_unit
            if short > elapsed:
                return last + ceil(short)  # type: ignore[no-any-return]
            used -= elapsed / per_unit
            states[member] = ("bucket", used + cost if used > 0.0 else cost, now, held, drain, 0, None)
            return TAKEN

        return take

    def charge(self, records: Records, now: int, member: str, cost: float, value: float, at: int, lease: Lease) -> bool:
        states = records.states
        state = states.get(member)
        if state is None:
            state = self._empty(records, now, member)
        _, used, last, held, _, promised, floor = state
        if at > now:
            self._promise(records, member, cost, value, at)
            return False
        if promised:
            self._forget_hint(records, member, cost)
        # `last` can be later than now where promises were folded in; then it only runs off from there.
        if now > last:
            used -= (now - last) / (self.per / value)
            if used < 0.0:
                used = 0.0
            last = now
        states[member] = ("bucket", used + cost, last, held, self.drain, promised, _sunk(floor, used))
        return False

    def _empty(self, records: Records, now: int, member: str) -> Any:
        """A state for a bucket that was never used: empty for long enough for any cost."""
        state = ("bucket", 0.0, now - self.per - self.slack, 0.0, self.drain, 0, None)
        records.states.put(member, state, now + self.per)
        return state

    def refund(
        self, records: Records, now: int, member: str, cost: float, value: float, at: int, confirmed: int = 0
    ) -> None:
        state = records.states.get(member)
        if state is None or state[0] != "bucket":
            if cost < 0:
                self.charge(records, now, member, -cost, value, now, NO_LEASE)
            return
        if state[5]:
            if at > now:
                self._unpromise(records, member, cost, at)
                return
            self._fold(records, now, member, value)
            self._forget_hint(records, member)
            state = records.states.get(member)
        if cost < 0:
            self.charge(records, now, member, -cost, value, now, NO_LEASE)
            return
        _, used, last, held, _, promised, floor = state
        level = max(0.0, used - max(0, now - last) / (self.per / value))
        # Of the last charge all that has not run off still counts; of an older one, what the level never fell below.
        back = min(cost, level if at >= last else min(level, _least(floor, at)))
        floor = _given_back(floor, now, cost, at, level - back, self.per)
        records.states[member] = ("bucket", used - back, last, held, self.drain, promised, floor)

    def restamp(self, records: Records, now: int, member: str, cost: float, value: float, at: int, sent: int) -> int:
        # Charged at `sent`, the level would be higher by what has run off of it, and by no more than the rate makes of the
        # time between: the bucket may have drained so much too early.
        usable, per_unit = self.in_force(value)
        state = self._state(records, member)
        counts, last = 0.0, 0
        if state is not None:
            if state[5]:
                self._fold(records, now, member, value)
                state = records.states.get(member)
            _, used, last, _, _, _, floor = state
            level = max(0.0, used - max(0, now - last) / per_unit)
            counts = min(cost, level if at >= last else min(level, _least(floor, at)))
        self.charge(records, now, member, min(cost - counts, (sent - at) / per_unit), value, now, NO_LEASE)
        _, used, until, held, *_ = records.states.get(member)
        # A cost above the usable burst fits an empty bucket only. Where nothing was charged since it, it is in one.
        over = used + held - (max(usable, cost) if at >= last else usable)
        return now if over <= DUST else until + ceil((used + held - usable) * per_unit)

    def hold(self, records: Records, now: int, member: str, cost: float, lease: Lease) -> None:
        state = records.states.get(member)
        if state is None:
            state = self._empty(records, now, member)
        _, used, at, held, *rest = state
        records.states[member] = ("bucket", used, at, max(0.0, held + cost), *rest)

    def assume_used(self, records: Records, now: int, member: str, value: float, lost: int) -> None:
        _, used, at, held, _, promised, _ = self._state(records, member) or ("", 0.0, 0, 0.0, (), 0, None)
        full = max(0.0, used - max(0, lost - at) * (value / self.per), self.in_force(value)[0])
        if promised:
            for known in ("hint", "tail"):
                records.promised[member].delete(known)
        state = ("bucket", full, max(lost, at), held, self.drain, promised, None)
        records.states.put(member, state, self.until(records, member, (*state[:5], 0, None)))

    @classmethod
    def rough_use(cls, records: Records, now: int, member: str, state: Any) -> float:
        return float(max(0.0, state[1] - max(0, now - state[2]) / state[4][0]) + state[3])

    def describe(self, records: Records, now: int, member: str, value: float) -> LimitUsage:
        cost = min(1.0, self.largest(value))
        # First: promises whose time has come are part of the level then.
        free_in = self.earliest(records, now, member, cost, value, now) - now
        state = self._state(records, member)
        used = to_come = 0.0
        if state is not None:
            _, level, at, held, _, promised, _ = state
            used = max(0.0, level - max(0, now - at) * (value / self.per)) + held
            if promised:
                charges = records.promised[member]
                for _, time in charges.scan():  # not `sum`, which newer Pythons round in another way than Lua does
                    to_come += charges.get(time)
        return self._usage(member, used, self.largest(value), free_in, promised=to_come)

    # --- promises: charges kept in time order -------------------------------------------------------------------
    #
    # Space promised[member]: time → units of the charges that are still to come, and "hint" → (at, used, cost,
    # headroom): nothing of `cost` or more fits before `at`, where the level is `used`; and every charge to come leaves
    # at least `headroom`. The hints spare a decision the walk over all promises: the first serves the limit that
    # binds, the second those that do not. They are forgotten when anything is given back. "tail" → (at, used,
    # exact, count): the last charge, and the level after it; where that is not exact it is lower than `used`, or as much.
    # It holds while there are `count` charges: an earlier version, which knows nothing of a tail, makes more or fewer.
    #
    # How much could fit before a charge is at most what that charge leaves, and what runs off below empty between: a
    # charge that fills the bucket leaves no room for anything before it, whatever its cost was.

    def _forget_hint(self, records: Records, member: str, more: float = 0.0) -> None:
        """The level has changed, by `more` at most: so has that after every charge to come."""
        charges, promised = records.promised[member], records.states.get(member)[5]
        charges.delete("hint")
        at, used, _ = _tail(charges, promised)
        _put_tail(charges, (at, used + more, False), promised)

    def _fold(self, records: Records, now: int, member: str, value: float) -> None:
        """Charges whose time has come move into the level."""
        charges = records.promised[member]
        kind, used, at, held, drain, promised, floor = records.states.get(member)
        count = promised
        while (first := charges.first()) is not None and first[0] <= now:
            time = first[0]
            if time > at:
                used = max(0.0, used - (time - at) * (value / self.per))
                at = time
                floor = _sunk(floor, used)
            used += charges.get(first[1])
            charges.delete(first[1])
            promised -= 1
        if promised <= 0:
            records.drop("promised", member)
            promised = 0
        elif promised < count:
            _put_tail(charges, _tail(charges, count), promised)
        records.states[member] = (kind, used, at, held, drain, promised, floor)

    def _among(self, records: Records, now: int, member: str, cost: float, value: float, start: int) -> int:
        """The first moment from `start` on that breaks no bound then, nor at any charge already promised."""
        self._fold(records, now, member, value)
        _, used, at, held, _, promised, _ = records.states.get(member)
        if not promised:
            return self.earliest(records, now, member, cost, value, start)
        charges = records.promised[member]
        rate, usable = value / self.per, self.in_force(value)[0] - held
        hint_at, hint_used, hint_cost, headroom = charges.get("hint") or _NO_HINT
        if cost <= headroom and at + ceil((used + cost - usable) / rate) <= start:
            return start
        from_base = not (hint_at > at and cost >= hint_cost)
        if not from_base:
            at, used = hint_at, hint_used
        covers = start <= (now if from_base else at)
        tail_at, tail_used, exact = tail = _tail(charges, promised)
        after_tail: int = max(start, tail_at + max(0, ceil((tail_used + cost - usable) / rate)))
        if exact and start >= tail_at:
            return after_tail
        best, before = NEVER, (at, used)
        least = usable
        with_it, with_it_at = 0.0, 0  # the level with this cost in it, and when
        room, idle = 0.0, 0.0  # the most that could fit in the gaps so far, and what ran off below empty in them
        claim = 0.0
        looked = 0
        for time, _ in charges.scan(at + 1):
            looked += 1
            if looked > LOOKED and tail is not _NO_TAIL:
                break
            units = charges.get(time)
            if best == NEVER:
                candidate = max(start, at + max(0, ceil((used + cost - usable) / rate)))
                if candidate <= time:
                    best, before, claim = candidate, (at, used), room
                    with_it, with_it_at = max(0.0, used - (best - at) * rate) + cost, best
            used -= (time - at) * rate
            if best != NEVER:
                with_it -= (time - with_it_at) * rate
                if with_it + units > usable + DUST and with_it > used + DUST:
                    best = NEVER  # this promise would be broken: not before it
                else:
                    with_it, with_it_at = max(0.0, with_it) + units, time
            below = max(0.0, -used)
            left = usable - max(0.0, used) - units
            least = min(least, left)
            left, idle = max(0.0, left), idle + below
            room = max(min(room, left + idle), left + below)
            used, at = max(0.0, used) + units, time
            if best != NEVER and with_it <= used + DUST:
                break  # all of it has run off by then: it is felt no more
        else:
            looked = 0  # all were looked at
            if not exact:
                _put_tail(charges, (at, used, True), promised)
        if best == NEVER:
            best = max(start, at + max(0, ceil((used + cost - usable) / rate)))
            before, claim = (at, used), room
        if looked > LOOKED:
            # Too many were looked at. After the last promise nothing is in its way: no later than if it stood in line.
            best = after_tail
        if from_base and not looked:
            headroom = least
        claim = min(cost, claim + 2 * DUST)
        if covers and (from_base or claim <= hint_cost):
            hint_at, hint_used, hint_cost = *before, claim if from_base else hint_cost
        if covers or (from_base and not looked):
            charges["hint"] = (hint_at, hint_used, hint_cost, headroom)
        return best

    def _promise(self, records: Records, member: str, cost: float, value: float, at: int) -> None:
        charges = records.promised[member]
        kind, used, last, held, drain, promised, floor = records.states.get(member)
        hint_at, hint_used, hint_cost, headroom = charges.get("hint") or _NO_HINT
        rate, usable = value / self.per, self.in_force(value)[0] - held
        left = usable - max(0.0, used - (at - last) * rate) - cost
        tail_at, tail_used, exact = _tail(charges, promised) if promised else (last, used, True)
        is_last = tail_at > 0 and at > tail_at
        if is_last:
            tail_at, tail_used = at, max(0.0, tail_used - (at - tail_at) * rate)
        if is_last and headroom >= 0:
            headroom = min(headroom, usable - tail_used - cost)  # no later charge feels it
        else:
            headroom = min(headroom - cost, left) if cost <= headroom else _NO_HINT[3]
        if at == hint_at:
            hint_used += cost
        elif at < hint_at:
            hint_at = 0
        units = charges.get(at)
        promised += units is None
        charges.put(at, (units or 0.0) + cost, at)
        charges["hint"] = (hint_at, hint_used, hint_cost, headroom)
        _put_tail(charges, (tail_at, tail_used + cost, exact and at == tail_at), promised)
        records.states[member] = (kind, used, last, held, drain, promised, floor)

    def _unpromise(self, records: Records, member: str, cost: float, at: int) -> None:
        self._forget_hint(records, member, max(0.0, -cost))
        charges = records.promised[member]
        units = charges.get(at)
        if units is None:
            return
        if units - cost > DUST:
            charges.put(at, units - cost, at)
            return
        charges.delete(at)
        kind, used, last, held, drain, promised, floor = records.states.get(member)
        _put_tail(charges, _tail(charges, promised), promised - 1)
        records.states[member] = (kind, used, last, held, drain, promised - 1, floor)
        if promised <= 1:
            records.drop("promised", member)


#: at, used, cost, headroom: nothing is known.
_NO_HINT = (0, 0.0, 0.0, -1.0)

#: at, used, exact: it is not known.
_NO_TAIL = (0, 0.0, False)


def _tail(charges: Space, promised: int) -> tuple[int, float, bool]:
    tail = charges.get("tail")
    return _NO_TAIL if tail is None or tail[3] != promised else (tail[0], tail[1], tail[2])


def _put_tail(charges: Space, tail: tuple[int, float, bool], promised: int) -> None:
    if tail[0]:
        charges["tail"] = (*tail, promised)


# --- what still counts of an old charge -----------------------------------------------------------------------------


def _sunk(floor: Any, level: float) -> Any:
    """The floor after the level was seen at `level`. Where it was empty, nothing counts of what was charged before."""
    if floor is None or level <= 0.0:
        return None
    return floor if level >= floor[0] else (level, *floor[1:])


def _least(floor: Any, at: int) -> float:
    """What the level was never below since `at`; nought where that is not known."""
    least = float(NEVER)
    for low, since in zip(floor[::2], floor[1::2], strict=True) if floor is not None else ():
        least = min(least, low)
        if at >= since:
            return float(max(0.0, least))
    return 0.0


def _given_back(floor: Any, now: int, cost: float, at: int, level: float, per: int) -> Any:
    """The floor after `cost` of `at` was given back: without it the level since would have been lower by so much."""
    fresh: list[float] = []
    if floor is None or now - floor[1] > per // FLOORS:
        fresh += (level, now)
    lowered = True
    for low, since in zip(floor[::2], floor[1::2], strict=True) if floor is not None else ():
        fresh += (low - cost if lowered else low, since)
        lowered = lowered and at < since
    if fresh[0] > level:
        fresh[0] = level
    return tuple(fresh[: 2 * FLOORS])

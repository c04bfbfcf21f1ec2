"""A naive oracle: the limits as they are defined, by brute force over plain lists of charges.

It is written from the definitions and shares no code with the package: it imports nothing of it. It is slow on purpose;
what it says is meant to be seen to be right. Times are integer microseconds. Amounts are numbers that doubles hold
exactly (the tests take eighths); where something is divided, as in the bucket, they are fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import lru_cache
from math import ceil
from typing import Any
from zoneinfo import ZoneInfo

NEVER = 2**53


@dataclass(eq=False)
class Charge:
    """Units that were taken at a moment; later perhaps known to have been counted upstream by `confirmed`."""

    at: int
    cost: float
    confirmed: int | None = None
    lease: str = ""
    expires: int = 0


class WindowOracle:
    """At most `limit` in any window: each charge counts until per + slack after it, or per after its confirmation.

    Times at which something stops counting are rounded up to a grid of per/1000, and so are promised times.
    """

    def __init__(self, limit: Any, per: int, slack: int) -> None:
        self.limit, self.per, self.slack = limit, per, slack
        self.grid = per // 1000
        self.charges: list[Charge] = []

    def up(self, moment: int) -> int:
        return -(-moment // self.grid) * self.grid

    def until(self, charge: Charge) -> int:
        stops = self.up(charge.at + self.per + self.slack)
        return stops if charge.confirmed is None else min(stops, self.up(charge.confirmed + self.per))

    def used(self, moment: int) -> float:
        return sum(c.cost for c in self.charges if c.at <= moment < self.until(c))

    def fits(self, moment: int, cost: float) -> bool:
        if self.used(moment) + cost > self.limit:
            return False
        mine = Charge(moment, cost)
        later = [c.at for c in self.charges if moment < c.at < self.until(mine)]
        return all(self.used(at) + cost <= self.limit for at in later)

    def earliest(self, now: int, start: int, cost: float) -> int:
        candidates = {start if start == now else self.up(start)}
        for charge in self.charges:
            for moment in (charge.at, self.up(charge.at), self.until(charge), self.up(charge.at) + self.grid):
                if moment >= start:
                    candidates.add(self.up(moment))
        return min((moment for moment in candidates if self.fits(moment, cost)), default=NEVER)

    def restamp(self, charge: Charge, now: int) -> int:
        """A call is written now: it counts from now on. Returns when it may be: now, unless it had stopped counting."""
        counted = self.until(charge) > now
        charge.at = now
        moments = sorted({now, *(until for until in map(self.until, self.charges) if until > now)})
        return now if counted else next(moment for moment in moments if self.used(moment) <= self.limit)

    def holds(self) -> bool:
        """The definition itself, without rounding: no moment at which more than the limit counts."""

        def ends(charge: Charge) -> int:
            stops = charge.at + self.per + self.slack
            return stops if charge.confirmed is None else min(stops, charge.confirmed + self.per)

        return all(sum(c.cost for c in self.charges if c.at <= one.at < ends(c)) <= self.limit for one in self.charges)


class BucketOracle:
    """At most `burst - rate × slack + rate × t` in any t over more than one charge, and `burst` in any single one."""

    def __init__(self, limit: Any, per: int, burst: Any, slack: int) -> None:
        self.rate = Fraction(limit) / per
        self.burst = Fraction(burst)
        self.usable = self.burst - self.rate * slack
        self.charges: list[Charge] = []

    def used(self, moment: int) -> float:
        """What has not run off: the most that any stretch up to now has taken above the rate. Plus what is promised."""
        past = [c for c in self.charges if c.at <= moment]
        level = max(
            (sum(c.cost for c in past if c.at >= one.at) - (moment - one.at) * self.rate for one in past), default=0
        )
        return max(Fraction(0), Fraction(level)) + sum(c.cost for c in self.charges if c.at > moment)

    def earliest(self, now: int, start: int, cost: float) -> int:
        if cost > self.burst:
            return NEVER
        charges = sorted(self.charges, key=lambda c: c.at)
        for place in range(len(charges) + 1):
            before, after = charges[:place], charges[place:]
            if after and after[0].at < start:
                continue
            moment = Fraction(max([start, *(c.at for c in before)]))
            total = Fraction(cost)
            for charge in reversed(before):
                total += charge.cost
                moment = max(moment, charge.at + (total - self.usable) / self.rate)
            at = ceil(moment)
            if (not after or at <= after[0].at) and self._keeps(before, Charge(at, cost), after):
                return at
        return NEVER

    def _keeps(self, before: list[Charge], mine: Charge, after: list[Charge]) -> bool:
        """Whether no stretch from this charge or one before it, to a later one, takes too much because of it."""
        for first in range(len(before) + 1):
            stretch = [*before[first:], mine]
            total = sum((c.cost for c in stretch), Fraction(0))
            for charge in after:
                total += charge.cost
                if total > self.usable + self.rate * (charge.at - stretch[0].at):
                    return False
        return True

    def restamp(self, charge: Charge, now: int) -> int:
        """A call is written now: it counts from now on. Returns when it may be, at the earliest."""
        self.charges.remove(charge)
        at = self.earliest(now, now, charge.cost)
        charge.at = now
        self.charges.append(charge)
        return at

    def holds(self) -> bool:
        charges = sorted(self.charges, key=lambda c: c.at)
        for first, one in enumerate(charges):
            total = Fraction(one.cost)
            if total > self.burst:
                return False
            for other in charges[first + 1 :]:
                total += other.cost
                if total > self.usable + self.rate * (other.at - one.at):
                    return False
        return True


@lru_cache(10_000)
def _period(form: str, zone: ZoneInfo, second: int) -> str:
    return datetime.fromtimestamp(second, UTC).astimezone(zone).strftime(form)


class QuotaOracle:
    """At most `limit` in a period of the calendar; a charge counts in every period within `slack` of it."""

    NAMES = {  # noqa: RUF012
        "minute": "%Y-%m-%d %H:%M %z",
        "hour": "%Y-%m-%d %H %z",
        "day": "%Y-%m-%d",
        "week": "%G-%V",
        "month": "%Y-%m",
        "year": "%Y",
    }

    def __init__(self, limit: Any, per: str, zone: str, slack: int) -> None:
        self.limit, self.per, self.zone, self.slack = limit, per, ZoneInfo(zone), slack
        self.charges: list[Charge] = []

    def period(self, moment: int) -> str:
        return _period(self.NAMES[self.per], self.zone, moment // 1_000_000)

    def periods(self, moment: int) -> set[str]:
        return {self.period(moment - self.slack), self.period(moment), self.period(moment + self.slack)}

    def next_start(self, moment: int) -> int:
        """The first moment of the next period, by halving."""
        here, low, high = self.period(moment), moment, moment + 1_000_000
        while self.period(high) == here:
            low, high = high, high + 2 * (high - low)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.period(middle) == here else (low, middle)
        return high

    def counted(self, period: str) -> float:
        return sum(c.cost for c in self.charges if period in self.periods(c.at))

    def used(self, moment: int) -> float:
        return self.counted(self.period(moment))

    def fits(self, moment: int, cost: float) -> bool:
        return all(self.counted(period) + cost <= self.limit for period in self.periods(moment))

    def earliest(self, now: int, start: int, cost: float) -> int:
        if cost > self.limit:
            return NEVER
        moment = start
        while not self.fits(moment, cost):
            # Room comes only where a period has ended and `slack` has passed after it.
            moment = self.next_start(moment - self.slack) + self.slack
        return moment

    def restamp(self, charge: Charge, now: int) -> int:
        """A call is written now, and counts in the periods of now. Returns when it may be: later, where one is full."""
        counted = self.periods(now) <= self.periods(charge.at)
        charge.at = moment = now
        while not counted and any(self.counted(period) > self.limit for period in self.periods(moment)):
            moment = self.next_start(moment - self.slack) + self.slack
        return moment

    def holds(self) -> bool:
        return all(self.counted(name) <= self.limit for c in self.charges for name in self.periods(c.at))


class SlotsOracle:
    """At most `limit` live leases: one slot per charge, until it is taken off the list or its lease has expired."""

    def __init__(self, limit: Any) -> None:
        self.limit = limit
        self.charges: list[Charge] = []

    def live(self, moment: int) -> list[Charge]:
        return [c for c in self.charges if c.expires > moment]

    def used(self, moment: int) -> float:
        return len(self.live(moment))

    def earliest(self, now: int, start: int, cost: float) -> int:
        moments = [start, *sorted(c.expires for c in self.live(start))]
        return next((moment for moment in moments if self.used(moment) + 1 <= self.limit), NEVER)

    def holds(self) -> bool:
        return all(sum(1 for c in self.charges if c.at <= one.at < c.expires) <= self.limit for one in self.charges)


@dataclass
class Rule:
    """One limit of a gate: how to make the oracle for a share of it, what it counts, and by which key."""

    name: str
    make: Callable[[float], Any]
    unit: str = "requests"
    by: str | None = None
    slots: bool = False


@dataclass
class GateOracle:
    """All limits of a gate, asked together: the moment is the first at which every one of them allows it.

    A class's share of a limit is one more limit, for those of that class and below. `shares` is from the highest down.
    """

    rules: list[Rule]
    shares: list[Any] = field(default_factory=list)
    promise: bool = False
    members: dict[tuple[str, str, int], Any] = field(default_factory=dict)

    def limits(self, key: Mapping[str, str], rank: int) -> Iterator[tuple[Rule, int, Any]]:
        for rule in self.rules:
            value = key[rule.by] if rule.by else ""
            for level in [-1, *(at for at, share in enumerate(self.shares) if at <= rank and share < 1)]:
                name = (rule.name, value, level)
                if name not in self.members:
                    self.members[name] = rule.make(1.0 if level < 0 else self.shares[level])
                yield rule, level, self.members[name]

    def earliest(self, now: int, start: int, costs: Mapping[str, float], key: Mapping[str, str], rank: int) -> int:
        moment = start
        if not self.promise:
            # Nothing lies in the future, so what fits at a moment fits from then on: the last of them decides.
            return max(
                limit.earliest(now, start, 1 if rule.slots else costs[rule.unit])
                for rule, _, limit in self.limits(key, rank)
            )
        while moment < NEVER:
            then = max(
                limit.earliest(now, moment, 1 if rule.slots else costs[rule.unit])
                for rule, _, limit in self.limits(key, rank)
            )
            if then == moment:
                break
            moment = then
        return moment

    def charge(
        self, at: int, costs: Mapping[str, float], key: Mapping[str, str], rank: int, id: str = "", expires: int = 0
    ) -> list[tuple[Rule, Any, Charge]]:
        """Charge every limit. Returns what was put where, for whoever gives it back."""
        put = []
        for rule, _, limit in self.limits(key, rank):
            cost = 1 if rule.slots else costs[rule.unit]
            charge = Charge(at, cost, lease=id, expires=expires)
            limit.charges.append(charge)
            put.append((rule, limit, charge))
        return put

    def holds(self) -> bool:
        return all(limit.holds() for limit in self.members.values())


@dataclass
class HeldLease:
    """A lease as its holder knows it, and as the store does."""

    at: int
    #: In which state it was granted, and in which it is registered now; 0: in none.
    granted_in: int
    registered_in: int
    expires: int


class LossOracle:
    """Slots of a store that loses all of its state now and then, and of processes that come back early or late.

    Each time the state is made anew it has a number of its own. A process remembers the last one that it met, and has lost
    state when it meets another. The first process that does opens the gate to leases from before; that closes when the loss
    is made up for, and stays open for the command with which a process finds out for itself.
    """

    def __init__(self, limit: int, made_up_for_after: int) -> None:
        self.limit, self.made_up_for_after = limit, made_up_for_after
        #: The number of the state, whether there is one, and when it was made.
        self.state, self.there, self.made_at = 0, False, 0
        #: When its processes noticed that another had been before, and whether leases from before may still come back.
        self.noticed_at: int | None = None
        self.is_open = False
        #: Process → the number of the state that it met last.
        self.met: dict[int, int] = {}
        self.leases: dict[str, HeldLease] = {}

    def lose(self) -> None:
        self.there = False

    def command(self, process: int, now: int) -> bool:
        """A process sends a command. Returns whether it finds that state was lost."""
        if not self.there:
            self.state, self.there, self.made_at = self.state + 1, True, now
            self.noticed_at, self.is_open = None, False
        lost = self.met.get(process, self.state) != self.state
        self.met[process] = self.state
        if lost and self.noticed_at is None:
            self.noticed_at, self.is_open = now, True
        return lost

    def live(self, now: int) -> list[HeldLease]:
        return [one for one in self.leases.values() if one.registered_in == self.state and one.expires > now]

    def ask(self, now: int, id: str, expires: int) -> bool:
        """After `command`: whether an ask is granted."""
        if self.noticed_at is not None and now > self.noticed_at + self.made_up_for_after:
            self.is_open = False
        if len(self.live(now)) >= self.limit:
            return False
        self.leases[id] = HeldLease(now, self.state, self.state, expires)
        return True

    def renew(self, now: int, id: str, expires: int, lost: bool) -> bool:
        """After `command`, which returned `lost`: whether the lease lives on."""
        lease = self.leases[id]
        lives = lease.registered_in == self.state and lease.expires > now
        returns = lease.granted_in < self.state and lease.at < self.made_at and (lost or self.is_open)
        if lives or returns:
            lease.registered_in, lease.expires = self.state, expires
        return lives or returns

    def release(self, now: int, id: str) -> bool:
        """After `command`: whether the lease had still been there."""
        lease = self.leases[id]
        lives = lease.registered_in == self.state and lease.expires > now
        lease.registered_in = 0
        return lives

    def reset(self) -> None:
        self.is_open = False
        for lease in self.leases.values():
            lease.registered_in = 0


@dataclass(eq=False)
class Admission:
    """One permit under an id: which asks were answered with it, when its lease runs out, and when it ended if it did."""

    id: str
    asks: set[str]
    expires: int
    ended: int | None = None
    granted: int = 0

    def over_at(self, now: int) -> int | None:
        """When it was over, if it is."""
        if self.ended is not None:
            return min(self.ended, max(self.expires, 0))
        return self.expires if self.expires <= now else None


@dataclass
class IdsOracle:
    """Ids on a gate of `slots` that holds leases of a length: who is admitted, who has the same permit, who is too late.

    An ask is an id and a name; a request of the same id and name is the same ask, whenever it comes. An id that was made
    for one ask has the name "". By the definitions:

    - while a permit of the id lives, every ask of the id that is not over has that permit;
    - an ask is over for `memory` after its permit was over, or after it was cancelled;
    - an ask that is over has nothing; any other ask is a new admission, if there is a slot;
    - a cancel takes a permit away when it was the last ask that has it.
    """

    slots: int
    lease: int
    memory: int = 60_000_000
    permits: list[Admission] = field(default_factory=list)
    cancelled: dict[tuple[str, str], int] = field(default_factory=dict)

    def live(self, now: int) -> list[Admission]:
        return [permit for permit in self.permits if permit.over_at(now) is None]

    def of(self, id: str, now: int) -> Admission | None:
        return next((permit for permit in self.live(now) if permit.id == id), None)

    def is_over(self, id: str, name: str, now: int) -> bool:
        ends = [self.cancelled[id, name]] if (id, name) in self.cancelled else []
        for permit in self.permits:
            if permit.id == id and name in permit.asks and (over := permit.over_at(now)) is not None:
                ends.append(over)
        return any(now < end + self.memory for end in ends)

    def ask(self, id: str, name: str, now: int) -> Admission | str:
        """The permit that it has, or "over", or "wait"."""
        if self.is_over(id, name, now):
            return "over"
        permit = self.of(id, now)
        if permit is None:
            if len(self.live(now)) >= self.slots:
                return "wait"
            permit = Admission(id, set(), now + self.lease, granted=now)
            self.permits.append(permit)
        permit.asks.add(name)
        return permit

    def cancel(self, id: str, name: str, now: int) -> None:
        permit = self.of(id, now)
        self.cancelled[id, name] = now
        if permit is not None and name in permit.asks:
            permit.asks.discard(name)
            if not permit.asks:
                permit.ended = now

    def end(self, permit: Admission, now: int) -> bool:
        """Whether there was something to end."""
        lived = permit.over_at(now) is None
        if lived:
            permit.ended = now
        return lived

    def renew(self, permit: Admission, now: int) -> bool:
        lives = permit.over_at(now) is None
        if lives:
            permit.expires = max(permit.expires, now + self.lease)
        return lives

"""PURE. The exact sliding window: never more than `limit` units in ANY window of length `per`, at the upstream.

It is a little over 500 lines because what is charged now and what is promised for later are one count, searched two ways.
"""

from __future__ import annotations

from ...errors import InvalidInput, KindChanged
from ..model import NEVER
from .base import NO_LEASE, TAKEN, WORTH_IT, RateLimit, fitting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..model import LimitUsage
    from ..records import Records, Space
    from .base import Duration, Lease, Limit, Taker

    #: at, counted, least, since
    Front = tuple[int, float, float, int]

#: A confirmation gives back at most `slack` of one grant; below this share of the limit that is not worth a round trip.
WORTH_CONFIRMING = 0.25

#: Behind so many full windows it hardly matters when each unit of the present one stops: that is 5 % of the time, or less.
FAR = 20

#: The part of an amount that sums of others may be off by.
ROUNDING = 1e-6

#: So many slots are looked at for a promise, at most. Beyond it an ask goes after the last promise.
LOOKED = 2000

#: So many fronts are kept, for asks of different costs.
FRONTS = 8

#: The part of a limit that is too little to be asked for.
HARDLY = 1e-9

#: In how many steps a window comes back after its state was lost.
STEPS_AFTER_LOSS = 50


class Window(RateLimit):
    """At most `limit` units in any window of length `per`, counted where it matters: at the upstream.

    A grant counts until `per + slack` after it. `slack` is the spread of the time from a grant to the moment the upstream
    counts it (default: 2 % of `per`, at least 100 ms, at most 1 s; 0 where the gate itself is the boundary). Once an
    answer tells that the upstream has counted it, it counts until `per` after that. Use `Bucket` where the upstream is a
    token bucket: it allows bursts that a window does not.
    """

    # State: ("window", total, first, held, until, promised, open, units): the units that count, when the first of them
    # stops, what called tickets hold, when the last stops, whether slots begin in the future, and the slot that is being
    # filled, which is put into the space when the next one begins. Space windows[member] has one
    # slot per moment on a grid of per/1000 at which units stop counting; rounding up keeps the promise, and bounds the
    # state to about a thousand slots whatever the limit.
    __slots__ = ("grid", "span")
    #: Measured on a fleet whose network has a tail: docs/why.md. A bucket pays for slack with its burst, and so has less.
    slack_part = 50
    kind = "window"
    fields = ("limit", "per", "slack", "name", "unit", "by")
    confirmable = True
    held_index = 3

    def __init__(
        self,
        limit: float,
        per: Duration,
        slack: Duration | None = None,
        name: str | None = None,
        unit: str = "requests",
        by: str | None = None,
    ) -> None:
        super().__init__(limit, per, slack, name, unit, by)
        if self.per < 1000:
            raise InvalidInput(f"window {self.name!r}: per must be at least 1 ms")
        self.grid = self.per // 1000
        #: For how long a grant counts, on the grid.
        self.span = -(-(self.per + self.slack) // self.grid) * self.grid

    def spec(self) -> tuple[Any, ...]:
        return (self.kind, self.limit, self.per, self.slack, self.name, self.unit, self.by)

    @classmethod
    def from_spec(cls, spec: Any) -> Window:
        _, limit, per, slack, name, unit, by = spec
        return cls(limit, per / 1e6, slack / 1e6, name, unit, by)

    def widened(self, us: int) -> Limit:
        # What is confirmed counts for `per` from a stamp that may be early as well, so more slack alone would not do.
        return self.replaced("per", self.per + us)

    def numbers(self) -> tuple[Any, ...]:
        return (self.per, self.slack)

    def _stops(self, at: int, span: int) -> int:
        """The moment on the grid at which what was counted at `at` stops counting."""
        return -(-(at + span) // self.grid) * self.grid

    def earliest(self, records: Records, now: int, member: str, cost: float, value: float, start: int) -> int:
        state = records.states.get(member)
        if state is None:
            return start if start <= now else self._stops(start, 0)
        if state[0] != "window":
            raise KindChanged(gate=records.gate, limit=member, was=state[0], now="window")
        _, total, first, held, _, promised, _, _ = state
        if total + held + cost <= value and start <= now and not promised:
            return start
        if first <= now:
            total, promised = self._prune(records, now, member)
        if promised or start > now:
            return self._among(records, now, member, cost, value - held, start)
        total += held + cost - value
        if total <= 0.0:
            return start
        # Mostly the next slot to stop makes room enough.
        first = records.states.get(member)[2]
        units = records.windows[member].get(first)
        if units is not None and units >= total:
            return first if first > start else start
        slots = self._slots(records, member)
        for stops, _ in slots.scan():
            total -= slots.get(stops)
            if total <= 0.0:
                return stops if stops > start else start
        # What called tickets hold has no end of its own: it is taken or given back within a claim.
        return self._stops(now, self.span)

    def after(self, records: Records, now: int, member: str, cost: float, value: float, ahead: int, size: float) -> int:
        # Of asks that fill the window together each goes when the one as many before it stops counting.
        most = fitting(value, size)
        rounds, rest = divmod(ahead, most)
        if rounds >= FAR:
            return now + rounds * self.span + rest * self.span // most
        at = self.earliest(records, now, member, max(cost, min(value, rest * size + cost)), value, now)
        return self._stops(at, self.span) + (rounds - 1) * self.span if rounds else at

    def is_far(self, value: float, ahead: int, size: float) -> bool:
        return ahead >= FAR * fitting(value, size)

    def pace(self, value: float) -> float:
        return self.span / value

    def taker(self, cost: float, value: float) -> Taker:
        # For the commonest case there is; whatever is unusual goes the long way.
        span, worth = self.span, value * WORTH_CONFIRMING
        otherwise = super().taker(cost, value)

        def take(records: Records, now: int, member: str) -> int:
            states = records.states
            state = states.get(member)
            if state is None or state[0] != "window":
                return otherwise(records, now, member)
            _, total, first, held, until, promised, current, units = state
            # Time never goes back, so the open slot is still the one that is being filled unless it is over.
            if promised or now + span > current or total + held + cost > value:
                return otherwise(records, now, member)
            total += cost
            states[member] = ("window", total, first, held, until, False, current, units + cost)
            return WORTH_IT if total >= worth else TAKEN

        return take

    def charge(self, records: Records, now: int, member: str, cost: float, value: float, at: int, lease: Lease) -> bool:
        states = records.states
        # A promise lies on the grid, so that its slot tells when it begins as well as when it stops.
        stops = -(-(at + self.span) // self.grid) * self.grid
        state = states.get(member)
        if state is None:
            states.put(member, ("window", cost, stops, 0.0, stops, at > now, stops, cost), stops)
            return cost >= value * WORTH_CONFIRMING
        _, total, first, held, until, promised, current, units = state
        total += cost
        if stops == current:
            if promised:
                _charged(records.windows[member], at, stops, cost)
            states[member] = ("window", total, first, held, until, promised, current, units + cost)
            return total >= value * WORTH_CONFIRMING  # type: ignore[no-any-return]
        slots = records.windows[member]
        if current:
            _add(slots, current, units)
        if at > now or promised:
            promised = True
            _charged(slots, at, stops, cost)
        if stops < until:
            # Not the newest slot: what is confirmed, or goes before a promise.
            _add(slots, stops, cost)
            current, units = 0, 0.0
        else:
            current, units = stops, cost
            until = stops
        states[member] = ("window", total, stops if stops < first else first, held, until, promised, current, units)
        return total >= value * WORTH_CONFIRMING  # type: ignore[no-any-return]

    def _slots(self, records: Records, member: str) -> Space:
        """All slots: the open one is put with the others."""
        slots = records.windows[member]
        kind, total, first, held, until, promised, current, units = records.states.get(member)
        if current:
            _add(slots, current, units)
            records.states[member] = (kind, total, first, held, until, promised, 0, 0.0)
        return slots

    def refund(
        self, records: Records, now: int, member: str, cost: float, value: float, at: int, confirmed: int = 0
    ) -> None:
        state = records.states.get(member)
        if cost < 0:
            # It cost more than was charged: that counts from when it was charged, also beyond the limit.
            self.charge(records, now, member, -cost, value, min(at, now), NO_LEASE)
        elif state is not None and state[0] == "window":
            stops = self._stops(at, self.span)
            self._move(
                records, member, cost, min(stops, self._stops(confirmed, self.per)) if confirmed else stops, None
            )

    def restamp(self, records: Records, now: int, member: str, cost: float, value: float, at: int, sent: int) -> int:
        state = self._state(records, member)
        was = self._stops(at, self.span)
        moved = 0.0
        if state is not None:
            if state[2] <= now:
                self._prune(records, now, member)
            moved = self._move(records, member, cost, was, None)
        self.charge(records, now, member, cost, value, sent, NO_LEASE)
        if cost - moved <= cost * ROUNDING:
            return now  # the same charge, counted for longer: that takes nothing from others
        # It had stopped counting, so others may have been granted since what it stood for.
        return self.earliest(records, now, member, 0.0, value, now)

    def confirm(self, records: Records, now: int, member: str, cost: float, value: float, at: int) -> None:
        state = records.states.get(member)
        if state is None or at > now:
            return
        grid = self.grid
        was, stops = -(-(at + self.span) // grid) * grid, -(-(now + self.per) // grid) * grid
        if stops < was and state[0] == "window":
            self._move(records, member, cost, was, stops)

    @staticmethod
    def until(records: Records, member: str, state: Any) -> int:
        return int(state[4])

    def _move(self, records: Records, member: str, cost: float, was: int, to: int | None) -> float:
        """Units that stop at `was` stop at `to` instead, or are given back. Returns how many of them still counted."""
        _, total, first, held, until, promised, current, filled = records.states.get(member)
        if was == current and cost <= filled:
            slots = records.windows[member]
            moved = cost
            filled -= cost
            if not filled:
                current = 0
        else:
            if was == current:
                slots = self._slots(records, member)
                current, filled = 0, 0.0
            else:
                slots = records.windows[member]
            units = slots.get(was)
            if units is None:
                return 0.0  # stopped counting, was reset, or was confirmed before
            moved = cost if cost < units else units
            if moved < units:
                slots[was] = units - moved
            else:
                slots.delete(was)
        if promised:
            _given_back(slots, was)
        if to is None:
            # With the last slot goes whatever rounding left.
            total = total - moved if current or slots.first() is not None else 0.0
        else:
            _add(slots, to, moved)
            if to < first:
                first = to
        records.states[member] = ("window", total, first, held, until, promised, current, filled)
        return moved

    def hold(self, records: Records, now: int, member: str, cost: float, lease: Lease) -> None:
        state = records.states.get(member)
        if state is None:
            state = ("window", 0.0, NEVER, 0.0, now, False, 0, 0.0)
            records.states.put(member, state, now + self.span)
        kind, total, first, held, until, promised, current, units = state
        held += cost
        records.states[member] = (kind, total, first, held if held > 0.0 else 0.0, until, promised, current, units)

    def assume_used(self, records: Records, now: int, member: str, value: float, lost: int) -> None:
        if self._state(records, member) is not None:
            self._prune(records, now, member)
        missing = value - (records.states.get(member) or ("", 0.0))[1]
        if missing > 0:
            part = missing / STEPS_AFTER_LOSS
            for step in range(1, STEPS_AFTER_LOSS + 1):
                at = lost + self.span * (step - STEPS_AFTER_LOSS) // STEPS_AFTER_LOSS
                if at + self.span > now:
                    self.charge(records, now, member, part, value, at, NO_LEASE)

    @classmethod
    def rough_use(cls, records: Records, now: int, member: str, state: Any) -> float:
        return float((state[1] if state[4] > now else 0.0) + state[3])

    def describe(self, records: Records, now: int, member: str, value: float) -> LimitUsage:
        state = self._state(records, member)
        if state is None:
            return self._usage(member, 0.0, value, 0, 0)
        total, promised = self._prune(records, now, member)
        cost = min(1.0, value)
        free_in = self.earliest(records, now, member, cost, value, now) - now
        to_come = 0.0
        if promised:
            slots = self._slots(records, member)
            for stops, _ in slots.scan(now + self.span + 1):  # what stops then begins after now
                to_come += slots.get(stops)
        used = max(0.0, total + state[3] - to_come)
        return self._usage(member, used, value, free_in, state[4] - now if total > 0 else 0, promised=to_come)

    def _prune(self, records: Records, now: int, member: str) -> tuple[float, bool]:
        """Slots that have stopped counting go. Returns what still counts, and whether any of it is promised."""
        _, total, first_stop, held, until, promised, current, units = records.states.get(member)
        if not promised and now < first_stop and now < current:
            return max(total, 0.0), False
        if promised or current <= now:
            slots = self._slots(records, member)
            current, units = 0, 0.0
        else:
            slots = records.windows[member]
        while (first := slots.first()) is not None and first[0] <= now:
            total -= slots.get(first[1])
            slots.delete(first[1])
        if first is None:
            promised = False
            if not current:
                total = 0.0  # with the last slot goes whatever rounding left
            records.drop("windows", member)
        elif promised and until - self.span <= now:
            promised = False
            slots.delete("hint")
        total = max(total, 0.0)
        next_stop = first[0] if first else current or NEVER
        records.states[member] = ("window", total, next_stop, held, until, promised, current, units)
        return total, promised

    # --- promises: slots that begin in the future ---------------------------------------------------------------
    #
    # A slot that stops at `s` begins at `s - span`. Adding cost at `t` must keep every window that contains `t` within
    # the limit: the one that ends at `t`, and those that end at each slot begun less than `span` after it. One walk over
    # the slots finds the first such moment: `counted` is what counts at the moment it has come to, slots begin and stop
    # in order, and a moment is the answer once no window within `span` of it is too full.
    #
    # "fronts" spare a decision most of the walk. Each is (at, counted, least, since): at `at` begins a slot, `counted` is
    # what counts then, and nothing of `least` or more fits from `since` to there; a later one has a higher `least`.
    # Whatever is charged leaves that true; what is given back moves `since`. They hold only beside "hint" → (1 + the last
    # `at`, NEVER): an earlier version, which knows nothing of them, takes that away or writes another one whenever it
    # changes what counts there.

    def _among(self, records: Records, now: int, member: str, cost: float, value: float, start: int) -> int:
        if cost > value:
            return NEVER
        slots = self._slots(records, member)
        # A promise lies on the grid, so that its slot tells exactly when it begins; only the present need not.
        at = start if start <= now else self._stops(start, 0)
        walk = _Walk(self, slots, at, cost, value, start <= now)
        best = walk.run()
        if best is None:
            # Too many were looked at. After the last promise nothing is in its way: no later than if it stood in line.
            last = max(at, records.states.get(member)[4] - self.span)
            best = _Walk(self, slots, last, cost, value, False).leave()
        walk.remember()
        return best


class _Walk:
    """The search for the first moment at which a cost fits among promises."""

    __slots__ = ("at", "bad", "coming", "cost", "counted", "covers", "entering", "front", "fronts", "going", "least",
                 "leaving", "reach", "since", "slots", "span", "value")  # fmt: skip

    def __init__(self, window: Window, slots: Space, at: int, cost: float, value: float, covers: bool) -> None:
        self.slots, self.span, self.cost, self.value = slots, window.span, cost, value
        self.fronts = _fronts(slots)
        #: The last of those that tell where this cost does not fit.
        self.front = next((front for front in reversed(self.fronts) if front[2] <= cost), None)
        #: Whether nothing was left out from the present on; what is known of how much fits up to `reach`; from when on.
        self.covers, self.least, self.reach, self.since = covers, 0.0, at - 1, at
        #: The last slot at whose beginning it does not fit: when, and what counts then.
        self.bad: tuple[int, float] | None = None
        self.counted = 0.0
        if self._is_known(at):
            self._jump(at)
            return
        ends = window._stops(at, self.span)
        for stops, _ in slots.scan(at + 1):  # not `sum`, which newer Pythons round in another way than Lua does
            if stops > ends:
                break
            self.counted += slots.get(stops)
        self._go_to(at, ends)

    def _go_to(self, at: int, ends: int) -> None:
        self.at = at
        self.entering, self.leaving = self.slots.scan(ends + 1), self.slots.scan(at + 1)
        self.coming, self.going = next(self.entering, None), next(self.leaving, None)

    def _is_known(self, at: int) -> bool:
        """Whether the front tells that it fits nowhere from `at` to there."""
        front = self.front
        return front is not None and front[3] <= at < front[0]

    def run(self) -> int | None:
        """The moment; None where more than LOOKED slots would have to be looked at."""
        best = None if self.bad is not None or self.counted + self.cost > self.value else self.at
        looked = 0
        while looked < LOOKED:
            looked += 1
            if best is None and self._is_known(self.at):
                self._jump(self.at)
            begins = NEVER if self.coming is None else self.coming[0] - self.span
            if best is not None and begins >= best + self.span:
                return best
            if best is None and (self.going is None or self.going[0] > begins) and begins == NEVER:
                return self.at  # nothing counts any more
            if best is not None or self.going is None or self.going[0] > begins:
                self.at = begins
                while self.going is not None and self.going[0] <= begins:
                    self._lose()
                    looked += 1
            else:
                self.at = self.going[0]
                self._lose()
            entered = begins == self.at
            if entered:
                assert self.coming is not None
                self.counted += self.slots.get(self.coming[0])
                self.coming = next(self.entering, None)
            if self.counted + self.cost > self.value:
                best = None
                if entered:
                    self._refuse()
            elif best is None:
                best = self.at
        return None

    def leave(self) -> int:
        """The first moment at which it fits, where no slot begins later."""
        while self.going is not None and self.counted + self.cost > self.value:
            self.at = self.going[0]
            self._lose()
        return self.at

    def _lose(self) -> None:
        """The next slot stops counting."""
        assert self.going is not None
        self.counted -= self.slots.get(self.going[0])
        self.going = next(self.leaving, None)
        if self.going is None or (self.coming is not None and self.going[0] == self.coming[0]):
            self.counted = 0.0  # with the last slot that has begun goes whatever rounding left

    def _refuse(self) -> None:
        """It does not fit where this slot begins, nor within a span before that: nor does anything that is not smaller
        than what is left then."""
        covered = self.reach >= self.at - self.span
        left = self.value - self.counted + self.value * HARDLY
        self.least = max(self.least, min(self.cost, left)) if covered else self.cost
        self.bad, self.reach = (self.at, self.counted), self.at

    def _jump(self, here: int) -> None:
        """To the front: from here to there it fits nowhere."""
        assert self.front is not None
        at, counted, least, since = self.front
        if not self.covers and self.reach == here - 1:
            self.since, self.covers = since, True  # this walk goes on with what the front tells
        self.least = max(self.least, least) if self.reach + 1 >= since else self.cost
        self.bad, self.reach, self.counted = (at, counted), at, counted
        self._go_to(at, at + self.span)

    def remember(self) -> None:
        """Leave what was found for the next ask."""
        if self.bad is None or not self.covers:
            return
        at, least, since = self.bad[0], self.least, self.since
        if any(front[0] >= at and front[2] <= least and front[3] <= since for front in self.fronts):
            return
        fronts = [front for front in self.fronts if front[2] < least or front[0] > at]
        fronts.append((*self.bad, least, since))
        fronts.sort()
        if len(fronts) > FRONTS:
            near = min(range(FRONTS), key=lambda one: fronts[one][0] - (fronts[one - 1][0] if one else 0))
            del fronts[near]
        self.slots["fronts"] = tuple(fronts)
        self.slots["hint"] = (fronts[-1][0] + 1, NEVER)


def _add(slots: Space, stops: int, units: float) -> None:
    slots.put(stops, units + (slots.get(stops) or 0.0), stops)


def _fronts(slots: Space) -> tuple[Front, ...]:
    hint = slots.get("hint")
    if hint is None or hint[1] != NEVER:
        return ()  # there are none, or an earlier version has been here
    fronts = slots.get("fronts")
    return () if fronts is None or fronts[-1][0] + 1 != hint[0] else tuple(tuple(front) for front in fronts)


def _charged(slots: Space, at: int, stops: int, cost: float) -> None:
    """What is charged at `at` counts at every front between that and the moment at which it stops."""
    fronts = _fronts(slots)
    if fronts and at <= fronts[-1][0] and fronts[0][0] < stops:
        slots["fronts"] = tuple(
            (front[0], front[1] + cost, *front[2:]) if at <= front[0] < stops else front for front in fronts
        )


def _given_back(slots: Space, stops: int) -> None:
    """Units that would have counted until `stops` count no longer, so that more may fit before it."""
    fronts = tuple((*front[:3], max(front[3], stops)) for front in _fronts(slots) if front[0] >= stops)
    if fronts:
        slots["fronts"] = fronts
    else:
        slots.delete("hint")

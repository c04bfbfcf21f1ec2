"""PURE. The exact sliding window: never more than `limit` units in ANY window of length `per`, at the upstream."""

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

#: A confirmation gives back at most `slack` of one grant; below this share of the limit that is not worth a round trip.
WORTH_CONFIRMING = 0.25

#: Behind so many full windows it hardly matters when each unit of the present one stops: that is 5 % of the time, or less.
FAR = 20

#: The part of an amount that sums of others may be off by.
ROUNDING = 1e-6

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
            states[member] = ("window", total, first, held, until, promised, current, units + cost)
            return total >= value * WORTH_CONFIRMING  # type: ignore[no-any-return]
        slots = records.windows[member]
        if current:
            _add(slots, current, units)
        if at > now or promised:
            promised = True
            _forget_hint(slots, at)
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
            slots.delete("hint")
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
    # the limit: the one that ends at `t`, and those that end at each slot begun less than `span` after it. "hint" →
    # (at, cost): nothing of `cost` or more fits before `at`.

    def _among(self, records: Records, now: int, member: str, cost: float, value: float, start: int) -> int:
        if cost > value:
            return NEVER
        slots = self._slots(records, member)
        # A promise lies on the grid, so that its slot tells exactly when it begins; only the present need not.
        at = start if start <= now else self._stops(start, 0)
        hint_at, hint_cost = slots.get("hint") or (0, NEVER)
        if cost >= hint_cost and hint_at > at:
            at = hint_at
        while True:
            later = self._conflict(slots, at, cost, value)
            if later <= at:
                break
            at = later
        if start <= now and cost <= hint_cost:
            slots["hint"] = (at, cost)
        return at

    def _conflict(self, slots: Space, at: int, cost: float, value: float) -> int:
        """`at` when cost fits there, else a later moment before which it does not."""
        span = self.span
        ends = self._stops(at, span)
        pairs = [(stops, slots.get(stops)) for stops, _ in slots.scan(at + 1) if stops < ends + span]
        counted = 0.0
        for stops, units in pairs:  # not `sum`, which newer Pythons round in another way than Lua does
            if stops <= ends:
                counted += units
        excess = counted + cost - value
        if excess > 0.0:
            for stops, units in pairs:
                excess -= units
                if excess <= 0.0:
                    return int(stops)
            return ends
        gone = 0
        for stops, units in pairs:
            if stops <= ends:
                continue
            # The window that ends where this slot begins, at stops - span.
            while pairs[gone][0] <= stops - span:
                counted -= pairs[gone][1]
                gone += 1
            counted += units
            if counted + cost > value:
                return int(stops - span)
        return at


def _add(slots: Space, stops: int, units: float) -> None:
    slots.put(stops, units + (slots.get(stops) or 0.0), stops)


def _forget_hint(slots: Space, at: int) -> None:
    hint = slots.get("hint")
    if hint is not None and at < hint[0]:
        slots.delete("hint")

"""The upstream's own books: what it accepts and what it refuses, decided on arrival.

Nothing here knows of Headgate. The rules are written anew, with another representation (every single arrival is kept) and
another clock (nanoseconds with an offset of their own), so that a mistake in `kernel.limits` cannot hide itself here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    #: (nanoseconds since the run began, limit from then on), in order; the first begins at 0.
    Steps = Sequence[tuple[int, float]]

NANO = 1_000_000_000


class BookRule(NamedTuple):
    """A rule of an upstream as its book is made from it. Times are nanoseconds."""

    kind: str
    steps: Steps
    #: 0 where the rule has no period.
    per: int
    burst: float | None
    unit: str
    by: str | None


class Book:
    """One rule of an upstream, and what it has counted.

    `room` says whether a call fits, `enter` counts it, `leave` is called when its work is done.
    """

    kind = ""

    def __init__(self, steps: Steps, per: int, burst: float | None, unit: str, by: str | None) -> None:
        self.steps = tuple(steps)
        self._times = [at for at, _ in self.steps]
        #: Nanoseconds; 0 where the rule has no period.
        self.per = per
        self.burst = burst
        self.unit = unit
        self.by = by
        self.changes = len(self.steps) > 1

    def limit(self, age: int) -> float:
        """The limit in force so many nanoseconds after the run began."""
        return self.steps[bisect_right(self._times, age) - 1][1]

    def room(self, at: int, age: int, units: float) -> bool:
        raise NotImplementedError

    def enter(self, at: int, units: float) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        """A call's work is done. Only slots count that."""

    def frees_in(self, at: int, age: int, units: float) -> int:
        """Nanoseconds until this would be accepted if no other call came: the `Retry-After` of a 429."""
        return 0

    def left(self, at: int, age: int) -> float:
        """How many units would be accepted now."""
        raise NotImplementedError

    def least_span(self, units: float, work: float) -> float:
        """The shortest time, in seconds, from the first to the last acceptance of so many units and seconds of work."""
        raise NotImplementedError

    def _time_for(self, amount: float, per: float) -> float:
        """Seconds until the limit, taken as a rate of `limit` per `per` seconds, has let so much pass."""
        for index, (begin, limit) in enumerate(self.steps):
            last = index + 1 == len(self.steps)
            most = float("inf") if last else limit * (self.steps[index + 1][0] - begin) / NANO / per
            if amount <= most:
                return begin / NANO + amount * per / limit
            amount -= most
        raise AssertionError("the last step has no end")


class SlidingWindow(Book):
    """At most `limit` units in any window of length `per`."""

    kind = "sliding"

    def __init__(self, steps: Steps, per: int, burst: float | None, unit: str, by: str | None) -> None:
        super().__init__(steps, per, burst, unit, by)
        self._entries: deque[tuple[int, float]] = deque()
        self._inside = 0.0

    def room(self, at: int, age: int, units: float) -> bool:
        entries, gone = self._entries, at - self.per
        while entries and entries[0][0] <= gone:
            self._inside -= entries.popleft()[1]
        if not entries:
            self._inside = 0.0
        limit = self.limit(age) if self.changes else self.steps[0][1]
        return self._inside + units <= limit + 1e-9

    def enter(self, at: int, units: float) -> None:
        self._entries.append((at, units))
        self._inside += units

    def frees_in(self, at: int, age: int, units: float) -> int:
        over = self._inside + units - self.limit(age)
        for came, amount in self._entries:
            if over <= 1e-9:
                break
            over -= amount
            last = came
            if over <= 1e-9:
                return last + self.per - at
        return 0 if over <= 1e-9 else self.per

    def left(self, at: int, age: int) -> float:
        self.room(at, age, 0.0)
        return max(0.0, self.limit(age) - self._inside)

    def least_span(self, units: float, work: float) -> float:
        return self._time_for(max(0.0, units - self.steps[0][1]), self.per / NANO)


class CalendarWindow(Book):
    """At most `limit` units from the start of a period to its end, with nothing remembered across."""

    kind = "calendar"

    def __init__(self, steps: Steps, per: int, burst: float | None, unit: str, by: str | None) -> None:
        super().__init__(steps, per, burst, unit, by)
        self._period = -1
        self._inside = 0.0

    def room(self, at: int, age: int, units: float) -> bool:
        if at // self.per != self._period:
            self._period, self._inside = at // self.per, 0.0
        return self._inside + units <= self.limit(age) + 1e-9

    def enter(self, at: int, units: float) -> None:
        self._inside += units

    def frees_in(self, at: int, age: int, units: float) -> int:
        return self.per - at % self.per

    def left(self, at: int, age: int) -> float:
        self.room(at, age, 0.0)
        return max(0.0, self.limit(age) - self._inside)

    def least_span(self, units: float, work: float) -> float:
        # At best the first period's lot goes at its very end, and the last one's at its very beginning.
        limit = self.steps[0][1]
        return max(0.0, -(-units // limit) - 2.0) * self.per / NANO


class TokenBucket(Book):
    """`limit` units per `per` flow in, at most `burst` are there at once; an arrival takes what it costs."""

    kind = "bucket"

    def __init__(self, steps: Steps, per: int, burst: float | None, unit: str, by: str | None) -> None:
        super().__init__(steps, per, burst, unit, by)
        self._size = self.steps[0][1] if burst is None else burst
        self._tokens = self._size
        self._filled = 0

    def room(self, at: int, age: int, units: float) -> bool:
        if self._filled:
            self._tokens = min(self._size, self._tokens + (at - self._filled) * self.limit(age) / self.per)
        self._filled = at
        return self._tokens + 1e-9 >= units

    def enter(self, at: int, units: float) -> None:
        self._tokens -= units

    def frees_in(self, at: int, age: int, units: float) -> int:
        return int((units - self._tokens) * self.per / self.limit(age)) + 1

    def left(self, at: int, age: int) -> float:
        self.room(at, age, 0.0)
        return max(0.0, self._tokens)

    def least_span(self, units: float, work: float) -> float:
        return self._time_for(max(0.0, units - self._size), self.per / NANO)


class Slots(Book):
    """At most `limit` calls are worked on at once."""

    kind = "slots"

    def __init__(self, steps: Steps, per: int, burst: float | None, unit: str, by: str | None) -> None:
        super().__init__(steps, per, burst, unit, by)
        self._busy = 0

    def room(self, at: int, age: int, units: float) -> bool:
        return self._busy + 1 <= self.limit(age)

    def enter(self, at: int, units: float) -> None:
        self._busy += 1

    def leave(self) -> None:
        self._busy -= 1

    def left(self, at: int, age: int) -> float:
        return max(0.0, self.limit(age) - self._busy)

    def least_span(self, units: float, work: float) -> float:
        return self._time_for(work, 1.0)


BOOKS: dict[str, type[Book]] = {book.kind: book for book in (SlidingWindow, CalendarWindow, TokenBucket, Slots)}


class SimulatedUpstream:
    """All rules of one upstream: each call must pass every one of them, and a refused call leaves no trace.

    `offset` is how far its clock is from the simulation's, in microseconds.
    """

    def __init__(self, rules: Iterable[BookRule], offset: int) -> None:
        self._rules = tuple(rules)
        self._offset = offset * 1000
        self._begun = 0
        #: key → its books: the shared ones and its own. "" is the key of calls without one.
        self._books: dict[str, list[Book]] = {}
        self._shared = [self._open(rule) for rule in self._rules if rule.by is None]
        self._keyed = [rule for rule in self._rules if rule.by is not None]
        self.slotted = any(rule.kind == "slots" for rule in self._rules)

    @staticmethod
    def _open(rule: BookRule) -> Book:
        return BOOKS[rule.kind](rule.steps, rule.per, rule.burst, rule.unit, rule.by)

    def begin(self, now: int) -> None:
        self._begun = now * 1000

    def _books_of(self, key: str) -> list[Book]:
        if key not in self._books:
            self._books[key] = [*self._shared, *(self._open(rule) for rule in self._keyed)]
        return self._books[key]

    def arrive(self, now: int, costs: Mapping[str, float], key: str = "") -> bool:
        """Whether a call that arrives is accepted. `now` is the simulation's time in microseconds."""
        at = now * 1000 + self._offset
        age = now * 1000 - self._begun
        books = self._books.get(key) or self._books_of(key)
        for book in books:
            if not book.room(at, age, costs[book.unit]):
                return False
        for book in books:
            book.enter(at, costs[book.unit])
        return True

    def leave(self, key: str = "") -> None:
        if self.slotted:
            for book in self._books_of(key):
                book.leave()

    def retry_after(self, now: int, costs: Mapping[str, float], key: str = "") -> int:
        """The `Retry-After` of a refusal, in microseconds."""
        at = now * 1000 + self._offset
        age = now * 1000 - self._begun
        longest = 0
        for book in self._books_of(key):
            if not book.room(at, age, costs[book.unit]):
                longest = max(longest, book.frees_in(at, age, costs[book.unit]))
        return -(-longest // 1000)

    def least_spans(
        self, units: Mapping[str, float], work: float, by_key: Mapping[str, tuple[float, float]]
    ) -> tuple[float, float]:
        """The shortest time in seconds that its rates, and that its slots, allow for all of this.

        `by_key` is key → (requests, seconds of work).
        """
        rates, slots = 0.0, 0.0
        for rule in self._rules:
            book = self._open(rule)
            parts = [(units[book.unit], work)] if book.by is None else by_key.values()
            span = max((book.least_span(amount, worked) for amount, worked in parts), default=0.0)
            if book.kind == "slots":
                slots = max(slots, span)
            else:
                rates = max(rates, span)
        return rates, slots

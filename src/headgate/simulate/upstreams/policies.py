"""The limits of a local upstream and what it has counted, on its own clock. Nothing here knows of Headgate's limits.

The rules are those of `simulate.books`, which the simulator in virtual time stands on as well; here they are asked with the
time of a clock that runs.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from ... import duration
from ...errors import InvalidInput
from ..books import BOOKS, NANO, Book

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ..books import Steps


class Budget(Book):
    """`limit` units in all: nothing ever comes back."""

    kind = "budget"

    def __init__(self, steps: Steps, per: int, burst: float | None, unit: str, by: str | None) -> None:
        super().__init__(steps, per, burst, unit, by)
        self._spent = 0.0

    def room(self, at: int, age: int, units: float) -> bool:
        return self._spent + units <= self.limit(age) + 1e-9

    def enter(self, at: int, units: float) -> None:
        self._spent += units

    def left(self, at: int, age: int) -> float:
        return max(0.0, self.limit(age) - self._spent)

    def least_span(self, units: float, work: float) -> float:
        return 0.0


#: The kinds that a policy can have.
KINDS: dict[str, type[Book]] = {**BOOKS, Budget.kind: Budget}

_RIGHT = (
    "write it like requests=50/10s, pu=200/PT1M,burst=100, requests=20/1d,calendar, in_flight=4,slots or "
    "in_flight=20,slots,6@50s"
)


@dataclass(frozen=True, slots=True)
class UpstreamPolicy:
    """One limit of an upstream: `limit` of `unit` per `per_ns` nanoseconds, as `kind` counts.

    `kind` is `bucket` (`burst` at once, full at the start), `sliding` (in any window), `calendar` (from one start of a
    period to the next, on its own clock), `slots` (at once; no period) or `budget` (in all; no period). With `by` it is
    counted apart for every key that a call names. `steps` are changes of the limit: (nanoseconds after the first call, the
    limit from then on), in order.
    """

    unit: str
    limit: float
    per_ns: int
    kind: str = "bucket"
    burst: float | None = None
    by: str | None = None
    steps: tuple[tuple[int, float], ...] = ()

    def open(self) -> Book:
        return KINDS[self.kind](((0, self.limit), *self.steps), self.per_ns, self.burst, self.unit, self.by)

    def scaled(self, share: float) -> UpstreamPolicy:
        """The same policy with that share of its limit and burst."""
        burst = None if self.burst is None else self.burst * share
        steps = tuple((at, limit * share) for at, limit in self.steps)
        return replace(self, limit=self.limit * share, burst=burst, steps=steps)

    def as_text(self) -> str:
        """As `parse_policy` reads it."""
        per = f"/{duration.render(self.per_ns // 1000)}" if self.per_ns else ""
        words = [f"{self.unit}={self.limit!r}{per}", self.kind]
        words += [f"burst={self.burst!r}"] if self.burst is not None else []
        words += [f"by={self.by}"] if self.by is not None else []
        words += [f"{limit!r}@{duration.render(at // 1000)}" for at, limit in self.steps]
        return ",".join(words)


def parse_policy(text: str, kind: str = "bucket") -> UpstreamPolicy:
    """`UNIT=LIMIT/PERIOD[,KIND][,burst=N][,by=KEY][,LIMIT@TIME…]`, as `--policy` takes it; `kind` is an unnamed one's.

    A period of `PT0S` is a budget that does not refill. Anything else that makes no sense is `InvalidInput`.
    """
    rule, *words = text.split(",")
    unit, equals, amount = rule.partition("=")
    limit_text, slash, per_text = amount.partition("/")
    try:
        limit = float(limit_text)
    except ValueError:
        limit = 0.0
    if not equals or not unit or not 0 < limit < float("inf"):
        raise InvalidInput(f"policy {text!r}: it needs a unit and an amount above nought; {_RIGHT}")
    burst: float | None = None
    by: str | None = None
    named: str | None = None
    steps: list[tuple[int, float]] = []
    for word in words:
        name, _, value = word.partition("=")
        if name == "burst" and value:
            try:
                burst = float(value)
            except ValueError:
                burst = 0.0
            if not 0 < burst < float("inf"):
                raise InvalidInput(f"policy {text!r}: a burst is an amount above nought, not {value!r}; {_RIGHT}")
        elif name == "by" and value:
            by = value
        elif "@" in word:
            steps.append(_step(text, word, steps))
        elif word in KINDS and named is None:
            named = word
        else:
            raise InvalidInput(f"policy {text!r}: {word!r} is not a kind ({', '.join(KINDS)}), burst= or by=; {_RIGHT}")
    per = duration.parse(per_text, what=f"policy {text!r}", zero=True) * 1000 if slash else 0
    if named is None:
        named = kind if per else Budget.kind if slash else "slots"
    if (per == 0) != (named in (Budget.kind, "slots")):
        needs = "has no period" if per else "needs a period"
        raise InvalidInput(f"policy {text!r}: {named} {needs}; {_RIGHT}")
    if burst is not None and named != "bucket":
        raise InvalidInput(f"policy {text!r}: only a bucket has a burst; {_RIGHT}")
    return UpstreamPolicy(unit, limit, per, named, burst, by, tuple(steps))


def _step(text: str, word: str, before: list[tuple[int, float]]) -> tuple[int, float]:
    """A change of the limit: `6@50s`."""
    amount, _, after = word.partition("@")
    try:
        limit = float(amount)
    except ValueError:
        limit = 0.0
    at = duration.parse(after, what=f"policy {text!r}") * 1000
    if not 0 < limit < float("inf") or (before and at <= before[-1][0]):
        raise InvalidInput(f"policy {text!r}: {word!r} is no later limit; {_RIGHT}")
    return at, limit


@dataclass(frozen=True, slots=True)
class UpstreamRefusal:
    """Why a call is refused, and in how many seconds it would fit if no other came."""

    policy: UpstreamPolicy
    wait_s: float


class UpstreamBooks:
    """What an upstream accepted and refused, by the policies that it has. A refused call counts against none of them.

    Safe in any number of threads. `clock` gives nanoseconds.
    """

    def __init__(self, policies: Iterable[UpstreamPolicy], clock: Callable[[], int] = time.monotonic_ns) -> None:
        self.policies = tuple(policies)
        self._clock = clock
        self._begun = clock()
        self._lock = threading.Lock()
        self._shared = [(policy, policy.open()) for policy in self.policies if policy.by is None]
        self._keyed = [policy for policy in self.policies if policy.by is not None]
        self._by_key: dict[tuple[str, str], Book] = {}
        self._accepted: list[int] = []
        self._refused: list[int] = []
        self._failed = 0
        self._units: dict[str, float] = {}
        self._refused_by: dict[str, int] = {}

    def arrive(self, units: Mapping[str, float], keys: Mapping[str, str] | None = None) -> UpstreamRefusal | None:
        """Count a call that arrives now. None: it is accepted; else which policy refuses it, and for how long.

        `units` is what it costs, by unit; a policy of a unit that is not named does not apply. `keys` says for each `by`
        whose call it is.
        """
        with self._lock:
            now = self._clock()
            if not self._accepted and not self._refused:
                self._begun = now  # limits that change with time do so after the first call
            age = now - self._begun
            books = [(policy, book) for policy, book in self._books_of(keys or {}) if policy.unit in units]
            refusals = [
                UpstreamRefusal(policy, book.frees_in(now, age, units[policy.unit]) / NANO)
                for policy, book in books
                if not book.room(now, age, units[policy.unit])
            ]
            if refusals:
                first = max(refusals, key=lambda refusal: refusal.wait_s)
                self._refused.append(now)
                name = first.policy.as_text()
                self._refused_by[name] = self._refused_by.get(name, 0) + 1
                return first
            for policy, book in books:
                book.enter(now, units[policy.unit])
            self._accepted.append(now)
            for unit, amount in units.items():
                self._units[unit] = self._units.get(unit, 0.0) + amount
            return None

    def leave(self, keys: Mapping[str, str] | None = None) -> None:
        """A call that was accepted is done: its slot is free."""
        with self._lock:
            for _, book in self._books_of(keys or {}):
                book.leave()

    def fail(self) -> None:
        """Count a call that an injected failure answered: neither accepted nor refused."""
        with self._lock:
            self._failed += 1

    def left(self, policy: UpstreamPolicy, keys: Mapping[str, str] | None = None) -> float:
        """How many units of a policy could be taken now."""
        with self._lock:
            now = self._clock()
            for known, book in self._books_of(keys or {}):
                if known is policy:
                    return book.left(now, now - self._begun)
        raise InvalidInput(f"{policy.as_text()} is no policy of these books")

    def _books_of(self, keys: Mapping[str, str]) -> list[tuple[UpstreamPolicy, Book]]:
        found = list(self._shared)
        for policy in self._keyed:
            if policy.by is not None and policy.by in keys:
                place = (policy.as_text(), keys[policy.by])
                if place not in self._by_key:
                    self._by_key[place] = policy.open()
                found.append((policy, self._by_key[place]))
        return found

    def page(self) -> dict[str, Any]:
        """The books as JSON has them: counts, units, moments in seconds after the first arrival, and what was used.

        `ideal` is the shortest time in which the policies would have accepted these units, from the first to the last
        acceptance; `utilisation` is that over the time it took. Policies that are counted by key are not part of it.
        """
        with self._lock:
            now = self._clock()
            accepted, refused = list(self._accepted), list(self._refused)
            units, refused_by, failed = dict(self._units), dict(self._refused_by), self._failed
            policies = [self._told(policy, book, now) for policy, book in self._shared]
        policies += [self._told(policy, None, now) for policy in self._keyed]
        first = min([*accepted[:1], *refused[:1]], default=0)
        took = (accepted[-1] - accepted[0]) / NANO if accepted else 0.0
        ideal = ideal_seconds(self.policies, units)
        return {
            "policies": policies,
            "accepted": len(accepted),
            "refused": len(refused),
            "failed": failed,
            "units": units,
            "refused_by": refused_by,
            "seconds": took,
            "ideal": ideal,
            "utilisation": ideal / took if took and ideal else 0.0,
            "accepted_at": [round((at - first) / NANO, 4) for at in accepted],
            "refused_at": [round((at - first) / NANO, 4) for at in refused],
        }

    def _told(self, policy: UpstreamPolicy, book: Book | None, now: int) -> dict[str, Any]:
        return {
            "unit": policy.unit,
            "limit": policy.limit,
            "per": policy.per_ns / NANO,
            "kind": policy.kind,
            "burst": policy.burst,
            "by": policy.by,
            "left": None if book is None else round(book.left(now, now - self._begun), 6),
        }


def ideal_seconds(policies: Iterable[UpstreamPolicy], units: Mapping[str, float]) -> float:
    """The shortest time from the first to the last acceptance of so many units, by the rates that bind every call."""
    rates = [policy for policy in policies if policy.by is None and policy.unit in units and policy.kind != "slots"]
    return max((policy.open().least_span(units[policy.unit], 0.0) for policy in rates), default=0.0)

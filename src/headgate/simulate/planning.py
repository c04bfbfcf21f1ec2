"""PURE. What limits mean for a job: which of them binds, how much passes, how long it all takes, how to size them.

Steady state, by arithmetic alone: no line, no jitter, no start. `headgate.simulate` is for those. Times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..errors import InvalidInput
from ..kernel.limits import Concurrency, Limit, Window
from ..kernel.model import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
WORKERS = "workers"

#: The largest number that is planned with.
MOST = 1e15

#: How much room above what is expected a shared limit should have: at least, at most.
HEADROOM = (1.25, 1.5)


@dataclass(frozen=True, slots=True)
class Bound:
    """What one limit lets pass: `name` is the limit's (or `workers`), `per_minute` calls."""

    name: str
    kind: str
    per_minute: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a set of limits means for calls of a given length. `bounds` are in order, the one that binds first."""

    duration: float
    calls: int
    bounds: tuple[Bound, ...]
    #: The length of a call, in seconds, at which slots and rates allow the same; None where there are not both.
    crossover: float | None
    items: int | None = None

    @property
    def binding(self) -> Bound:
        return self.bounds[0]

    @property
    def per_minute(self) -> float:
        """Calls."""
        return self.bounds[0].per_minute

    @property
    def without(self) -> float:
        """Calls per minute if the limit that binds were not there; infinite where nothing else limits."""
        return self.bounds[1].per_minute if len(self.bounds) > 1 else float("inf")

    @property
    def items_per_minute(self) -> float:
        return self.per_minute / self.calls

    @property
    def items_per_hour(self) -> float:
        return 60 * self.items_per_minute

    @property
    def items_per_day(self) -> float:
        return 1440 * self.items_per_minute

    @property
    def in_flight(self) -> float:
        """Calls under way at once, in the mean: also the number of workers that keeps the binding limit busy."""
        return self.per_minute * self.duration / MINUTE

    @property
    def takes(self) -> float | None:
        """Seconds for all items."""
        return None if self.items is None else self.items / self.items_per_minute * MINUTE


def forecast(
    limits: Iterable[Limit],
    duration: float,
    *,
    calls: int = 1,
    items: int | None = None,
    workers: int | None = None,
    cost: Mapping[str, float] | None = None,
) -> Forecast:
    """Which limit binds for calls that take `duration` seconds each.

    `calls` is how many calls an item needs, one after the other; `items` how many there are; `workers` how many calls can
    be under way at once, one per worker; `cost` what a call costs in units other than requests.
    """
    seconds = _positive("the duration of a call", duration)
    costs = {"requests": 1.0, **(cost or {})}
    slots: list[Bound] = []
    rates: list[Bound] = []
    bounds: list[Bound] = []
    for limit in limits:
        passes = limit.per_minute(1.0 if limit.leased else _cost_of(limit, costs), seconds)
        bounds.append(Bound(limit.name, limit.kind, passes))
        (slots if limit.leased else rates).append(bounds[-1])
    if workers is not None:
        bounds.append(Bound(WORKERS, WORKERS, _whole("workers", workers) * MINUTE / seconds))
        slots.append(bounds[-1])
    if not bounds:
        raise InvalidInput("there is nothing to plan with: give at least one limit, or a number of workers")
    crossover = None
    if slots and rates:
        fewest = min(bound.per_minute for bound in slots) * seconds / MINUTE
        crossover = fewest * MINUTE / min(bound.per_minute for bound in rates)
    return Forecast(
        duration=seconds,
        calls=_whole("calls per item", calls),
        bounds=tuple(sorted(bounds, key=lambda bound: bound.per_minute)),
        crossover=crossover,
        items=None if items is None else _whole("items", items),
    )


def _cost_of(limit: Limit, costs: Mapping[str, float]) -> float:
    amount = costs.get(limit.unit)
    if amount is None:
        raise InvalidInput(
            f"limit {limit.name!r} counts {limit.unit}; say what a call costs, as in cost={{{limit.unit!r}: 1}}"
        )
    return _positive(f"the cost in {limit.unit!r}", amount)


def slack_costs(limit: Window, round_trip: float | None = None) -> float:
    """The share of a window's throughput that its slack takes.

    Without confirmation a call counts for `per + slack`; with it, for `per` and the round trip (seconds) in which the
    confirmation comes.
    """
    extra = limit.slack if round_trip is None else min(limit.slack, _positive("the round trip", round_trip) * SECOND)
    return extra / (limit.per + extra)


@dataclass(frozen=True, slots=True)
class Sizing:
    """What a limit that all tenants share should be, given what each may use: at least `low`, at most `high`."""

    expected: int
    low: int
    high: int


def size_shared_limit(tenants: int, each: float) -> Sizing:
    """The shared limit for so many tenants with `each` in use in the mean: a quarter to a half above what is expected."""
    expected = _whole("tenants", tenants) * _positive("what each uses", each)
    return Sizing(ceil(expected), ceil(expected * HEADROOM[0]), ceil(expected * HEADROOM[1]))


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A figure that one of the designs which Headgate replaces published, and what arithmetic says about it.

    `figure` is the right one, in the unit of `about`.
    """

    seed: str
    about: str
    claimed: str
    figure: float
    right: bool
    why: str


def published_figures() -> Sequence[PublishedFigure]:
    """The throughput tables of S0, S1 and S4, checked: where they are right, and where they are wrong."""
    both = [Window(190, per="1m", name="rpm"), Concurrency(150, name="in_flight")]
    short, long, longer = (forecast(both, seconds) for seconds in (5, 30, 60))
    stages = forecast([Window(200, per="1m", name="rpm")], 10, calls=2, items=1_000_000)
    fleet = forecast([], 10, workers=100)
    sizing = size_shared_limit(10, 20)
    crossover = f"they cross at {short.crossover:.1f} s"
    assert stages.takes is not None
    rows = (
        ("S0", "150 slots alone, calls of 5 s", "1,800/min", short.without, True, "150 slots × 12 turns a minute"),
        ("S0", "150 slots and 190/min, calls of 5 s", "190/min", short.per_minute, True,
         f"the rate binds; {crossover}"),
        ("S0", "150 slots and 190/min, calls of 30 s", "~300/min, in-flight binds", long.per_minute, False,
         f"the rate binds up to {short.crossover:.1f} s, not to 30"),
        ("S0", "150 slots and 190/min, calls of 60 s", "in-flight binds", longer.per_minute, True,
         f"in-flight binds; {crossover}"),
        ("S1", "200/min, two calls a chunk", "~100 chunks/min", stages.items_per_minute, True, "200 / 2"),
        ("S1", "chunks per hour", "~6,000", stages.items_per_hour, True, "100 × 60"),
        ("S1", "chunks per day", "~144,000", stages.items_per_day, True, "6,000 × 24"),
        ("S1", "days for 1,000,000 chunks", "~7 days", stages.takes / DAY, True, "1,000,000 / 144,000"),
        ("S1", "50 + 50 workers, calls of 10 s", "under 200/min", fleet.per_minute, False,
         "100 workers × 6 calls a minute: three times the limit"),
        ("S4", "10 organisations with 20 each", "200", sizing.expected, True,
         f"{sizing.low} to {sizing.high} leaves room for spikes"),
    )  # fmt: skip
    return tuple(PublishedFigure(*row) for row in rows)


def _positive(what: str, number: float) -> float:
    # Compared before anything else is done with it: an int of 400 digits is no float.
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 < number <= MOST:
        raise InvalidInput(f"{what} must be a number above 0 and up to {MOST:g}, not {number!r}")
    return float(number)


def _whole(what: str, number: int) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MOST:
        raise InvalidInput(f"{what} must be a whole number from 1 to {MOST:g}, not {number!r}")
    return number

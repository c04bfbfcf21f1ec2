"""A service that keeps its own books: it judges arrivals by its definition, and knows nothing of Headgate's limits."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

from .. import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

#: Calendar period → the fields of a local time that name it.
CALENDAR = {
    "minute": "%Y-%m-%d %H:%M %z",
    "hour": "%Y-%m-%d %H %z",
    "day": "%Y-%m-%d",
    "week": "%G-%V",
    "month": "%Y-%m",
    "year": "%Y",
}


class FakeUpstream:
    """Accepts or refuses arrivals, as exactly as its kind is defined. All arithmetic is in integers and fractions.

    `kind` is `"window"` (at most `limit` in any `per`), `"bucket"` (`limit` per `per`, at most `burst` at once, full at
    the start) or `"calendar"` (at most `limit` in a `minute`, `hour`, `day`, `week`, `month` or `year` of `zone`). What it
    refuses is not counted. Arrivals are microseconds and come in order; `judge` sorts them first.
    """

    def __init__(
        self,
        limit: float,
        per: str | float,
        kind: str = "window",
        *,
        burst: float | None = None,
        zone: str = "UTC",
    ) -> None:
        if kind not in ("window", "bucket", "calendar"):
            raise ValueError(f"kind is 'window', 'bucket' or 'calendar', not {kind!r}")
        if kind == "calendar" and per not in CALENDAR:
            raise ValueError(f"a calendar's per is one of {', '.join(CALENDAR)}, not {per!r}")
        self.kind = kind
        self.limit = Fraction(limit)
        self.burst = self.limit if burst is None else Fraction(burst)
        self.per = per if kind == "calendar" else duration.parse(per, what="per")
        self.zone = ZoneInfo(zone)
        #: (moment, units) of what was accepted and refused.
        self.accepted: list[tuple[int, float]] = []
        self.refused: list[tuple[int, float]] = []
        self._last = 0
        self._counted: deque[tuple[int, Fraction]] = deque()
        self._level = Fraction(0)
        self._period = ""

    def arrive(self, at: int, units: float = 1.0) -> bool:
        """A call arrives at `at`. Returns whether it is accepted."""
        if at < self._last:
            raise ValueError(f"arrivals come in order: {at} is before {self._last}")
        fits = getattr(self, f"_{self.kind}")(at, Fraction(units))
        self._last = at
        (self.accepted if fits else self.refused).append((at, units))
        return bool(fits)

    def judge(self, arrivals: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
        """Have all of these (moment, units) arrive in order of time. Returns those that were refused."""
        before = len(self.refused)
        for at, units in sorted(arrivals):
            self.arrive(at, units)
        return self.refused[before:]

    def _window(self, at: int, units: Fraction) -> bool:
        # A window of length `per` that ends with this arrival: what came exactly `per` ago is no longer in it.
        while self._counted and self._counted[0][0] + self.per <= at:  # type: ignore[operator]
            self._level -= self._counted.popleft()[1]
        if self._level + units > self.limit:
            return False
        self._counted.append((at, units))
        self._level += units
        return True

    def _bucket(self, at: int, units: Fraction) -> bool:
        self._level = max(Fraction(0), self._level - (at - self._last) * self.limit / Fraction(self.per))
        if self._level + units > self.burst:
            return False
        self._level += units
        return True

    def _calendar(self, at: int, units: Fraction) -> bool:
        moment = datetime.fromtimestamp(at // 1_000_000, UTC).astimezone(self.zone)
        period = moment.strftime(CALENDAR[str(self.per)])
        if period != self._period:
            self._period, self._level = period, Fraction(0)
        if self._level + units > self.limit:
            return False
        self._level += units
        return True

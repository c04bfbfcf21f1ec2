"""PURE. How far a gate lowers a limit by itself when the upstream refuses what it granted, and how it comes back."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from .. import duration
from ..errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Rungs at most: a store keeps eight values of one limit.
RUNGS = 6
#: Seconds: a tightening lasts a day at most.
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class TightenRule:
    """Each congestion takes `step` off the value in force, never below `least` of what is configured.

    The lowered value holds for `hold`, by default ten periods of the limit, a minute at least and an hour at most; then it
    comes back by at most six equal rungs, each for as long. `quiet` is how long refusals after a step belong to the same
    congestion.
    """

    step: float = 0.05
    least: float = 0.5
    hold: str | float | None = None
    quiet: str | float = 2.0

    def __post_init__(self) -> None:
        for name, value in (("step", self.step), ("least", self.least)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
                raise InvalidInput(f"{name} is a share above 0 and below 1, like 0.05, not {value!r}")
        for name, length in (("hold", self.hold), ("quiet", self.quiet)):
            if length is not None:
                duration.parse(length, what=name)

    def hold_s(self, per_s: float) -> float:
        """Seconds that a value holds, for a limit with this period."""
        if self.hold is not None:
            return min(duration.parse(self.hold) / 1e6, DAY / RUNGS)
        return min(max(10 * per_s, 60.0), 3600.0)

    @property
    def quiet_s(self) -> float:
        return duration.parse(self.quiet) / 1e6

    def lowered(self, configured: float, in_force: float) -> float:
        """The value after one step."""
        return max(self.least * configured, min(in_force, configured) * (1 - self.step))

    def rungs(self, configured: float, value: float, hold_s: float) -> list[tuple[float, float]]:
        """(value, seconds that it holds), the lowest first: how a limit comes back to what is configured."""
        missing = configured - value
        if missing <= 0:
            return []
        count = max(1, min(RUNGS, ceil(missing / (self.step * configured) - 1e-9)))
        return [(value + missing * at / count, hold_s * (at + 1)) for at in range(count)]


def read_rule(value: Any) -> TightenRule | None:
    """From a configuration: `true`, `false`, or a table with some of its fields. Raises InvalidInput."""
    if isinstance(value, bool):
        return TightenRule() if value else None
    if not isinstance(value, dict):
        raise InvalidInput(f"it is true, or a table like {{ step = 0.05, least = 0.5 }}, not {value!r}")
    known = ("step", "least", "hold", "quiet")
    for name in value:
        if name not in known:
            raise InvalidInput(f"there is no {name!r} in it; there are {', '.join(known)}")
    return TightenRule(**value)

"""PURE. What the working limit of an adaptive concurrency should be. Which asks it lets in is decided elsewhere."""

from __future__ import annotations

from ...errors import InvalidInput
from ..model import OUTCOMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def _count(what: str, number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidInput(f"{what} must be a whole number of at least 1, not {number!r}")
    return number


class Aimd:
    """Additive increase, and a step down on congestion: on an outcome that says that the upstream refused.

    Starts at `start`, never below `minimum`; each congestion takes `decrease` off, however many refusals it brought;
    every `increase_every` successes in a row add one, if at least half of the working limit was in use.
    """

    __slots__ = ("decrease", "increase_every", "minimum", "start")

    def __init__(self, start: int = 8, minimum: int = 2, decrease: int = 2, increase_every: int = 10) -> None:
        self.start = _count("start of Aimd", start)
        self.minimum = _count("minimum of Aimd", minimum)
        self.decrease = _count("decrease of Aimd", decrease)
        self.increase_every = _count("increase_every of Aimd", increase_every)
        if self.start < self.minimum:
            raise InvalidInput(f"start of Aimd ({start}) is below its minimum ({minimum})")

    def spec(self) -> tuple[Any, ...]:
        return (self.start, self.minimum, self.decrease, self.increase_every)

    def begin(self, maximum: float) -> float:
        return min(self.start, maximum)

    def next(
        self,
        working: float,
        streak: int,
        shrunk: int,
        outcome: str,
        granted: int,
        now: int,
        in_use: int,
        maximum: float,
    ) -> tuple[float, int, int]:
        """(working, streak, shrunk) after a permit that was granted at `granted` ended with `outcome`."""
        adapts = OUTCOMES[outcome].adapts
        if adapts < 0:
            if granted <= shrunk:
                return working, 0, shrunk  # asked before the last shrink: the same congestion
            return max(min(self.minimum, maximum), working - self.decrease), 0, now
        if not adapts:
            return working, streak, shrunk
        streak += 1
        if streak < self.increase_every:
            return working, streak, shrunk
        if 2 * in_use >= working and working < maximum:
            working += 1
        return min(working, maximum), 0, shrunk

    def __repr__(self) -> str:
        return (
            f"Aimd(start={self.start}, minimum={self.minimum}, decrease={self.decrease}, "
            f"increase_every={self.increase_every})"
        )

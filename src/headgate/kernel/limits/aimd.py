"""PURE. Additive increase and a fixed step down: the plain rule for an adaptive concurrency."""

from __future__ import annotations

from ..model import OUTCOMES
from .rule import AdaptiveRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .rule import Learned


class Aimd(AdaptiveRule):
    """Additive increase, and a step down on congestion: on an outcome that says that the upstream refused.

    Starts at `start`, never below `minimum`; each congestion takes `decrease` off, however many refusals it brought;
    every `increase_every` successes in a row add one, if at some moment since the last move at least half of the working
    limit was in use. It climbs slowly and is refused again and again at the same height: `Probing` remembers that.
    """

    # Learned: (working, streak, shrunk, peak): successes in a row, when it last shrank, the most in use since it moved.
    __slots__ = ("decrease", "increase_every")
    name = "aimd"
    decrease: int
    increase_every: int

    def __init__(self, start: int = 8, minimum: int = 2, decrease: int = 2, increase_every: int = 10) -> None:
        super().__init__(start, minimum, decrease=decrease, increase_every=increase_every)

    def spec(self) -> tuple[Any, ...]:
        return tuple(self.arguments().values())  # as before there were other rules: without a name

    def next(self, learned: Learned, outcome: str, granted: int, now: int, in_use: int, maximum: float) -> Learned:
        working, streak, shrunk, *rest = learned
        # Every lease that ends is counted before it goes, so that no maximum of what is in use falls between two looks.
        peak = max(rest[0] if rest else 0, in_use)
        adapts = OUTCOMES[outcome].adapts
        if adapts < 0:
            if granted <= shrunk:
                return working, 0, shrunk, peak  # asked before the last shrink: the same congestion
            return max(min(self.minimum, maximum), working - self.decrease), 0, now, 0
        if not adapts:
            return working, streak, shrunk, peak
        streak += 1
        if streak < self.increase_every:
            return working, streak, shrunk, peak
        if 2 * peak >= working and working < maximum:
            return min(working + 1, maximum), 0, shrunk, 0
        return min(working, maximum), 0, shrunk, peak

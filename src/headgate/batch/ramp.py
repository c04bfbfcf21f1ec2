"""PURE. How a run goes on after a pause: as slowly as its gate lets calls pass in the long run, and not all at once.

A gate that stood still for a while has room for many calls, and all workers of a run wait for the same moment. An upstream
that has just refused a call would be met by all of them together. After a pause a run therefore begins with one call, lets
one more be under way for each answer, and leaves between two calls the time that a call takes by the gate's rates.
"""

from __future__ import annotations

from math import inf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..kernel.limits import Limit

#: Seconds for which the pace is kept after a pause, at most. By then a shorter window is in its steady state.
LONGEST_S = 60.0

#: Two reports of one pause differ by no more than so many seconds.
SAME_S = 1.0


class Ramp:
    """When the next call of a run may ask, after a pause. Times are seconds of any steady clock.

    `workers` is how many calls may be under way when it is over, `pace_s` the least time between two of them, and `per_s`
    the length of time in which the gate's rates come to their steady state.
    """

    def __init__(self, workers: int, pace_s: float = 0.0, per_s: float = 0.0) -> None:
        self._workers = workers
        self._pace = pace_s
        self._for = min(per_s, LONGEST_S)
        self._width = workers
        self._until = -inf
        self._next = -inf
        self._over = -inf

    def paused(self, now: float, for_s: float) -> bool:
        """The gate gives no grant for so long. False where that was known."""
        until = now + for_s
        if for_s <= 0 or until <= self._until + SAME_S:
            return False
        self._until = self._next = until
        self._over = until + self._for
        self._width = 1
        return True

    def resumed(self, now: float) -> None:
        """The pause has ended before its time."""
        if now < self._until:
            self._until = self._next = now
            self._over = now + self._for

    def is_over(self, now: float) -> bool:
        """Whether every worker may ask as it likes."""
        return self._width >= self._workers and now >= self._over

    def wait(self, now: float, under_way: int) -> float:
        """Seconds after which the next call may ask, given how many are under way; infinite: after the next answer."""
        if now < self._next:
            return self._next - now
        return 0.0 if under_way < self._width else inf

    def gone(self, now: float) -> None:
        """A call asks now."""
        if now < self._over:
            self._next = max(now, self._next) + self._pace

    def answered(self, begun: float) -> None:
        """A call that began at this moment was answered, and not refused. What was sent before the pause tells nothing."""
        if begun >= self._until:
            self._width = min(self._workers, self._width + 1)


def ramp_for(limits: Iterable[Limit], workers: int, costs: dict[str, float]) -> Ramp:
    """The ramp of a run of calls that cost so much, by unit, under these limits."""
    rates = [limit for limit in limits if not limit.leased]
    paces = [limit.pace(limit.limit) * costs.get(limit.unit, 1.0) / 1e6 for limit in rates]
    periods = [limit.pace(limit.limit) * limit.limit / 1e6 for limit in rates]
    return Ramp(workers, max(paces, default=0.0), max(periods, default=0.0))

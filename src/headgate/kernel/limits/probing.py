"""PURE. A rule for an adaptive concurrency that remembers where refusals began."""

from __future__ import annotations

from ...errors import InvalidInput
from ..model import OUTCOMES
from .rule import AdaptiveRule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .rule import Learned

#: A step is taken as accepted when the time that the last refusal took, from its grant on, has passed so often without one.
ANSWERS = 2


class Probing(AdaptiveRule):
    """Climbs quickly to just below where refusals began, stays there, and tries one more now and then.

    Below the *ceiling* (the lowest number in flight that was refused) each success adds one while all of the working limit
    is in use: it doubles in the time of a call. Just below the ceiling it waits for `probe_every` rounds (a round is as
    many successes as the working limit) and then tries the ceiling itself. If that is refused, it goes back by one and
    waits twice as long before the next try, at most `probe_most` rounds; if it is not, the ceiling is forgotten. A refusal
    at a height that was accepted before halves it: the upstream takes less than it did. `Aimd` is simpler, slower in both
    directions, and does not depend on refusals that come sooner than answers.
    """

    # Learned: (working, count, shrunk, peak, ceiling, rounds, moved, answer): successes and the most in use since the last
    # move; when it last shrank and last moved; the ceiling, 0 where none is known; the rounds that the next probe waits
    # for; how long the last refusal took. Times in microseconds.
    __slots__ = ("probe_every", "probe_most")
    name = "probing"
    probe_every: int
    probe_most: int

    def __init__(self, start: int = 8, minimum: int = 2, probe_every: int = 2, probe_most: int = 4) -> None:
        super().__init__(start, minimum, probe_every=probe_every, probe_most=probe_most)
        if probe_most < probe_every:
            raise InvalidInput(f"probe_most of Probing ({probe_most}) is below its probe_every ({probe_every})")

    def next(self, learned: Learned, outcome: str, granted: int, now: int, in_use: int, maximum: float) -> Learned:
        working, count, shrunk, peak, ceiling, rounds, moved, answer = (*learned, 0, 0, 0, 0, 0)[:8]
        if granted <= shrunk:
            # Granted before the last shrink: its refusal is the same congestion, and its success says nothing about now.
            return working, count, shrunk, peak, ceiling, rounds, moved, answer
        rounds = rounds or self.probe_every
        peak = max(peak, in_use)
        adapts = OUTCOMES[outcome].adapts
        if adapts < 0:
            took = now - granted
            if ceiling and working >= ceiling:  # a probe, refused
                aim, rounds = ceiling - 1, min(2 * rounds, self.probe_most)
            else:
                height = min(in_use, working)
                # Refused again right after a shrink, or where it had stood: the upstream takes less than it did.
                # Otherwise it was climbing, and the others that are in flight were accepted.
                fell = moved == shrunk or granted - moved > ANSWERS * took
                aim = height // 2 if fell else 7 * height // 8
                ceiling, rounds = height, self.probe_every
            after = max(min(self.minimum, maximum), min(aim, working - 1))
            return after, 0, now, 0, max(ceiling, after + 1), rounds, now, took
        if adapts:
            count += 1
            if peak >= working and now - moved > ANSWERS * answer:
                if ceiling and working >= ceiling:  # a probe, accepted
                    ceiling, rounds = 0, self.probe_every
                waits = rounds * working if ceiling and working >= ceiling - 1 else 1
                if count >= waits and working < maximum:
                    return min(working + 1, maximum), 0, shrunk, 0, ceiling, rounds, now, answer
        return working, count, shrunk, peak, ceiling, rounds, moved, answer

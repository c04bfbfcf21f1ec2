"""A clock that stands still until it is told otherwise."""

from __future__ import annotations

from .. import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from datetime import timedelta

#: 2024-01-01 00:00 UTC, a Monday, in microseconds: where a fake clock starts unless told otherwise.
START = 1_704_067_200_000_000


class FakeClock:
    """Integer microseconds that tests move by hand. Give it to a store: `MemoryStore(clock=FakeClock())`.

    What waits in real time (a thread in `gate.acquire`) does not feel it: use it for decisions, not for sleeps.
    """

    __slots__ = ("now",)

    def __init__(self, start: int = START) -> None:
        #: Microseconds since the epoch.
        self.now = start

    def __call__(self) -> int:
        return self.now

    def advance(self, by: str | float | timedelta = 0, *, microseconds: int = 0) -> int:
        """Move on by seconds or a duration (`1.5`, `"250ms"`), and by exact microseconds. Returns the new moment."""
        self.now += duration.parse(by, what="advance", zero=True) + microseconds
        return self.now

    def set(self, moment: int) -> None:
        """Jump to a moment in microseconds, also backwards: what clocks in the field do."""
        self.now = moment

    def __repr__(self) -> str:
        return f"FakeClock({self.now})"

"""Where time comes from. Everything above takes a clock as an argument, so that tests can set it."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    #: Integer microseconds. What a store calls `now`.
    Clock = Callable[[], int]

#: Nanoseconds since some moment: the same for all processes, never set back, and going on while the machine sleeps
#: (a quota's midnight does not wait for a suspended laptop).
if hasattr(time, "CLOCK_BOOTTIME"):

    def steady_ns() -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
else:
    steady_ns = time.monotonic_ns


def anchored_clock() -> tuple[Clock, int]:
    """A clock for one process: the wall clock at the start, and steady from then on, whatever is done to the wall clock.

    Also gives its offset in microseconds to `time.monotonic_ns`, for callers that cannot afford the call.
    """
    steady = time.monotonic_ns
    offset = (time.time_ns() - steady()) // 1000

    def now() -> int:
        return steady() // 1000 + offset

    return now, offset

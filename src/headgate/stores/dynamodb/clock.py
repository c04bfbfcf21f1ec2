"""The time of a DynamoDB store: this process's steady clock, calibrated on the `Date` header of every answer.

The machine's wall clock is not used. A header is whole seconds, so one answer leaves the offset open by a second and a
round trip; every further answer narrows it, one that falls beside a tick by a lot. The offset in use is the lowest that all
answers allow: no process is ever ahead of the server, so stamps that other processes wrote narrow it as well.
"""

from __future__ import annotations

import threading
from email.utils import parsedate_to_datetime

from ...clock import steady_ns
from ...kernel.model import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Parts per million by which a steady clock may run too fast or too slow.
DRIFT = 100

#: Microseconds by which servers may disagree with each other before one of the clocks is taken to have jumped.
DISAGREE = SECOND // 2

#: A stored stamp that is further ahead than this, in microseconds, was made by a process whose clock is broken.
FAR_AHEAD = 5 * SECOND


def steady() -> int:
    """Microseconds of a monotonic clock."""
    return steady_ns() // 1000


class ServerClock:
    """The server's clock, as closely as its answers tell. Times and offsets are microseconds."""

    def __init__(self, ticks: Callable[[], int] = steady) -> None:
        self._ticks = ticks
        self._lock = threading.Lock()
        self._known = False
        self._at = self._low = self._high = 0
        self._last = 0
        self._header = ("", 0)

    @property
    def known(self) -> bool:
        return self._known

    def width(self) -> int:
        """The width of the interval that the offset is in: how far behind the server's clock this one may be at most."""
        with self._lock:
            if not self._known:
                return 1 << 62
            low, high = self._bounds(self._ticks())
            return high - low

    def now(self) -> int:
        """The server's time; never ahead of it, and never backwards."""
        with self._lock:
            ticks = self._ticks()
            low, _ = self._bounds(ticks)
            self._last = max(self._last, ticks + low)
            return self._last

    def _bounds(self, ticks: int) -> tuple[int, int]:
        widened = max(0, ticks - self._at) * DRIFT // SECOND
        return self._low - widened, self._high + widened

    def observe(self, header: str, sent: int, received: int) -> None:
        """An answer with this `Date` was made between two moments of the steady clock."""
        with self._lock:
            if header != self._header[0]:
                try:
                    self._header = (header, int(parsedate_to_datetime(header).timestamp()) * SECOND)
                except ValueError:
                    return
            second = self._header[1]
            self._narrow(second - received, second + SECOND - sent, received)

    def _narrow(self, low: int, high: int, at: int) -> None:
        if not self._known:
            self._known = True
            self._at, self._low, self._high = at, low, high
            return
        was_low, was_high = self._bounds(at)
        if low > was_high + DISAGREE or high < was_low - DISAGREE:
            # One of the clocks has jumped: this answer replaces what was known.
            if high < was_low:
                self._last = 0
        elif low > was_high:
            low, high = was_high, low  # two servers that differ a little: it is somewhere between them
        elif high < was_low:
            low, high = high, was_low
        else:
            low, high = max(low, was_low), min(high, was_high)
        self._at, self._low, self._high = max(at, self._at), low, high

    def witness(self, stamp: int, received: int) -> bool:
        """Narrow the offset by another process's stamp, read at that moment. False: it is far ahead, and refused."""
        with self._lock:
            if not self._known:
                return True
            low, high = self._bounds(received)
            if stamp - received > high + FAR_AHEAD:
                return False
            if low < stamp - received <= high:
                self._at, self._low, self._high = received, stamp - received, high
            return True

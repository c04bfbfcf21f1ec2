"""Fair turns between processes: one that has much to write leaves gaps in which the others get the write lock.

SQLite has no queue for its lock: a process that begins its next transaction right after a commit nearly always gets it, and
those that retry now and then do not.
"""

from __future__ import annotations

from time import monotonic

#: Seconds that a transaction spends on deciding before it commits, and leaves the rest for the next.
DECIDE_FOR = 0.005

#: Seconds for which a process keeps the lock in one go while it has more to write, and those of the gap after that. Others
#: retry within 0.2 ms in a thread and about 1 ms on an event loop.
TURN, GAP = 0.01, 0.002

#: How many commands go into one transaction at most. Where a transaction took much longer than a turn, the next has half as
#: many: its process may get little of a processor, or of Python's interpreter lock, which each statement has to get back.
LARGEST_BATCH = 512

#: While no other process has written, one turn in so many ends with a gap: a process that waits cannot be seen.
PROBE_EVERY = 8


class Turn:
    """The turn of one process: how long it has kept the write lock in one go, and until when it lets others go first."""

    __slots__ = ("_gap_until", "_held_s", "_turns", "batch")

    def __init__(self) -> None:
        #: How many commands the next transaction has at most.
        self.batch = LARGEST_BATCH
        self._held_s = self._gap_until = 0.0
        self._turns = 0

    def gap_s(self) -> float:
        """Seconds for which this process leaves the lock to others; 0 when it may write."""
        return max(0.0, self._gap_until - monotonic()) if self._gap_until else 0.0

    def ended(self, began: float, more: bool, contended: bool) -> None:
        """A transaction that began then (monotonic seconds) has ended.

        `more`: there is more to write at once. `contended`: other processes have written lately.
        """
        self._gap_until = 0.0
        now = monotonic()
        took_s = now - began
        if took_s > 2 * TURN:
            self.batch = max(1, self.batch // 2)
        elif took_s < TURN and self.batch < LARGEST_BATCH:
            self.batch *= 2
        if not more:
            self._held_s = 0.0
            return
        self._held_s += took_s
        if self._held_s >= TURN:
            self._held_s = 0.0
            self._turns += 1
            if contended or not self._turns % PROBE_EVERY:
                self._gap_until = now + GAP

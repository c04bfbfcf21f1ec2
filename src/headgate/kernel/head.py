"""PURE. The head of a gate: what every command reads first and most commands write.

It is the one record that is changed in place. A decision reads three of its fields and writes two: a new named tuple for
every decision would take a tenth of the time of the commonest one.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    #: paused, reason, overrides, tickets, lost
    Heeded = tuple[int, str, int, int, int]
    #: seq, now, and what there is to heed, or None: as a store keeps it
    StoredHead = tuple[int, int, Heeded | None]


class Head:
    """The number and the time of the last command, and what there is to heed besides the limits: mostly nothing."""

    __slots__ = ("lost", "now", "overrides", "paused", "quiet", "reason", "seq", "tickets")

    def __init__(self, seq: int = 0, now: int = 0, heeded: Any = None) -> None:
        #: The sequence number: it grows with every command that may have changed something.
        self.seq: int = seq
        #: The store's time at that command.
        self.now: int = now
        #: There is nothing to heed, so nothing but the limits decides about an ask.
        self.quiet: bool = heeded is None
        #: When the pause of the gate ends, and its reason.
        self.paused: int
        self.reason: str
        #: How many overrides and tickets there are.
        self.overrides: int
        self.tickets: int
        #: When it was noticed that state had been lost; 0 once that is made up for.
        self.lost: int
        self.paused, self.reason, self.overrides, self.tickets, self.lost = heeded or (0, "", 0, 0, 0)

    def amend(
        self,
        *,
        paused: int | None = None,
        reason: str | None = None,
        overrides: int | None = None,
        tickets: int | None = None,
        lost: int | None = None,
    ) -> None:
        """Change what there is to heed."""
        if paused is not None:
            self.paused = paused
        if reason is not None:
            self.reason = reason
        if overrides is not None:
            self.overrides = overrides
        if tickets is not None:
            self.tickets = tickets
        if lost is not None:
            self.lost = lost
        self.quiet = not (self.paused or self.reason or self.overrides or self.tickets or self.lost)

    def heeded(self) -> Heeded | None:
        """What there is to heed, as a value."""
        return None if self.quiet else (self.paused, self.reason, self.overrides, self.tickets, self.lost)

    def stored(self) -> StoredHead:
        """As a store keeps it; `Head(*stored)` makes it again."""
        return self.seq, self.now, self.heeded()

    def __repr__(self) -> str:
        return f"Head{self.stored()}"

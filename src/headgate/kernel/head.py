"""PURE. The head of a gate: what every command reads first and most commands write.

It is the one record that is changed in place. A decision reads three of its fields and writes two: a new named tuple for
every decision would take a tenth of the time of the commonest one.

**How lost state is noticed.** Each process remembers the sequence number and the epoch that it was last told, and hands
both to the store with its next command (`seen`, `told`). A head whose number is below `seen` is an older copy of the state,
or none at all. The number alone is not enough: state that was made anew may have grown past it before this process comes
back. So state gets an *epoch* with its first command, and a head of another epoch than `told` is not the state that this
process knew, whatever its number. (An older copy that was put back has the same epoch: only its number tells, until it has
grown past what was seen.)

- A number that is behind: a new epoch begins here, so that every other process notices for itself, too.
- Another epoch: it stays, and the number is raised above `seen`, so that fences keep growing.
- In each epoch the loss is made up for once, by the first process that notices (`lost`). All that was lost had been lost
  before the epoch began, so for a process that comes later with an old epoch the rates need not be held back once more.
- A lease that is missing is registered again if it was granted before the moment `lost_before`, and either the loss is not
  yet made up for or its process comes with an old epoch. A lease that was granted in this epoch, and is missing, has ended.

State without an epoch (an earlier version wrote it) is never another one. It takes the epoch of the first process that
knows one, or a new one at its next 256th command. `Reset` leaves the epoch as it is: what it forgets is not lost.
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

    __slots__ = ("epoch", "lost", "lost_before", "now", "overrides", "paused", "quiet", "reason", "seq", "tickets")

    def __init__(self, seq: int = 0, now: int = 0, heeded: Any = None, epoch: str = "", lost_before: int = 0) -> None:
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
        #: Which state this is: the time and the number at which it began, and the process that began it; "" is unknown.
        self.epoch: str = epoch
        #: Leases that were granted before this moment may have been lost; 0 while no loss was noticed in this epoch.
        self.lost_before: int = lost_before

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
        """As a store keeps it; `Head(*stored, *stored_epoch)` makes it again."""
        return self.seq, self.now, self.heeded()

    def stored_epoch(self) -> tuple[str, int]:
        """The epoch and `lost_before`, as a store keeps them: in a place that earlier versions pass over."""
        return self.epoch, self.lost_before

    def __repr__(self) -> str:
        return f"Head{(*self.stored(), *self.stored_epoch())}"


def new_epoch(now: int, seq: int, told: str) -> str:
    """The name of an epoch that begins now. What a process was told ends with the name of a session, which is random."""
    return f"{now}.{seq}.{told.rpartition('.')[2]}"


def began_at(epoch: str) -> int:
    """The store's time at which an epoch began."""
    return int(epoch.partition(".")[0] or 0)


def is_epoch(told: str) -> bool:
    """Whether a process was told of an epoch; else it has but the name of its session."""
    return "." in told


def is_another(epoch: str, told: str) -> bool:
    """Whether a head of this epoch is not the state that a process was told of."""
    return epoch != told and epoch != "" and is_epoch(told)

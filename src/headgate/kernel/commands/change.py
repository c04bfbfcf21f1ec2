"""PURE. Changing a gate while it runs."""

from __future__ import annotations

from .. import line
from ..model import Ended
from .base import SPACES, Command, begin, pause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..records import Records


class Configure(Command):
    """Override a limit's value while running (`value` None: back to its own), for the gate or for one key."""

    __slots__ = ("member", "value")

    def __init__(self, gate: str, member: str, value: float | None) -> None:
        self.gate = gate
        self.member = member
        self.value = value

    def apply(self, now: int, records: Records) -> Ended:
        now = begin(now, records)
        overrides = records.space("overrides")
        if self.value is None:
            overrides.delete(self.member)
        else:
            overrides.put(self.member, self.value, 0)
        records.head.amend(overrides=len(overrides))
        _forget_hints(records)
        _look_everywhere(records, now)
        return Ended()


class Pause(Command):
    """No new grants, calls or promises before a moment (`length` microseconds from now); 0 resumes."""

    __slots__ = ("length", "reason")

    def __init__(self, gate: str, length: int, reason: str = "") -> None:
        self.gate = gate
        self.length = length
        self.reason = reason

    def apply(self, now: int, records: Records) -> Ended:
        now = begin(now, records)
        if self.length:
            pause(records, now + self.length, self.reason)
        else:
            records.head.amend(paused=0, reason="")
        _look_everywhere(records, now)
        return Ended()


class Reset(Command):
    """Forget what counts: of one limit (with its shares and keys), or of the whole gate but its line.

    Leases that were held are gone: their holders' releases change nothing, and they are told.
    """

    __slots__ = ("limit",)

    def __init__(self, gate: str, limit: str | None = None) -> None:
        self.gate = gate
        self.limit = limit

    def apply(self, now: int, records: Records) -> Ended:
        now = begin(now, records)
        line.take_back(records, now)  # what calls hold would be forgotten too; the line simply calls again
        for _, member in list(records.states.scan()):
            if self.limit is None or member.partition("|")[0].partition("@")[0] == self.limit:
                for kind in SPACES:
                    records.drop(kind, member)
                records.states.delete(member)
        if self.limit is None:
            records.head.amend(paused=0, reason="", lost=0)
            records.drop("permits")
            records.drop("assumed")
        _look_everywhere(records, now)
        return Ended()


def _forget_hints(records: Records) -> None:
    """What is known of where nothing fits was known for the old value."""
    for kind in ("windows", "promised"):
        for member in records.names(kind):
            records.space(kind, member).delete("hint")


def _look_everywhere(records: Records, now: int) -> None:
    if records.head.tickets:
        due = records.space("due")
        for _, member in list(due.scan()):
            due.put(member, 1, now)
        line.serve(records, now)

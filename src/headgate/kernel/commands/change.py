"""PURE. Changing a gate while it runs."""

from __future__ import annotations

from .. import line, model, overrides
from ..model import NEVER, Ended
from .base import SPACES, Command, begin, pause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..model import Override
    from ..records import Records


class Configure(Command):
    """Override a limit's value while running (`value` None: back to its own), for the gate or for one key.

    `length` is for how many microseconds, 0: until it is cleared. `tightened` ends its tightenings instead.
    """

    __slots__ = ("length", "member", "reason", "tightened", "value")

    def __init__(
        self,
        gate: str,
        member: str,
        value: float | None,
        length: int = 0,
        reason: str = "",
        tightened: bool = False,
    ) -> None:
        self.gate = gate
        self.member = member
        self.value = value
        self.length = length
        self.reason = reason
        self.tightened = tightened

    def apply(self, now: int, records: Records) -> Ended:
        now = begin(now, records)
        if self.tightened:
            overrides.clear_tightenings(records, self.member)
        elif self.value is None:
            overrides.clear_value(records, self.member)
        else:
            ends = now + self.length if self.length else NEVER
            overrides.put_value(records, self.member, self.value, ends, self.reason)
        overrides.changed(records)
        _look_everywhere(records, now)
        return Ended()


class Tighten(Command):
    """Have a limit be at most a value for `length` microseconds, whatever is in force without it.

    `configured` is the limit's own value: above it there is nothing to lower. Returns the `Override` that is in force then.
    """

    __slots__ = ("configured", "length", "member", "reason", "value")

    def __init__(self, gate: str, member: str, value: float, configured: float, length: int, reason: str = "") -> None:
        self.gate = gate
        self.member = member
        self.value = value
        self.configured = configured
        self.length = length
        self.reason = reason

    def apply(self, now: int, records: Records) -> Override:
        now = begin(now, records)
        overrides.lapse(records)
        if self.value < self.configured:
            lower = overrides.tighten(records, self.member, self.value, now + self.length, self.reason)
            overrides.count(records)
            if lower:
                overrides.changed(records)
                _look_everywhere(records, now)
        name, _, key = self.member.partition("|")
        return overrides.in_force(overrides.listed(records, now), model.Override(name, key or None, self.configured))


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


def _look_everywhere(records: Records, now: int) -> None:
    if records.head.tickets:
        due = records.space("due")
        for _, member in list(due.scan()):
            due.put(member, 1, now)
        line.serve(records, now)

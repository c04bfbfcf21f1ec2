"""The values that everybody passes around; times inside are integer microseconds of the store's clock.

Nobody changes one. Those that a waiting ask is answered with are not frozen: to make a frozen one takes three
times as long.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, fields, is_dataclass

from ..errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal, NamedTuple

    from .looks import Explanation as Explanation
    from .looks import HeldLease as HeldLease
    from .looks import Holder as Holder
    from .looks import LimitUsage as LimitUsage
    from .looks import Override as Override
    from .looks import Snapshot as Snapshot
    from .looks import Usage as Usage
    from .looks import Waiter as Waiter
    from .looks import WaitingTicket as WaitingTicket

    #: How a permit can end; `OUTCOMES` has the same names.
    OutcomeName = Literal["ok", "rate_limited", "overloaded", "error", "unsent"]
    #: How a gate waits.
    Waiting = Literal["line", "promise"]
    #: What a gate does without its store; `local:SHARE` is any text of that form.
    OnStoreErrorMode = Literal["closed", "open"] | str

    class Grant(NamedTuple):
        """It may go: from `at` on. Made on every decision, so by `tuple.__new__`: naming its fields takes twice as long."""

        at: int
        #: When its lease ends; 0 without one.
        expires: int
        #: Grows with every grant of a gate.
        fence: int
        #: Whether a confirmation is worth its round trip.
        worth_confirming: bool
        #: On a promise gate the store's time at the decision: `at - now` is how long to sleep. 0 on a line gate.
        now: int
else:
    Grant = namedtuple("Grant", "at expires fence worth_confirming now")

#: Later than any moment: what a limit answers when a cost can never fit.
NEVER = 2**53

SECOND = 1_000_000

#: How sure the moment of a `Wait` is. An ask is refused before it and granted at it, if nothing is given back; it follows
#: from what those ahead cost in the mean; or it is the first moment at which a slot ends by itself, and nobody knows when
#: one is released.
EXACT, ESTIMATE, EARLIEST = "exact", "estimate", "earliest"
#: The length of a pause that lasts until it is resumed: two hundred years, which is as good as no end and still a time.
UNTIL_RESUMED = 200 * 365 * 86_400 * SECOND
#: Seconds from which on a time counts as never, for people.
AS_GOOD_AS_NEVER = 100 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way in which a permit can end, and all that follows from it."""

    #: When to use it.
    about: str
    #: It tells of an answer: the upstream has counted the call by now.
    answered: bool = False
    #: Together with a retry delay it pauses the gate.
    pauses: bool = False
    #: The charge is given back.
    refunds: bool = False
    #: How an adaptive limit takes it: 1 as a success, -1 as congestion, 0 not at all.
    adapts: int = 0


#: How a permit can end. Permits, commands, the script on Redis, shapes and metrics read this table.
OUTCOMES: dict[str, Outcome] = {
    "ok": Outcome("it was answered", answered=True, adapts=1),
    "rate_limited": Outcome("the upstream refused it", answered=True, pauses=True, adapts=-1),
    "overloaded": Outcome("the upstream is in trouble", answered=True, pauses=True, adapts=-1),
    "error": Outcome("it failed, and may still be under way"),
    "unsent": Outcome("it was never sent", refunds=True),
}


def checked_outcome(outcome: object) -> str:
    """The name of an outcome, or an InvalidInput that lists them."""
    if not isinstance(outcome, str) or outcome not in OUTCOMES:
        raise InvalidInput(f"an outcome is one of {', '.join(OUTCOMES)}, not {outcome!r}")
    return outcome


#: Characters that the name of a holder has at most; the rest of a longer one is left out.
LONGEST_LABEL = 200


def label_of(holder: object) -> str | None:
    """The name of a holder as it is kept and shown. It is for people, so nothing about it is an error.

    What cannot be printed is escaped, and what is too long is shortened. None where there is nothing to show.
    """
    if holder is None:
        return None
    text = holder if isinstance(holder, str) else str(holder)
    if len(text) > LONGEST_LABEL:
        text = f"{text[: LONGEST_LABEL - 1]}…"
    if not text.isprintable():
        text = "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)
        text = text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"
    return text or None


@dataclass(slots=True)
class Wait:
    """Not now: the first moment it could go (`at`), behind which limit, at which place, and when to look again."""

    at: int
    limit: str | None
    position: int = 0
    #: When the waiter itself should ask again; None means: sleep until called.
    check_at: int | None = None
    #: The store's time at the decision; `at - now` is how long.
    now: int = 0
    #: What blocks when it is no limit: "paused", or "line" for the tickets before it.
    reason: str = ""
    #: How sure `at` is: EXACT, ESTIMATE or EARLIEST.
    timing: str = EXACT

    @property
    def retry_after(self) -> float:
        """Seconds until it could go."""
        return max(0, self.at - self.now) / SECOND


@dataclass(frozen=True, slots=True)
class Refusal:
    """Never: the cost is larger than the limit, or the promised time lies beyond what was allowed."""

    limit: str | None
    reason: str
    at: int = NEVER
    now: int = 0


#: The answer to an ask.
Decision = Grant | Wait | Refusal


@dataclass(frozen=True, slots=True)
class Adapted:
    """The working limit of an adaptive limit went from `old` to `new`; `key` where the limit is by one."""

    limit: str
    key: str | None
    old: float
    new: float


@dataclass(slots=True)
class Ended:
    """The answer to a release. `lost` says that the lease had already ended before; `adapted` which limits moved by it."""

    lost: bool = False
    adapted: tuple[Adapted, ...] = ()
    #: The store's time, where the permit goes on.
    at: int = 0


@dataclass(slots=True)
class Pulse:
    """The answer to a heartbeat."""

    now: int
    #: lease id → its new expiry, 0 where it had already ended
    expires: Mapping[str, int]
    gone: tuple[str, ...]
    called: tuple[str, ...]
    unknown: tuple[str, ...]
    timer: str
    timer_at: int
    #: how many processes stand in line
    sessions: int


@dataclass(slots=True)
class Wake:
    """To a process: a ticket of its was called (`delay` None), or is to look again after `delay` microseconds."""

    session: str
    ticket: str
    delay: int | None = None


def names_of(kind: type) -> tuple[str, ...]:
    """The fields of a class of this module, in their order: that in which they travel."""
    return tuple(one.name for one in fields(kind))


def plain(value: Any) -> Any:
    """A value of this module as JSON can have it: its fields by name, lists, and None for a time that never comes."""
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, float):
        return value if value != float("inf") else None
    if isinstance(value, tuple | list):
        return [plain(part) for part in value]
    return dict(value) if hasattr(value, "items") else value


#: What a look tells, with a module of its own that is loaded when it is first asked for.
_OF_LOOKS = frozenset(
    ("LimitUsage", "Usage", "Holder", "Waiter", "Explanation", "Override", "HeldLease", "WaitingTicket", "Snapshot")
)


def __getattr__(name: str) -> Any:
    if name not in _OF_LOOKS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import looks

    value = globals()[name] = getattr(looks, name)  # from now on it is an attribute like the others
    return value

"""The values that everybody passes around; times inside are integer microseconds of the store's clock.

Nobody changes one. Those that a waiting ask is answered with are not frozen: to make a frozen one takes three
times as long.
"""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass, field, fields, is_dataclass

from ..errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal, NamedTuple

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


# Of `LimitUsage` and `Usage` the fields are the table that every face goes by: wires, `--json`, the HTTP schema, the
# dashboard's stream and metrics. The metadata of a field: `about` describes it; `seconds` where it is a length of time;
# `gauge` describes the metric `headgate_<field>`, where it is one; `http` is False where it is not told over HTTP.
#
# A time that is told outside the kernel and counts from now is in seconds, and ends in `_in` or `_for`; a moment is in
# epoch seconds, and ends in `_at`. tests/test_times.py walks all of them.


@dataclass(frozen=True, slots=True)
class LimitUsage:
    """How full one limit is. Amounts are units; `free_in` and `resets_in` are seconds from now.

    A new field goes to the end and has a default: a guard and its clients may be of different versions.
    """

    name: str = field(metadata={"about": "The limit, or `limit@class` for a class's share of it."})
    kind: str = field(metadata={"about": "The kind of limit."})
    unit: str = field(metadata={"about": "What it counts."})
    key: str | None = field(metadata={"about": "The value of the key that it is kept by, where it is by one."})
    used: float = field(
        metadata={
            "about": "Units that count now, with what called tickets hold.",
            "gauge": "Units of a limit that count now.",
        }
    )
    limit: float = field(
        metadata={"about": "The value that is in force.", "gauge": "The value of a limit that is in force."}
    )
    available: float = field(metadata={"about": "What is left of it, of what is neither used nor promised."})
    utilisation: float = field(
        metadata={
            "about": "Used by limit, 0 to 1; above 1 after the limit was lowered.",
            "gauge": "Used by limit, 0 to 1; above 1 after a limit was lowered.",
        }
    )
    free_in: float = field(
        metadata={"about": "Seconds until the smallest ask could go; 0: now; null: never.", "seconds": True}
    )
    resets_in: float | None = field(
        default=None,
        metadata={
            "about": "Windows and quotas: seconds until all that counts now has stopped counting, or until the reset.",
            "seconds": True,
        },
    )
    maximum: float | None = field(
        default=None,
        metadata={"about": "Adaptive concurrency: the configured maximum, while `limit` is what is in force."},
    )
    promised: float = field(
        default=0.0,
        metadata={
            "about": "Promise gates: units that are promised to asks whose time is still to come; they are not in `used`.",
            "gauge": "Units of a limit that are promised to asks whose time is still to come.",
        },
    )


@dataclass(frozen=True, slots=True)
class Usage:
    """What a gate is doing. The one source of what every face shows."""

    gate: str = field(metadata={"about": "The gate's name."})
    limits: tuple[LimitUsage, ...] = field(metadata={"about": "Its limits."})
    waiting: int = field(metadata={"about": "Asks that stand in line."})
    paused_for: float | None = field(
        default=None,
        metadata={"about": "Seconds from now until the pause ends; null: none.", "seconds": True},
    )
    pause_reason: str = field(default="", metadata={"about": "Why it is paused; null: no reason was given."})
    seq: int = field(default=0, metadata={"about": "The number of its last command.", "http": False})

    def __getitem__(self, name: str) -> LimitUsage:
        for usage in self.limits:
            if usage.name == name:
                return usage
        raise KeyError(f"gate {self.gate!r} has no limit {name!r}; it has {', '.join(u.name for u in self.limits)}")


@dataclass(frozen=True, slots=True)
class Holder:
    """A live lease: held for so many seconds, and ending in so many unless it is renewed."""

    id: str
    holder: str | None
    key: Mapping[str, str]
    held_for: float
    expires_in: float
    priority: str | None = None


@dataclass(frozen=True, slots=True)
class Waiter:
    """An ask that stands in line, for so many seconds; `goes_in` is seconds from now."""

    id: str
    holder: str | None
    key: Mapping[str, str]
    waiting_for: float
    priority: str | None = None
    #: What it asks for, by unit.
    cost: Mapping[str, float] = field(default_factory=dict)
    #: "waits"; "called": it may go and its waiter has not come yet; or "skipped": its process has missed a call.
    state: str = "waits"
    #: The limit that it waits for; None where it is no limit.
    limit: str | None = None
    #: When it would go, if those before it take as long as the limits do in the long run.
    goes_in: float = 0.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an ask would go or not. Spends nothing."""

    gate: str
    granted: bool
    #: Seconds until it would go, if nobody released early; None if never.
    goes_in: float | None
    limit: str | None
    reason: str
    limits: tuple[LimitUsage, ...]
    #: Who holds the blocking limit, the longest holder first.
    holders: tuple[Holder, ...] = ()
    waiting: int = 0
    #: Its place in the line, if it came now: 1 where none is before it.
    position: int = 1
    #: How sure `goes_in` is: "exact", "estimate" or "earliest".
    timing: str = EXACT
    #: Those of the overrides that concern it.
    overrides: tuple[Override, ...] = ()


@dataclass(frozen=True, slots=True)
class Override:
    """A limit's value while running, for the gate (`key` None) or for one key."""

    limit: str
    key: str | None
    value: float
    #: Why; empty where no reason was given.
    reason: str = ""
    #: Seconds from now until it ends by itself; None: it stays until it is cleared.
    expires_in: float | None = None
    #: It only lowers (`tighten`): whatever is in force without it takes its place where that is lower.
    tightened: bool = False


@dataclass(slots=True)
class Wake:
    """To a process: a ticket of its was called (`delay` None), or is to look again after `delay` microseconds."""

    session: str
    ticket: str
    delay: int | None = None


# What a look finds, in microseconds of the store's clock. Fields travel in this order: a new one goes to the end, and has a
# default.


@dataclass(slots=True)
class HeldLease:
    """A live lease."""

    id: str
    holder: str | None
    key: Mapping[str, str]
    granted_at: int
    expires_at: int
    rank: int


@dataclass(slots=True)
class WaitingTicket:
    """A ticket in line."""

    id: str
    holder: str | None
    key: Mapping[str, str]
    since: int
    rank: int
    #: What it asks for, by unit.
    cost: Mapping[str, float] = field(default_factory=dict)
    #: "waits"; "called": it may go and its waiter has not come yet; or "skipped": its process has missed a call.
    state: str = "waits"
    #: The limit that it waits for, and what is left of that; None where it is no limit.
    limit: str | None = None
    left: float = 0.0
    #: When it would go, if those before it take as long as the limits do in the long run.
    goes_at: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `Peek` found; `gate.py` turns it into `Usage`, `Holder`, `Waiter` and `Explanation`."""

    now: int
    seq: int
    paused_until: int = 0
    pause_reason: str = ""
    waiting: int = 0
    limits: tuple[LimitUsage, ...] = ()
    leases: tuple[HeldLease, ...] = ()
    overrides: tuple[Override, ...] = ()
    decision: Any = None
    waiters: tuple[WaitingTicket, ...] = ()
    #: Since when the line should have been served, in the store's time; 0 where nothing in it is due.
    overdue: int = 0
    #: Of a limit by a key, the keys that use most of it, the fullest first.
    keys: tuple[LimitUsage, ...] = ()


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

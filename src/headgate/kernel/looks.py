"""PURE. What a look tells: usage, holders, waiters, overrides, explanations, and the snapshot that they are made of.

They stand apart from `model` because they are most of its classes, and a program that asks and releases needs none of
them: `import headgate` would take a quarter longer. `model` has them too, when one is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .model import EXACT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


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

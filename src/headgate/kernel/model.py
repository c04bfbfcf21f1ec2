"""The values that everybody passes around; times inside are integer microseconds of the store's clock.

Nobody changes one. Those that a waiting ask is answered with are not frozen: to make a frozen one takes three
times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: Later than any moment: what a limit answers when a cost can never fit.
NEVER = 2**53

SECOND = 1_000_000


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
    #: What blocks when it is no limit: "paused".
    reason: str = ""

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


@dataclass(slots=True)
class Ended:
    """The answer to a release. `lost` says that the lease had already ended before; `adapted` that a limit moved by it."""

    lost: bool = False
    adapted: bool = False
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


@dataclass(frozen=True, slots=True)
class LimitUsage:
    """How full one limit is. Amounts are units; `next_free` and `time_left` are seconds from now."""

    name: str
    kind: str
    unit: str
    key: str | None
    used: float
    limit: float
    available: float
    utilisation: float
    #: Seconds until the smallest ask could go; 0 when it can go now.
    next_free: float
    #: Windows and quotas: seconds until all that counts now has stopped counting, or until the reset.
    time_left: float | None = None
    #: Adaptive concurrency: the configured maximum, while `limit` is what is in force.
    maximum: float | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What a gate is doing. The one source of what every face shows."""

    gate: str
    limits: tuple[LimitUsage, ...]
    waiting: int
    #: Seconds from now until the pause ends, or None.
    paused_until: float | None = None
    pause_reason: str = ""
    seq: int = 0

    def __getitem__(self, name: str) -> LimitUsage:
        for usage in self.limits:
            if usage.name == name:
                return usage
        raise KeyError(f"gate {self.gate!r} has no limit {name!r}; it has {', '.join(u.name for u in self.limits)}")


@dataclass(frozen=True, slots=True)
class Holder:
    """A live lease. `since` is seconds ago, `expires` is seconds from now."""

    id: str
    holder: str | None
    key: Mapping[str, str]
    since: float
    expires: float
    priority: str | None = None


@dataclass(frozen=True, slots=True)
class Waiter:
    """An ask that stands in line. `since` is seconds ago."""

    id: str
    holder: str | None
    key: Mapping[str, str]
    since: float
    priority: str | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why an ask would go or not. Spends nothing."""

    gate: str
    granted: bool
    #: Seconds until it would go, if nobody released early; None if never.
    after: float | None
    limit: str | None
    reason: str
    limits: tuple[LimitUsage, ...]
    #: Who holds the blocking limit, the longest holder first.
    holders: tuple[Holder, ...] = ()
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class Override:
    """A limit's value while running, for the gate (`key` None) or for one key."""

    limit: str
    key: str | None
    value: float


@dataclass(slots=True)
class Wake:
    """To a process: a ticket of its was called (`delay` None), or is to look again after `delay` microseconds."""

    session: str
    ticket: str
    delay: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `Peek` found; `gate.py` turns it into `Usage`, `Holder`, `Waiter` and `Explanation`."""

    now: int
    seq: int
    paused_until: int = 0
    pause_reason: str = ""
    waiting: int = 0
    limits: tuple[LimitUsage, ...] = ()
    leases: tuple[Any, ...] = ()
    overrides: tuple[Override, ...] = ()
    decision: Any = None
    waiters: tuple[Any, ...] = ()

"""Events: what happens beside ordinary grants (a lost lease, a store that is away), and the sinks that are told.

An ordinary grant emits none. A sink is a function that takes an `Event`: one that a program has subscribed, or one of those
that come with Headgate (`SINKS` of `sinks/`). Of these the log is on, unless a configuration that was loaded names others:
`sinks = ["log", "prometheus"]`.
"""

from __future__ import annotations

from dataclasses import dataclass

from .background import is_ending
from .errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Sink = Callable[["Event"], None]

#: Kind → the level at which the logging sink tells it, and its sentence.
KINDS: dict[str, tuple[str, str]] = {
    "lease_lost": ("warning", "gate {gate}: the lease of permit {id} ended before its holder let go ({holder})"),
    "permit_dropped": (
        "warning",
        "gate {gate}: permit {id} was dropped without release; its slot comes back when the lease expires",
    ),
    "passed_open": ("warning", "gate {gate}: let pass uncounted, because the store cannot be reached: {error}"),
    "store_down": ("error", "gate {gate}: the store cannot be reached ({error}); the gate is {mode} until it is back"),
    "store_up": ("info", "gate {gate}: the store is back after {down_for:.1f} s"),
    "state_lost": ("error", "gate {gate}: the store has lost state; rates come back slowly, holders register again"),
    "adapted": ("info", "gate {gate}: the adaptive limit {limit} went from {old:g} to {new:g} after {outcome}"),
    "limits_differ": ("warning", "gate {gate}: the guard's limits count, and they are others than here: {differences}"),
    "unshared": (
        "warning",
        "gate {gate}: its limits are in the memory of this process alone, and {why}: where several such processes run, "
        'each has all of the limits to itself; give the gate a store that they share, such as store="sqlite:///headgate.db"',
    ),
    "buried": ("warning", "queue {gate}: message {id} was buried ({reason}): {error}"),
    "message_lost": (
        "warning",
        "queue {gate}: the lease of message {id} ended before its handler did; another worker has it, and this outcome "
        "does not count",
    ),
    "quota_spent": (
        "error",
        "queue {gate}: the quota is spent, and its gate is paused for {paused_for:.0f} s: {error}",
    ),
    "stage_away": ("error", "queue {gate}: its queue or its gate cannot be reached ({error}); it is tried again"),
    "rate_limited": ("warning", "gate {gate}: the upstream refused a call that was granted (429)"),
    "tightened": (
        "warning",
        "gate {gate}: limit {limit} went from {old:.15g} to {new:.15g}, because the upstream refused what was granted",
    ),
    "value_changed": ("info", "gate {gate}: limit {limit} is now {value:.15g}, by its source"),
    "settle_failed": (
        "error",
        "gate {gate}: what a call really cost could not be settled ({error}); it stays charged as it was estimated",
    ),
    "refused": ("warning", "gate {gate}: limit {limit} refused {key} ({used}/{value})"),
    "shadow_refused": (
        "warning",
        "gate {gate}: limit {limit} would have refused {key} ({used}/{value}); let pass, in shadow mode",
    ),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: its kind (see `KINDS`), the gate, and the facts."""

    kind: str
    gate: str
    facts: Mapping[str, Any]

    @property
    def level(self) -> str:
        """`info`, `warning` or `error`."""
        return KINDS[self.kind][0]

    def __str__(self) -> str:
        return KINDS[self.kind][1].format(gate=self.gate, **self.facts)


#: What programs have subscribed.
_sinks: list[Sink] = []
#: The sinks of Headgate that are on, by name; None until the first event, or until they are chosen.
_on: dict[str, Sink] | None = None


def subscribe(sink: Sink) -> Callable[[], None]:
    """Have a function told of every event. Returns a function that ends it. An error in a sink is the sink's own."""
    _sinks.append(sink)
    return lambda: _sinks.remove(sink)


def switch_on(*names: str) -> None:
    """Have events told to these sinks of `SINKS` and to no others of that table, in this process.

    A sink that is on already goes on with what it has counted. What was subscribed stays.
    """
    global _on
    from .sinks import SINKS, make_sink

    for name in names:
        if name not in SINKS:
            raise InvalidInput(f"there is no sink {name!r}; there are {', '.join(SINKS)}")
    before = _on or {}
    _on = {name: before.get(name) or make_sink(name) for name in names}


def sinks_on() -> dict[str, Sink]:
    """The sinks of Headgate that are on, by name: `sinks_on()["prometheus"]` is the `Prometheus` that counts."""
    if _on is None:
        from .sinks import DEFAULT

        switch_on(*DEFAULT)
    return dict(_on or {})


def emit(kind: str, gate: str, **facts: Any) -> None:
    if is_ending():
        return  # a thread that is frozen may hold a lock of a sink or of its log
    event = Event(kind, gate, facts)
    for sink in [*_sinks, *sinks_on().values()]:
        try:
            sink(event)
        except Exception as error:  # a sink must not be able to stop an ask
            from .sinks.log import log

            log("error", f"a sink failed on {kind} of gate {gate}: {error!r}", event)

"""Events: what happens beside ordinary grants (a lost lease, a store that is away), and the sinks that are told.

An ordinary grant emits none. A sink is a function that takes an `Event`; `sinks/` has those that come with Headgate. Every
event also goes to the `headgate` logger of the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    "store_up": ("info", "gate {gate}: the store is back after {seconds:.1f} s"),
    "state_lost": ("error", "gate {gate}: the store has lost state; rates come back slowly, holders register again"),
    "adapted": ("info", "gate {gate}: an adaptive limit moved after {outcome}"),
    "value_changed": ("info", "gate {gate}: limit {limit} is now {value:g}, by its source"),
}


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: its kind (see `KINDS`), the gate, and the facts."""

    kind: str
    gate: str
    facts: Mapping[str, Any]

    def __str__(self) -> str:
        return KINDS[self.kind][1].format(gate=self.gate, **self.facts)


_sinks: list[Sink] = []


def subscribe(sink: Sink) -> Callable[[], None]:
    """Have a function told of every event. Returns a function that ends it. An error in a sink is the sink's own."""
    _sinks.append(sink)
    return lambda: _sinks.remove(sink)


def emit(kind: str, gate: str, **facts: Any) -> None:
    from .sinks.log import log

    event = Event(kind, gate, facts)
    for sink in _sinks:
        try:
            sink(event)
        except Exception as error:  # a sink must not be able to stop an ask
            log("error", f"a sink failed on {kind} of gate {gate}: {error!r}", event)
    log(KINDS[kind][0], str(event), event)

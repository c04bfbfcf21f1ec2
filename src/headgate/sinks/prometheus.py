"""Counts and gauges in Prometheus' text format. It is written by hand, since a client library would be a dependency.

`METRICS` is the one table of names: what is not in it cannot be counted, and the reference page is checked against it.
Labels are names of the configuration (gates, limits) and fixed words, never a key, a holder or an id: what clients choose
would make as many series as there are clients. No grant calls anything here, unless the guard serves it or the program has
subscribed.

In a process without a guard: `metrics = Prometheus(); subscribe(metrics)`, then `metrics.look(gate.usage())` for each gate
and `metrics.text()` when Prometheus scrapes.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import fields

from ..kernel.limits import kind_of
from ..kernel.model import OUTCOMES, LimitUsage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol

    from ..kernel.model import Usage

    class CountedEvent(Protocol):
        """What is counted of an event. `headgate.events` is in a layer above the sinks."""

        @property
        def kind(self) -> str: ...
        @property
        def gate(self) -> str: ...


#: The fields of a limit's usage that are gauges, and what they are.
GAUGES: dict[str, str] = {
    one.name: one.metadata["gauge"] for one in fields(LimitUsage) if one.metadata.get("gauge") is not None
}

*_MOST, _LAST = OUTCOMES

#: Name → type, labels, and what it is.
METRICS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "headgate_info": ("gauge", ("version",), "Always 1; the version is a label."),
    "headgate_permits_total": ("counter", ("gate", "outcome"), "Asks that were answered: granted or refused."),
    "headgate_wait_seconds": ("histogram", ("gate",), "Seconds that granted asks waited for their turn."),
    "headgate_hold_seconds": ("histogram", ("gate",), "Seconds from a grant to its release, where both came by here."),
    "headgate_upstream_total": (
        "counter",
        ("gate", "class"),
        f"Permits that were released, by what became of the call: {', '.join(_MOST)} or {_LAST}.",
    ),
    "headgate_leases": ("gauge", ("gate", "limit"), "Live leases."),
    **{f"headgate_{name}": ("gauge", ("gate", "limit"), about) for name, about in GAUGES.items()},
    "headgate_key_utilisation_max": (
        "gauge",
        ("gate", "limit"),
        "Of a limit by a key, the fullest of the keys that ask, wait or hold most.",
    ),
    "headgate_waiters": ("gauge", ("gate",), "Asks that stand in line."),
    "headgate_paused": ("gauge", ("gate",), "1 while the gate is paused."),
    "headgate_overshoot_total": (
        "counter",
        ("gate", "limit"),
        "Looks that found more in use than was ever allowed since the look before. Must stay 0.",
    ),
    "headgate_store_up": ("gauge", ("gate",), "1 while the gate's store answers."),
    "headgate_store_errors_total": (
        "counter",
        ("gate",),
        "Times that the store stopped answering, or a look at it failed.",
    ),
    "headgate_passed_open_total": ("counter", ("gate",), "Asks that were let pass uncounted while the store was away."),
    "headgate_refused_total": ("counter", ("gate",), "Requests that a face of this process (Django) refused."),
    "headgate_shadow_refused_total": (
        "counter",
        ("gate",),
        "Requests that it would have refused, and let pass in shadow mode.",
    ),
    "headgate_state_lost_total": ("counter", ("gate",), "Times that the store was found to have lost state."),
    "headgate_leases_lost_total": ("counter", ("gate",), "Leases that ended before their holders let go."),
    "headgate_dead_letters": (
        "gauge",
        ("queue",),
        "Messages that were given up and lie in the dead letters of a queue. Told by the process that works on it.",
    ),
    "headgate_queue_messages": (
        "gauge",
        ("queue", "state"),
        "Messages of a queue by state: ready, delayed, in_work. Told by the process that works on it.",
    ),
    "headgate_queue_oldest_seconds": ("gauge", ("queue",), "Seconds since the oldest message of a queue was put."),
    "headgate_queue_done": ("gauge", ("queue",), "Messages of a queue that were done since it was made."),
    "headgate_queue_failed": ("gauge", ("queue",), "Attempts on messages of a queue that failed since it was made."),
    "headgate_guard_waiters": ("gauge", (), "Requests that wait at this guard at this moment."),
    "headgate_guard_streams": ("gauge", (), "Processes behind http:// stores that hear from this guard."),
}

#: Kind of event → the counter that it adds to.
_EVENTS = {
    "store_down": "headgate_store_errors_total",
    "passed_open": "headgate_passed_open_total",
    "refused": "headgate_refused_total",
    "shadow_refused": "headgate_shadow_refused_total",
    "state_lost": "headgate_state_lost_total",
    "lease_lost": "headgate_leases_lost_total",
}

#: The upper bounds of the histograms' buckets, in seconds.
BUCKETS = {
    "headgate_wait_seconds": (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
    "headgate_hold_seconds": (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 21_600.0),
}

#: Series of one name at most. Names come from a configuration, so this is only reached by a mistake.
MOST_SERIES = 10_000


class Prometheus:
    """Values by name and labels. A sink as well: `subscribe(metrics)`. Safe under threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in METRICS}
        #: Counts of each bucket, and the sum.
        self._histograms: dict[str, dict[tuple[str, ...], list[float]]] = {name: {} for name in BUCKETS}

    def add(self, name: str, *labels: str, amount: float = 1.0) -> None:
        """Add to a counter. The labels are in the order of `METRICS`."""
        with self._lock:
            values = self._values[name]
            if labels in values or len(values) < MOST_SERIES:
                values[labels] = values.get(labels, 0.0) + amount

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set a gauge. The labels are in the order of `METRICS`."""
        with self._lock:
            values = self._values[name]
            if labels in values or len(values) < MOST_SERIES:
                values[labels] = value

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        bounds = BUCKETS[name]
        with self._lock:
            found = self._histograms[name].get(labels)
            if found is None:
                found = self._histograms[name][labels] = [0.0] * (len(bounds) + 2)
            found[bisect_left(bounds, seconds)] += 1.0
            found[-1] += seconds

    def value(self, name: str, *labels: str) -> float:
        """One value; 0 where nothing was counted."""
        return self._values[name].get(labels, 0.0)

    def forget(self, name: str) -> None:
        """Drop the series of a gauge before they are set again: those that are gone must not be exported for ever."""
        with self._lock:
            self._values[name].clear()

    # --- where values come from ---------------------------------------------------------------------------------------

    def __call__(self, event: CountedEvent) -> None:
        name = _EVENTS.get(event.kind)
        if name is not None:
            self.add(name, event.gate)
        if event.kind in ("store_down", "store_up"):
            self.set("headgate_store_up", float(event.kind == "store_up"), event.gate)

    def look(self, usage: Usage) -> None:
        """Set the gauges of a gate from its usage. Limits by a key have none."""
        gate = usage.gate
        self.set("headgate_waiters", float(usage.waiting), gate)
        self.set("headgate_paused", float(usage.paused_for is not None), gate)
        for row in usage.limits:
            if row.key is not None:
                continue
            for name in GAUGES:
                self.set(f"headgate_{name}", getattr(row, name), gate, row.name)
            if kind_of(row.kind).leased:
                self.set("headgate_leases", row.used, gate, row.name)

    # --- the text format ------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """All metrics in the text format, version 0.0.4. A name without a value has its type alone."""
        lines: list[str] = []
        with self._lock:
            for name, (kind, labels, about) in METRICS.items():
                lines += (f"# HELP {name} {about}", f"# TYPE {name} {kind}")
                if kind == "histogram":
                    lines += self._histogram_lines(name, labels)
                else:
                    for given, value in sorted(self._values[name].items()):
                        lines.append(f"{name}{_labels(zip(labels, given, strict=True))} {_number(value)}")
        return "\n".join(lines) + "\n"

    def _histogram_lines(self, name: str, labels: tuple[str, ...]) -> Iterable[str]:
        for given, counts in sorted(self._histograms[name].items()):
            pairs = list(zip(labels, given, strict=True))
            total = 0.0
            for bound, count in zip((*map(_number, BUCKETS[name]), "+Inf"), counts[:-1], strict=True):
                total += count
                yield f"{name}_bucket{_labels([*pairs, ('le', bound)])} {_number(total)}"
            yield f"{name}_sum{_labels(pairs)} {_number(counts[-1])}"
            yield f"{name}_count{_labels(pairs)} {_number(total)}"


def _labels(pairs: Iterable[tuple[str, Any]]) -> str:
    told = ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs)
    return f"{{{told}}}" if told else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))

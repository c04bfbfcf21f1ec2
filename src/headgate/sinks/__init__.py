"""Sinks: where events are told, one file each. A new sink is one file and one line in `SINKS`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: Name in a configuration → (module, what makes the sink there, what it does). A sink is a function that takes an event.
SINKS: dict[str, tuple[str, str, str]] = {
    "log": ("headgate.sinks.log", "LogSink", "writes each event to the `headgate` logger of the standard library"),
    "prometheus": (
        "headgate.sinks.prometheus",
        "Prometheus",
        "counts events for Prometheus, from the start of the process on",
    ),
}

#: The sinks of a process whose configuration names none.
DEFAULT = ("log",)


def make_sink(name: str) -> Callable[[Any], None]:
    """A new sink by its name in `SINKS`."""
    from importlib import import_module

    module, maker, _ = SINKS[name]
    return getattr(import_module(module), maker)()  # type: ignore[no-any-return]

"""Gates for tests of what happens when Redis fails them."""

from __future__ import annotations

from typing import Any

from headgate import Concurrency, Gate, StoreUnavailable, Window
from headgate.events import Event
from tests.support.waiting import timed

#: On a busy machine a healthy server may take a while; where nothing is to fail, that must not look like a failure.
PATIENT = "?timeout=60s"


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def gate_of(store: Any, mode: str = "closed", **more: Any) -> Gate:
    limits = [Window(100_000, per="1h", name="w"), Concurrency(10_000, name="slots", lease="1h")]
    return Gate("g", limits, store=store, on_store_error=mode, **more)


def answers(gate: Gate) -> bool:
    return not isinstance(timed(gate.try_acquire)[1], StoreUnavailable)

"""The pytest plugin: a clock that tests move by hand, and a store on it.

def test_my_code(headgate_clock, headgate_memory_store):
    gate = Gate("api", [Window(2, per="1m")], store=headgate_memory_store)
    ...
    headgate_clock.advance("1m")
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ..stores.memory import MemoryStore
from .clock import FakeClock


@pytest.fixture
def headgate_clock() -> FakeClock:
    """A clock that stands still until the test moves it."""
    return FakeClock()


@pytest.fixture
def headgate_memory_store(headgate_clock: FakeClock) -> Iterator[MemoryStore]:
    """A store of this test's own, on `headgate_clock`."""
    store = MemoryStore(clock=headgate_clock)
    yield store
    store.close()

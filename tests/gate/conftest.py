"""Gates of both kinds, on both embedded stores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncGate, Gate
from headgate.stores.memory import MemoryStore
from tests.support.gates import NAMES, Blocking, Crowd, HandClock


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(kind: str) -> Iterator[Callable[..., Any]]:
    """Makes a gate of either kind; both are used alike in the tests."""
    if kind == "sync":
        yield Gate
        return
    with asyncio.Runner() as runner:
        yield lambda *args, **kwargs: Blocking(runner, AsyncGate(*args, **kwargs))


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://gate-tests-{next(NAMES)}"
    return f"sqlite:///{tmp_path}/gates.db"


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def timed(clock: HandClock) -> MemoryStore:
    """A store whose time stands still unless the test moves it."""
    return MemoryStore(clock=clock)


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()

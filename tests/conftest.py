"""What many tests begin with, how Hypothesis runs, and which tests may be run again.

By the clock of the machine nothing is judged, except by tests marked `timing` (see tests/support/timing.py). What
Hypothesis finds is kept in `.hypothesis/` of the checkout and printed with its blob, so that the next run tries it first.

HYPOTHESIS_PROFILE=fast tries a fifth of the examples (`make fast`); HYPOTHESIS_PROFILE=mutants only wants a failure.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.support import ROOT
from tests.support.timing import allow_reruns

if TYPE_CHECKING:
    from pathlib import Path

    from headgate.events import Event
    from headgate.stores.redis import RedisStore
    from tests.support.servers import Server

settings.register_profile(
    "default",
    deadline=None,
    derandomize=False,  # not even in CI, where Hypothesis would do so by itself: each run tries something new
    database=DirectoryBasedExampleDatabase(ROOT / ".hypothesis" / "examples"),
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("fast", parent=settings.get_profile("default"), max_examples=20)
settings.register_profile(
    "mutants", parent=settings.get_profile("default"), phases=[Phase.explicit, Phase.generate], database=None
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell in the background and nohup ignore these, and every process that the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    allow_reruns(items)
    # Whole files go to a worker each. Those with the most slow tests go first: begun last, one would run alone at the end.
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture
def events() -> Iterator[list[Event]]:
    """All that is told while the test runs."""
    from headgate.events import subscribe

    seen: list[Event] = []
    end = subscribe(seen.append)
    yield seen
    end()


@pytest.fixture
def server() -> Iterator[Server]:
    """A Redis or Valkey of the test's own."""
    from tests.support.servers import new

    with new() as started:
        yield started


@pytest.fixture
def stores() -> Iterator[Callable[[str], RedisStore]]:
    """Makes Redis stores, which are closed with the test."""
    from headgate.stores.redis import RedisStore

    made: list[RedisStore] = []

    def make(url: str) -> RedisStore:
        made.append(RedisStore(url))
        return made[-1]

    yield make
    for store in made:
        store.close()


@pytest.fixture
def no_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiters of this process go by being woken alone: no heartbeat comes that could tell them of their turn instead."""
    from headgate.gate import keeper

    for name in ("BEAT_LEAST", "BEAT_MOST"):
        monkeypatch.setattr(keeper, name, 3600.0)


@pytest.fixture
def at_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory of its own, at a terminal of a known width, with nothing set."""
    from headgate.config.file import ENVIRONMENT

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)

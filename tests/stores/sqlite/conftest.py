"""A file and a store for each test, and an end for every process that it started."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from headgate.sqlite_file import busy
from headgate.stores.sqlite import SqliteStore
from tests.support.sqlite import started


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "gates.db")


@pytest.fixture
def store(path: str) -> Iterator[SqliteStore]:
    store = SqliteStore(path)
    yield store
    store.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store waits for a lock that another connection holds for as long as a busy machine makes the test hold it."""
    monkeypatch.setattr(busy, "PATIENCE", 60.0)


@pytest.fixture(autouse=True)
def _nobody_stays_behind() -> Iterator[None]:
    yield
    while started:
        child = started.pop()
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # with whatever it has forked, which holds its pipes open
        child.communicate()

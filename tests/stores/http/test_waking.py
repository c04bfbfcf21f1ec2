"""How waiters of an HTTP store are woken, by their own guard and by others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.stores.http import HttpStore
from headgate.stores.memory import MemoryStore
from headgate.stores.sqlite import SqliteStore
from headgate.testing import FakeClock
from tests.support import stores
from tests.support.guards import GuardThread, one_of
from tests.support.waiting import until


@contextmanager
def shared_store(kind: str, folder: Path) -> Iterator[Callable[[], Any]]:
    """Makes stores on one state."""
    if kind == "redis":
        pytest.importorskip("redis", reason="redis is missing: pip install 'headgate[redis]'")
        from headgate.stores.redis import RedisStore

        with stores.redis(FakeClock()) as one:
            yield lambda: RedisStore(one.url)
    elif kind == "sqlite":
        yield lambda: SqliteStore(str(folder / "guard.db"))
    else:
        yield MemoryStore


@pytest.mark.usefixtures("no_heartbeats")
@pytest.mark.parametrize("inner", ["memory", "sqlite", "redis"])
def test_a_waiter_is_told_within_a_moment_and_not_by_its_heartbeat(tmp_path: Path, inner: str) -> None:
    with shared_store(inner, tmp_path) as make:
        _waiter_is_told(make())


def _waiter_is_told(store: Any) -> None:
    guard = GuardThread(store)
    here, there = HttpStore(f"{guard.url}?timeout=2s"), HttpStore(f"{guard.url}?timeout=2001ms")
    try:
        mine, theirs = one_of(here), one_of(there)  # type: ignore[arg-type]
        for _ in range(5):
            _hands_over(mine, theirs)
    finally:
        here.close()
        there.close()
        guard.stop()


def _hands_over(holding: Any, waiting: Any) -> None:
    """A release is granted to the one who waits. There are no heartbeats, and the lease lasts for an hour: it was woken."""
    went: list[bool] = []
    held = holding.acquire(timeout=60)
    waiter = threading.Thread(target=lambda: went.append(waiting.acquire(timeout=60).release()), daemon=True)
    waiter.start()
    until(lambda: holding.usage().waiting == 1)
    time.sleep(0.05)
    held.release()
    waiter.join(60)
    assert went == [True]


@pytest.mark.usefixtures("no_heartbeats")
@pytest.mark.parametrize("inner", ["sqlite", "redis"])
def test_another_guard_and_processes_beside_it_wake_the_clients_of_this_one(tmp_path: Path, inner: str) -> None:
    with shared_store(inner, tmp_path) as make:
        _woken_by_others(make)


def _woken_by_others(make: Callable[[], Any]) -> None:
    guards = [GuardThread(make()), GuardThread(make())]
    clients = [HttpStore(f"{guard.url}?timeout=2s") for guard in guards]
    beside = make()
    try:
        for releaser in (one_of(clients[1]), one_of(beside)):  # type: ignore[arg-type]
            for _ in range(3):
                _hands_over(releaser, one_of(clients[0]))  # type: ignore[arg-type]
    finally:
        for store in (*clients, beside):
            store.close()
        for guard in guards:
            guard.stop()

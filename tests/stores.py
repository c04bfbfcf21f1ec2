"""The stores that the tests of the core run on, by name, and how each is made on a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, settings

from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock


@contextmanager
def memory(clock: FakeClock) -> Iterator[Any]:
    yield MemoryStore(clock=clock)


@contextmanager
def sqlite(clock: FakeClock) -> Iterator[Any]:
    from headgate.stores.sqlite import SqliteStore

    with TemporaryDirectory() as folder:
        store = SqliteStore(str(Path(folder) / "headgate.db"), clock=clock)
        try:
            yield store
        finally:
            store.close()


STORES: dict[str, Callable[[FakeClock], Any]] = {"memory": memory}
if find_spec("headgate.stores.sqlite") is not None:
    STORES["sqlite"] = sqlite


def examples(store: str, count: int) -> Any:
    """Settings for generated tests: so many examples in memory, and fewer on a store that writes to a file."""
    return settings(
        max_examples=count if store == "memory" else max(5, count // 12),
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


def forget(store: Any, gate: str) -> None:
    """The store in memory forgets a gate; the process remembers how far it had come."""
    records = store._gates[gate]
    seen = records.head[0]
    records.__init__(gate)
    records.seen = seen

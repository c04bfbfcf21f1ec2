"""The stores that need no server pass the suite that users run on their own."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from headgate.stores.memory import MemoryStore
from headgate.stores.sqlite import SqliteStore
from headgate.testing import FakeClock, StoreSuite
from tests.support.stores import forget


class TestMemory(StoreSuite):
    def make_store(self, clock: FakeClock) -> Any:
        return MemoryStore(clock=clock)

    def lose_state(self, store: Any, gate: str) -> None:
        forget(store, gate)


class TestSqlite(StoreSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.clock = FakeClock()
        self.path = tmp_path / "headgate.db"
        self.store = SqliteStore(str(self.path), clock=self.clock)
        self.begin_copy = sqlite3.connect(":memory:")
        with closing(sqlite3.connect(self.path)) as file:
            file.backup(self.begin_copy)

    def setup_method(self, method: Any = None) -> None:
        """The store is made by the fixture, which knows where files may be put."""

    def teardown_method(self, method: Any = None) -> None:
        self.store.close()
        self.begin_copy.close()

    def another_process(self, store: Any) -> Any:
        return SqliteStore(str(self.path), clock=self.clock)

    def lose_state(self, store: Any, gate: str) -> None:
        """An empty file comes back under the process."""
        with closing(sqlite3.connect(self.path)) as file:
            self.begin_copy.backup(file)

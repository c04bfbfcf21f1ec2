"""`sqlite:///path.db`: the state of gates in one file, for any number of processes on one machine. Read `store` first."""

from __future__ import annotations

from .store import SqliteStore, open_url

__all__ = ["SqliteStore", "open_url"]

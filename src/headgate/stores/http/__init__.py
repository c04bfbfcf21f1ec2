"""`http://…`, `https://…`: the state of gates in a guard. Read `store` first."""

from __future__ import annotations

from .store import HttpStore, open_url

__all__ = ["HttpStore", "open_url"]

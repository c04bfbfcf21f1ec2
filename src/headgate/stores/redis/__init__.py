"""`redis://…`: the state of gates in a Redis or Valkey server or cluster. Read `store` first, then `lua/main.lua`."""

from __future__ import annotations

from .store import RedisStore, open_url

__all__ = ["RedisStore", "open_url"]

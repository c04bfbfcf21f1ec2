"""`headgate.config.sources` under the name it had before, for what is documented of it."""

from __future__ import annotations

from .config.sources import EnvSource, FileSource, Refresher, Source

__all__ = ["EnvSource", "FileSource", "Refresher", "Source"]

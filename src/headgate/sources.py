"""The name under which `headgate.config.sources` was known before: what is documented of it can still be imported from here."""

from __future__ import annotations

from .config.sources import EnvSource, FileSource, Refresher, Source

__all__ = ["EnvSource", "FileSource", "Refresher", "Source"]

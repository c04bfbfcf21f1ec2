"""`headgate.config.file` under the name it had before, for what is documented of it."""

from __future__ import annotations

from .config.file import ENVIRONMENT, load, parse

__all__ = ["ENVIRONMENT", "load", "parse"]

"""The name under which `headgate.config.file` was known before: what is documented of it can still be imported from here."""

from __future__ import annotations

from .config.file import ENVIRONMENT, load, parse

__all__ = ["ENVIRONMENT", "load", "parse"]

"""Kinds of limits, and what a kind of one's own is made of: `Limit` or `RateLimit`, and a line in `KINDS`.

`RULES` are the ways in which an adaptive concurrency moves; `AdaptiveRule` is what each of them is.
"""

from __future__ import annotations

from .kernel.limits import (
    KINDS,
    RULES,
    AdaptiveRule,
    Aimd,
    Bucket,
    Concurrency,
    Limit,
    Probing,
    Quota,
    RateLimit,
    Window,
)

__all__ = [
    "KINDS",
    "RULES",
    "AdaptiveRule",
    "Aimd",
    "Bucket",
    "Concurrency",
    "Limit",
    "Probing",
    "Quota",
    "RateLimit",
    "Window",
]

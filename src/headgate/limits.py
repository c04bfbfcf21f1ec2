"""Kinds of limits, and what a kind of one's own is made of: `Limit` or `RateLimit`, and a line in `KINDS`."""

from __future__ import annotations

from .kernel.limits import KINDS, Aimd, Bucket, Concurrency, Limit, Quota, RateLimit, Window

__all__ = ["KINDS", "Aimd", "Bucket", "Concurrency", "Limit", "Quota", "RateLimit", "Window"]

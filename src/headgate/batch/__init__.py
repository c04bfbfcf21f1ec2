"""Batch runs: thousands of calls under a gate, with retries, a journal and statistics.

    from headgate.batch import run

    statistics = run(prompts, generate, gate=gate, skip_existing=path_of)

`run` is for scripts, `await arun(…)` the same for programs that have an event loop. Both take plain functions, which are
called in threads, and coroutine functions.
"""

from __future__ import annotations

from ..clients.retry import Retry
from .attempt import AsyncAttempt, Attempt
from .journal import Journal, JournalMismatch
from .progress import RunProgress
from .result import CallFailed, Interrupted, ItemResult, Statistics
from .run import arun, run

__all__ = [
    "AsyncAttempt",
    "Attempt",
    "CallFailed",
    "Interrupted",
    "ItemResult",
    "Journal",
    "JournalMismatch",
    "Retry",
    "RunProgress",
    "Statistics",
    "arun",
    "run",
]

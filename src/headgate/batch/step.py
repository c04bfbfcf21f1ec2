"""PURE. What to do next with an item: a function of what became of its call and of what there was before.

The rules of retries are `Retry`'s. Here they meet the rest of an item's life: what counts as a failure, and what of its
history a next attempt begins with.
"""

from __future__ import annotations

from typing import NamedTuple

from ..http.report import Report
from .result import CallFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..clients.retry import Retry

#: The report of a value that is no response.
PLAIN_OK = Report("ok")
#: The report of an exception that tells of no answer.
NO_ANSWER = Report("error")

#: Values of these classes are results, and never an upstream's response.
PLAIN = frozenset({type(None), bool, int, float, str, bytes, list, tuple, set})


class Answered(NamedTuple):
    """What became of one call: what it returned or raised, and the report of that."""

    report: Report
    value: Any = None
    error: Exception | None = None


class Again(NamedTuple):
    """Make another call, `wait_s` seconds from now or later."""

    wait_s: float


class Finished(NamedTuple):
    """The item is finished: without an error it is successful."""

    error: Exception | None = None


def next_step(answer: Answered, attempts: int, elapsed_s: float, retry: Retry, chance: float) -> Again | Finished:
    """What to do with an item after its call number `attempts`, `elapsed_s` seconds after the first one asked.

    `chance` is a random number from 0 to 1, for the jitter of retries.
    """
    report = answer.report
    if answer.error is None and report == "ok" and report.status < 400:
        return Finished()
    wait_s = retry.next_wait_s(report, attempts, elapsed_s, chance)
    if wait_s is not None:
        return Again(wait_s)
    return Finished(answer.error or CallFailed(failure_words(report, attempts), report.status))


def failure_words(report: Report, attempts: int) -> str:
    """Why a call that returned a response failed, in words."""
    said = f"answered {report.status}" if report.status else f"ended as {report.outcome}"
    if report.permanent:
        return f"{said}: a quota is spent, and another try would fail too"
    return said if attempts == 1 else f"{said} after {attempts} attempts"


def looks_like_response(value: Any) -> bool:
    """Whether a value has a status and headers, so that `permit.report` can read it."""
    if value.__class__ in PLAIN:
        return False
    if isinstance(value, dict):
        return isinstance(value.get("status"), int) and isinstance(value.get("headers"), dict)
    if not hasattr(value, "headers"):
        return False
    return any(isinstance(getattr(value, name, None), int) for name in ("status_code", "status", "code"))


def existing(found: Any) -> bool:
    """What a `skip_existing` function says: a truth value, or the path of a file that may be there."""
    import os

    if isinstance(found, str | os.PathLike):
        return os.path.exists(found)
    return bool(found)

"""Retries by policy: what is worth another try, and when. The decision is pure; two small drivers make the calls."""

from __future__ import annotations

from dataclasses import dataclass
from random import random
from time import monotonic, sleep
from typing import Generic, TypeVar

from .. import duration
from ..errors import Denied, InvalidInput
from ..http.report import Report
from ..kernel.model import OUTCOMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from ..gate import AsyncGate, AsyncPermit, Gate, Permit
    from ..gate.base import Duration

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """Which refused calls are made again, and when.

    A 429 that says when to come back has paused the gate, so the next attempt asks for its permit at once and waits in line
    with the rest of the fleet. A 429 without a delay, and an overloaded upstream (502, 503, 504, 529), back off: `base`
    doubled with each attempt up to `cap`, of which the share `jitter` is left to chance (1: all of it, "full jitter").
    Everything else fails at once, and so does a quota that is spent for the day or the month (`report.permanent`).

    `attempts` are the calls in all, the first included. `deadline` is for the whole of them, waiting included: no attempt
    begins after it, and none is waited for that could not begin before it. Each attempt takes a permit of its own, and none
    is held while it waits.
    """

    attempts: int = 5
    deadline: Duration | None = None
    base: Duration = "1s"
    cap: Duration = "60s"
    jitter: float = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise InvalidInput(f"attempts is how many calls are made in all, at least 1, not {self.attempts!r}")
        if isinstance(self.jitter, bool) or not isinstance(self.jitter, int | float) or not 0 <= self.jitter <= 1:
            raise InvalidInput(
                f"jitter is the share of a delay that is left to chance, from 0 to 1, not {self.jitter!r}"
            )
        duration.parse(self.base, what="base")
        duration.parse(self.cap, what="cap")
        if self.deadline is not None:
            duration.parse(self.deadline, what="deadline")

    @property
    def deadline_s(self) -> float | None:
        """The deadline in seconds after the first attempt began."""
        return None if self.deadline is None else duration.parse(self.deadline, what="deadline") / 1e6

    def left_s(self, elapsed_s: float) -> float | None:
        """Seconds until the deadline; None without one."""
        end = self.deadline_s
        return None if end is None else max(0.0, end - elapsed_s)

    def backoff_s(self, attempt: int, chance: float) -> float:
        """Seconds to back off after attempt 1, 2, …; `chance` is a random number from 0 to 1."""
        base, cap = duration.parse(self.base, what="base") / 1e6, duration.parse(self.cap, what="cap") / 1e6
        delay = min(cap, base * 2.0 ** min(attempt - 1, 60))
        return float(delay * (1 - self.jitter + self.jitter * chance))

    def next_wait_s(self, report: Report, attempt: int, elapsed_s: float, chance: float) -> float | None:
        """Seconds to wait before the next attempt asks for its permit; None where there is no next attempt.

        `attempt` is how many were made, `elapsed_s` the seconds since the first began. A function of its arguments alone.
        """
        if attempt >= self.attempts or report.permanent or not OUTCOMES[report].pauses:
            return None
        paused_s = report.retry_after or 0.0  # the gate waits for it, whoever asks
        wait = 0.0 if report == "rate_limited" and paused_s else self.backoff_s(attempt, chance)
        end = self.deadline_s
        if end is not None and elapsed_s + max(wait, paused_s) >= end:
            return None
        return wait

    # --- drivers ------------------------------------------------------------------------------------------------------

    def call(self, gate: Gate, function: Callable[[Permit], T], **ask: Any) -> T:
        """Call `function(permit)` under a permit of the gate, again where this policy says so; `ask` is for `acquire`.

        What it returns or raises is reported; a result without a status is a success. The caller gets the last result or
        the last error, and `Denied` where no permit came before the deadline for the first attempt.
        """
        begun, attempt = monotonic(), 0
        last: _Try[T] | None = None
        while True:
            attempt += 1
            try:
                permit = gate.acquire(**within(ask, self.left_s(monotonic() - begun)))
            except Denied:
                if last is None:
                    raise
                return last.given()
            with permit:
                try:
                    last = _Try(function(permit))
                except Exception as error:
                    last = _Try(None, error)
                try:
                    report = permit.report(last.said)
                except InvalidInput:
                    report = _SUCCESS
            wait = self.next_wait_s(report, attempt, monotonic() - begun, random())
            if wait is None:
                return last.given()
            sleep(wait)

    async def acall(self, gate: AsyncGate, function: Callable[[AsyncPermit], Awaitable[T]], **ask: Any) -> T:
        """The same as `call` on an event loop: `function(permit)` is awaited."""
        from asyncio import sleep as pause

        begun, attempt = monotonic(), 0
        last: _Try[T] | None = None
        while True:
            attempt += 1
            try:
                permit = await gate.acquire(**within(ask, self.left_s(monotonic() - begun)))
            except Denied:
                if last is None:
                    raise
                return last.given()
            async with permit:
                try:
                    last = _Try(await function(permit))
                except Exception as error:
                    last = _Try(None, error)
                try:
                    report = await permit.report(last.said)
                except InvalidInput:
                    report = _SUCCESS
            wait = self.next_wait_s(report, attempt, monotonic() - begun, random())
            if wait is None:
                return last.given()
            await pause(wait)


class _Try(Generic[T]):
    """What one attempt gave: a result, or an error."""

    __slots__ = ("_error", "_result")

    def __init__(self, result: T | None, error: Exception | None = None) -> None:
        self._result, self._error = result, error

    @property
    def said(self) -> Any:
        return self._result if self._error is None else self._error

    def given(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # there is one where there is no error


#: The report of a result that has no status.
_SUCCESS = Report("ok")


def within(ask: dict[str, Any], left_s: float | None) -> dict[str, Any]:
    """The ask with a `timeout` that ends with the deadline, or with its own where that is sooner."""
    if left_s is None:
        return ask
    own = ask.get("timeout")
    return {
        **ask,
        "timeout": left_s if own is None else min(left_s, duration.parse(own, what="timeout", zero=True) / 1e6),
    }

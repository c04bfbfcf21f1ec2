"""PURE. How work on a message ends, and what becomes of the message: a function of its history and the outcome.

| outcome | raised or returned | attempt | the message | the gate |
|---|---|---|---|---|
| done | a returned value | | gone, outputs handed on | `ok` |
| limited | `Limited`, or a gate's `Denied` | no | back after the delay | `unsent` |
| refused | `UpstreamRefused`, a 429 | no | back after the delay | paused for the delay |
| failed | `AttemptFailed`, a 5xx, any other error | yes | back, later each time; then dead | `error` or `overloaded` |
| poison | `Poison`, `BadMessage` | | dead at once | `error` |
| quota | `QuotaSpent`, a 429 that says so | no | back at the reset | paused until the reset |

A lease that ran out is told by nobody: the queue counts it as a death, and `on_receipt` buries the third.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..duration import parse
from ..errors import Denied, HeadgateError, InvalidInput
from ..http.report import read
from .message import BadMessage, DeadLetter, MessageHistory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..kernel.model import OutcomeName

SECOND = 1_000_000

#: Answers by which an upstream says that the request itself is wrong: to send it again would not help.
BAD_INPUT = frozenset({400, 404, 405, 406, 410, 411, 413, 414, 415, 422})

#: Characters of an error that are kept in a dead letter.
LONGEST_ERROR = 4000

#: Why a message was given up.
REASONS = {
    "poison": "its input is bad: the handler, the upstream or the schema said so",
    "failed": "it failed as often as its stage allows",
    "killed": "its worker died, or was stopped, each time it was in work",
}


class StageOutcome(HeadgateError):
    """How work on a message ended, other than done. Raise one from a handler."""

    #: Its name in counts, logs and events.
    name = ""
    #: What the permit is released with.
    release: OutcomeName = "error"
    #: Seconds until it may be tried again, where that is known.
    retry_after: float | None = None

    def __init__(self, message: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        if retry_after is not None:
            parse(retry_after, what="retry_after", zero=True)
        self.retry_after = retry_after


class Limited(StageOutcome):
    """A limit of our own said not now: the message comes back after `retry_after` seconds, and no attempt is counted.

    With the permit in hand that does not happen. It is for handlers that ask a second gate; its `Denied` is taken for one.
    """

    name = "limited"
    release = "unsent"


class UpstreamRefused(StageOutcome):
    """The upstream refused the call (429): the gate is paused for `retry_after` seconds, and no attempt is counted."""

    name = "refused"
    release = "rate_limited"


class AttemptFailed(StageOutcome):
    """The call failed (5xx, a time-out): an attempt is counted, and the message comes back later each time."""

    name = "failed"

    def __init__(self, message: str = "", retry_after: float | None = None, release: OutcomeName = "error") -> None:
        super().__init__(message, retry_after)
        self.release = release


class Poison(StageOutcome):
    """The input is bad, and always will be: the message is buried at once, with this text."""

    name = "poison"


class QuotaSpent(StageOutcome):
    """The quota of a day or a month is spent: the gate is paused until the reset, and the message stays.

    `retry_after` is seconds until the reset; None: an hour, after which one message tries again.
    """

    name = "quota_spent"
    release = "rate_limited"


#: Seconds that a gate is paused when a quota is spent and the upstream does not say until when.
QUOTA_PAUSE_S = 3600.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a message is tried, and how long it waits before the next time.

    The wait after a failure is random between half and all of `first × 2^(attempts - 1)`, at most `longest` (seconds).
    """

    #: Failures after which a message is dead.
    attempts: int = 5
    first: float = 1.0
    longest: float = 300.0
    #: Leases that ran out after which a message is dead.
    deaths: int = 3

    def __post_init__(self) -> None:
        for name in ("attempts", "deaths"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name} is a whole number from 1 on, not {value!r}")
        if parse(self.first, what="first") > parse(self.longest, what="longest"):
            raise InvalidInput(f"first ({self.first!r}) is longer than longest ({self.longest!r})")

    def wait_us(self, failures: int, chance: float) -> int:
        """Microseconds to wait after so many failures in a row; `chance` is a random number from 0 to 1."""
        most = float(min(self.first * 2 ** min(failures - 1, 40), self.longest))
        return round(most * (0.5 + 0.5 * chance) * SECOND)


@dataclass(frozen=True, slots=True)
class Finish:
    """The message is done; these bodies are its outputs, for the next stage."""

    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Return:
    """The message goes back, with this history, and can be leased again after `delay_us`."""

    history: MessageHistory
    delay_us: int = 0
    #: It failed, which is counted.
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Bury:
    """The message goes to the dead letters."""

    reason: str
    error: str
    history: MessageHistory
    #: It failed, which is counted.
    failed: bool = False


Verdict = Finish | Return | Bury


def what_becomes(history: MessageHistory, outcome: StageOutcome, policy: RetryPolicy, chance: float) -> Return | Bury:
    """What becomes of a message whose work ended with anything but done."""
    after_us = 0 if outcome.retry_after is None else round(outcome.retry_after * SECOND)
    if isinstance(outcome, Poison):
        return Bury("poison", _text(outcome), history)
    if isinstance(outcome, UpstreamRefused):
        refused = replace(history, refusals=history.refusals + 1)
        return Return(refused, after_us or policy.wait_us(refused.refusals, chance))
    if isinstance(outcome, QuotaSpent):
        return Return(history, after_us or round(QUOTA_PAUSE_S * SECOND))
    if isinstance(outcome, Limited):
        return Return(history, after_us or policy.wait_us(1, chance))
    failed = replace(history, attempts=history.attempts + 1, refusals=0)
    if failed.attempts >= policy.attempts:
        return Bury("failed", _text(outcome), failed, failed=True)
    return Return(failed, max(after_us, policy.wait_us(failed.attempts, chance)), failed=True)


def on_receipt(history: MessageHistory, policy: RetryPolicy) -> Bury | None:
    """What becomes of a message before its handler sees it: None where it may be worked on."""
    if history.deaths >= policy.deaths:
        return Bury(
            "killed",
            f"its worker died, or was stopped, in {history.deaths} of {history.receives} deliveries without telling an "
            f"outcome; run its input by hand before it is redriven",
            history,
        )
    return None


def letter_of(id: str, body: str, bury: Bury, now_us: int, lane: str = "") -> DeadLetter:
    """The dead letter of a message that is buried now."""
    return DeadLetter(id, body, bury.reason, bury.error, bury.history, now_us, lane)


def outcome_of(error: BaseException, now: float) -> StageOutcome:
    """The outcome that an exception of a handler stands for. `now` is the wall clock in epoch seconds.

    Exceptions that carry an HTTP response (`raise_for_status` of httpx and requests) are read like the response itself.
    """
    if isinstance(error, StageOutcome):
        return error
    if isinstance(error, BadMessage):
        return Poison(str(error))
    if isinstance(error, Denied):
        return Limited(str(error), error.retry_after)
    if getattr(error, "response", None) is not None:
        try:
            outcome = outcome_of_response(error, now, described(error))
        except InvalidInput:
            outcome = None
        if outcome is not None:
            return outcome
    return AttemptFailed(described(error))


def outcome_of_response(response: Any, now: float, text: str | None = None) -> StageOutcome | None:
    """The outcome that an upstream's answer stands for; None where it is an answer that can be used."""
    report = read(response, now)
    said = text or f"the upstream answered {report.status}"
    if report.permanent:
        return QuotaSpent(f"{said}: its quota is spent", report.retry_after)
    if report == "rate_limited":
        return UpstreamRefused(said, report.retry_after)
    if report != "ok":
        return AttemptFailed(said, report.retry_after, report.outcome)
    if report.status in BAD_INPUT:
        return Poison(said)
    return AttemptFailed(said) if report.status >= 400 else None


def described(error: BaseException) -> str:
    """An exception in one line, with its kind."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _text(outcome: StageOutcome) -> str:
    """The error of a dead letter: what the outcome says, and where it came from."""
    text = str(outcome) or outcome.name
    cause = outcome.__cause__
    if cause is not None and str(cause) not in text:
        text = f"{text} ({described(cause)})"
    return text if len(text) <= LONGEST_ERROR else f"{text[: LONGEST_ERROR - 1]}…"

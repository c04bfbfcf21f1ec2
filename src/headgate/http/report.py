"""PURE. Reads an upstream's answer: its outcome and how long to wait, in the four dialects of retry delays.

Works on any response of httpx, requests, aiohttp or urllib (anything with a status and headers), on a mapping with those
keys, and on exceptions that carry such a response.
"""

from __future__ import annotations

from ..errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..kernel.model import OutcomeName

#: Status → outcome, for answers by which an upstream refuses a call.
REFUSALS = {429: "rate_limited", 502: "overloaded", 503: "overloaded", 504: "overloaded", 529: "overloaded"}


class Report(str):
    """What an upstream's answer says: a text, its outcome, with attributes for the rest.

    `retry_after` is in seconds (None: not given), `permanent` is whether a quota of a day or a month is spent, so that a
    retry would fail, and `status` is that of the answer.
    """

    __slots__ = ("permanent", "retry_after", "status")

    retry_after: float | None
    permanent: bool
    status: int

    def __new__(
        cls, outcome: str, retry_after: float | None = None, permanent: bool = False, status: int = 0
    ) -> Report:
        report = super().__new__(cls, outcome)
        report.retry_after = retry_after
        report.permanent = permanent
        report.status = status
        return report

    @property
    def outcome(self) -> OutcomeName:
        return str(self)  # type: ignore[return-value]  # it was made of one

    def __repr__(self) -> str:
        facts = f"retry_after={self.retry_after!r}, permanent={self.permanent!r}, status={self.status!r}"
        return f"Report({str(self)!r}, {facts})"

    def __reduce__(self) -> tuple[object, ...]:
        return (Report, (str(self), self.retry_after, self.permanent, self.status))


def read(response: Any, now: float) -> Report:
    """The report of an answer. `now` is the wall clock in epoch seconds, because some upstreams give a date."""
    response = getattr(response, "response", None) or response
    status = _status(response)
    headers = {str(name).lower(): str(value) for name, value in dict(_field(response, "headers") or {}).items()}
    refusal = REFUSALS.get(status)
    if refusal is not None:
        body = _body(response)
        after = _retry_after(headers, body, now)
        return Report(refusal, after, permanent=status == 429 and _permanent(body), status=status)
    if status >= 500:
        return Report("error", status=status)
    return Report("ok", _used_up(headers, now), status=status)


def _field(response: Any, name: str) -> Any:
    if hasattr(response, "get") and not hasattr(response, name):
        return response.get(name)
    return getattr(response, name, None)


def _status(response: Any) -> int:
    for name in ("status_code", "status", "code"):
        value = _field(response, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    raise InvalidInput(f"report() wants a response with a status and headers, not {type(response).__name__}")


def _body(response: Any) -> Any:
    """The JSON body where it is there without waiting; a coroutine (aiohttp) is not awaited."""
    for name in ("json", "body"):
        found = _field(response, name)
        try:
            found = found() if callable(found) else found
        except (ValueError, TypeError, AttributeError, RuntimeError):
            continue
        if hasattr(found, "close") and hasattr(found, "send"):
            found.close()
            continue
        if isinstance(found, list) and found:
            found = found[0]
        if isinstance(found, dict):
            return found
    return {}


def _permanent(body: Any) -> bool:
    """Whether a quota of a day or a month is spent, so that a retry soon would fail."""
    error = body.get("error") if isinstance(body.get("error"), dict) else {}
    if error.get("code") == "INSUFFICIENT_QUOTA":
        return True
    for detail in error.get("details") or ():
        for violation in (detail.get("violations") or ()) if isinstance(detail, dict) else ():
            if "PerDay" in str(violation.get("quotaId", "")):
                return True
    return False


def _retry_after(headers: Mapping[str, str], body: Any, now: float) -> float | None:
    given = headers.get("retry-after", "").strip()
    if given:
        after = _seconds_or_date(given, now)
        if after is not None and body.get("code") == "RATE_LIMIT_EXCEEDED":
            return after / 1000  # Sentinel Hub gives milliseconds
        if after is not None:
            return after
    error = body.get("error") if isinstance(body.get("error"), dict) else {}
    for detail in error.get("details") or ():
        delay = str(detail.get("retryDelay", "")) if isinstance(detail, dict) else ""
        if delay.endswith("s") and (seconds := _number(delay[:-1])) is not None:
            return seconds
    return _used_up(headers, now)


def _seconds_or_date(given: str, now: float) -> float | None:
    seconds = _number(given)
    if seconds is not None:
        return seconds
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(given).timestamp() - now)
    except (TypeError, ValueError):
        return None


def _used_up(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds until there is capacity again, where the headers say that none is left."""
    draft = headers.get("ratelimit", "")  # IETF draft: "default";r=0;t=30
    fields = dict(part.strip().split("=", 1) for part in draft.split(";") if "=" in part)
    if fields.get("r") == "0" and (after := _number(fields.get("t", ""))) is not None:
        return after
    for prefix in ("x-ratelimit-", "ratelimit-"):
        if headers.get(f"{prefix}remaining", "").strip() == "0":
            reset = _number(headers.get(f"{prefix}reset", ""))
            if reset is not None:
                return max(0.0, reset - now) if reset > 1e9 else reset  # epoch or delta
    return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < 1e12 else None

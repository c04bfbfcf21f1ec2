"""PURE. Reads an upstream's answer: its outcome and how long to wait, in the four dialects of retry delays.

Works on any response of httpx, httpx2, requests, aiohttp, boto3 or urllib (anything with a status and headers), on a
mapping with those keys, and on exceptions: those that carry such a response (openai, anthropic, google-genai, botocore,
requests, aiohttp, urllib), those that only tell of it (pdfservices-sdk), and those of calls that got none.
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

#: Codes by which AWS says that a call came too soon, as botocore itself reads them.
AWS_THROTTLING = frozenset(
    {
        *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException"),
        *("TooManyRequestsException", "ProvisionedThroughputExceededException", "RequestLimitExceeded", "SlowDown"),
        *("BandwidthLimitExceeded", "LimitExceededException", "PriorRequestNotComplete", "EC2ThrottledException"),
        "TransactionInProgressException",
    }
)

#: Errors of httpx, httpx2, aiohttp, urllib3 and botocore by which no connection was there to write to.
NEVER_LEFT = frozenset(
    {
        *("ConnectError", "ConnectTimeout", "PoolTimeout", "ClientConnectorError", "ConnectionTimeoutError"),
        *("NewConnectionError", "ConnectTimeoutError", "NameResolutionError", "EndpointConnectionError"),
    }
)


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
    """The report of an answer, or of the exception that a call ended in. `now` is the wall clock in epoch seconds, because
    some upstreams give a date.
    """
    if isinstance(response, BaseException):
        return _read_exception(response, now)
    carried = getattr(response, "response", None)
    return _read_answer(response if carried is None else carried, now)


def _read_answer(response: Any, now: float, body: Any = None) -> Report:
    """`body` is the JSON of the answer, where somebody has read it already."""
    if isinstance(response, dict) and isinstance(response.get("ResponseMetadata"), dict):
        return _read_aws(response, now)
    status = _status(response)
    headers = {str(name).lower(): str(value) for name, value in dict(_field(response, "headers") or {}).items()}
    refusal = REFUSALS.get(status)
    if refusal is None and status == 403 and _is_rate_limit(headers):
        refusal = "rate_limited"
    if refusal is not None:
        body = body if isinstance(body, dict) else _body(response)
        after = _retry_after(headers, body, now)
        return Report(refusal, after, permanent=status == 429 and _permanent(body), status=status)
    if status >= 500:
        return Report("error", status=status)
    return Report("ok", _used_up(headers, now), status=status)


def _is_rate_limit(headers: Mapping[str, str]) -> bool:
    """Whether a 403 is a refusal of this kind, as GitHub sends it: with a delay, or with nothing left."""
    return "retry-after" in headers or headers.get("x-ratelimit-remaining", "").strip() == "0"


def _read_aws(response: dict[str, Any], now: float) -> Report:
    """What botocore makes of an answer: throttling has a code, and any status."""
    facts = response["ResponseMetadata"]
    status = facts.get("HTTPStatusCode")
    if not isinstance(status, int):
        raise InvalidInput(
            "report() wants an answer of boto3 with ResponseMetadata.HTTPStatusCode, which this one has not"
        )
    headers = {str(name).lower(): str(value) for name, value in dict(facts.get("HTTPHeaders") or {}).items()}
    report = _read_answer({"status": status, "headers": headers, "body": {}}, now)
    error = response.get("Error")
    if isinstance(error, dict) and error.get("Code") in AWS_THROTTLING and report != "rate_limited":
        return Report("rate_limited", _retry_after(headers, {}, now), status=status)
    return report


def _read_exception(error: BaseException, now: float) -> Report:
    response = getattr(error, "response", None)
    if response is not None:
        # google-genai has read the body already, and of aiohttp's answers nobody else can without waiting.
        try:
            return _read_answer(response, now, getattr(error, "details", None))
        except InvalidInput:
            return Report("error")
    for name in ("status_code", "status", "code"):
        status = getattr(error, name, None)
        if isinstance(status, int) and not isinstance(status, bool) and 100 <= status < 600:
            told = getattr(error, "details", None)
            if not isinstance(told, dict):  # pdfservices-sdk keeps its code alone
                told = {"error": {"code": getattr(error, "error_code", None)}}
            headers = getattr(error, "headers", None) or {}
            return _read_answer({"status": status, "headers": headers, "body": told}, now)
    return Report("unsent" if _never_left(error) else "error")


def _never_left(error: BaseException) -> bool:
    """Whether a call failed before any of it was written, by the names of the errors that it was raised from.

    What an error was raised *during* does not count: that may be an attempt before the one that failed.
    """
    found: object = error
    for _ in range(10):
        if isinstance(found, ConnectionRefusedError) or type(found).__name__ in NEVER_LEFT:
            return True
        if not isinstance(found, BaseException):
            return False
        of_pool = found.args[0] if found.args else None  # requests: ConnectionError(MaxRetryError(…, reason))
        found = found.__cause__ or getattr(found, "reason", None) or getattr(of_pool, "reason", None)
    return False


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
    if str(error.get("code")).upper() == "INSUFFICIENT_QUOTA":  # Adobe, and OpenAI in small letters
        return True
    for detail in error.get("details") or ():
        for violation in (detail.get("violations") or ()) if isinstance(detail, dict) else ():
            if "PerDay" in str(violation.get("quotaId", "")):
                return True
    return False


def _retry_after(headers: Mapping[str, str], body: Any, now: float) -> float | None:
    given = headers.get("retry-after-ms", "").strip()  # OpenAI, beside the whole seconds
    if given and (milliseconds := _number(given)) is not None:
        return milliseconds / 1000
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

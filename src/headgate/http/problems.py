"""Every error as problem details (RFC 9457): what was wrong, where, what would be right; with `Retry-After`."""

from __future__ import annotations

from math import ceil

from ..errors import (
    AttemptOver,
    Denied,
    HeadgateError,
    IdConflict,
    InvalidInput,
    KindChanged,
    LeaseLost,
    StoreFormatError,
    StoreUnavailable,
    UnknownGate,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Every kind of problem: its status and its title. `type` in the answer is TYPE_PREFIX and the kind.
KINDS: dict[str, tuple[int, str]] = {
    "malformed-json": (400, "The body is not JSON"),
    "bad-query": (400, "The query makes no sense"),
    "bad-path": (400, "The path is not well formed"),
    "malformed-request": (400, "The request is not well formed"),
    "unauthorized": (401, "A token is needed"),
    "forbidden": (403, "Not allowed"),
    "not-found": (404, "There is no such thing"),
    "unknown-gate": (404, "There is no such gate"),
    "method-not-allowed": (405, "This cannot be done here"),
    "request-timeout": (408, "The request took too long to arrive"),
    "conflict": (409, "It contradicts what is there"),
    "id-conflict": (409, "The id stands for another ask"),
    "attempt-over": (409, "This ask is over"),
    "lease-lost": (410, "The lease has ended"),
    "body-too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "The body is not of a type that is understood"),
    "invalid-input": (422, "The input makes no sense"),
    "never-fits": (422, "The cost can never fit"),
    "denied": (429, "Not now"),
    "too-many-waiters": (429, "Too many wait"),
    "too-many-keys": (429, "Too many different keys"),
    "head-too-large": (431, "The request line and headers are too large"),
    "internal": (500, "A mistake of the guard"),
    "store-unavailable": (503, "The store cannot be reached"),
    "shutting-down": (503, "The guard is shutting down"),
    "too-many-connections": (503, "Too many are connected"),
    "too-many-watchers": (503, "Too many watch"),
}

TYPE_PREFIX = "urn:headgate:problem:"

MEDIA_TYPE = b"application/problem+json"

#: A browser takes an answer for what its content-type says, not for what it looks like.
NOSNIFF = (b"x-content-type-options", b"nosniff")


class Problem(Exception):
    """An error answer. `facts` are members beside those of RFC 9457; `retry_after` is in seconds."""

    def __init__(self, status: int, kind: str, detail: str, *, retry_after: float | None = None, **facts: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.retry_after = retry_after
        #: Seconds after which its client should come back, where that is later than `retry_after`: see `Spread`.
        self.come_back_in = retry_after
        self.facts = facts
        self.headers: list[tuple[bytes, bytes]] = []

    def value(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        members: dict[str, Any] = {
            "type": TYPE_PREFIX + self.kind,
            "title": KINDS[self.kind][1],
            "status": self.status,
            "detail": shown(self.detail),
        }
        if self.retry_after is not None:
            members["retry_after"] = round(self.retry_after, 6)
        return members | self.facts

    def all_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of the answer; 429 and 503 always have `Retry-After`."""
        headers = [(b"content-type", MEDIA_TYPE), NOSNIFF, *self.headers]
        if self.status in (429, 503):
            headers.append((b"retry-after", whole_seconds(1.0 if self.come_back_in is None else self.come_back_in)))
        return headers


def whole_seconds(seconds: float) -> bytes:
    """The value of `Retry-After`: whole seconds, at least one, rounded up so that no client retries too early."""
    return b"%d" % min(max(1, ceil(seconds)), 10**9)


#: A longer message repeats some client's input, and is cut.
LONGEST = 500


def shown(text: str) -> str:
    """A message that may repeat a client's input, cut to a bounded length and made valid UTF-8."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 100]} … {text[-100:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def problem_of(error: HeadgateError) -> Problem:
    """The problem details of an error of the library."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, Denied):
        facts: dict[str, Any] = {"gate": error.gate, "limit": error.limit}
        if error.retry_after is None:
            return Problem(422, "never-fits", error.reason, **facts)
        facts |= {"position": error.position, "timing": error.timing}
        return Problem(429, "denied", error.reason, retry_after=error.retry_after, **facts)
    if isinstance(error, UnknownGate):
        return Problem(404, "unknown-gate", f"{error.problem}; {error.remedy}")
    if isinstance(error, StoreUnavailable | StoreFormatError):
        return Problem(503, "store-unavailable", str(error), retry_after=1.0)
    if isinstance(error, IdConflict):
        return Problem(409, "id-conflict", str(error))
    if isinstance(error, AttemptOver):
        return Problem(409, "attempt-over", str(error))
    if isinstance(error, KindChanged):
        return Problem(409, "conflict", str(error))
    if isinstance(error, LeaseLost):
        return Problem(410, "lease-lost", str(error))
    if isinstance(error, InvalidInput):
        return Problem(422, "invalid-input", str(error))
    return Problem(500, "internal", str(error))

"""What a caller of this app may have to catch, and how it is told over HTTP: in the form of drf-standardized-errors."""

from __future__ import annotations

import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .tenants import Refused

#: Seconds after which to try again while the limiter itself cannot decide.
UNAVAILABLE_RETRY = 1


def standard_body(detail: str, code: str, kind: str = "client_error") -> dict[str, Any]:
    """The body of an answer, as drf-standardized-errors writes it."""
    return {"type": kind, "errors": [{"code": code, "detail": detail, "attr": None}]}


class TenantError(Exception):
    """An answer of its own: status, body and `Retry-After`. Under DRF it is an `APIException` as well."""

    status_code = 429
    kind = "client_error"

    def __init__(self, detail: str, code: str, wait: int) -> None:
        super().__init__(detail)
        self.detail: Any = detail
        self.code = code
        #: Seconds, for `Retry-After`.
        self.wait = wait

    def response(self) -> Any:
        """The answer as a Django response, to the byte what DRF would send."""
        from django.http import HttpResponse

        body = json.dumps(standard_body(str(self), self.code, self.kind), separators=(",", ":"), ensure_ascii=False)
        return HttpResponse(
            body, status=self.status_code, content_type="application/json", headers={"Retry-After": str(self.wait)}
        )


class LimitReached(TenantError):
    """A limit is reached: 429. `refused` says which and how full; nothing was taken."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.detail, refused.code, refused.retry_after)
        self.refused = refused


class LimiterUnavailable(TenantError):
    """The store cannot decide and the gate is told to stay closed then: 503. Nothing was taken."""

    status_code = 503
    kind = "server_error"

    def __init__(self, code: str) -> None:
        super().__init__(
            "Requests cannot be accepted right now. Please try again in a moment.", code, UNAVAILABLE_RETRY
        )


def raised(kind: str, *args: Any) -> TenantError:
    """An error to raise. In a project that uses DRF it is one that DRF turns into an answer too."""
    if "rest_framework" in sys.modules:
        from . import drf

        made: TenantError = getattr(drf, f"Api{kind}")(*args)
        return made
    made = globals()[kind](*args)
    return made

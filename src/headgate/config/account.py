"""Limits that are fetched: the contract of a Sentinel Hub account, and how much of it is left now.

Two endpoints tell it (`/aux/ratelimit/contract` and `/aux/ratelimit/statistics/tokenCounts/ID`), with a token that OAuth
client credentials buy. The secret goes to the token's address and nowhere else: no redirect is followed, and no message,
log or `repr` has it. Both endpoints were announced for removal: where they do not answer, configured limits hold.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import isfinite

from .. import duration
from ..errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..kernel.limits import Limit

TOKEN_PATH = "/auth/realms/main/protocol/openid-connect/token"
#: What the service calls a unit → what a gate calls it.
UNITS = {"REQUESTS": "requests", "PROCESSING_UNITS": "pu"}
#: Bytes of an answer at most.
LARGEST = 1 << 20

ACCOUNT_KEYS: dict[str, str] = {
    "url": "the service, such as https://services.sentinel-hub.com",
    "id": "the account's id, which the endpoints are asked for",
    "client_id": "the OAuth client's id: env:NAME or file:PATH",
    "client_secret": "its secret: env:NAME or file:PATH, never the secret itself",
    "token_url": "where a token is bought; by default at the service",
    "refresh": "how often it is asked again (5m)",
    "timeout": "how long an answer may take (10s)",
}


class AccountError(Exception):
    """The account could not be read. The message has no secret in it."""


@dataclass(frozen=True, slots=True)
class AccountSpec:
    """An account as a configuration describes it. Credentials are sources, read when a token is bought."""

    url: str
    id: str
    client_id: str
    client_secret: str = field(repr=False)
    token_url: str = ""
    refresh_s: float = 300.0
    timeout_s: float = 10.0
    #: What a relative path of a source starts at.
    folder: str | None = None

    def __post_init__(self) -> None:
        from .sources import open_source

        for name, value in (("url", self.url), ("token_url", self.token_url or self.url)):
            if not isinstance(value, str) or not value.startswith(("http://", "https://")):
                raise InvalidInput(f"{name} is an address such as https://services.sentinel-hub.com, not {value!r}")
        if not isinstance(self.id, str) or not self.id or not self.id.isprintable() or set(self.id) & set("/?#& "):
            raise InvalidInput(f"id is the account's id, not {self.id!r}")
        for name in ("client_id", "client_secret"):
            given = getattr(self, name)
            try:
                open_source(given, self.folder)
            except (InvalidInput, AttributeError):
                # Not repeated: it may be the secret itself.
                raise InvalidInput(f"{name} says where it stands: env:SH_{name.upper()} or file:PATH") from None


@dataclass(frozen=True, slots=True)
class FetchedPolicy:
    """One policy of an account. `per_us` is 0 for a fixed budget; `left` is None where only the contract is known."""

    unit: str
    per_us: int
    capacity: float
    left: float | None = None

    @property
    def name(self) -> str:
        return f"{self.unit}-{duration.render(self.per_us) if self.per_us else 'ever'}"

    def as_limit(self) -> Limit:
        from ..kernel.limits import Bucket, Quota

        if self.per_us:
            return Bucket(self.capacity, per=self.per_us / 1e6, name=self.name, unit=self.unit)
        return Quota(self.capacity, per="ever", name=self.name, unit=self.unit)


def read_contract(answer: Any) -> list[FetchedPolicy]:
    """The policies of a contract's JSON. Raises AccountError where it is something else."""
    found = []
    try:
        for entry in answer["data"]:
            unit = UNITS.get(entry["type"]["name"])
            for policy in entry["policies"] if unit is not None else ():
                per_us = duration.parse(policy["samplingPeriod"], what="samplingPeriod", zero=True)
                found.append(FetchedPolicy(unit or "", per_us, _amount(policy["capacity"])))
    except (KeyError, TypeError, InvalidInput) as error:
        raise AccountError(f"the contract is not one: {error!r}") from None
    if not found:
        raise AccountError("the contract has no policy of requests or processing units")
    return found


def read_token_counts(answer: Any) -> dict[tuple[str, int], float]:
    """(unit, microseconds) → what is left, from a tokenCounts' JSON. Raises AccountError."""
    try:
        return {
            (UNITS[kind], duration.parse(period, what="period", zero=True)): _amount(left, zero=True)
            for kind, periods in answer["data"].items()
            if kind in UNITS
            for period, left in periods.items()
        }
    except (KeyError, TypeError, AttributeError, InvalidInput) as error:
        raise AccountError(f"the tokenCounts are none: {error!r}") from None


def _amount(value: Any, zero: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise InvalidInput(f"{value!r} is no amount")
    if value < 0 and zero:
        return 0.0  # a bucket that is overdrawn has nothing left
    if value < 0 or (value == 0 and not zero):
        raise InvalidInput(f"{value!r} is no amount")
    return float(value)


class Account:
    """An account of Sentinel Hub: `fetch` reads its policies. Blocks; for threads. The token is kept and renewed."""

    def __init__(self, spec: AccountSpec, clock: Callable[[], float] = time.monotonic) -> None:
        self.spec = spec
        self._clock = clock
        self._token: tuple[str, float] | None = None

    def fetch(self) -> list[FetchedPolicy]:
        """The contract's policies, with what is left of each. Raises AccountError."""
        url = self.spec.url.rstrip("/")
        policies = read_contract(self._get(f"{url}/aux/ratelimit/contract?userId=eq:{self.spec.id}"))
        try:
            left = read_token_counts(self._get(f"{url}/aux/ratelimit/statistics/tokenCounts/{self.spec.id}"))
        except AccountError as error:
            _log("warning", "what is left of account %s is not known: %s", self.spec.id, error)
            left = {}
        return [FetchedPolicy(one.unit, one.per_us, one.capacity, left.get((one.unit, one.per_us))) for one in policies]

    def _get(self, url: str) -> Any:
        token = self._bearer()
        try:
            return self._call(url, None, {"Authorization": f"Bearer {token}", "Accept": "application/json"})
        except AccountError:
            self._token = None  # it may have been taken back: the next try buys another
            raise

    def _bearer(self) -> str:
        if self._token is not None and self._clock() < self._token[1]:
            return self._token[0]
        from urllib.parse import urlencode

        spec = self.spec
        form = {
            "grant_type": "client_credentials",
            "client_id": self._credential("client_id"),
            "client_secret": self._credential("client_secret"),
        }
        url = spec.token_url or spec.url.rstrip("/") + TOKEN_PATH
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = self._call(url, urlencode(form).encode(), kind)
        try:
            token, lasts = str(answer["access_token"]), _amount(answer.get("expires_in", 60), zero=True)
        except (KeyError, TypeError, AttributeError, InvalidInput):
            raise AccountError("the answer to the request for a token has none") from None
        # Renewed before it ends: a minute, or half of a short life.
        self._token = (token, self._clock() + max(lasts / 2, lasts - 60))
        return token

    def _credential(self, name: str) -> str:
        from .sources import open_source

        try:
            return str(open_source(getattr(self.spec, name), self.spec.folder).read()).strip()
        except (OSError, InvalidInput) as error:
            raise AccountError(f"{name} cannot be read: {error}") from None

    def _call(self, url: str, body: bytes | None, headers: dict[str, str]) -> Any:
        """One request; its JSON. A redirect is an error: what is sent would go where nobody said."""
        import http.client
        import json
        import urllib.error
        import urllib.request

        class NoRedirects(urllib.request.HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:
                return None

        request = urllib.request.Request(url, body, headers)
        opener = urllib.request.build_opener(NoRedirects)
        place = url.partition("?")[0]
        try:
            with opener.open(request, timeout=self.spec.timeout_s) as answer:
                raw = answer.read(LARGEST + 1)
        except urllib.error.HTTPError as error:
            with error:
                moved = error.headers.get("Location", "") if 300 <= error.code < 400 else ""
            to = f", and redirects to {moved[:200]!r}, which is not followed" if moved else ""
            raise AccountError(f"{place} answers {error.code}{to}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise AccountError(f"{place} cannot be reached: {reason}") from None
        if len(raw) > LARGEST:
            raise AccountError(f"{place} answers with more than a mebibyte")
        try:
            return json.loads(raw)
        except ValueError:
            raise AccountError(f"{place} does not answer with JSON") from None


def merged(configured: Iterable[Limit], fetched: Iterable[FetchedPolicy]) -> list[Limit]:
    """The limits of a gate: those that are configured, and those of the contract that none of them stands for."""
    limits = list(configured)
    return limits + [policy.as_limit() for policy in fetched if limit_for(limits, policy) is None]


def limit_for(limits: Iterable[Limit], policy: FetchedPolicy) -> Limit | None:
    """The limit that stands for a policy: of the same unit and the same period."""
    for limit in limits:
        per = getattr(limit, "per", None)
        if limit.unit == policy.unit and limit.by is None and per == (policy.per_us or "ever"):
            return limit
    return None


def _log(level: str, message: str, *values: object) -> None:
    import logging

    getattr(logging.getLogger("headgate.config.account"), level)(message, *values)

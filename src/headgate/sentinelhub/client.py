"""The `sentinelhub` package under a gate: a download client that asks before it sends. Imported here alone."""

from __future__ import annotations

from math import isfinite
from urllib.parse import urlsplit

from ..errors import HeadgateError, InvalidInput
from ..extras import how_to_install
from .units import processing_units_of

try:
    from sentinelhub import SentinelHubDownloadClient
    from sentinelhub.download.rate_limit import SentinelHubRateLimit
except ImportError as missing:
    raise HeadgateError(f"the sentinelhub package is missing: {how_to_install('sentinelhub')}") from missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from headgate import Gate, Permit

SPENT = "x-processingunits-spent"

#: The end of a path → the API whose body it takes.
ENDPOINTS = {"/api/v1/process": "process", "/api/v1/statistics": "statistical", "/api/v1/async/process": "async"}


class NoLimit(SentinelHubRateLimit):
    """The package's own limiter, out of the way: the gate says when a request goes, and pauses after a 429."""

    def register_next(self) -> float:
        return 0.0

    def update(self, headers: dict[str, Any], *, default: float) -> None:
        pass


def download_client(
    gate: Gate,
    *,
    priority: str | None = None,
    timeout: float | None = None,
    key: Mapping[str, str] | None = None,
    unit: str = "pu",
    units: Callable[[Any], float] | None = None,
    base: type[SentinelHubDownloadClient] = SentinelHubDownloadClient,
    **known: Any,
) -> type[SentinelHubDownloadClient]:
    """A subclass of the package's download client whose requests wait for their turn at `gate`.

    `request.download_client_class = download_client(gate)` is the one line. Each request costs 1 of `requests` and its
    processing units of `unit`, where the gate limits those: by its own payload (`processing_units_of`, which takes the
    arguments in `known`: `bands`, `samples`, `bits`, `remote`), or by `units(request)`. The answer settles the charge; a
    429 pauses the whole fleet, and the request is asked for again in turn. `timeout` is for one wait; it ends in `Denied`.
    """
    if not hasattr(gate, "acquire") or not hasattr(gate, "policy"):
        raise InvalidInput(f"download_client takes a Gate, not {gate!r}")

    class GatedDownloadClient(base):
        """Asks the gate, waits, stamps as it sends, reports and settles."""

        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.rate_limit = NoLimit()

        def _do_download(self, request: Any) -> Any:
            cost = cost_of(request, gate, unit, units, known)
            if request.use_session:
                self._prepare_headers(request)  # a token that has to be fetched is not part of the call
            with gate.acquire(cost, key=key, priority=priority, timeout=timeout, holder=short(request)) as permit:
                permit.sent()
                response = super()._do_download(request)
                permit.report(response)
                settle(permit, response, unit, cost)
            return response

    return GatedDownloadClient


def cost_of(
    request: Any, gate: Gate, unit: str, units: Callable[[Any], float] | None, known: Mapping[str, Any]
) -> dict[str, float]:
    """What a download request costs by the units that the gate limits."""
    cost: dict[str, float] = {"requests": 1}
    if unit not in gate.policy.units:
        return cost
    if units is not None:
        return {**cost, unit: units(request)}
    path = urlsplit(request.url or "").path
    api = next((name for end, name in ENDPOINTS.items() if path.endswith(end)), None)
    if api is None or not isinstance(request.post_values, dict):
        raise InvalidInput(
            f"what {path or 'a request without a URL'} costs cannot be known from its body: say it with "
            "download_client(gate, units=lambda request: …)"
        )
    return {**cost, unit: processing_units_of(request.post_values, api=api, **known)}


def settle(permit: Permit, response: Any, unit: str, cost: Mapping[str, float]) -> None:
    """Charge what the answer says it cost, where it says so and the gate counts it."""
    try:
        spent = float(response.headers.get(SPENT, ""))
    except ValueError:
        return
    if unit in cost and isfinite(spent) and spent >= 0 and spent != cost[unit]:
        permit.settle({unit: spent})


def short(request: Any) -> str:
    """What `holders` and logs call it."""
    return f"{request.request_type.value} {urlsplit(request.url or '').path}"

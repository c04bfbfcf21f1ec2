"""Every route of the guard, in one table. A new one is a handler and a line here; the reference and `/openapi.json` follow.

A handler is `async def handler(guard, request) -> Response | None`; None: it has streamed its answer.
"""

from __future__ import annotations

import re

from .. import dashboard
from ..observe import metrics, stream
from ..schema import shapes
from ..store_protocol import execute, wakes
from . import asks, batch, changes, gates, holders, own

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from ..app import Guard
    from ..web import Request, Response

    Handler = Callable[[Guard, Request], Awaitable[Response | None]]


class Route:
    """One route: its handler, the scope that a token needs (None: no token), its parameters, body and answers.

    `answers` are the statuses beside those of every route, each with the name of a schema of `schema/document.py`, a media
    type, or None for an empty body.
    """

    __slots__ = ("about", "answers", "body", "handler", "method", "names", "pattern", "query", "scope")

    def __init__(
        self,
        method: str,
        pattern: str,
        handler: Handler,
        scope: str | None,
        about: str,
        answers: dict[int, Any],
        body: shapes.Shape | None = None,
        query: dict[str, shapes.Field] | None = None,
    ) -> None:
        self.method = method
        self.pattern = pattern
        self.handler = handler
        self.scope = scope
        self.about = about
        self.answers = answers
        self.body = body
        self.query = query or {}
        self.names = tuple(re.findall(r"{(\w+)}", pattern))


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/gates/{gate}/acquire", asks.acquire, "acquire", "Ask for a permit, and wait for a turn if need be.",
          {200: "Permit", 409: "Problem", 429: "Problem"}, shapes.ACQUIRE),
    Route("POST", "/v1/gates/{gate}/reserve", asks.reserve, "acquire", "A time at once, on a promise gate.",
          {200: "Place", 409: "Problem", 429: "Problem"}, shapes.RESERVE),
    Route("POST", "/v1/permits/{id}/sent", asks.sent, "acquire", "The request is about to be written: stamp its permit.",
          {200: "Stamped", 410: "Problem"}, shapes.SENT),
    Route("POST", "/v1/permits/{id}/renew", asks.renew, "acquire", "Renew a lease, by its id alone.",
          {200: "Renewed", 410: "Problem"}, shapes.RENEW),
    Route("POST", "/v1/permits/{id}/release", asks.release, "acquire", "End a permit, by its id alone. Twice is harmless.",
          {200: "Released"}, shapes.RELEASE),
    Route("POST", "/v1/batch", batch.batch, "acquire", "Many commands, decided together in one round trip. Nobody waits.",
          {200: "Replies"}, shapes.BATCH),
    Route("GET", "/v1/gates", gates.list_gates, "observe", "Every gate: its limits, how full they are, how many wait.",
          {200: "Gates"}),
    Route("GET", "/v1/gates/{gate}", gates.show_gate, "observe", "One gate and its overrides; with a key, its limits.",
          {200: "Gate"}, query={"key": shapes.KEY_QUERY}),
    Route("GET", "/v1/gates/{gate}/holders", gates.holders, "observe", "Who holds a lease, the longest holder first.",
          {200: "Holders"}, query={"key": shapes.KEY_QUERY}),
    Route("GET", "/v1/gates/{gate}/waiters", gates.waiters, "observe", "Who waits, for what, and when each would go.",
          {200: "Waiters"}, query={"key": shapes.KEY_QUERY}),
    Route("GET", "/v1/gates/{gate}/keys", gates.keys, "observe", "Of limits by a key, the keys that use most of them.",
          {200: "Keys"},
          query={"limit": shapes.LIMIT_QUERY, "top": shapes.TOP_QUERY, "search": shapes.SEARCH_QUERY}),
    Route("GET", "/v1/gates/{gate}/explain", gates.explain, "observe", "What would become of an ask. Spends nothing.",
          {200: "Explanation"},
          query={"cost": shapes.COST_QUERY, "key": shapes.KEY_QUERY, "priority": shapes.PRIORITY}),
    Route("PUT", "/v1/gates/{gate}/limits/{limit}", changes.set_limit, "configure",
          "Override a limit from the next decision on; with a key, for that key alone.",
          {200: "Override"}, shapes.LIMIT, {"key": shapes.KEY_QUERY}),
    Route("DELETE", "/v1/gates/{gate}/limits/{limit}", changes.clear_limit, "configure",
          "End an override; with `tightened=true`, end what was tightened instead.",
          {200: "Override"}, query={"key": shapes.KEY_QUERY, "tightened": changes.TIGHTENED}),
    Route("POST", "/v1/gates/{gate}/limits/{limit}/tighten", changes.tighten, "acquire",
          "Lower a limit for a time, for every worker; what is lower stays, and nothing is raised.",
          {200: "Tightened"}, shapes.TIGHTEN, {"key": shapes.KEY_QUERY}),
    Route("POST", "/v1/gates/{gate}/pause", changes.pause, "configure", "No new grants for so long.",
          {200: "Paused"}, shapes.PAUSE),
    Route("POST", "/v1/gates/{gate}/resume", changes.resume, "configure", "End a pause.", {200: "Paused"}, shapes.NOTHING),
    Route("POST", "/v1/gates/{gate}/reset", changes.reset, "configure", "Forget all that counts, or one limit's.",
          {200: "Reset"}, shapes.RESET),
    Route("DELETE", "/v1/gates/{gate}/holders/{id}", holders.end_lease, "configure", "End a lease whose holder is stuck.",
          {200: "Released"}, query={"outcome": holders.OUTCOME}),
    Route("GET", "/v1/changes", gates.changes, "observe", "What was changed lately and by which token, the newest first.",
          {200: "Changes"}, query={"gate": shapes.GATE}),
    Route("GET", "/v1/events", stream.events, "observe", "For the dashboard: every gate, as server-sent events.",
          {200: "text/event-stream"}),
    Route("POST", "/v1/execute", execute.execute, "acquire", "The protocol of `store = \"http://…\"`, for Headgate itself.",
          {200: "Executed"}, execute.EXECUTE),
    Route("GET", "/v1/policies", execute.policies, "acquire", "For the same: the limits of every gate, for gates without.",
          {200: "Policies"}),
    Route("GET", "/v1/wakes", wakes.wakes, "acquire", "For the same: which tickets are called, as server-sent events.",
          {200: "text/event-stream"}, query={"session": wakes.SESSION}),
    Route("GET", "/", dashboard.page, None, "The dashboard.", {200: "text/html", 304: None}),
    Route("GET", "/dashboard/{file}", dashboard.asset, None, "What the dashboard is made of.",
          {200: "text/plain", 304: None, 404: "Problem"}),
    Route("GET", "/metrics", metrics.metrics, "observe", "Counts and gauges, in the text format of Prometheus.",
          {200: "text/plain"}),
    Route("GET", "/livez", own.livez, None, "Whether the process answers.", {200: "Health"}),
    Route("GET", "/readyz", own.readyz, None, "Whether to send work here: every store answers.", {200: "Health"}),
    Route("GET", "/openapi.json", own.openapi, None, "This interface as OpenAPI 3.1.", {200: "application/json"}),
    Route("GET", "/docs", own.docs, None, "This interface for people.", {200: "text/html"}),
)  # fmt: skip

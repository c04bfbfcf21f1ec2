"""The routes about the guard itself: health, and the reference of its interface."""

from __future__ import annotations

import asyncio
from time import monotonic

from ...errors import HeadgateError
from ...http.headers import JSON
from ...http.problems import NOSNIFF, Problem
from ..log import log
from ..web import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..app import Guard
    from ..web import Request, Response

#: Seconds after which a store that does not answer makes the guard not ready.
PATIENCE = 1.0

#: Seconds between two log lines about a store that does not answer.
LOG_EVERY = 60.0


async def livez(guard: Guard, request: Request) -> Response:
    """Whether the process answers. Stores are not checked: a guard must not be restarted because its store is away."""
    return 200, JSON, b'{"status":"ok"}'


async def readyz(guard: Guard, request: Request) -> Response:
    """Whether to send work here: every store answers, and the guard is not shutting down."""
    if guard.closing:
        raise Problem(503, "shutting-down", "this guard is shutting down", retry_after=1.0)
    checked: set[int] = set()
    for name in guard.gates:
        served = guard.served(name)
        if id(served.store) in checked:
            continue
        checked.add(id(served.store))
        try:
            async with asyncio.timeout(PATIENCE):
                await served.gate.usage()
        except (HeadgateError, TimeoutError) as error:
            # Everybody may ask for this: which store it is, and what is wrong with it, is in the log, once a minute.
            if (now := monotonic()) >= guard.state.get("unready_log_at", 0.0):
                guard.state["unready_log_at"] = now + LOG_EVERY
                why = str(error) or "it takes too long"
                log.warning("not ready: the store of a gate does not answer", extra={"gate": name, "error": why})
            detail = "a store of this guard does not answer; its log says which and why"
            raise Problem(503, "store-unavailable", detail, retry_after=1.0) from None
    return 200, JSON, b'{"status":"ok"}'


async def openapi(guard: Guard, request: Request) -> Response:
    from ..schema.document import document

    made = guard.state.get("openapi")
    if made is None:
        made = guard.state["openapi"] = encode(
            document(guard.settings, guard.tokens is not None, list(guard.gates))
        ).encode()
    return 200, JSON, made


async def docs(guard: Guard, request: Request) -> Response:
    from ..schema.document import page

    html, policy = page()
    headers = [(b"content-type", b"text/html; charset=utf-8"), NOSNIFF, (b"content-security-policy", policy)]
    return 200, headers, html

"""The guard about itself: health, and the reference of its own interface."""

from __future__ import annotations

import asyncio

from ...errors import HeadgateError
from ...http.headers import JSON
from ...http.problems import Problem
from ..web import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..app import Guard
    from ..web import Request, Response

#: Seconds that a store may take to answer before the guard is called not ready.
PATIENCE = 1.0


async def livez(guard: Guard, request: Request) -> Response:
    """The process answers. Nothing else is looked at: a guard whose store is away must not be restarted for it."""
    return 200, JSON, b'{"status":"ok"}'


async def readyz(guard: Guard, request: Request) -> Response:
    """Whether to send work here: every store answers, and the guard is not on its way out."""
    if guard.closing:
        raise Problem(503, "shutting-down", "this guard is shutting down", retry_after=1.0)
    looked: set[int] = set()
    for name in guard.gates:
        served = guard.served(name)
        if id(served.store) in looked:
            continue
        looked.add(id(served.store))
        try:
            async with asyncio.timeout(PATIENCE):
                await served.gate.usage()
        except (HeadgateError, TimeoutError) as error:
            detail = f"the store of gate {name!r} does not answer: {str(error) or 'it takes too long'}"
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
    return 200, [(b"content-type", b"text/html; charset=utf-8"), (b"content-security-policy", policy)], html

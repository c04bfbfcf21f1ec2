"""ASGI middleware that protects a service of your own with a gate. Pure ASGI: for any framework, and safe for streams.

    app = GateMiddleware(app, gate=AsyncGate("api", [Window(100, per="1m", by="client")]), key="x-client-id")

A request without a permit is answered with 429, problem details, `Retry-After` and `RateLimit` headers. One with a permit
holds it until the last byte of the response, or until the client disconnects. Websockets and lifespan pass untouched.
"""

from __future__ import annotations

import asyncio

from ..errors import HeadgateError, InvalidInput
from ..gate import AsyncGate
from ..http.boundary import OUTCOMES_OF_STATUS, Boundary
from ..http.keys import key_value
from .web import Disconnected, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping
    from typing import Any

    from ..gate import AsyncPermit
    from ..gate.base import Cost, Duration
    from ..http.problems import Problem
    from .web import Receive, Scope, Send

    App = Callable[[Scope, Receive, Send], Awaitable[None]]
    #: The value of a key of one request; None lets it pass without a permit.
    KeyOf = Callable[[Scope], "str | Mapping[str, str] | None"]

#: Headers that hold a secret: their values are stored and shown as hashes only.
SECRET = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token"})

#: The key of requests without the header.
ANONYMOUS = "anonymous"

#: The most bytes of a body that are read before the service asks for them; the rest stays with the server.
KEPT = 65_536


def from_header(name: str) -> KeyOf:
    """The key is the value of a header; ANONYMOUS for requests without it."""
    wanted, secret = name.lower().encode("latin-1"), name.lower() in SECRET

    def key(scope: Scope) -> str:
        for header, value in scope["headers"]:
            if header == wanted and value:
                return key_value(str(value, "latin-1"), secret)
        return ANONYMOUS

    return key


def client_address(scope: Scope) -> str:
    """The key is the client's address. Behind a proxy that is the proxy's, unless the server trusts its headers."""
    return key_value((scope.get("client") or (ANONYMOUS,))[0])


class GateMiddleware:
    """Asks a gate for a permit before every request.

    `key` is the name of a header, or a function of the ASGI scope that returns a value (or a mapping of key to value, where
    the gate's limits are by several; or None, to let the request pass without a permit). `cost` is a number, a mapping of
    unit to amount, or a function of the scope. `wait` is the seconds that a request may wait for its turn; `exempt` are
    paths that need no permit. Every answer has a `RateLimit` header, which is at most 100 ms old; `remaining=True` reads it
    anew for each, for one more round trip to the store. The slack of the gate's limits is taken as 0, because requests are
    counted here.
    """

    def __init__(
        self,
        app: App,
        gate: AsyncGate,
        *,
        key: str | KeyOf | None = None,
        cost: Cost | Callable[[Scope], Cost] = 1,
        priority: str | Callable[[Scope], str | None] | None = None,
        wait: Duration = 0,
        exempt: Collection[str] = (),
        holder: Callable[[Scope], str | None] | None = None,
        remaining: bool = False,
    ) -> None:
        if not isinstance(gate, AsyncGate):
            raise InvalidInput(f"the middleware needs an AsyncGate, since it runs on an event loop, not {gate!r}")
        self._app = app
        source = from_header(key) if isinstance(key, str) else key
        self._boundary = Boundary(gate, key=source, cost=cost, priority=priority, holder=holder, remaining=remaining)
        if isinstance(key, str):
            self._boundary.one_header()
        self._gate: AsyncGate = self._boundary.gate
        self._wait, self._exempt = wait, frozenset(exempt)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._exempt:
            await self._app(scope, receive, send)
            return
        boundary = self._boundary
        key = boundary.key_of(scope)
        if boundary.passes(key):
            await self._app(scope, receive, send)
            return
        gated = _GatedRequest(receive, send)
        try:
            permit = await self._ask(boundary.ask(scope, key), gated)
        except HeadgateError as error:
            gated.close()
            await self._refuse(send, boundary.problem(error, key))
            return
        except Disconnected:
            return
        except BaseException:
            gated.close()
            raise
        look = boundary.remaining.fetch(self._gate, boundary.mapped(key), boundary.fresh_s)
        await gated.run(self._app, scope, permit, [boundary.policy], look)

    async def _ask(self, ask: dict[str, Any], gated: _GatedRequest) -> AsyncPermit:
        # Most requests get a permit at once, and this is the fastest way to get it.
        permit = await self._gate.try_acquire(**ask)
        if permit is not None:
            return permit
        acquiring = self._gate.acquire(timeout=self._wait, **ask)
        return await (gated.unless_gone(acquiring) if self._wait else acquiring)

    async def _refuse(self, send: Send, problem: Problem) -> None:
        body = encode(problem.value()).encode()
        headers = [*problem.all_headers(), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": problem.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class _GatedRequest:
    """One request that holds a permit, between the server and the service."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._permit: AsyncPermit | None = None
        self._outcome: Any = "ok"
        self._headers: list[tuple[bytes, bytes]] = []
        #: Messages that were read before the service asked for them, and the task that reads them.
        self._early: list[dict[str, Any]] = []
        self._reader: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        #: Whether the service itself awaits the next message, so that it will learn of a disconnect.
        self._attended = False

    # --- while it waits for its permit --------------------------------------------------------------------------------

    async def unless_gone(self, acquiring: Awaitable[AsyncPermit]) -> AsyncPermit:
        """The permit. When the client disconnects, the ask is cancelled and Disconnected is raised."""
        waiting = asyncio.ensure_future(acquiring)
        reader = self._read_ahead()
        try:
            await asyncio.wait((waiting, reader), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and self._is_gone():
                raise Disconnected
            return await waiting
        finally:
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait((waiting,))
                if not waiting.cancelled() and waiting.exception() is None:
                    await waiting.result().release("unsent")  # granted just as the client disconnected

    # --- while it is served -------------------------------------------------------------------------------------------

    async def run(
        self,
        app: App,
        scope: Scope,
        permit: AsyncPermit,
        headers: list[tuple[bytes, bytes]],
        look: Awaitable[list[tuple[bytes, bytes]]],
    ) -> None:
        self._permit, self._headers = permit, headers
        try:
            headers += await look
            await app(scope, self.receive, self.send)
        except BaseException:
            self._outcome = "error"
            raise
        finally:
            self.close()
            await self._end()

    def close(self) -> None:
        """Stop reading ahead."""
        if self._reader is not None:
            self._reader.cancel()

    async def _end(self) -> None:
        permit, self._permit = self._permit, None
        if permit is not None:  # taken out first, so that it is released once
            await permit.release(self._outcome)

    async def receive(self) -> dict[str, Any]:
        while not self._early and self._reader is not None:
            await self._news.wait()
            self._news.clear()
        if self._early:
            return self._early[0] if self._is_gone() and len(self._early) == 1 else self._early.pop(0)
        self._attended = True
        try:
            message = await self._receive()
        finally:
            self._attended = False
        if message["type"] == "http.disconnect":
            await self._end()
        return message

    async def send(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            self._outcome = OUTCOMES_OF_STATUS.get(message["status"], "ok")
            message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
        await self._send(message)
        if kind == "http.response.body":
            if not message.get("more_body"):
                await self._end()
            elif self._reader is None and self._permit is not None and not self._attended and not self._early:
                # It streams. Read ahead: the permit is to be released when the client disconnects, also where the service
                # never checks.
                self._read_ahead()

    # --- reading ahead of the service -----------------------------------------------------------------------------------

    def _read_ahead(self) -> asyncio.Task[None]:
        self._reader = asyncio.get_running_loop().create_task(self._read())
        return self._reader

    async def _read(self) -> None:
        """Read until the client disconnects or KEPT bytes are there. Meanwhile the service's `receive` awaits `_news`."""
        try:
            size = 0
            while size < KEPT and not self._is_gone():
                message = await self._receive()
                self._early.append(message)
                self._news.set()
                size += len(message.get("body", b""))
            if self._is_gone():
                await self._end()
        finally:
            self._reader = None
            self._news.set()

    def _is_gone(self) -> bool:
        return bool(self._early) and self._early[-1]["type"] == "http.disconnect"

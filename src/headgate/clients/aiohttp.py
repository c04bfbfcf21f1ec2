"""`aiohttp` sessions whose requests take a permit.

session = aiohttp.ClientSession(middlewares=[AiohttpMiddleware(gate, hosts="api.example.com")])
"""

from __future__ import annotations

import asyncio
from random import random
from time import monotonic

from aiohttp import ClientRequest, ClientResponse

from ..errors import Denied
from ..http.report import REFUSALS
from .answers import REFUSAL_KEPT, REFUSAL_READ_S, Answer, KeptBody
from .asking import Asking
from .calls import Call, adrive
from .matching import Hosts
from .retry import within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from typing import Any

    from ..gate import AsyncGate
    from ..gate.base import Cost, Duration, Key
    from .asking import SettleBy
    from .discovery import Discovery
    from .retry import Retry

    Handler = Callable[[ClientRequest], Awaitable[ClientResponse]]


class AiohttpMiddleware:
    """A client middleware that takes a permit of an `AsyncGate` for every request to one of `hosts` (None: every host).

    The arguments are those of `HttpxTransport`, with functions of the `aiohttp.ClientRequest`. The permit is held until the
    body has arrived, or the response is released or closed. The total time-out of the session includes the wait for a
    permit; `ClientTimeout(total=None, sock_read=…)` does not.
    """

    def __init__(
        self,
        gate: AsyncGate,
        hosts: str | Iterable[str] | None = None,
        *,
        cost: Cost | Callable[[Any], Cost] = 1,
        key: Key | Callable[[Any], Key | None] | None = None,
        priority: str | Callable[[Any], str | None] | None = None,
        holder: str | Callable[[Any], str | None] | None = None,
        settle: SettleBy | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        discover: Discovery | None = None,
    ) -> None:
        self._hosts = Hosts(hosts)
        self._asking = Asking(
            gate,
            is_async=True,
            cost=cost,
            key=key,
            priority=priority,
            holder=holder,
            settle=settle,
            timeout=timeout,
            retry=retry,
            discover=discover,
        )

    async def __call__(self, request: ClientRequest, handler: Handler) -> ClientResponse:
        if not self._hosts.every and not self._hosts.match(request.url.host or "", request.url.port):
            return await handler(request)
        asking = self._asking
        ask = asking.of(request, lambda: f"{request.method} {request.url}")
        if asking.timeout_s is not None:
            ask = {**ask, "timeout": asking.timeout_s}
        retry = asking.retry
        if retry is None or not _can_repeat(request):
            return (await self._send(ask, request, handler))[0]
        begun, attempt, last = monotonic(), 0, None
        while True:
            attempt += 1
            try:
                response, report = await self._send(within(ask, retry.left_s(monotonic() - begun)), request, handler)
            except Denied:
                if last is None:
                    raise
                return last
            wait = retry.next_wait_s(report, attempt, monotonic() - begun, random())
            if wait is None:
                return response
            if response.content.at_eof() or getattr(response.content, "is_whole", False):
                last = response
            else:
                response.close()
            await asyncio.sleep(wait)

    async def _send(self, ask: dict[str, Any], request: ClientRequest, handler: Handler) -> tuple[ClientResponse, Any]:
        call = self._asking.call(await self._asking.gate.acquire(**ask))
        send = request.send

        async def stamped(connection: Any) -> ClientResponse:
            await adrive(call.write())
            return await send(connection)

        request.send = stamped  # type: ignore[method-assign, assignment]  # called with a connection that stands, before it is written to
        try:
            response = await handler(request)
        except BaseException:
            await adrive(call.fail())
            raise
        finally:
            del request.send
        body = _Content(response, call, self._asking.gate.store.capabilities.instant)
        try:
            if response.status in REFUSALS or response.status == 403:
                await body.read_ahead()
            report = await adrive(call.take(body.answer, comes_in_pieces=body.answer.is_event_stream))
        except BaseException:
            response.close()
            body.end()
            raise
        body.attach()
        return response, report


def _can_repeat(request: ClientRequest) -> bool:
    body = request.body
    return (
        not body or isinstance(body, bytes) or type(body).__name__ in ("BytesPayload", "StringPayload", "JsonPayload")
    )


class _Content:
    """The body of a response on its way to the caller: what was read ahead, then the stream. Keeps what is settled by."""

    def __init__(self, response: ClientResponse, call: Call, instant: bool) -> None:
        self._response = response
        self._inner: Any = response.content
        self._call = call
        #: Whether the store answers without suspending the task.
        self._instant = instant
        self._loop = asyncio.get_running_loop()
        headers = {name.lower(): value for name, value in response.headers.items()}
        self.answer = Answer(response.status, headers)
        self._kept = KeptBody(bytes) if call.settles else None
        self._ahead = b""
        self._error: Exception | None = None
        self.is_whole = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def read_ahead(self) -> None:
        begun, parts, size = monotonic(), [], 0
        try:
            while not self._inner.at_eof():
                part = await self._inner.readany()
                parts.append(part)
                size += len(part)
                if size > REFUSAL_KEPT or monotonic() - begun > REFUSAL_READ_S:
                    break
            else:
                self.is_whole = True
        except Exception as error:  # the caller meets it where the body ends
            self._error = error
        self._ahead = self.answer.body = b"".join(parts)

    def attach(self) -> None:
        """Let the caller read through this, and end the call when the body is over."""
        response = self._response
        if self._kept is not None or self._ahead or self._error is not None:
            response.content = self  # type: ignore[assignment]
        close, release = response.close, response.release

        def closed() -> None:
            close()
            self.end()

        def released() -> Any:
            done = release()
            self.end()
            return done

        response.close, response.release = closed, released  # type: ignore[method-assign]
        if self._kept is None:
            self._inner.on_eof(self.end)
        elif self._inner.at_eof():
            self.end()

    def end(self) -> None:
        """End the call: at once where the store answers at once, else in a task."""
        if self._call.is_over:
            return
        kept, answer = self._kept, None
        if kept is not None and kept.is_whole and (self._inner.at_eof() or self.answer.is_event_stream):
            answer = self.answer
            answer.body = answer.body or kept.bytes()
        ending = adrive(self._call.end(answer))
        if self._instant:
            try:
                ending.send(None)
            except StopIteration:
                return
            ending.close()  # it had to wait after all
            self._call.drop()
            return
        if self._loop.is_closed():
            ending.close()
            self._call.drop()
            return
        task = self._loop.create_task(ending)
        _ending.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: Any) -> None:
        _ending.discard(task)
        if task.cancelled():
            self._call.drop()
        else:
            task.exception()

    def __del__(self) -> None:
        self._call.drop()

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _through(self, read: Callable[[], Awaitable[bytes]]) -> bytes:
        part = await read()
        if self._kept is not None:
            self._kept.add(part)
            if self._inner.at_eof():
                self.end()
        return part

    def _take(self, count: int = -1) -> bytes:
        part = self._ahead if count < 0 else self._ahead[:count]
        self._ahead = self._ahead[len(part) :]
        return part

    def _check(self) -> None:
        if self._error is not None:
            self.end()
            raise self._error

    async def read(self, n: int = -1) -> bytes:
        part = self._take(n)
        if n >= 0 and part:
            return part
        self._check()
        return part + await self._through(lambda: self._inner.read(n))

    async def readany(self) -> bytes:
        if part := self._take():
            return part
        self._check()
        return await self._through(self._inner.readany)

    async def readchunk(self) -> tuple[bytes, bool]:
        if part := self._take():
            return part, True
        self._check()
        part, last = await self._inner.readchunk()
        await self._through(lambda: _given(part))
        return part, last

    async def readline(self, **more: Any) -> bytes:
        if self._ahead:
            end = self._ahead.find(b"\n")
            if end >= 0:
                return self._take(end + 1)
        part = self._take()
        self._check()
        return part + await self._through(lambda: self._inner.readline(**more))

    async def readuntil(self, separator: bytes = b"\n", **more: Any) -> bytes:
        if separator in self._ahead:
            return self._take(self._ahead.find(separator) + len(separator))
        part = self._take()
        self._check()
        return part + await self._through(lambda: self._inner.readuntil(separator, **more))

    async def readexactly(self, n: int) -> bytes:
        part = self._take(n)
        self._check()
        return part if len(part) == n else part + await self._through(lambda: self._inner.readexactly(n - len(part)))

    async def iter_any(self) -> AsyncIterator[bytes]:
        while part := await self.readany():
            yield part

    async def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        while part := await self.read(n):
            yield part

    async def iter_chunks(self) -> AsyncIterator[tuple[bytes, bool]]:
        while (part := await self.readchunk()) != (b"", False):
            yield part

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while line := await self.readline():
            yield line

    def at_eof(self) -> bool:
        return not self._ahead and self._error is None and bool(self._inner.at_eof())


#: Ends that are under way: the event loop itself keeps its tasks by weak references.
_ending: set[Any] = set()


async def _given(part: bytes) -> bytes:
    return part

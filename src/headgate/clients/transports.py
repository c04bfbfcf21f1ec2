"""The transport for `httpx` and for `httpx2`, which differ in their name: each module binds it to its own classes."""

from __future__ import annotations

from random import random
from time import monotonic, sleep

from ..errors import Denied, InvalidInput
from ..http.report import REFUSALS
from .answers import REFUSAL_KEPT, REFUSAL_READ_S, Answer, KeptBody
from .asking import Asking
from .calls import Call, adrive, drive
from .matching import Hosts
from .retry import within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator
    from types import TracebackType
    from typing import Any, Self

    from ..gate.base import Cost, Duration, Key
    from .asking import SettleBy
    from .discovery import Discovery
    from .retry import Retry

#: What httpcore traces just before it writes a request; of the CONNECT to a proxy as well, which is no call.
WRITES = ("http11.send_request_headers.started", "http2.send_request_headers.started")


class GatedTransport:
    """What the sync and the async transports of `httpx` and `httpx2` share; see `HttpxTransport`."""

    #: The library: `httpx` or `httpx2`.
    _driver: Any
    _is_async: bool

    def __init__(
        self,
        gate: Any,
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
        transport: Any = None,
    ) -> None:
        self._hosts = Hosts(hosts)
        self._asking = Asking(
            gate,
            is_async=self._is_async,
            cost=cost,
            key=key,
            priority=priority,
            holder=holder,
            settle=settle,
            timeout=timeout,
            retry=retry,
            discover=discover,
        )
        driver = self._driver
        base = driver.AsyncBaseTransport if self._is_async else driver.BaseTransport
        own = driver.AsyncHTTPTransport if self._is_async else driver.HTTPTransport
        if transport is None:
            transport = own(limits=driver.Limits(max_connections=1000, max_keepalive_connections=100))
        if not isinstance(transport, base):
            raise InvalidInput(f"transport is {base.__module__.split('.')[0]}.{base.__name__}, not {transport!r}")
        self._inner = transport
        #: Whether the transport below tells when it writes a request. Another one is taken to write at once.
        self._traces = isinstance(transport, own | GatedTransport)

    def _matches(self, request: Any) -> bool:
        return self._hosts.every or self._hosts.match(request.url.host, _port(request.url))

    def _ask(self, request: Any) -> dict[str, Any]:
        asking = self._asking
        ask = asking.of(request, lambda: f"{request.method} {request.url}")
        return ask if asking.timeout_s is None else {**ask, "timeout": asking.timeout_s}

    def _can_repeat(self, request: Any) -> bool:
        """Whether a request can be sent a second time: a body that is made as it is sent cannot."""
        return self._asking.retry is not None and isinstance(request.stream, self._driver.ByteStream)

    def _failed(self, call: Call, error: BaseException) -> Any:
        """The steps that end a call without an answer."""
        driver = self._driver
        if isinstance(
            error, driver.ConnectError | driver.ConnectTimeout | driver.PoolTimeout | driver.UnsupportedProtocol
        ):
            call.is_written = False
        return call.fail()

    def _decoder(self, response: Any) -> Callable[[bytes], bytes]:
        """Undoes the compression of a body, by what the library itself knows."""
        if "content-encoding" not in response.headers:
            return lambda raw: raw
        headers = {"content-encoding": response.headers["content-encoding"]}
        return lambda raw: self._driver.Response(200, headers=headers, content=raw).content


def _port(url: Any) -> int | None:
    port: int | None = url.port
    return port if port is not None else {"http": 80, "https": 443}.get(url.scheme)


def _is_refusal(response: Any) -> bool:
    # GitHub refuses with 403.
    return (response.status_code in REFUSALS or response.status_code == 403) and not response.is_closed


def _comes_in_pieces(response: Any) -> bool:
    kind: str = response.headers.get("content-type", "")
    return kind.startswith(("text/event-stream", "application/x-ndjson"))


class _Body:
    """The body of an answer on its way to the caller. It ends the call when it is closed, and when it is dropped."""

    _inner: Any
    _call: Call

    def __init__(self, response: Any, call: Call, decode: Callable[[bytes], bytes]) -> None:
        self._inner = response.stream
        self._call = call
        #: Its status and headers, and what is known of its body.
        self.answer = Answer(response.status_code, dict(response.headers.items()))
        if response.is_closed and response.status_code >= 400:
            self.answer.body = response.content
        self._decode = decode
        self._kept = KeptBody(decode) if call.settles else None
        #: What was read of a refusal before the caller asked for it; what follows, and the error it ended in.
        self._ahead: list[bytes] = []
        self._rest: Any = None
        self._error: Exception | None = None
        #: Whether all of it is here, or has been with the caller.
        self.is_read = False

    def _head(self) -> Answer:
        """The answer as far as it was read ahead."""
        if self._ahead:
            kept = KeptBody(self._decode)
            for part in self._ahead:
                kept.add(part)
            self.answer.body = kept.bytes()
        return self.answer

    def whole(self, response: Any = None) -> Answer | None:
        """The answer to settle by; of a stream of events what was read of it. `response` is one that has its body."""
        kept, answer = self._kept, self.answer
        if kept is not None and response is not None:
            answer.body = response.content
            return answer
        if kept is None or not kept.is_whole or not (self.is_read or answer.is_event_stream):
            return None
        answer.body = kept.bytes()
        return answer

    def __del__(self) -> None:
        self._call.drop()


class SyncBody(_Body):
    """The body for threads."""

    def read_ahead(self) -> Answer:
        """Read a refusal, which is small; of one that is not, the beginning."""
        begun, size = monotonic(), 0
        self._rest = iter(self._inner)
        try:
            for part in self._rest:
                self._ahead.append(part)
                size += len(part)
                if size > REFUSAL_KEPT or monotonic() - begun > REFUSAL_READ_S:
                    break
            else:
                self.is_read = True
        except Exception as error:  # the caller meets it where the body ends
            self._error = error
        return self._head()

    def __iter__(self) -> Iterator[bytes]:
        kept = self._kept
        yield from self._ahead
        if self._error is not None:
            raise self._error
        if not self.is_read:
            for part in self._inner if self._rest is None else self._rest:
                if kept is not None:
                    kept.add(part)
                yield part
            self.is_read = True

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            drive(self._call.end(self.whole()))


class AsyncBody(_Body):
    """The body for an event loop."""

    async def read_ahead(self) -> Answer:
        """Read a refusal, which is small; of one that is not, the beginning."""
        begun, size = monotonic(), 0
        self._rest = aiter(self._inner)
        try:
            async for part in self._rest:
                self._ahead.append(part)
                size += len(part)
                if size > REFUSAL_KEPT or monotonic() - begun > REFUSAL_READ_S:
                    break
            else:
                self.is_read = True
        except Exception as error:
            self._error = error
        return self._head()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        kept = self._kept
        for part in self._ahead:
            yield part
        if self._error is not None:
            raise self._error
        if not self.is_read:
            async for part in self._inner if self._rest is None else self._rest:
                if kept is not None:
                    kept.add(part)
                yield part
            self.is_read = True

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            await adrive(self._call.end(self.whole()))


class SyncGatedTransport(GatedTransport):
    """The transport for threads."""

    _is_async = False
    #: A `SyncBody` that is a stream of the library too.
    _body: Callable[..., Any]

    def handle_request(self, request: Any) -> Any:
        if not self._matches(request):
            return self._inner.handle_request(request)
        ask, retry = self._ask(request), self._asking.retry
        if retry is None or not self._can_repeat(request):
            return self._send(request, ask)[0]
        begun, attempt, last = monotonic(), 0, None
        while True:
            attempt += 1
            try:
                response, report = self._send(request, within(ask, retry.left_s(monotonic() - begun)))
            except Denied:
                if last is None:
                    raise
                return last
            wait = retry.next_wait_s(report, attempt, monotonic() - begun, random())
            if wait is None:
                return response
            # Either ends its permit, so that the next attempt does not wait for it.
            if response.is_closed or response.stream.is_read:
                response.read()
                last = response
            else:
                response.close()
            sleep(wait)

    def _send(self, request: Any, ask: dict[str, Any]) -> tuple[Any, Any]:
        call = self._asking.call(self._asking.gate.acquire(**ask))
        extensions = request.extensions
        try:
            if self._traces:
                request.extensions = {**extensions, "trace": _tracer(call, extensions.get("trace"))}
            else:
                drive(call.write())
            response = self._inner.handle_request(request)
        except BaseException as error:
            drive(self._failed(call, error))
            raise
        finally:
            request.extensions = extensions  # a redirect takes them over
        body = self._body(response, call, self._decoder(response))
        try:
            answer = body.read_ahead() if _is_refusal(response) else body.answer
            report = drive(call.take(answer, comes_in_pieces=_comes_in_pieces(response)))
        except BaseException:
            body.close()
            raise
        if response.is_closed:  # made with its body, as mocks and caches do: nobody will close it
            drive(call.end(body.whole(response)))
        else:
            response.stream = body
        return response, report

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._inner.__exit__(exc_type, exc_value, traceback)


class AsyncGatedTransport(GatedTransport):
    """The transport for an event loop."""

    _is_async = True
    #: An `AsyncBody` that is a stream of the library too.
    _body: Callable[..., Any]

    async def handle_async_request(self, request: Any) -> Any:
        if not self._matches(request):
            return await self._inner.handle_async_request(request)
        ask, retry = self._ask(request), self._asking.retry
        if retry is None or not self._can_repeat(request):
            return (await self._send(request, ask))[0]
        from asyncio import sleep as pause

        begun, attempt, last = monotonic(), 0, None
        while True:
            attempt += 1
            try:
                response, report = await self._send(request, within(ask, retry.left_s(monotonic() - begun)))
            except Denied:
                if last is None:
                    raise
                return last
            wait = retry.next_wait_s(report, attempt, monotonic() - begun, random())
            if wait is None:
                return response
            if response.is_closed or response.stream.is_read:
                await response.aread()
                last = response
            else:
                await response.aclose()
            await pause(wait)

    async def _send(self, request: Any, ask: dict[str, Any]) -> tuple[Any, Any]:
        call = self._asking.call(await self._asking.gate.acquire(**ask))
        extensions = request.extensions
        try:
            if self._traces:
                request.extensions = {**extensions, "trace": _async_tracer(call, extensions.get("trace"))}
            else:
                await adrive(call.write())
            response = await self._inner.handle_async_request(request)
        except BaseException as error:
            await adrive(self._failed(call, error))
            raise
        finally:
            request.extensions = extensions
        body = self._body(response, call, self._decoder(response))
        try:
            answer = await body.read_ahead() if _is_refusal(response) else body.answer
            report = await adrive(call.take(answer, comes_in_pieces=_comes_in_pieces(response)))
        except BaseException:
            await body.aclose()
            raise
        if response.is_closed:
            await adrive(call.end(body.whole(response)))
        else:
            response.stream = body
        return response, report

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(exc_type, exc_value, traceback)


def _is_writing(name: str, info: dict[str, Any]) -> bool:
    return name in WRITES and getattr(info.get("request"), "method", b"") != b"CONNECT"


def _tracer(call: Call, other: Callable[[str, Any], None] | None) -> Callable[[str, Any], None]:
    """Stamps the permit as httpcore writes the request; `other` is the caller's own trace."""

    def trace(name: str, info: Any) -> None:
        if _is_writing(name, info) and not call.is_over:
            drive(call.write())
        if other is not None:
            other(name, info)

    return trace


def _async_tracer(call: Call, other: Callable[[str, Any], Any] | None) -> Callable[[str, Any], Any]:
    async def trace(name: str, info: Any) -> None:
        if _is_writing(name, info) and not call.is_over:
            await adrive(call.write())
        if other is not None:
            await other(name, info)

    return trace

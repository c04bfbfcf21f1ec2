"""`requests` sessions whose requests take a permit.

    session.mount("https://", RequestsAdapter(gate, hosts="api.example.com"))

`on_every_session` is for programs and SDKs that call `requests.get` themselves and offer no session to mount it on.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from random import random
from time import monotonic, sleep

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from ..errors import Denied, InvalidInput
from ..http.report import REFUSALS
from .answers import REFUSAL_KEPT, REFUSAL_READ_S, Answer, KeptBody
from .asking import Asking
from .calls import Call, drive
from .matching import Hosts, host_and_port
from .retry import within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from ..gate import Gate
    from ..gate.base import Cost, Duration, Key
    from .asking import SettleBy
    from .discovery import Discovery
    from .retry import Retry

#: The call that this thread is about to write.
_writing: ContextVar[Call | None] = ContextVar("headgate_call", default=None)


def _stamp(connection: HTTPConnection) -> None:
    if (call := _writing.get()) is not None and not call.is_over:
        if connection.sock is None:
            connection.connect()  # which is what takes long
        drive(call.write())


class _StampedConnection(HTTPConnection):
    def send(self, data: Any) -> None:
        _stamp(self)
        super().send(data)


class _StampedTlsConnection(HTTPSConnection):
    def send(self, data: Any) -> None:
        _stamp(self)
        super().send(data)


class _StampedPool(HTTPConnectionPool):
    ConnectionCls = _StampedConnection


class _StampedTlsPool(HTTPSConnectionPool):
    ConnectionCls = _StampedTlsConnection


_POOLS = {"http": _StampedPool, "https": _StampedTlsPool}


class RequestsAdapter(HTTPAdapter):
    """An adapter that takes a permit of a `Gate` for every request to one of `hosts` (None: every host).

    The arguments are those of `HttpxTransport`, with functions of the `requests.PreparedRequest`; `pool_connections`,
    `pool_maxsize` and `pool_block` are those of `requests.adapters.HTTPAdapter`. There is no `max_retries`: urllib3 would
    repeat requests without a permit. Use `retry`.
    """

    def __init__(
        self,
        gate: Gate,
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
        pool_connections: int = 10,
        pool_maxsize: int = 100,
        pool_block: bool = False,
    ) -> None:
        self.hosts = Hosts(hosts)
        self._asking = Asking(
            gate,
            is_async=False,
            cost=cost,
            key=key,
            priority=priority,
            holder=holder,
            settle=settle,
            timeout=timeout,
            retry=retry,
            discover=discover,
        )
        super().__init__(pool_connections, pool_maxsize, 0, pool_block)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, proxy: Any, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        manager.pool_classes_by_scheme = _POOLS
        return manager

    def send(self, request: Any, stream: bool = False, *args: Any, **kwargs: Any) -> requests.Response:
        asking = self._asking
        if not self.hosts.every and not self.hosts.match(*host_and_port(request.url)):
            return super().send(request, stream, *args, **kwargs)
        ask = asking.of(request, lambda: f"{request.method} {request.url}")
        if asking.timeout_s is not None:
            ask = {**ask, "timeout": asking.timeout_s}
        retry = asking.retry
        if retry is None or not isinstance(request.body, bytes | str | None):
            return self._send(ask, request, stream, args, kwargs)[0]
        begun, attempt, last = monotonic(), 0, None
        while True:
            attempt += 1
            try:
                left = retry.left_s(monotonic() - begun)
                response, report = self._send(within(ask, left), request, stream, args, kwargs)
            except Denied:
                if last is None:
                    raise
                return last
            wait = retry.next_wait_s(report, attempt, monotonic() - begun, random())
            if wait is None:
                return response
            # Either ends its permit, so that the next attempt does not wait for it.
            if response.raw.is_read:
                last = response
                response.content  # noqa: B018  reads it
            else:
                response.close()
            sleep(wait)

    def _send(self, ask: dict[str, Any], request: Any, stream: bool, args: Any, kwargs: Any) -> tuple[Any, Any]:
        call = self._asking.call(self._asking.gate.acquire(**ask))
        token = _writing.set(call)
        try:
            response = super().send(request, stream, *args, **kwargs)
        except BaseException:
            drive(call.fail())
            raise
        finally:
            _writing.reset(token)
        raw = response.raw = _Raw(response, call)
        try:
            if response.status_code in REFUSALS or response.status_code == 403:
                raw.read_ahead()
            report = drive(call.take(raw.answer, comes_in_pieces=raw.answer.is_event_stream))
        except BaseException:
            raw.close()
            raise
        return response, report


class _Raw:
    """The raw response of urllib3 on its way to the caller. It ends the call when it is read, closed or dropped."""

    def __init__(self, response: Any, call: Call) -> None:
        self._raw = response.raw
        self._call = call
        self.answer = Answer(response.status_code, {name.lower(): value for name, value in response.headers.items()})
        self._kept = KeptBody(bytes) if call.settles else None
        self._ahead: list[bytes] = []
        self._rest: Any = None
        self._error: Exception | None = None
        #: Whether all of it is here, or has been with the caller.
        self.is_read = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def read_ahead(self) -> None:
        begun, size = monotonic(), 0
        self._rest = self._raw.stream(8192, decode_content=True)
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
        self.answer.body = b"".join(self._ahead)

    def stream(self, amt: int | None = 65536, decode_content: bool | None = None) -> Iterator[bytes]:
        ahead, self._ahead = self._ahead, []
        yield from ahead
        if self._error is not None:
            self._end()
            raise self._error
        if not self.is_read:
            try:
                for part in self._raw.stream(amt, decode_content=decode_content) if self._rest is None else self._rest:
                    self._keep(part, decode_content)
                    yield part
            except Exception:
                self._end()
                raise
            self.is_read = True
        self._end()

    def read(self, amt: int | None = None, decode_content: bool | None = None, **more: Any) -> bytes:
        if self._ahead or self._error is not None or self._rest is not None:
            return b"".join(self.stream(amt, decode_content))
        part: bytes = self._raw.read(amt, decode_content=decode_content, **more)
        self._keep(part, decode_content)
        if amt is None or not part:
            self.is_read = True
            self._end()
        return part

    def _keep(self, part: bytes, decode_content: bool | None) -> None:
        if self._kept is not None:
            if not decode_content and "content-encoding" in self.answer.headers:
                self._kept.is_whole = False  # nobody here knows what it says
            self._kept.add(part)

    def __iter__(self) -> Iterator[bytes]:
        return self.stream()

    def close(self) -> None:
        try:
            self._raw.close()
        finally:
            self._end()

    def release_conn(self) -> None:
        try:
            self._raw.release_conn()
        finally:
            self._end()

    def _end(self) -> None:
        answer, kept = self.answer, self._kept
        if kept is None or not kept.is_whole or not (self.is_read or answer.is_event_stream):
            drive(self._call.end())
        else:
            answer.body = answer.body or kept.bytes()
            drive(self._call.end(answer))

    def __del__(self) -> None:
        self._call.drop()


@contextmanager
def on_every_session(adapter: RequestsAdapter) -> Iterator[None]:
    """Have every `requests` session of this process send what goes to the adapter's hosts through it, inside the block.

    For SDKs that call `requests.get` and `requests.post` themselves. The adapter must name its hosts.
    """
    if adapter.hosts.every:
        raise InvalidInput("an adapter for every session must name its hosts: RequestsAdapter(gate, hosts=…)")
    before = requests.Session.get_adapter

    def get_adapter(session: requests.Session, url: Any) -> Any:
        return adapter if adapter.hosts.match(*host_and_port(url)) else before(session, url)

    requests.Session.get_adapter = get_adapter
    try:
        yield
    finally:
        requests.Session.get_adapter = before

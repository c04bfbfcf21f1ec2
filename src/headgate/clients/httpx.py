"""`httpx` clients whose requests take a permit.

client = httpx.Client(transport=HttpxTransport(gate, hosts="api.example.com"))
client = httpx.AsyncClient(transport=AsyncHttpxTransport(async_gate, hosts="api.example.com"))
"""

from __future__ import annotations

import httpx

from .transports import AsyncBody, AsyncGatedTransport, SyncBody, SyncGatedTransport


class _HttpxBody(SyncBody, httpx.SyncByteStream):
    pass


class _AsyncHttpxBody(AsyncBody, httpx.AsyncByteStream):
    pass


class HttpxTransport(SyncGatedTransport, httpx.BaseTransport):
    """A transport that takes a permit of a `Gate` for every request to one of `hosts` (None: every host).

    `cost`, `key`, `priority` and `holder` are values or functions of the `httpx.Request`; `settle` is a function of the
    `Answer` that returns what it really cost by unit, or None. `timeout` is how long a request may wait for its permit
    before it raises `Denied`. `retry` makes refused requests again, each under a permit of its own; a body that is made
    while it is sent is not sent twice. `discover` is a `Discovery`: it lowers the gate's limits by what answers say.
    `transport` is what sends: give one of your own for proxies, certificates or HTTP/2, and another `HttpxTransport` for
    other hosts with another gate.
    """

    _driver = httpx
    _body = _HttpxBody


class AsyncHttpxTransport(AsyncGatedTransport, httpx.AsyncBaseTransport):
    """The same as `HttpxTransport` for `httpx.AsyncClient`, with an `AsyncGate`."""

    _driver = httpx
    _body = _AsyncHttpxBody

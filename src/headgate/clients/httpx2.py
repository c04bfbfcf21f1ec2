"""`httpx2` clients whose requests take a permit.

client = httpx2.Client(transport=Httpx2Transport(gate, hosts="api.example.com"))
client = httpx2.AsyncClient(transport=AsyncHttpx2Transport(async_gate, hosts="api.example.com"))
"""

from __future__ import annotations

import httpx2

from .transports import AsyncBody, AsyncGatedTransport, SyncBody, SyncGatedTransport


class _Httpx2Body(SyncBody, httpx2.SyncByteStream):
    pass


class _AsyncHttpx2Body(AsyncBody, httpx2.AsyncByteStream):
    pass


class Httpx2Transport(SyncGatedTransport, httpx2.BaseTransport):
    """A transport that takes a permit of a `Gate` for every request to one of `hosts` (None: every host).

    `cost`, `key`, `priority` and `holder` are values or functions of the `httpx2.Request`; `settle` is a function of the
    `Answer` that returns what it really cost by unit, or None. `timeout` is how long a request may wait for its permit
    before it raises `Denied`. `retry` makes refused requests again, each under a permit of its own; a body that is made
    while it is sent is not sent twice. `discover` is a `Discovery`: it lowers the gate's limits by what answers say.
    `transport` is what sends: give one of your own for proxies, certificates or HTTP/2, and another `Httpx2Transport` for
    other hosts with another gate.
    """

    _driver = httpx2
    _body = _Httpx2Body


class AsyncHttpx2Transport(AsyncGatedTransport, httpx2.AsyncBaseTransport):
    """The same as `Httpx2Transport` for `httpx2.AsyncClient`, with an `AsyncGate`."""

    _driver = httpx2
    _body = _AsyncHttpx2Body

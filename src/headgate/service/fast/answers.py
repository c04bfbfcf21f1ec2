"""Asks and releases that are answered as soon as they are read: no task for each, and one write.

A worker sends the same headers with every request. Once a request has gone the long way (the server's parser, `Guard`), its
headers are known here by their bytes: whoever sends the same again, over any connection, says the same. What is left to
be read then is the line with the path, and the body. Whatever is unusual, or has to wait, goes the long way.

Who is alone is decided about at once. Those that come together are decided about together, in the next turn of the event
loop: see `Crowd`.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus

from ...errors import StoreUnavailable
from ...http.problems import Problem
from ...kernel.commands import Release
from ..routes import asks as routes_asks
from ..schema import shapes
from ..web import is_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from ...gate.served import Desk
    from ...http.headers import Header
    from ...stores.base import Store
    from ..app import Guard
    from ..web import Response, Scope

    #: The two halves of a route: what goes to the store, or None, and what its reply comes to.
    Halves = tuple[
        Callable[[Guard, str, bytes], tuple[Desk, Any] | None], Callable[[Guard, Desk, Any, str, Any], Response]
    ]
    #: How long the body is, and the headers as an application sees them.
    Fields = tuple[int, Scope]

    class Asker(Protocol):
        """Who is to be told an answer later."""

        @property
        def gone(self) -> bool: ...
        def told(self, answer: bytes) -> None: ...


#: How many headers and paths are known at most, and bytes of the longest headers that are.
KNOWN, LONGEST = 512, 2048

_ASK = re.compile(rb"POST /v1/gates/([A-Za-z0-9._-]+)/acquire HTTP/1\.1").fullmatch
_END = re.compile(rb"POST /v1/permits/([A-Za-z0-9._:@+~=,!-]+)/release HTTP/1\.1").fullmatch
_ASKS: Halves = (routes_asks.asking, routes_asks.told)
_ENDS: Halves = (routes_asks.ending, routes_asks.ended)
#: Of a token, by both.
_NEEDED = "acquire"

#: Who sends one of these goes the long way.
_UNUSUAL = frozenset((b"expect", b"transfer-encoding", b"upgrade"))

#: In the place of an answer: it will be told to the asker.
LATER = b""


class Quick:
    """What a guard knows of the requests that come to it."""

    __slots__ = ("_begun", "_crowds", "_fields", "_guard", "_paths")

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._fields: dict[bytes, Fields] = {}
        self._paths: dict[bytes, tuple[Halves, str]] = {}
        self._crowds: dict[int, Crowd] = {}
        #: The headers of the last answer that was no error, and the bytes that they are.
        self._begun: tuple[list[Header], bytes] = ([], b"")

    def known(self, fields: bytes) -> Fields | None:
        """What these headers say, as bytes with the empty line at their end; None where that is not known."""
        return self._fields.get(fields)

    def learn(self, fields: bytes, headers: list[Header]) -> None:
        """A POST that was read as HTTP/1.1, and that keeps its connection, had these headers."""
        lines = len(headers) + 2
        # Each line ends as it should, and is a header: or some of it may have been the body.
        if len(fields) > LONGEST or fields.count(b"\r\n") != lines or fields.count(b"\n") != lines:
            return
        lengths = [value for name, value in headers if name == b"content-length"]
        kinds = [value for name, value in headers if name == b"content-type"]
        if len(lengths) > 1 or any(name in _UNUSUAL for name, _ in headers):
            return
        length, scope = int(lengths[0]) if lengths else 0, {"headers": headers}
        if length > self._guard.settings.max_body or (length and not (kinds and is_json(str(kinds[0], "latin-1")))):
            return
        try:
            self._guard.bearer(scope, _NEEDED)
        except Problem:
            return
        if len(self._fields) >= KNOWN:
            self._fields.clear()
        self._fields[fields] = (length, scope)

    def answer(self, asker: Asker, line: bytes, scope: Scope, body: bytes) -> bytes | None:
        """The whole answer to a request whose headers are known, or LATER. None, and nothing was decided: the long way."""
        halves, name = self._paths.get(line) or self._found(line)
        if halves is None:
            return None
        guard = self._guard
        try:
            if guard.tokens is not None:  # it may have been revoked since
                guard.bearer(scope, _NEEDED)
            sent = halves[0](guard, name, body)
            if sent is None:
                return None
            desk, command = sent
            reply = desk.now(command)
            if reply is None:
                return self._later(asker, halves, desk, command, name)
            return self._written(halves[1](guard, desk, command, name, reply))
        except Exception as error:
            return self._written(guard.failure(error, str(line, "latin-1")))

    def _found(self, line: bytes) -> tuple[Halves | None, str]:
        if (ask := _ASK(line)) is not None:
            if len(self._paths) >= KNOWN:
                self._paths.clear()
            found = self._paths[line] = (_ASKS, str(ask[1], "ascii"))
            return found
        if (end := _END(line)) is not None and shapes.is_permit(id := str(end[1], "ascii")):
            return _ENDS, id
        return None, ""

    def _written(self, response: Response) -> bytes:
        status, headers, text = response
        known, begun = self._begun
        if headers is not known or status != 200:
            begun = b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
            begun += b"".join([b"%b: %b\r\n" % header for header in headers])
            if status == 200:
                self._begun = (headers, begun)
        return b"%bcontent-length: %d\r\n\r\n%b" % (begun, len(text), text)

    def _later(self, asker: Asker, halves: Halves, desk: Desk, command: Any, name: str) -> bytes | None:
        store = desk.store
        if desk.away or not store.capabilities.decides_at_once:
            return None
        crowd = self._crowds.get(id(store))
        if crowd is None:
            crowd = self._crowds[id(store)] = Crowd(store)

        def tell(reply: Any) -> None:
            if asker.gone and reply.__class__ is tuple and command.fresh:  # nobody can come again for it
                desk.gate._keeper.later(Release(desk.policy, command.id, "unsent"))
                return
            if isinstance(reply, StoreUnavailable):
                desk.gate._outage.began(reply)
            try:
                response = halves[1](self._guard, desk, command, name, reply)
            except Exception as error:
                response = self._guard.failure(error, name)
            asker.told(self._written(response))

        crowd.join(command, tell)
        return LATER


class Crowd:
    """Those who come to a store in one turn of the event loop: one transaction decides about all of them."""

    __slots__ = ("_deciding", "_store", "_waiting")

    def __init__(self, store: Store) -> None:
        self._store: Any = store
        self._waiting: list[tuple[Any, Callable[[Any], None]]] = []
        self._deciding: set[asyncio.Task[None]] = set()

    def join(self, command: Any, tell: Callable[[Any], None]) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._decide)
        self._waiting.append((command, tell))

    def _decide(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            replies = self._store.all_at_once([command for command, _ in waiting])
        except Exception as error:
            replies = [error] * len(waiting)
        if replies is None:
            task = asyncio.ensure_future(self._decide_later(waiting))
            self._deciding.add(task)
            task.add_done_callback(self._deciding.discard)
        else:
            for (_, tell), reply in zip(waiting, replies, strict=True):
                tell(reply)

    async def _decide_later(self, waiting: list[tuple[Any, Callable[[Any], None]]]) -> None:
        """Where others are writing."""
        try:
            replies = await self._store.aexecute([command for command, _ in waiting])
        except Exception as error:
            replies = [error] * len(waiting)
        for (_, tell), reply in zip(waiting, replies, strict=True):
            tell(reply)

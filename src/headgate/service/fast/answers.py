"""The fast path: asks and releases that are answered as they are read, without a task for each and in one write.

A worker sends the same headers with every request. Once a request has taken the usual way (uvicorn's parser, `Guard`), its
headers are cached here by their bytes: a request with the same bytes, on any connection, has the same headers. What is
left to parse then is the request line and the body. A request that is unusual in any way, or that waits, takes the usual
way.

A command whose store is uncontended is decided immediately. Commands that meet a busy store in one turn of the event loop
are decided together in the next turn: see `TurnBatch`.
"""

from __future__ import annotations

import asyncio
import re
from http import HTTPStatus

from ...errors import StoreUnavailable
from ...http.problems import Problem
from ...kernel.model import Grant
from ..log import log
from ..schema import shapes
from ..web import is_json
from . import routes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from ...gate.served import ServedGate
    from ...http.headers import Header
    from ...stores.base import Store
    from ..app import Guard
    from ..web import Response, Scope

    #: How long the body is, and the headers as an application sees them.
    Fields = tuple[int, Scope]

    class Connection(Protocol):
        """The connection of a request whose answer is not there yet."""

        @property
        def gone(self) -> bool: ...
        def deliver(self, answer: bytes) -> None: ...


#: The most header blocks and paths that are cached, and the longest block and request line in bytes.
CACHED, LONGEST, LONGEST_LINE = 512, 2048, 256

_ACQUIRE = re.compile(rb"POST /v1/gates/([A-Za-z0-9._-]+)/acquire HTTP/1\.1").fullmatch
_RELEASE = re.compile(rb"POST /v1/permits/([A-Za-z0-9._:@+~=,!-]+)/release HTTP/1\.1").fullmatch
#: The scope that both routes need of a token.
_SCOPE = "acquire"

#: A request with one of these headers takes the usual way.
_UNUSUAL = frozenset((b"expect", b"transfer-encoding", b"upgrade"))

#: In the place of an answer: it will be delivered to the connection later.
LATER = b""


class FastAnswers:
    """Answers the requests of one guard whose headers are cached."""

    __slots__ = ("_batches", "_fields", "_guard", "_head", "_paths")

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._fields: dict[bytes, Fields] = {}
        self._paths: dict[bytes, tuple[routes.FastRoute, str]] = {}
        self._batches: dict[int, TurnBatch] = {}
        #: The headers of the last answer with status 200, and the bytes that its answer begins with.
        self._head: tuple[list[Header], bytes] = ([], b"")

    def known(self, fields: bytes) -> Fields | None:
        """What a block of headers says, given as bytes with the empty line at its end; None where it is not cached."""
        return self._fields.get(fields)

    def learn(self, fields: bytes, headers: list[Header]) -> None:
        """Cache the headers of a POST that was parsed as HTTP/1.1 and keeps its connection open."""
        lines = len(headers) + 2
        # Where a line does not end as it should, or is no header, part of the bytes may have been the body.
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
            self._guard.bearer(scope, _SCOPE)
        except Problem:
            return
        if len(self._fields) >= CACHED:
            self._fields.clear()
        self._fields[fields] = (length, scope)

    def answer(self, connection: Connection, line: bytes, scope: Scope, body: bytes) -> bytes | None:
        """The whole answer to a request whose headers are cached, or LATER.

        None: nothing was decided, and the request takes the usual way.
        """
        route, name = self._paths.get(line) or self._route_of(line)
        if route is None:
            return None
        guard = self._guard
        try:
            if guard.tokens is not None:  # the token may have been revoked since
                guard.bearer(scope, _SCOPE)
            found = route.command(guard, name, body)
            if found is None:
                return None
            served, command = found
            reply = served.decide_now(command)
            if reply is None:
                return self._answer_later(connection, route, served, command, name)
            return self._bytes_of(route.respond(guard, served, command, name, reply))
        except Exception as error:
            return self._bytes_of(guard.failure(error, str(line, "latin-1")))

    def _route_of(self, line: bytes) -> tuple[routes.FastRoute | None, str]:
        if len(line) > LONGEST_LINE:
            return None, ""
        if (acquire := _ACQUIRE(line)) is not None:
            if len(self._paths) >= CACHED:
                self._paths.clear()
            found = self._paths[line] = (routes.ACQUIRE, str(acquire[1], "ascii"))
            return found
        if (release := _RELEASE(line)) is not None and shapes.is_permit(id := str(release[1], "ascii")):
            return routes.RELEASE, id
        return None, ""

    def _bytes_of(self, response: Response) -> bytes:
        status, headers, text = response
        known, head = self._head
        if headers is not known or status != 200:
            head = _head_of(status, headers)
            if status == 200:
                self._head = (headers, head)
        return b"%bcontent-length: %d\r\n\r\n%b" % (head, len(text), text)

    def _answer_later(
        self, connection: Connection, route: routes.FastRoute, served: ServedGate, command: Any, name: str
    ) -> bytes | None:
        store = served.store
        if served.away or not store.capabilities.decides_at_once:
            return None
        batch = self._batches.get(id(store))
        if batch is None:
            batch = self._batches[id(store)] = TurnBatch(store)

        def respond(reply: Any) -> None:
            if connection.gone and reply.__class__ is Grant and command.fresh:
                # The client does not know the id that was made for it, so it cannot ask for this grant again.
                served.give_back_later(command)
                return
            if isinstance(reply, StoreUnavailable):
                served.store_failed(reply)
            try:
                answer = self._bytes_of(route.respond(self._guard, served, command, name, reply))
            except Exception as error:
                answer = self._bytes_of(self._guard.failure(error, name))
            connection.deliver(answer)

        batch.add(command, respond)
        return LATER


def _head_of(status: int, headers: list[Header]) -> bytes:
    head = b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
    return head + b"".join([b"%b: %b\r\n" % header for header in headers])


def bytes_of(response: Response) -> bytes:
    """A whole answer as it is written."""
    status, headers, text = response
    return b"%bcontent-length: %d\r\n\r\n%b" % (_head_of(status, headers), len(text), text)


class TurnBatch:
    """The commands that come to one store in one turn of the event loop: one transaction decides all of them."""

    __slots__ = ("_store", "_tasks", "_waiting")

    def __init__(self, store: Store) -> None:
        self._store: Any = store
        self._waiting: list[tuple[Any, Callable[[Any], None]]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, command: Any, respond: Callable[[Any], None]) -> None:
        """Have a command decided in the next turn; `respond` is called with its reply or error."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._decide)
        self._waiting.append((command, respond))

    def _decide(self) -> None:
        waiting, self._waiting = self._waiting, []
        try:
            replies = self._store.all_at_once([command for command, _ in waiting])
        except Exception as error:
            replies = [error] * len(waiting)
        if replies is None:
            task = asyncio.ensure_future(self._decide_in_task(waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            _tell(waiting, replies)

    async def _decide_in_task(self, waiting: list[tuple[Any, Callable[[Any], None]]]) -> None:
        """Decide where another process is writing to the store, so that deciding would block the event loop."""
        try:
            replies = await self._store.aexecute([command for command, _ in waiting])
        except Exception as error:
            replies = [error] * len(waiting)
        _tell(waiting, replies)


def _tell(waiting: list[tuple[Any, Callable[[Any], None]]], replies: list[Any]) -> None:
    """Respond to every client of a batch. What goes wrong with one of them keeps no other from its answer."""
    for (_, respond), reply in zip(waiting, replies, strict=True):
        try:
            respond(reply)
        except Exception as error:
            log.error("a client could not be told its answer", exc_info=error)

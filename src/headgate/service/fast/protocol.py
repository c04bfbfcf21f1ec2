"""uvicorn's server, and the protocol of one connection: what `FastAnswers` cannot answer goes on to uvicorn's own.

A connection is bounded before a token is looked at: the bytes of a head, the time until a request is whole, the time for
which a client may leave its answers unread.
"""

from __future__ import annotations

from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...http.problems import Problem
from ..app import response_of
from .answers import LATER, FastAnswers, bytes_of
from .connections import LINGERING, ConnectionBounds

__all__ = ["Config", "GuardProtocol", "Server", "protocol_of"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..app import Guard
    from .answers import Fields

#: After so many requests in a row with headers that were not cached, a connection no longer tries the fast path.
MISSES = 16

#: The most bytes of a request line and headers, or of the trailers of a body.
LONGEST_HEAD = 65_536
#: Seconds for which a client may leave its answers unread.
UNREAD_FOR = 60.0
#: Seconds for which a refused connection stays open: closed at once, its client might never read why.
LINGER = 1.0


class GuardProtocol(HttpToolsProtocol):
    """One connection, for the settings of `server.py`: no headers of the server's own, no access log, no websockets."""

    fast: FastAnswers
    bounds: ConnectionBounds

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        #: Whether the parser is between two requests, and whether the last one was HTTP/1.1 and keeps the connection open.
        self._between = self._reusable = True
        #: How many requests the parser has begun, and of how many it has read the headers.
        self._begun = self._read = 0
        self._misses = 0
        #: A request line and cached headers whose body has yet to come.
        self._head: tuple[bytes, int, int, Fields] | None = None
        #: What was received while an answer is pending; None: no answer is pending.
        self._received: bytes | None = None
        self._answered_at = 0.0
        self._closes = False
        #: When the connection, or the request that is being read, began; whether that request has been read in full.
        self._began_at = self.loop.time()
        self._whole = True
        #: Bytes of the head so far; bytes that were read since the parser last got on to something else.
        self._head_size = self._unparsed = 0
        self._unread_since: float | None = None
        #: When it was refused; what comes after that is dropped.
        self._refused_at: float | None = None

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        if not self._between or self._misses > MISSES or (cycle is not None and not cycle.response_complete):
            self._parse(data)
            return
        if self._received is not None:
            self._received += data
            self.flow.pause_reading()
            return
        known: Fields | None
        if self._head is not None:
            (head, line, at, known), self._head = self._head, None
            data = head + data
        else:
            line = data.find(b"\r\n")
            at = data.find(b"\r\n\r\n", line) + 4
            known = self.fast.known(data[line:at])
            if known is None:
                self._learn(data, line, at)
                return
            self._misses = 0
        size = len(data) - at
        if size == known[0] and not self.flow.write_paused:
            answer = self.fast.answer(self, data[:line], known[1], data[at:])
            if answer is not None:
                if answer is LATER:
                    self._received = b""
                    self._unset_keepalive_if_required()
                else:
                    self._write(answer)
                return
        elif not size:
            self._unset_keepalive_if_required()
            self._head = (data, line, at, known)
            self._began_at = self.loop.time()
            return
        self._parse(data)

    def _learn(self, data: bytes, line: int, at: int) -> None:
        """Pass a request with headers that are not cached to uvicorn, and cache them."""
        self._misses += 1
        begun, read = self._begun + 1, self._read + 1
        self._parse(data)
        # Where the data was exactly one request, the headers that the parser found are those in its bytes.
        if begun == self._begun and read == self._read and self._reusable and data.startswith(b"POST "):
            self.fast.learn(data[line:at], self.headers)

    def _parse(self, data: bytes) -> None:
        """Pass data to uvicorn, unless the connection was refused."""
        if self._refused_at is not None:
            return
        self._unparsed += len(data)
        super().data_received(data)
        if self._unparsed > LONGEST_HEAD:
            self._refuse_head()

    # --- bounds ---------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if not self.bounds.add(self, self.loop):
            detail = f"this guard has {self.bounds.most} connections, the most that it takes; come again"
            self._refuse(Problem(503, "too-many-connections", detail, retry_after=1.0))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._refused_at is not None:
            self.bounds.lingering -= 1
        self.bounds.remove(self)
        super().connection_lost(exc)

    @property
    def is_strange(self) -> bool:
        """Whether no request has been read in full on this connection."""
        return (
            self._begun <= 1
            and not self._answered_at
            and self._received is None
            and (self.cycle is None or not self._whole)
        )

    def drop(self) -> None:
        self.transport.abort()

    def check_time(self, now: float) -> None:
        """End the connection where its client took too long to send a request, or to read an answer."""
        if self._unread_since is not None and now - self._unread_since > UNREAD_FOR:
            self.transport.abort()
        elif self._whole and self._head is None and not self.is_strange:
            return
        elif self.flow.read_paused:  # it is the guard that keeps it from being read
            self._began_at = now
        elif now - self._began_at > self.bounds.request_timeout:
            if self._whole and self._head is None:
                self.transport.close()  # it has said nothing at all
            else:
                detail = f"the request was not whole after {self.bounds.request_timeout:g} seconds"
                self._refuse(Problem(408, "request-timeout", detail))

    def _refuse_head(self) -> None:
        detail = f"the request line and headers, or the trailers, are longer than {LONGEST_HEAD} bytes"
        self._refuse(Problem(431, "head-too-large", detail))

    def _refuse(self, problem: Problem) -> None:
        """Answer with a problem and close."""
        if self._refused_at is not None or self.transport.is_closing():
            return
        self._refused_at = self.loop.time()
        self._between = False
        self.bounds.lingering += 1
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if cycle.response_started:
                self.transport.close()
                return
            cycle.disconnected = True  # as uvicorn does it: what is wrong is the answer, and nothing comes after it
            cycle.message_event.set()
        problem.headers.append((b"connection", b"close"))
        self.transport.write(bytes_of(response_of(problem)))
        if problem.status == 400 or self.bounds.lingering > LINGERING or not self.transport.can_write_eof():
            self.transport.close()
        else:
            self.transport.write_eof()
            self.loop.call_later(LINGER, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        if self._head_size > LONGEST_HEAD:
            self._refuse_head()
        else:
            self._refuse(Problem(400, "malformed-request", "this is not HTTP/1.1 as a guard reads it"))

    def pause_writing(self) -> None:
        self._unread_since = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._unread_since = None
        super().resume_writing()

    # --- answers --------------------------------------------------------------------------------------------------------

    def _write(self, answer: bytes) -> None:
        self.transport.write(answer)
        self.server_state.total_requests += 1
        self._answered_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._start_keep_alive(self.timeout_keep_alive)

    @property
    def gone(self) -> bool:
        return self.transport.is_closing()

    def deliver(self, answer: bytes) -> None:
        """Write an answer that was LATER, and go on with what was received meanwhile."""
        received, self._received = self._received, None
        if self.gone:
            return
        self._write(answer)
        if self._closes:
            self.transport.close()
        elif received:
            self.flow.resume_reading()
            self.data_received(received)

    # The keep-alive timer is not restarted for every answer: when it fires, it checks when the last answer was written.

    def _start_keep_alive(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._start_keep_alive(left)
        else:
            super().timeout_keep_alive_handler()

    # --- callbacks of the parser and the server -------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._between = self._whole = False
        self._begun += 1
        self._began_at = self.loop.time()
        self._head_size = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value) + 4)
        super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._head_size += size
        if self._head_size > LONGEST_HEAD:
            raise ValueError("the head is too long")  # ends the parser, which then asks for a 400

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        parser = self.parser
        self._read += 1
        self._unparsed = 0
        self._reusable = (
            not parser.should_upgrade() and parser.should_keep_alive() and parser.get_http_version() == "1.1"
        )
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        # After an upgrade that was not granted, or a last request, the rest is left to uvicorn.
        self._between = self._reusable
        self._whole = True
        self._unparsed = 0
        super().on_message_complete()

    def shutdown(self) -> None:
        if self._received is not None:
            self._closes = True
            return
        if self._head is not None:  # a request that has begun is answered
            (head, *_), self._head = self._head, None
            self._parse(head)
        super().shutdown()


def protocol_of(guard: Guard) -> type[GuardProtocol]:
    """The protocol class for the connections of one guard."""
    return type(
        "GuardProtocol", (GuardProtocol,), {"fast": FastAnswers(guard), "bounds": ConnectionBounds(guard.settings)}
    )

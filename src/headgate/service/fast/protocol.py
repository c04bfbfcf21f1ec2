"""uvicorn's server, and the protocol of one connection: what `FastAnswers` cannot answer goes on to uvicorn's own."""

from __future__ import annotations

from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .answers import LATER, FastAnswers

__all__ = ["Config", "GuardProtocol", "Server", "protocol_of"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..app import Guard
    from .answers import Fields

#: After so many requests in a row with headers that were not cached, a connection no longer tries the fast path.
MISSES = 16


class GuardProtocol(HttpToolsProtocol):
    """One connection, for the settings of `server.py`: no headers of the server's own, no access log, no websockets."""

    fast: FastAnswers

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

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        if not self._between or self._misses > MISSES or (cycle is not None and not cycle.response_complete):
            super().data_received(data)
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
            return
        super().data_received(data)

    def _learn(self, data: bytes, line: int, at: int) -> None:
        """Pass a request with headers that are not cached to uvicorn, and cache them."""
        self._misses += 1
        begun, read = self._begun + 1, self._read + 1
        super().data_received(data)
        # Where the data was exactly one request, the headers that the parser found are those in its bytes.
        if begun == self._begun and read == self._read and self._reusable and data.startswith(b"POST "):
            self.fast.learn(data[line:at], self.headers)

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
        self._between = False
        self._begun += 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        parser = self.parser
        self._read += 1
        self._reusable = (
            not parser.should_upgrade() and parser.should_keep_alive() and parser.get_http_version() == "1.1"
        )
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        # After an upgrade that was not granted, or a last request, the rest is left to uvicorn.
        self._between = self._reusable
        super().on_message_complete()

    def shutdown(self) -> None:
        if self._received is not None:
            self._closes = True
            return
        if self._head is not None:  # a request that has begun is answered
            (head, *_), self._head = self._head, None
            super().data_received(head)
        super().shutdown()


def protocol_of(guard: Guard) -> type[GuardProtocol]:
    """The protocol class for the connections of one guard."""
    return type("GuardProtocol", (GuardProtocol,), {"fast": FastAnswers(guard)})

"""uvicorn: its server, and one connection: its own protocol, and before that what `Quick` can answer."""

from __future__ import annotations

from uvicorn import Config, Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .answers import LATER, Quick

__all__ = ["Config", "GuardProtocol", "Server", "protocol_of"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..app import Guard
    from .answers import Fields

#: A connection whose headers were not known so many times in a row has others each time, and is no longer looked at.
MISSES = 16


class GuardProtocol(HttpToolsProtocol):
    """For the settings of `server.py`: no headers of the server's own, no access log, no websockets."""

    quick: Quick

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        #: Whether the parser stands between two requests, and the connection is one for more of them.
        self._between = self._fit = True
        #: How many requests have begun, and of how many the headers were read.
        self._begun = self._read = 0
        self._misses = 0
        #: A first line and headers that are known, whose body has yet to come.
        self._held: tuple[bytes, int, int, Fields] | None = None
        #: While an answer is on its way: what has come since.
        self._since: bytes | None = None
        self._answered_at = 0.0
        self._closes = False

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        if not self._between or self._misses > MISSES or (cycle is not None and not cycle.response_complete):
            super().data_received(data)
            return
        if self._since is not None:
            self._since += data
            self.flow.pause_reading()
            return
        known: Fields | None
        if self._held is not None:
            (head, line, at, known), self._held = self._held, None
            data = head + data
        else:
            line = data.find(b"\r\n")
            at = data.find(b"\r\n\r\n", line) + 4
            known = self.quick.known(data[line:at])
            if known is None:
                self._learn(data, line, at)
                return
            self._misses = 0
        size = len(data) - at
        if size == known[0] and not self.flow.write_paused:
            answer = self.quick.answer(self, data[:line], known[1], data[at:])
            if answer is not None:
                if answer is LATER:
                    self._since = b""
                    self._unset_keepalive_if_required()
                else:
                    self._write(answer)
                return
        elif not size:
            self._unset_keepalive_if_required()
            self._held = (data, line, at, known)
            return
        super().data_received(data)

    def _learn(self, data: bytes, line: int, at: int) -> None:
        """The long way, for headers that are not known yet."""
        self._misses += 1
        begun, read = self._begun + 1, self._read + 1
        super().data_received(data)
        # Where this was one request and no other, the headers that the parser has told are those in its bytes.
        if begun == self._begun and read == self._read and self._fit and data.startswith(b"POST "):
            self.quick.learn(data[line:at], self.headers)

    # --- answers --------------------------------------------------------------------------------------------------------

    def _write(self, answer: bytes) -> None:
        self.transport.write(answer)
        self.server_state.total_requests += 1
        self._answered_at = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._watch(self.timeout_keep_alive)

    @property
    def gone(self) -> bool:
        return self.transport.is_closing()

    def told(self, answer: bytes) -> None:
        """The answer to the one who was told LATER."""
        since, self._since = self._since, None
        if self.gone:
            return
        self._write(answer)
        if self._closes:
            self.transport.close()
        elif since:
            self.flow.resume_reading()
            self.data_received(since)

    # The timer is not set anew for every answer: when it is over, it looks how long ago the last one was.

    def _watch(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        left = self._answered_at + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._watch(left)
        else:
            super().timeout_keep_alive_handler()

    # --- what the parser and the server tell ----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._between = False
        self._begun += 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        parser = self.parser
        self._read += 1
        self._fit = not parser.should_upgrade() and parser.should_keep_alive() and parser.get_http_version() == "1.1"
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        # What comes after an upgrade that was not granted, or after a last request, is left to uvicorn.
        self._between = self._fit
        super().on_message_complete()

    def shutdown(self) -> None:
        if self._since is not None:
            self._closes = True
            return
        if self._held is not None:  # a request has begun, and is to be answered
            (head, *_), self._held = self._held, None
            super().data_received(head)
        super().shutdown()


def protocol_of(guard: Guard) -> type[GuardProtocol]:
    """The protocol of a guard's connections."""
    return type("GuardProtocol", (GuardProtocol,), {"quick": Quick(guard)})

"""Connections to a guard: as much of HTTP/1.1 as that takes, for threads and for event loops.

The standard library has no client for event loops, and its other one takes longer for a request than a guard does to
decide it. An `HttpConnection` has one request in flight at a time. Three things can go wrong on it: the guard answers
with an error (`ErrorResponse`), the connection is gone (`ConnectionLost`), or no answer comes in time (`AnswerTimeout`).
"""

from __future__ import annotations

import asyncio
import select
import socket
from contextlib import suppress
from json import loads
from time import monotonic

from ... import duration
from ...background import start_daemon
from ...errors import InvalidInput
from ..base import shown
from ..remote.jobs import AnswerTimeout, ConnectionLost

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from typing import Any

#: Seconds within which an answer must be there, all attempts together. A gate decides within 250 ms what to do without.
TIMEOUT = 0.2

#: Seconds after which an idle connection is not used again: proxies and servers drop theirs without a word.
FRESH = 30.0

_LONGEST_HEAD = 65_536
_LONGEST_BODY = 64 * 1024 * 1024


class ErrorResponse(Exception):
    """The guard answered with a status that is not 200. `text` is its own words."""

    def __init__(self, status: int, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.retry_after = retry_after


class Response:
    """An answer as it arrives: `feed` it what was read; `head` is there first, `body` grows, `done` ends it."""

    __slots__ = ("_chunk", "_left", "_raw", "body", "done", "head", "headers", "keeps", "status")

    def __init__(self) -> None:
        self._raw = b""
        self.body = bytearray()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.head = self.done = False
        #: Whether the connection may be used again.
        self.keeps = True
        #: Bytes that are still to come; None: until the connection ends.
        self._left: int | None = 0
        self._chunk = -1

    def feed(self, data: bytes) -> None:
        """Take in what was read; nothing: the connection has ended. Raises ConnectionLost for what is no HTTP."""
        if not data:
            if self.head and self._left is None:
                self.done, self.keeps = True, False
                return
            raise ConnectionLost("the connection was closed before the answer was there", True)
        self._raw += data
        while not self.head:
            if not self._read_head():
                return
        if self._chunk >= 0:
            self._read_chunks()
            return
        self.body += self._raw
        self._raw = b""
        if len(self.body) > _LONGEST_BODY:
            raise ConnectionLost("the answer has no end", True)
        if self._left is not None and len(self.body) >= self._left:
            self.done = True

    def _read_head(self) -> bool:
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            if len(self._raw) > _LONGEST_HEAD:
                raise ConnectionLost("what answers does not speak HTTP", True)
            return False
        lines = self._raw[:end].decode("latin-1").split("\r\n")
        self._raw = self._raw[end + 4 :]
        version, _, rest = lines[0].partition(" ")
        status = rest[:3]
        if not version.startswith("HTTP/1.") or not status.isdecimal():
            raise ConnectionLost("what answers does not speak HTTP", True)
        if status[0] == "1":  # it says that it will answer
            return True
        self.head = True
        self.status = int(status)
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self.keeps = version == "HTTP/1.1" and self.headers.get("connection", "").lower() != "close"
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            self._chunk = 0
        elif self.status in (204, 304):
            self.done = True
        else:
            length = self.headers.get("content-length")
            self._left = int(length) if length is not None and length.isdecimal() else None
            self.done = self._left == 0
        return True

    def _read_chunks(self) -> None:
        while True:
            if self._chunk:  # so many bytes of it, and the end of its line
                taken = self._raw[: self._chunk]
                self._raw = self._raw[len(taken) :]
                self._chunk -= len(taken)
                self.body += taken[: max(0, len(taken) - max(0, 2 - self._chunk))]
                if self._chunk:
                    return
            size, end, rest = self._raw.partition(b"\r\n")
            if not end:
                return
            try:
                count = int(size.partition(b";")[0], 16)
            except ValueError:
                raise ConnectionLost("what answers does not speak HTTP", True) from None
            if not count:
                if rest.startswith(b"\r\n"):
                    self.done = True
                return
            self._raw = rest
            self._chunk = count + 2

    def take(self) -> bytes:
        """What there is of the body, once."""
        taken = bytes(self.body)
        self.body.clear()
        return taken

    def checked(self) -> bytes:
        """The body of an answer with status 200. Raises ErrorResponse for any other."""
        if self.status == 200:
            return bytes(self.body)
        text, after = f"it answers {self.status}", self.headers.get("retry-after", "")
        with suppress(ValueError, AttributeError):
            problem = loads(bytes(self.body))
            text = str(problem.get("detail") or problem.get("title") or text)
        raise ErrorResponse(self.status, text, float(after) if after.isdecimal() else None)


class HttpConnection:
    """One connection, for one thread at a time."""

    __slots__ = ("_socket", "used")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self.used = monotonic()

    @property
    def is_fresh(self) -> bool:
        """Whether it may be used: the other end has not closed it, as far as is known here."""
        if monotonic() - self.used > FRESH:
            return False
        with suppress(OSError, ValueError):
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return not poll.poll(0)  # no request is in flight, so what can be read is the end
        return False

    def roundtrip(self, request: bytes, end: float) -> Response:
        """Send a request and read its answer, which must be there at `end`."""
        response = Response()
        try:
            self._within(end)
            self._socket.sendall(request)
            while not response.done:
                self._within(end)
                response.feed(self._socket.recv(65_536))
        except TimeoutError:
            raise AnswerTimeout from None
        except OSError as error:
            raise ConnectionLost(str(error), True) from None
        self.used = monotonic()
        return response

    def _within(self, end: float) -> None:
        left = end - monotonic()
        if left <= 0:
            raise AnswerTimeout
        self._socket.settimeout(left)

    def stream(self, request: bytes, quiet: float) -> Iterator[bytes]:
        """The body of an answer as it comes, with at most `quiet` seconds between its parts."""
        response = Response()
        try:
            self._socket.settimeout(quiet)
            self._socket.sendall(request)
            while not response.done:
                response.feed(self._socket.recv(65_536))
                if response.head and response.status == 200 and response.body:
                    yield response.take()
        except OSError as error:
            raise ConnectionLost(str(error), True) from None
        response.checked()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # which also ends a wait in another thread
        with suppress(OSError):
            self._socket.close()


class AsyncHttpConnection:
    """One connection of an event loop, for one task at a time. Time-outs are the caller's."""

    __slots__ = ("_reader", "_writer", "used")

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.used = monotonic()

    @property
    def is_fresh(self) -> bool:
        gone = self._reader.at_eof() or self._writer.is_closing() or self._reader.exception() is not None
        return not gone and monotonic() - self.used <= FRESH

    async def roundtrip(self, request: bytes) -> Response:
        """Send a request and await its answer."""
        response = Response()
        try:
            self._writer.write(request)
            await self._writer.drain()
            while not response.done:
                response.feed(await self._reader.read(65_536))
        except OSError as error:
            raise ConnectionLost(str(error), True) from None
        self.used = monotonic()
        return response

    def close(self) -> None:
        with suppress(Exception):
            self._writer.close()


class GuardEndpoint:
    """Where a guard is and how it is spoken to, by the URL of the store."""

    def __init__(self, url: str, token: str | None = None) -> None:
        from urllib.parse import parse_qsl, unquote, urlsplit

        self.shown = shown(url)
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidInput(f"{self.shown!r} is no URL of a guard: {error}") from None
        if not parts.hostname:
            raise InvalidInput(f"{self.shown!r} names no host; write {parts.scheme}://localhost:8080")
        self.host, self._tls = parts.hostname, parts.scheme == "https"
        self.port = port or (443 if self._tls else 80)
        self.prefix = parts.path.rstrip("/")
        self.timeout = TIMEOUT
        self._ca: str | None = None
        self._context: ssl.SSLContext | None = None
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name == "timeout":
                self.timeout = duration.parse(value, what=f"{self.shown}: timeout") / 1_000_000
            elif name == "ca":
                self._ca = value
            else:
                raise InvalidInput(f"{self.shown!r}: {name} is not known; {parts.scheme}:// takes timeout and ca")
        token = unquote(parts.password or parts.username or "") or token
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise InvalidInput(
                f"{self.shown!r}: a token is of printable ASCII characters, as `headgate token new` makes it"
            )
        host = f"[{self.host}]" if ":" in self.host else self.host
        self._common = (
            f"Host: {host}:{self.port}\r\nUser-Agent: headgate\r\n"
            f"{f'Authorization: Bearer {token}{chr(13)}{chr(10)}' if token else ''}"
        )
        #: The addresses of the host as they were looked up last.
        self._found: list[Any] = []

    def post(self, path: str, body: bytes) -> bytes:
        return (
            f"POST {self.prefix}{path} HTTP/1.1\r\n{self._common}Content-Type: application/json\r\n"
            f"Accept: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    def get(self, path: str, accept: str) -> bytes:
        return f"GET {self.prefix}{path} HTTP/1.1\r\n{self._common}Accept: {accept}\r\n\r\n".encode()

    def _secure(self) -> ssl.SSLContext | None:
        if not self._tls:
            return None
        if self._context is None:
            import ssl

            try:
                self._context = ssl.create_default_context(cafile=self._ca)
            except OSError as error:
                raise InvalidInput(f"{self.shown!r}: {self._ca} cannot be read as certificates: {error}") from None
        return self._context

    def _addresses(self, seconds: float) -> list[Any]:
        """The addresses of the host. Looking them up can take as long as it likes: a thread does, for so many seconds."""
        found: list[Any] = []
        errors: list[str] = []

        def look_up() -> None:
            try:
                found.extend(socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM))
            except OSError as error:
                errors.append(str(error))

        thread = start_daemon("headgate-lookup", look_up)
        if thread is not None:
            thread.join(max(0.0, seconds))
        if errors:
            raise ConnectionLost(errors[0], False)
        if not found:
            if self._found:
                return self._found  # as they were looked up last
            raise AnswerTimeout
        self._found = found
        return found

    def connect(self, seconds: float) -> HttpConnection:
        """A connection, made within so many seconds."""
        end = monotonic() + max(0.001, seconds)
        context = self._secure()
        failure: Exception = ConnectionLost("it has no address", False)
        for family, kind, protocol, _, address in self._addresses(seconds):
            made = socket.socket(family, kind, protocol)
            try:
                made.settimeout(max(0.001, end - monotonic()))
                made.connect(address)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context is not None:
                    made = context.wrap_socket(made, server_hostname=self.host)
                return HttpConnection(made)
            except TimeoutError:
                made.close()
                failure = AnswerTimeout()
            except OSError as error:
                made.close()
                failure = ConnectionLost(str(error), False)
            except BaseException:
                made.close()
                raise
        raise failure

    async def connect_async(self) -> AsyncHttpConnection:
        """A connection on an event loop, which is made for as long as the caller awaits it."""
        context = self._secure()
        try:
            reader, writer = await asyncio.open_connection(
                self.host, self.port, ssl=context, server_hostname=self.host if context else None
            )
        except OSError as error:
            raise ConnectionLost(str(error), False) from None
        return AsyncHttpConnection(reader, writer)

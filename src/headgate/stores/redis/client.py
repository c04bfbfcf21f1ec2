"""Connections to Redis servers, through redis-py: the one file that imports it.

A `Link` is one connection with one question under way at a time. What can go wrong on it is one of three things: the
server said no (`Refused`), the connection is gone (`Broken`), or there was no answer in time (`Silent`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from contextlib import suppress

import redis
import redis.asyncio
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, NoScriptError, ReadOnlyError

try:
    # What redis-py does on top of it takes as long as all else that is done for an ask here.
    import hiredis
except ImportError:
    hiredis = None  # type: ignore[assignment]

from ... import duration
from ...errors import InvalidInput
from ..base import shown
from .errors import NAMES, PREFIXES, Broken, Refused, Silent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    #: Host and port; a path and 0 for a socket in the file system.
    Address = tuple[str, int]

#: Seconds within which an answer must be there, all attempts together. A gate decides within 250 ms what to do without.
TIMEOUT = 0.2

#: What a URL may say after its question mark.
_COMMON = ("timeout",)
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
PARAMETERS: dict[str, tuple[str, ...]] = {
    "redis": _COMMON,
    "rediss": (*_COMMON, *_TLS),
    "redis+cluster": (*_COMMON, "ssl", *_TLS),
    "unix": (*_COMMON, "db"),
}


def _refusal(error: Exception) -> Refused:
    text = str(error)
    if isinstance(error, NoScriptError):
        return Refused("noscript", text)
    if isinstance(error, MovedError | AskError):
        kind = "ask" if type(error) is AskError else "moved"
        return Refused(kind, text, (error.host, error.port))
    if isinstance(error, ReadOnlyError):
        return Refused("readonly", text)
    kind = NAMES.get(type(error).__name__) or PREFIXES.get(text.partition(" ")[0], "")
    if not kind and "non local key" in text:
        kind = "moving"
    if not kind and "Function not found" in text:
        kind = "nofunction"
    return Refused(kind or "other", text)


def slot_of(key: str) -> int:
    """The slot of a cluster that a key belongs to."""
    slot: int = key_slot(key.encode())
    return slot


#: Bytes that are read at a time: the answer to a hundred asks.
READ = 16_384

#: What a reader of hiredis has while an answer is not whole.
_MORE = object()


def _reader(connection: Any) -> Any:
    """What takes answers apart, in the place of redis-py's own; None where that is not to be had."""
    errors = getattr(getattr(connection, "_parser", None), "parse_error", None)
    if hiredis is None or errors is None:
        return None
    return hiredis.Reader(protocolError=redis.InvalidResponse, replyError=errors, notEnoughData=_MORE)


def _waits_in_kernel(connected: Any, seconds: float) -> None:
    """Have the system end a wait: Python's own time-outs are a call to it more for each that is sent or read."""
    if type(connected) is socket.socket and sys.platform != "win32":
        whole = int(seconds)
        limit = struct.pack("ll", whole, int((seconds - whole) * 1_000_000))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connected.settimeout(None)


class Link:
    """One connection, for one thread at a time.

    redis-py makes it: addresses, TLS, passwords. After that its socket is read and written here, where it can be had.
    """

    __slots__ = ("_connection", "_reader", "_socket", "address", "hurried")

    def __init__(self, connection: Any, address: Address, seconds: float, hurried: bool) -> None:
        self._connection = connection
        self.address = address
        #: It was made when there was little time left, and its time-outs are as short: not for anybody else.
        self.hurried = hurried
        self._socket: Any = getattr(connection, "_sock", None)
        self._reader: Any = None if self._socket is None else _reader(connection)
        if self._reader is not None:
            _waits_in_kernel(self._socket, seconds)

    def call(self, *words: Any) -> Any:
        """The answer to one command."""
        self.send(*words)
        return self.read()

    def send(self, *words: Any) -> None:
        """A command whose answer is read later."""
        self.send_packed(self._connection.pack_command(*words) if self._reader is None else hiredis.pack_command(words))

    def send_packed(self, command: bytes | list[bytes]) -> None:
        """The same with the bytes of a command."""
        try:
            if self._reader is not None:
                self._socket.sendall(command)
            else:
                pieces = [command] if command.__class__ is bytes else command
                self._connection.send_packed_command(pieces, check_health=False)
        except (BlockingIOError, TimeoutError, redis.TimeoutError) as error:
            raise Silent(str(error)) from None
        except (redis.ConnectionError, OSError) as error:
            raise _lost(error) from None

    def read(self) -> Any:
        try:
            if self._reader is None:
                return self._connection.read_response()
            answer = self._next()
        except redis.ResponseError as error:
            raise _refusal(error) from None
        except (BlockingIOError, TimeoutError, redis.TimeoutError) as error:
            raise Silent(str(error)) from None
        except (redis.ConnectionError, redis.InvalidResponse, OSError) as error:
            raise _lost(error) from None
        if isinstance(answer, Exception):
            raise _refusal(answer) if isinstance(answer, redis.ResponseError) else _lost(answer)
        return answer

    def _next(self) -> Any:
        reader = self._reader
        answer = reader.gets()
        while answer is _MORE:
            data = self._socket.recv(READ)
            if not data:
                raise redis.ConnectionError("the server has closed the connection")
            reader.feed(data)
            answer = reader.gets()
        return answer

    def heard(self) -> Any:
        """What comes next without having been asked for; None when nothing does for as long as its time-out is."""
        try:
            if self._reader is None:
                return self._connection.read_response(disconnect_on_error=False)
            answer = self._next()
        except (BlockingIOError, TimeoutError, redis.TimeoutError):
            return None
        except Exception as error:  # also those of a connection that was closed under it
            raise Broken(str(error), True) from None
        if isinstance(answer, Exception):
            raise Broken(str(answer), True)
        return answer

    def close(self) -> None:
        with suppress(Exception):
            self._connection.disconnect()


class Incoming(asyncio.Protocol):
    """What arrives on a connection of an event loop, told as soon as it is whole."""

    __slots__ = ("gone", "reader", "tell")

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        #: Who waits for the answer: it is called with that, or with `Refused` or `Broken`.
        self.tell: Callable[[Any], None] | None = None
        self.gone: Broken | None = None

    def data_received(self, data: bytes) -> None:
        try:
            self.reader.feed(data)
            answer = self.reader.gets()
        except redis.RedisError as error:
            answer = error
        if answer is not _MORE:
            if isinstance(answer, Exception):
                answer = _refusal(answer) if isinstance(answer, redis.ResponseError) else _lost(answer)
            self._told(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.gone = Broken(str(error or "the server has closed the connection"), True)
        self._told(self.gone)

    def _told(self, answer: Any) -> None:
        tell, self.tell = self.tell, None
        if tell is not None:
            tell(answer)


class AsyncLink:
    """The same for one task at a time. Time-outs are the caller's."""

    __slots__ = ("_connection", "_incoming", "_transport", "address")

    def __init__(self, connection: Any, address: Address) -> None:
        self._connection = connection
        self.address = address
        self._transport: Any = getattr(getattr(connection, "_writer", None), "transport", None)
        self._incoming: Incoming | None = None
        if self._transport is not None and (reader := _reader(connection)) is not None:
            self._incoming = Incoming(reader)
            self._transport.set_protocol(self._incoming)

    @property
    def tells(self) -> bool:
        """Whether `ask` can be used; else `call` is the way."""
        return self._incoming is not None

    @property
    def gone(self) -> bool:
        return self._incoming is not None and self._incoming.gone is not None

    def ask(self, words: Sequence[Any], tell: Callable[[Any], None]) -> None:
        """Send a command and have its answer told."""
        assert self._incoming is not None
        self._incoming.tell = tell
        # Nobody asks on before the answer is there, so what is written does not pile up.
        self._transport.write(hiredis.pack_command(tuple(words)))

    async def call(self, *words: Any) -> Any:
        """The answer to one command."""
        incoming, connection = self._incoming, self._connection
        if incoming is not None:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            def tell(answer: Any) -> None:
                if not future.done():
                    future.set_result(answer)

            if incoming.gone is not None:
                raise incoming.gone
            self.ask(words, tell)
            answer = await future
            if isinstance(answer, Refused | Broken):
                raise answer
            return answer
        try:
            await connection.send_packed_command(connection.pack_command(*words), check_health=False)
            return await connection.read_response()
        except redis.ResponseError as error:
            raise _refusal(error) from None
        except (redis.ConnectionError, redis.TimeoutError, redis.InvalidResponse, OSError, RuntimeError) as error:
            raise _lost(error) from None

    async def close(self) -> None:
        with suppress(Exception):
            await self._connection.disconnect(nowait=True)


def _lost(error: Exception) -> Broken | Refused:
    """What an error that redis-py takes for one of the connection really is."""
    refusal = _refusal(error)
    return Broken(str(error), True) if refusal.kind == "other" else refusal


class Endpoint:
    """Where a store's servers are and how they are spoken to, by its URL."""

    def __init__(self, url: str) -> None:
        from urllib.parse import parse_qsl, unquote, urlsplit

        scheme, _, _ = url.partition("://")
        try:
            parts = urlsplit(url)
            port = parts.port or 6379
        except ValueError as error:
            raise InvalidInput(f"{shown(url)!r} is no URL of a Redis server: {error}") from None
        self.shown = shown(url)
        self.cluster = scheme == "redis+cluster"
        self.timeout = TIMEOUT
        options: dict[str, Any] = {"protocol": 2}
        if parts.username:
            options["username"] = unquote(parts.username)
        if parts.password:
            options["password"] = unquote(parts.password)
        if scheme == "unix":
            if not parts.path or parts.netloc.rpartition("@")[2]:
                raise InvalidInput(f"{self.shown!r} names no socket; write unix:///run/redis/redis.sock")
            self.start: Address = (unquote(parts.path), 0)
        else:
            if not parts.hostname:
                raise InvalidInput(f"{self.shown!r} names no host; write {scheme}://localhost:6379")
            self.start = (unquote(parts.hostname), port)
            options["db"] = self._database(parts.path.strip("/"))
        self._kind = {"rediss": "tls", "unix": "unix"}.get(scheme, "plain")
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name not in PARAMETERS[scheme]:
                known = ", ".join(PARAMETERS[scheme])
                raise InvalidInput(f"{self.shown!r}: {name} is not known; {scheme}:// takes {known}")
            self._option(options, name, value)
        self._options = options

    def _database(self, path: str) -> int:
        if not path:
            return 0
        if self.cluster:
            raise InvalidInput(f"{self.shown!r}: a cluster has no databases; leave out /{path}")
        if not path.isdecimal():
            raise InvalidInput(f"{self.shown!r}: a database is a number, as in redis://localhost:6379/0, not {path!r}")
        return int(path)

    def _option(self, options: dict[str, Any], name: str, value: str) -> None:
        if name == "timeout":
            self.timeout = duration.parse(value, what=f"{self.shown}: timeout") / 1_000_000
        elif name in ("ssl", "ssl_check_hostname"):
            if value not in ("true", "false"):
                raise InvalidInput(f"{self.shown!r}: {name} is true or false, not {value!r}")
            if name == "ssl":
                self._kind = "tls" if value == "true" else "plain"
            else:
                options[name] = value == "true"
        elif name == "db":
            options[name] = self._database(value)
        elif name == "ssl_cert_reqs" and value not in ("none", "optional", "required"):
            raise InvalidInput(f"{self.shown!r}: ssl_cert_reqs is none, optional or required, not {value!r}")
        else:
            options[name] = value

    def _arguments(self, address: Address) -> dict[str, Any]:
        if self._kind == "unix":
            return {**self._options, "path": address[0]}
        return {**self._options, "host": address[0], "port": address[1]}

    def connect(self, address: Address, seconds: float) -> Link:
        """A connection to one server, ready to be asked. The name of a host is looked up for as long as that takes."""
        kinds = {"plain": redis.Connection, "tls": redis.SSLConnection, "unix": redis.UnixDomainSocketConnection}
        seconds = max(0.001, seconds)
        connection = kinds[self._kind](
            **self._arguments(address), socket_timeout=seconds, socket_connect_timeout=seconds
        )
        try:
            connection.connect()
        except BaseException as error:
            connection.disconnect()
            raise _not_connected(error) from None
        return Link(connection, address, seconds, hurried=seconds < 0.9 * self.timeout)

    async def connect_async(self, address: Address) -> AsyncLink:
        """The same on an event loop, for as long as its caller waits."""
        asyncs = redis.asyncio
        kinds: dict[str, Any] = {
            "plain": asyncs.Connection,
            "tls": asyncs.SSLConnection,
            "unix": asyncs.UnixDomainSocketConnection,
        }
        connection = kinds[self._kind](
            **self._arguments(address), socket_timeout=None, socket_connect_timeout=2 * self.timeout
        )
        try:
            await connection.connect()
        except BaseException as error:
            await connection.disconnect(nowait=True)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise _not_connected(error) from None
        return AsyncLink(connection, address)


def _not_connected(error: BaseException) -> BaseException:
    if isinstance(error, redis.TimeoutError):
        return Silent(str(error))
    if isinstance(error, redis.RedisError):
        refusal = _refusal(error)
        return Broken(str(error), False) if refusal.kind == "other" else refusal
    return Broken(str(error), False) if isinstance(error, OSError) else error

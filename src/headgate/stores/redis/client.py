"""Connections to Redis servers, through redis-py: the one file that imports it.

A `RedisConnection` has one command in flight at a time. Three things can go wrong on it: the server answered with an
error (`ErrorReply`), the connection is gone (`ConnectionLost`), or there was no answer in time (`AnswerTimeout`).
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
from contextlib import suppress
from typing import NamedTuple

import redis
import redis.asyncio
from redis.crc import key_slot
from redis.exceptions import AskError, MovedError, NoScriptError, ReadOnlyError

try:
    # What redis-py does on top of it takes as long as all else that this process does for an ask.
    import hiredis
except ImportError:
    hiredis = None  # type: ignore[assignment]

from ...errors import InvalidInput
from ..remote.jobs import AnswerTimeout, ConnectionLost
from .errors import NAMES, PREFIXES, ErrorReply

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    #: Host and port; a path and 0 for a socket in the file system.
    Address = tuple[str, int]


def _error_reply(error: Exception) -> ErrorReply:
    text = str(error)
    if isinstance(error, NoScriptError):
        return ErrorReply("noscript", text)
    if isinstance(error, MovedError | AskError):
        kind = "ask" if type(error) is AskError else "moved"
        return ErrorReply(kind, text, (error.host, error.port))
    if isinstance(error, ReadOnlyError):
        return ErrorReply("readonly", text)
    kind = NAMES.get(type(error).__name__) or PREFIXES.get(text.partition(" ")[0], "")
    if not kind and "non local key" in text:
        kind = "moving"
    if not kind and "Function not found" in text:
        kind = "nofunction"
    return ErrorReply(kind or "other", text)


def slot_of(key: str) -> int:
    """The slot of a cluster that a key belongs to."""
    slot: int = key_slot(key.encode())
    return slot


#: Bytes that are read at a time: the answer to a hundred asks.
READ = 16_384

#: What a reader of hiredis returns while an answer is incomplete.
_MORE = object()


def _reader(connection: Any) -> Any:
    """A parser of replies, in the place of redis-py's own; None where hiredis is not installed."""
    errors = getattr(getattr(connection, "_parser", None), "parse_error", None)
    if hiredis is None or errors is None:
        return None
    return hiredis.Reader(protocolError=redis.InvalidResponse, replyError=errors, notEnoughData=_MORE)


def _set_kernel_timeouts(connected: Any, seconds: float) -> None:
    """Have the kernel end a wait: Python's own time-outs cost one more system call for every send and read."""
    if type(connected) is socket.socket and sys.platform != "win32":
        whole = int(seconds)
        limit = struct.pack("ll", whole, int((seconds - whole) * 1_000_000))
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        connected.settimeout(None)


class RedisConnection:
    """One connection, for one thread at a time.

    redis-py makes it: addresses, TLS, passwords. After that its socket is read and written here, if hiredis is installed.
    """

    __slots__ = ("_connection", "_reader", "_socket", "address", "short_timeouts")

    def __init__(self, connection: Any, address: Address, seconds: float, short_timeouts: bool) -> None:
        self._connection = connection
        self.address = address
        #: It was made when little time was left, and its time-outs are as short: no other request may use it.
        self.short_timeouts = short_timeouts
        self._socket: Any = getattr(connection, "_sock", None)
        self._reader: Any = None if self._socket is None else _reader(connection)
        if self._reader is not None:
            _set_kernel_timeouts(self._socket, seconds)

    def roundtrip(self, *words: Any) -> Any:
        """Send a command and read its answer."""
        self.send(*words)
        return self.read()

    def send(self, *words: Any) -> None:
        """Send a command whose answer is read later."""
        self.send_packed(self._connection.pack_command(*words) if self._reader is None else hiredis.pack_command(words))

    def send_packed(self, command: bytes | list[bytes]) -> None:
        """Send a command that is encoded already."""
        try:
            if self._reader is not None:
                self._socket.sendall(command)
            else:
                pieces = [command] if command.__class__ is bytes else command
                self._connection.send_packed_command(pieces, check_health=False)
        except (BlockingIOError, TimeoutError, redis.TimeoutError) as error:
            raise AnswerTimeout(str(error)) from None
        except (redis.ConnectionError, OSError) as error:
            raise _lost(error) from None

    def read(self) -> Any:
        """The next answer."""
        try:
            if self._reader is None:
                return self._connection.read_response()
            answer = self._next()
        except redis.ResponseError as error:
            raise _error_reply(error) from None
        except (BlockingIOError, TimeoutError, redis.TimeoutError) as error:
            raise AnswerTimeout(str(error)) from None
        except (redis.ConnectionError, redis.InvalidResponse, OSError) as error:
            raise _lost(error) from None
        if isinstance(answer, Exception):
            raise _error_reply(answer) if isinstance(answer, redis.ResponseError) else _lost(answer)
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

    def read_message(self) -> Any:
        """The next message of a subscription; None when none comes for as long as the connection's time-out is."""
        try:
            if self._reader is None:
                return self._connection.read_response(disconnect_on_error=False)
            answer = self._next()
        except (BlockingIOError, TimeoutError, redis.TimeoutError):
            return None
        except Exception as error:  # also those of a connection that was closed under it
            raise ConnectionLost(str(error), True) from None
        if isinstance(answer, Exception):
            raise ConnectionLost(str(answer), True)
        return answer

    def close(self) -> None:
        with suppress(Exception):
            self._connection.disconnect()


class AnswerProtocol(asyncio.Protocol):
    """Calls a function with each answer that arrives on a connection of an event loop."""

    __slots__ = ("lost", "on_answer", "reader")

    def __init__(self, reader: Any) -> None:
        self.reader = reader
        #: Called with the answer to the command in flight, or with `ErrorReply` or `ConnectionLost`.
        self.on_answer: Callable[[Any], None] | None = None
        self.lost: ConnectionLost | None = None

    def data_received(self, data: bytes) -> None:
        try:
            self.reader.feed(data)
            answer = self.reader.gets()
        except redis.RedisError as error:
            answer = error
        if answer is not _MORE:
            if isinstance(answer, Exception):
                answer = _error_reply(answer) if isinstance(answer, redis.ResponseError) else _lost(answer)
            self._answer(answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = ConnectionLost(str(error or "the server has closed the connection"), True)
        self._answer(self.lost)

    def _answer(self, answer: Any) -> None:
        on_answer, self.on_answer = self.on_answer, None
        if on_answer is not None:
            on_answer(answer)


class AsyncRedisConnection:
    """One connection of an event loop, for one task at a time. Time-outs are the caller's."""

    __slots__ = ("_connection", "_protocol", "_transport", "address")

    def __init__(self, connection: Any, address: Address) -> None:
        self._connection = connection
        self.address = address
        self._transport: Any = getattr(getattr(connection, "_writer", None), "transport", None)
        self._protocol: AnswerProtocol | None = None
        if self._transport is not None and (reader := _reader(connection)) is not None:
            self._protocol = AnswerProtocol(reader)
            self._transport.set_protocol(self._protocol)

    @property
    def has_callbacks(self) -> bool:
        """Whether `send` can be used, which needs hiredis; `roundtrip` always can."""
        return self._protocol is not None

    @property
    def is_lost(self) -> bool:
        return self._protocol is not None and self._protocol.lost is not None

    def send(self, words: Sequence[Any], on_answer: Callable[[Any], None]) -> None:
        """Send a command, and have a function called with its answer."""
        assert self._protocol is not None
        self._protocol.on_answer = on_answer
        # The next command is sent when the answer is there, so what is written does not pile up.
        self._transport.write(hiredis.pack_command(tuple(words)))

    async def roundtrip(self, *words: Any) -> Any:
        """Send a command and await its answer."""
        protocol, connection = self._protocol, self._connection
        if protocol is not None:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

            def on_answer(answer: Any) -> None:
                if not future.done():
                    future.set_result(answer)

            if protocol.lost is not None:
                raise protocol.lost
            self.send(words, on_answer)
            answer = await future
            if isinstance(answer, ErrorReply | ConnectionLost):
                raise answer
            return answer
        try:
            await connection.send_packed_command(connection.pack_command(*words), check_health=False)
            return await connection.read_response()
        except redis.ResponseError as error:
            raise _error_reply(error) from None
        except (redis.ConnectionError, redis.TimeoutError, redis.InvalidResponse, OSError, RuntimeError) as error:
            raise _lost(error) from None

    async def close(self) -> None:
        with suppress(Exception):
            await self._connection.disconnect(nowait=True)


def _lost(error: Exception) -> ConnectionLost | ErrorReply:
    """What an error that redis-py takes for one of the connection really is."""
    reply = _error_reply(error)
    return ConnectionLost(str(error), True) if reply.kind == "other" else reply


#: By how a server is reached: the connections of redis-py, for threads and for event loops.
KINDS: dict[str, tuple[Any, Any]] = {
    "plain": (redis.Connection, redis.asyncio.Connection),
    "tls": (redis.SSLConnection, redis.asyncio.SSLConnection),
    "unix": (redis.UnixDomainSocketConnection, redis.asyncio.UnixDomainSocketConnection),
}


def connect(
    kind: str, arguments: Mapping[str, Any], address: Address, seconds: float, timeout: float
) -> RedisConnection:
    """A connection to one server, within `seconds`. Looking up the name of a host takes as long as it takes."""
    seconds = max(0.001, seconds)
    connection = KINDS[kind][0](**arguments, socket_timeout=seconds, socket_connect_timeout=seconds)
    try:
        connection.connect()
    except BaseException as error:
        connection.disconnect()
        raise _not_connected(error) from None
    return RedisConnection(connection, address, seconds, short_timeouts=seconds < 0.9 * timeout)


async def connect_async(
    kind: str, arguments: Mapping[str, Any], address: Address, timeout: float
) -> AsyncRedisConnection:
    """A connection on an event loop, which is made for as long as the caller awaits it."""
    connection = KINDS[kind][1](**arguments, socket_timeout=None, socket_connect_timeout=2 * timeout)
    try:
        await connection.connect()
    except BaseException as error:
        await connection.disconnect(nowait=True)
        if isinstance(error, asyncio.CancelledError):
            raise
        raise _not_connected(error) from None
    return AsyncRedisConnection(connection, address)


class ClientTraits(NamedTuple):
    """How a client of redis-py reaches its servers."""

    kind: str
    options: dict[str, Any]
    #: Its server, those that it learns a cluster from, or its sentinels.
    addresses: tuple[Address, ...]
    cluster: bool = False
    #: The name of the master that its sentinels know; empty without.
    service: str = ""
    sentinel_options: Mapping[str, Any] | None = None


#: What is taken over from a client, beside all that begins with `ssl_`. Time-outs and retries are the store's own.
TAKEN = (
    "db",
    "username",
    "password",
    "credential_provider",
    "client_name",
    "socket_keepalive",
    "socket_keepalive_options",
)


def traits_of(client: Any) -> ClientTraits:
    """How a client of one's own reaches its servers. Raises InvalidInput for one that cannot be understood."""
    cluster = getattr(client, "nodes_manager", None)
    if cluster is not None:
        nodes = tuple((node.host, node.port) for node in cluster.startup_nodes.values())
        options = cluster.connection_kwargs
        # A cluster for threads is told `ssl`; one for event loops, or made from a URL, has a class of connections.
        by = options.get("connection_class")
        is_tls = bool(options.get("ssl")) or (isinstance(by, type) and issubclass(by, KINDS["tls"]))
        return ClientTraits("tls" if is_tls else "plain", _taken(options), nodes, cluster=True)
    pool: Any = getattr(client, "connection_pool", None)
    known, options = getattr(pool, "connection_class", None), getattr(pool, "connection_kwargs", None)
    if not isinstance(known, type) or not isinstance(options, dict):
        raise InvalidInput(
            f"client is a client of redis-py, such as redis.Redis(…) or redis.asyncio.Redis(…), not {type(client).__name__}"
        )
    sentinel = getattr(pool, "sentinel_manager", None)
    if sentinel is not None:
        asked = [one.connection_pool.connection_kwargs for one in sentinel.sentinels]
        addresses = tuple((one["host"], one.get("port", 26379)) for one in asked)
        kind = "tls" if issubclass(known, KINDS["tls"]) else "plain"
        return ClientTraits(kind, _taken(options), addresses, False, pool.service_name, _taken(asked[0]))
    kind = next((name for name in ("unix", "tls", "plain") if issubclass(known, KINDS[name])), "")
    if not kind:
        raise InvalidInput(f"client connects by {known.__name__}, which is no connection of redis-py")
    if kind == "unix":
        return ClientTraits(kind, _taken(options), ((options["path"], 0),))
    return ClientTraits(kind, _taken(options), ((options.get("host", "localhost"), options.get("port", 6379)),))


def _taken(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in options.items()
        if value is not None and (name in TAKEN or name.startswith("ssl_"))
    }


def _not_connected(error: BaseException) -> BaseException:
    if isinstance(error, redis.TimeoutError):
        return AnswerTimeout(str(error))
    if isinstance(error, redis.RedisError):
        reply = _error_reply(error)
        if reply.kind != "other":
            return reply
        # Where no connection was made, the client wraps the error of the system: a refusal, no route, no such host.
        cause = error.__context__
        greeting = not isinstance(cause, OSError) or isinstance(cause, ConnectionResetError | BrokenPipeError)
        return ConnectionLost(str(error), False, greeting and isinstance(error, redis.ConnectionError))
    return ConnectionLost(str(error), False) if isinstance(error, OSError) else error

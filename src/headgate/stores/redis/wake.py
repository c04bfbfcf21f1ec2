"""How a waiter learns that its ticket was called: the script publishes to its process, which subscribes once for all.

One connection and one daemon thread per process, started by the first waiter. When the connection drops, no wake-up can
arrive: every waiter is woken, asks once, and then follows its gate's `on_store_error`. When the process has subscribed
again they are woken once more, since what was published meanwhile reached no subscriber.

The command that a thread sends when its ticket was called is known beforehand. `EarlyTakes` sends it as soon as the call
is heard of, so that the server decides while that thread wakes up, which takes about as long.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from time import monotonic, monotonic_ns

from ...kernel.model import Wake
from ..remote.jobs import AnswerTimeout, ConnectionLost
from ..remote.wakes import IDLE, RETRY, RETRY_MOST, WakeSubscriber
from .coalescer import NO_REPLY
from .errors import ErrorReply
from .script import channel
from .wire import wakes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...kernel.commands import Stand
    from .client import Address, RedisConnection
    from .endpoint import RedisEndpoint
    from .requests import EncodedAsk, RedisRequests
    from .threads import RedisThreadSender

#: Seconds without a message after which the server is sent a PING; after twice as long the connection is given up.
QUIET = 5.0

#: Waiters are woken within so many microseconds of a drop, each at a random moment: a fleet of them was dropped together.
SPREAD_US = 50_000

#: Asks that are kept encoded at most; the waiter of a further one asks when it is awake.
MOST_EARLY_TAKES = 1024

#: What is published when one ticket was called: this, the ticket, that.
ONE, CALLED = b'[["', b'",null]]'


class EarlyTakes:
    """The asks of threads of this process that wait in line, each sent for its thread as soon as its ticket is called.

    An ask that arrives twice is one ask, by its id and attempt. `send` and `forget` exclude each other, so that what was
    sent for a waiter that has gone is known to be decided.
    """

    __slots__ = ("_asks", "_lock", "_requests", "_sender", "_sent")

    def __init__(self, requests: RedisRequests, sender: RedisThreadSender) -> None:
        self._requests = requests
        self._sender = sender
        self._lock = threading.Lock()
        #: Asks that stand in line, by ticket; of those that were sent the connection that will bring the reply, and when.
        #: With their attempts: two threads may wait under one id.
        self._asks: dict[str, tuple[str, EncodedAsk]] = {}
        self._sent: dict[str, tuple[str, RedisConnection, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._asks) or self._lock.locked() or bool(self._sent)  # in the order of `send`

    def add(self, ask: Stand) -> None:
        """An ask was told to wait: encode now, when there is time, what is sent when its ticket is called."""
        if len(self._asks) < MOST_EARLY_TAKES and (encoded := self._requests.encode_ask(ask)) is not None:
            self._asks[ask.id] = ask.attempt, encoded

    def send(self, ticket: str) -> None:
        """A ticket was called: send its ask if a connection is idle. Else its waiter does."""
        with self._lock:
            attempt, encoded = self._asks.pop(ticket, ("", None))
            connection = None if encoded is None else self._sender.take_idle(encoded[0])
            if encoded is None or connection is None:
                return
            try:
                asked = monotonic_ns() // 1000
                connection.send_packed(self._requests.complete(encoded))
            except (ConnectionLost, AnswerTimeout):
                connection.close()
            else:
                self._sent[ticket] = attempt, connection, asked

    def reply_to(self, ask: Stand) -> Any:
        """The reply to an ask that was sent; NO_REPLY where it was not."""
        attempt, connection, asked = self._pop(ask.id)
        if connection is None or attempt != ask.attempt:
            self._read_off(connection)
            return NO_REPLY
        ask.asked = asked
        return self._sender.reply_to(ask.gate, ask, connection, sent=True)

    def forget(self, ticket: str) -> None:
        """Its waiter has gone. An ask that was sent has been decided when this returns."""
        self._read_off(self._pop(ticket)[1])

    def _read_off(self, connection: RedisConnection | None) -> None:
        if connection is not None:
            try:
                connection.read()
                self._sender.keep(connection)
            except (ErrorReply, ConnectionLost, AnswerTimeout):
                connection.close()

    def _pop(self, ticket: str) -> tuple[str, RedisConnection | None, int]:
        if not (ticket in self._asks or self._lock.locked() or ticket in self._sent):
            return "", None, 0
        with self._lock:
            self._asks.pop(ticket, None)
            return self._sent.pop(ticket, ("", None, 0))

    def close(self) -> None:
        with self._lock:
            for _, connection, _ in self._sent.values():
                connection.close()
            self._asks.clear()
            self._sent.clear()


class RedisSubscriber(WakeSubscriber):
    """Subscribes to what the script publishes to this process, and to the processes that it serves as a guard."""

    thread_name = "headgate-redis-wake"

    def __init__(
        self,
        endpoint: RedisEndpoint,
        session: str,
        addresses: Callable[[], list[Address]],
        early_takes: EarlyTakes,
    ) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._session = session
        self._early_takes = early_takes
        #: The servers to subscribe at, tried in order. Any server of a cluster will do: messages get everywhere.
        self._addresses = addresses
        #: Channel → session: of this process, and of those that it serves.
        self._channels = {self._channel(session).encode(): session}

    def _channel(self, session: str) -> str:
        return channel(session, self._endpoint.prefix)

    def adopt(self, session: str) -> None:
        """Subscribe for another process as well. Without a connection that is done when there is one again."""
        self._channels[self._channel(session).encode()] = session
        connection = self._connection
        if connection is not None:
            with suppress(ConnectionLost, AnswerTimeout, ErrorReply):
                connection.send("SUBSCRIBE", self._channel(session))

    def disown(self, session: str) -> None:
        self._channels.pop(self._channel(session).encode(), None)
        connection = self._connection
        if connection is not None:
            with suppress(ConnectionLost, AnswerTimeout, ErrorReply):
                connection.send("UNSUBSCRIBE", self._channel(session))

    def _run(self, stopping: threading.Event) -> None:
        try:
            self._subscribe_always(stopping)
        finally:  # a bug that ends it is told by Python; the next waiter starts it anew
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _subscribe_always(self, stopping: threading.Event) -> None:
        pause = RETRY
        self.listeners.disconnected = False
        while not stopping.is_set():
            for address in self._addresses():
                begun = monotonic()
                try:
                    self._subscribe(address, stopping)
                    return
                except (ErrorReply, ConnectionLost, AnswerTimeout) as error:
                    self._tried.set()
                    if not self.listeners.disconnected and not stopping.is_set():
                        self.listeners.disconnected = True
                        self.listeners.wake_all(SPREAD_US)
                    if isinstance(error, ConnectionLost) and error.connected:
                        if monotonic() - begun > RETRY_MOST:  # not where it is let in and thrown out
                            pause = RETRY
                        break
            stopping.wait(pause)
            pause = min(2 * pause, RETRY_MOST)

    def _subscribe(self, address: Address, stopping: threading.Event) -> None:
        """Subscribe at a server and pass on its messages, until no waiter is left."""
        connection = self._endpoint.connect(address, QUIET / 5)
        try:
            self._connection = connection
            connection.roundtrip("SUBSCRIBE", *list(self._channels))
            self._tried.set()
            self.listeners.disconnected = False
            self.listeners.wake_all()
            self._pass_on(connection, stopping)
        finally:
            self._connection = None
            connection.close()

    def _pass_on(self, connection: RedisConnection, stopping: threading.Event) -> None:
        busy_at = heard_at = monotonic()
        pinged = False
        while not stopping.is_set():
            if (message := connection.read_message()) is not None:
                if message[0] == b"message":
                    self._notify(self._channels.get(message[1], self._session), message[2])
                heard_at, pinged = monotonic(), False
                continue
            now = monotonic()
            if len(self.listeners):
                busy_at = now
            elif now - busy_at > IDLE and self._retire(stopping):
                return
            if now - heard_at > 2 * QUIET:
                raise ConnectionLost("nothing was heard of it for long", True)
            if now - heard_at > QUIET and not pinged:
                pinged = True
                connection.send("PING")

    def _notify(self, session: str, payload: bytes) -> None:
        if payload.startswith(ONE) and payload.endswith(CALLED) and payload.count(b'"') == 2 and b"\\" not in payload:
            # Mostly one ticket was called. Where it is several, their threads' asks are coalesced when those are awake.
            ticket = payload[len(ONE) : -len(CALLED)].decode()
            self._early_takes.send(ticket)
            self.listeners.tell(Wake(session, ticket))
            return
        for ticket, delay in wakes(payload):
            self.listeners.tell(Wake(session, ticket, delay))

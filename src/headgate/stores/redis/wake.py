"""How a waiter learns that its ticket was called: the script publishes to its process, which subscribes once for all.

One connection and one daemon thread per process, started by the first waiter. When it drops, the server may be gone: every
waiter looks, so that its gate does what it was told for that. When it has subscribed again they look once more: what was
said meanwhile was said to nobody.

What a thread asks when its ticket was called is known beforehand. It is sent as soon as the call is heard, so that the
server decides while that thread wakes up, which takes about as long (`Errands`).
"""

from __future__ import annotations

import threading
from contextlib import suppress
from time import monotonic

from ...kernel.model import Wake
from ..remote.coalescing import EarlyListeners
from .coalescer import NOT_YET
from .errors import Broken, Refused, Silent
from .script import channel
from .wire import wakes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...kernel.commands import Stand
    from .client import Address, Endpoint, Link
    from .requests import Calls, Prepared
    from .threads import Threads

#: Seconds without anybody waiting after which the thread ends and the connection is closed.
IDLE = 30.0

#: A connection that says nothing for so long is asked whether it lives.
QUIET = 5.0

#: Seconds between attempts to subscribe again: the first and the longest.
RETRY, RETRY_MOST = 0.05, 1.0

#: Waiters look within so many microseconds of a drop, each at a moment of its own: a fleet of them was dropped together.
SPREAD = 50_000

#: How many waiting asks are known at most; whoever comes after that asks when it is awake.
MOST_ERRANDS = 1024

#: What is published when one ticket was called: this, the ticket, that.
ONE, CALLED = b'[["', b'",null]]'


class Errands:
    """The asks of threads that wait in this process, to be sent for them.

    An ask that is sent twice is one: it goes by its id. But none may be sent after it was undone, so both are in turn.
    """

    __slots__ = ("_asks", "_calls", "_lock", "_sent", "_threads")

    def __init__(self, calls: Calls, threads: Threads) -> None:
        self._calls = calls
        self._threads = threads
        self._lock = threading.Lock()
        #: Those that stand in line, by ticket; and those that were sent, with the connection that will bring the reply.
        self._asks: dict[str, Prepared] = {}
        self._sent: dict[str, Link] = {}

    def __bool__(self) -> bool:
        return bool(self._asks) or self._lock.locked() or bool(self._sent)  # in the order of `go`

    def add(self, ask: Stand) -> None:
        """It was told to wait: what it will ask then is made ready now, when there is time."""
        if len(self._asks) < MOST_ERRANDS and (prepared := self._calls.prepared(ask)) is not None:
            self._asks[ask.id] = prepared

    def go(self, ticket: str) -> None:
        """A ticket was called: send its ask, by a connection that stands ready. Else its waiter does."""
        with self._lock:
            prepared = self._asks.pop(ticket, None)
            link = None if prepared is None else self._threads.ready(prepared[0])
            if prepared is None or link is None:
                return
            try:
                link.send_packed(self._calls.complete(prepared))
            except (Broken, Silent):
                link.close()
            else:
                self._sent[ticket] = link

    def reply_to(self, ask: Stand) -> Any:
        """The reply to an ask that was sent; NOT_YET where it was not."""
        link = self._away(ask.id)
        return NOT_YET if link is None else self._threads.reply_to(ask.gate, ask, link, sent=True)

    def leave(self, ticket: str) -> None:
        """Nobody waits for it any more. What was sent has been decided when this is over."""
        link = self._away(ticket)
        if link is not None:
            try:
                link.read()
                self._threads.keep(link)
            except (Refused, Broken, Silent):
                link.close()

    def _away(self, ticket: str) -> Link | None:
        if not (ticket in self._asks or self._lock.locked() or ticket in self._sent):
            return None
        with self._lock:
            self._asks.pop(ticket, None)
            return self._sent.pop(ticket, None)

    def close(self) -> None:
        with self._lock:
            for link in self._sent.values():
                link.close()
            self._asks.clear()
            self._sent.clear()


class Subscriber:
    """Hears what is published to this process."""

    def __init__(self, endpoint: Endpoint, session: str, where: Callable[[], list[Address]], errands: Errands) -> None:
        self._endpoint = endpoint
        self._session = session
        self._errands = errands
        #: Any server of a cluster will do: messages get everywhere. The first are tried first.
        self._where = where
        self.listeners = EarlyListeners()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._link: Link | None = None
        self._ending = threading.Event()
        self._tried = threading.Event()
        #: Channel → process: this one, and those that it answers for.
        self._channels = {channel(session).encode(): session}

    def adopt(self, session: str) -> None:
        """Hear what is published to another process as well. What cannot be sent now is sent when it subscribes again."""
        self._channels[channel(session).encode()] = session
        link = self._link
        if link is not None:
            with suppress(Broken, Silent, Refused):
                link.send("SUBSCRIBE", channel(session))

    def disown(self, session: str) -> None:
        self._channels.pop(channel(session).encode(), None)
        link = self._link
        if link is not None:
            with suppress(Broken, Silent, Refused):
                link.send("UNSUBSCRIBE", channel(session))

    def attend(self, seconds: float) -> None:
        """Have the thread there, and wait for so long that its first attempt is over."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    ending = self._ending = threading.Event()
                    self._tried = threading.Event()
                    self._thread = threading.Thread(
                        target=self._run, args=(ending,), name="headgate-redis-wake", daemon=True
                    )
                    self._thread.start()
        if seconds and not self._tried.is_set():
            self._tried.wait(seconds)

    def _run(self, ending: threading.Event) -> None:
        try:
            self._hear_always(ending)
        finally:  # a bug that ends it is told by Python; the next waiter begins anew
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _hear_always(self, ending: threading.Event) -> None:
        pause = RETRY
        self.listeners.deaf = False
        while not ending.is_set():
            for address in self._where():
                begun = monotonic()
                try:
                    self._hear(address, ending)
                    return
                except (Refused, Broken, Silent) as error:
                    self._tried.set()
                    if not self.listeners.deaf and not ending.is_set():
                        self.listeners.deaf = True
                        self.listeners.look_again(SPREAD)
                    if isinstance(error, Broken) and error.begun:
                        if monotonic() - begun > RETRY_MOST:  # not where it is let in and thrown out
                            pause = RETRY
                        break
            ending.wait(pause)
            pause = min(2 * pause, RETRY_MOST)

    def _hear(self, address: Address, ending: threading.Event) -> None:
        """Subscribe and pass on what comes, until there is nobody to pass it on to."""
        link = self._endpoint.connect(address, QUIET / 5)
        try:
            self._link = link
            link.call("SUBSCRIBE", *list(self._channels))
            self._tried.set()
            self.listeners.deaf = False
            self.listeners.look_again()
            self._pass_on(link, ending)
        finally:
            self._link = None
            link.close()

    def _pass_on(self, link: Link, ending: threading.Event) -> None:
        busy_at = heard_at = monotonic()
        asked = False
        while not ending.is_set():
            if (message := link.heard()) is not None:
                if message[0] == b"message":
                    self._told(self._channels.get(message[1], self._session), message[2])
                heard_at, asked = monotonic(), False
                continue
            now = monotonic()
            if len(self.listeners):
                busy_at = now
            elif now - busy_at > IDLE and self._retire(ending):
                return
            if now - heard_at > 2 * QUIET:
                raise Broken("nothing was heard of it for long", True)
            if now - heard_at > QUIET and not asked:
                asked = True
                link.send("PING")

    def _told(self, session: str, payload: bytes) -> None:
        if payload.startswith(ONE) and payload.endswith(CALLED) and payload.count(b'"') == 2 and b"\\" not in payload:
            # One that was called, as mostly. Several are asked for together when they are awake.
            ticket = payload[len(ONE) : -len(CALLED)].decode()
            self._errands.go(ticket)
            self.listeners.tell(Wake(session, ticket))
            return
        for ticket, delay in wakes(payload):
            self.listeners.tell(Wake(session, ticket, delay))

    def _retire(self, ending: threading.Event) -> bool:
        with self._lock:
            if len(self.listeners):
                return False
            ending.set()
            self._thread = None
            return True

    def close(self) -> None:
        with self._lock:
            self._ending.set()
            thread, self._thread = self._thread, None
        link = self._link
        if link is not None:
            link.close()  # which ends the wait of the thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

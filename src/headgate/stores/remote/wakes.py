"""How the waiters of a process hear from a server that their tickets were called."""

from __future__ import annotations

import threading
from contextlib import suppress
from random import randrange

from ...background import is_ending, start_daemon
from ..base import Listeners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...kernel.model import Wake
    from ..base import Listener

#: Wakes for tickets without a listener that are kept: the reply that makes their waiters listen is still on its way.
EARLY = 4096

#: Seconds without a waiter after which the thread ends and its connection is closed.
IDLE = 30.0

#: Seconds between attempts to subscribe again: the first and the longest.
RETRY, RETRY_MOST = 0.05, 1.0


class EarlyListeners(Listeners):
    """Listeners that may be added after what they listen for has been heard."""

    __slots__ = ("_early", "disconnected")

    def __init__(self) -> None:
        super().__init__()
        self._early: dict[str, int | None] = {}
        #: No wake can arrive now, and the waiters of that moment have been woken. A waiter that comes meanwhile is woken
        #: too: the store may have gone between the reply that made it wait and this moment.
        self.disconnected = False

    def add(self, ticket: str, listener: Listener) -> None:
        super().add(ticket, listener)
        if self._early and ticket in self._early:
            listener(self._early.pop(ticket))
        elif self.disconnected:
            listener(0)

    def tell(self, wake: Wake) -> bool:
        if super().tell(wake):
            return True
        early = self._early
        early[wake.ticket] = wake.delay
        if wake.ticket in self._by_ticket:  # it was added at this very moment
            early.pop(wake.ticket, None)
            return super().tell(wake)
        while len(early) > EARLY:
            with suppress(StopIteration, KeyError, RuntimeError):
                del early[next(iter(early))]
        return False

    def wake_all(self, within_us: int = 0) -> None:
        """A wake may have been missed: have every waiter ask the store again, at a random moment of the time given."""
        for listener in list(self._by_ticket.values()):
            listener(randrange(within_us + 1))

    def clear(self) -> None:
        super().clear()
        self._early.clear()


class WakeSubscriber:
    """The one daemon thread of a process that hears of wakes, and its connection. The first waiter starts it."""

    thread_name = "headgate-wake"

    def __init__(self) -> None:
        self.listeners = EarlyListeners()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._connection: Any = None
        self._stopping = threading.Event()
        #: Set when the first attempt to subscribe is over.
        self._tried = threading.Event()

    def start(self, wait_s: float) -> None:
        """Start the thread if it does not run, and wait so long at most for its first attempt to be over."""
        if self._thread is None and not is_ending():
            with self._lock:
                if self._thread is None:
                    stopping = self._stopping = threading.Event()
                    self._tried = threading.Event()
                    self._thread = start_daemon(self.thread_name, self._run, stopping)
        if wait_s and self._thread is not None and not self._tried.is_set() and not is_ending():
            self._tried.wait(wait_s)

    def _run(self, stopping: threading.Event) -> None:
        """Subscribe, and pass on what is heard, until `stopping` is set or no waiter is left."""
        raise NotImplementedError

    def _retire(self, stopping: threading.Event) -> bool:
        """Let the thread end, unless a waiter came at this very moment."""
        with self._lock:
            if len(self.listeners):
                return False
            stopping.set()
            self._thread = None
            return True

    def close(self) -> None:
        with self._lock:
            self._stopping.set()
            thread, self._thread = self._thread, None
        connection = self._connection
        if connection is not None:
            connection.close()  # which ends the wait of the thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(1.0)

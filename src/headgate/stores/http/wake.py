"""How a waiter learns that its ticket was called: the guard says so in a stream that this process keeps open.

One connection and one daemon thread per process, started by the first waiter. After a drop it comes back by itself and
has every waiter look once: what was said meanwhile was said to nobody.
"""

from __future__ import annotations

import threading
from json import loads
from time import monotonic

from ...kernel.model import Wake
from ..remote.coalescing import EarlyListeners
from .client import Broken, Refused, Silent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .client import Endpoint, Link

#: Seconds without anybody waiting after which the thread ends and the stream is closed.
IDLE = 30.0

#: A guard says something every few seconds, if only that it is there; one that is quiet for so long is gone.
QUIET = 10.0

#: Seconds between attempts: the first and the longest.
RETRY, RETRY_MOST = 0.05, 1.0


class Subscriber:
    """Hears what a guard has to say to this process."""

    def __init__(self, endpoint: Endpoint, session: str) -> None:
        self._endpoint = endpoint
        self._session = session
        self.listeners = EarlyListeners()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._link: Link | None = None
        self._ending = threading.Event()
        self._tried = threading.Event()

    def attend(self, seconds: float) -> None:
        """Have the thread there, and wait for so long that its first attempt is over."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    ending = self._ending = threading.Event()
                    self._tried = threading.Event()
                    self._thread = threading.Thread(
                        target=self._run, args=(ending,), name="headgate-http-wake", daemon=True
                    )
                    self._thread.start()
        if seconds and not self._tried.is_set():
            self._tried.wait(seconds)

    def _run(self, ending: threading.Event) -> None:
        pause = RETRY
        while not ending.is_set():
            try:
                if self._hear(ending):
                    return
                pause = RETRY
            except (Refused, Broken, Silent) as error:
                if isinstance(error, Broken) and error.begun:
                    pause = RETRY
            self._tried.set()
            ending.wait(pause)
            pause = min(2 * pause, RETRY_MOST)

    def _hear(self, ending: threading.Event) -> bool:
        """Pass on what comes. True when there is nobody left to pass it on to."""
        link = self._endpoint.connect(max(1.0, self._endpoint.timeout))
        busy_at = monotonic()
        text = ""
        try:
            self._link = link
            request = self._endpoint.get(f"/v1/wakes?session={self._session}", "text/event-stream")
            for part in link.stream(request, QUIET):
                text += part.decode("utf-8", "replace")
                *events, text = text.split("\n\n")
                for event in events:
                    self._pass_on(event)
                now = monotonic()
                if len(self.listeners):
                    busy_at = now
                elif ending.is_set() or (now - busy_at > IDLE and self._retire(ending)):
                    return True
            return ending.is_set()
        finally:
            self._link = None
            link.close()

    def _pass_on(self, event: str) -> None:
        fields = dict(line.split(": ", 1) for line in event.split("\n") if ": " in line and not line.startswith(":"))
        if fields.get("event") == "ready":
            self._tried.set()
            self.listeners.look_again()
        elif fields.get("event") == "wake":
            for ticket, delay in loads(fields["data"]):
                self.listeners.tell(Wake(self._session, ticket, delay))

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

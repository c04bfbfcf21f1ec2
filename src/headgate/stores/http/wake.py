"""How a waiter learns that its ticket was called: the guard says so in a stream that its process keeps open.

One connection and one daemon thread per process, started by the first waiter. After a drop the thread connects again and
wakes every waiter once, since what the guard said meanwhile was lost.
"""

from __future__ import annotations

from json import loads
from time import monotonic

from ...kernel.model import Wake
from ..remote.jobs import AnswerTimeout, ConnectionLost
from ..remote.wakes import IDLE, RETRY, RETRY_MOST, WakeSubscriber
from .client import ErrorResponse

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading

    from .client import GuardEndpoint

#: A guard sends something every few seconds, if only a sign of life; after so many without it is taken for gone.
QUIET = 10.0


class GuardSubscriber(WakeSubscriber):
    """Reads the stream of wakes that a guard has for this process."""

    thread_name = "headgate-http-wake"

    def __init__(self, endpoint: GuardEndpoint, session: str) -> None:
        super().__init__()
        self._endpoint = endpoint
        self._session = session

    def _run(self, stopping: threading.Event) -> None:
        pause = RETRY
        while not stopping.is_set():
            try:
                if self._read_stream(stopping):
                    return
                pause = RETRY
            except (ErrorResponse, ConnectionLost, AnswerTimeout) as error:
                if isinstance(error, ConnectionLost) and error.connected:
                    pause = RETRY
            self._tried.set()
            stopping.wait(pause)
            pause = min(2 * pause, RETRY_MOST)

    def _read_stream(self, stopping: threading.Event) -> bool:
        """Pass on what comes. Returns True when no waiter is left."""
        connection = self._endpoint.connect(max(1.0, self._endpoint.timeout))
        busy_at = monotonic()
        text = ""
        try:
            self._connection = connection
            request = self._endpoint.get(f"/v1/wakes?session={self._session}", "text/event-stream")
            for part in connection.stream(request, QUIET):
                text += part.decode("utf-8", "replace")
                *events, text = text.split("\n\n")
                for event in events:
                    self._notify(event)
                now = monotonic()
                if len(self.listeners):
                    busy_at = now
                elif stopping.is_set() or (now - busy_at > IDLE and self._retire(stopping)):
                    return True
            return stopping.is_set()
        finally:
            self._connection = None
            connection.close()

    def _notify(self, event: str) -> None:
        fields = dict(line.split(": ", 1) for line in event.split("\n") if ": " in line and not line.startswith(":"))
        if fields.get("event") == "ready":
            self._tried.set()
            self.listeners.wake_all()
        elif fields.get("event") == "wake":
            for ticket, delay in loads(fields["data"]):
                self.listeners.tell(Wake(self._session, ticket, delay))

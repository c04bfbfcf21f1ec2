"""A TCP proxy that keeps connections back, so that what another one sends later arrives first; and notes what was sent."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from tests.support.servers import LOOPBACK, Proxy


class ReorderingProxy(Proxy):
    """Connections that are made while `keeps` is set pass nothing on until `let_go`: no request, or no reply to one that
    matters, which are those with `marker` in them.
    """

    def __init__(self, port: int, marker: bytes) -> None:
        self._marker = marker
        #: "request" or "reply": what of new connections is kept back; "": nothing.
        self.keeps = ""
        self._kept: list[threading.Event] = []
        #: The requests that matter, in the order in which they were passed on.
        self.requests: list[bytes] = []
        #: How many replies came to requests that matter and were kept back.
        self.late_replies = 0
        self._late: set[frozenset[socket.socket]] = set()
        super().__init__((LOOPBACK, port))

    @property
    def is_keeping(self) -> bool:
        """Whether there is a connection that is kept back."""
        with self._lock:
            return any(not event.is_set() for event in self._kept)

    def let_go(self) -> None:
        """Everything that was kept back goes on, and nothing more is kept."""
        self.keeps = ""
        with self._lock:
            kept, self._kept = self._kept, []
        for event in kept:
            event.set()

    def close(self) -> None:
        self.let_go()
        super().close()

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        event = None
        if self.keeps:
            with self._lock:
                event = threading.Event()
                self._kept.append(event)
                if self.keeps != direction:
                    event.set()
        with suppress(OSError):
            while data := source.recv(65536):
                if event is not None and (direction == "request" or frozenset((source, sink)) in self._late):
                    event.wait()
                if direction == "reply":
                    time.sleep(self.delay)
                elif self._marker in data:
                    self.requests.append(data)
                    if event is not None:
                        self._late.add(frozenset((source, sink)))
                sink.sendall(data)
                if direction == "reply" and frozenset((source, sink)) in self._late:
                    self.late_replies += 1
        for side in (source, sink):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()


def send_again(port: int, request: bytes) -> None:
    """Send the bytes of a request once more, by a connection of their own, and wait for the answer."""
    with socket.create_connection((LOOPBACK, port), timeout=60) as connection:
        connection.sendall(request)
        assert connection.recv(65536)

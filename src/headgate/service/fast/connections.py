"""Bounds on the connections of a guard: how many there are, and how long a request may take to arrive.

Before its first whole request a connection is a stranger's. Where there are too many, the stranger that was there first
makes room for the newest: programs send their request at once, so only connections that hold a place for nothing lose it.
"""

from __future__ import annotations

from time import monotonic

from ..log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from typing import Protocol

    from ...config.serve import Serve

    class Bounded(Protocol):
        """A connection as this module sees it."""

        @property
        def is_strange(self) -> bool: ...
        def drop(self) -> None: ...
        def check_time(self, now: float) -> None: ...


#: Connections that asyncio accepts in one turn of the event loop. Each has a file open until it is refused.
ACCEPTS = 16
#: Files that are left for stores, logs, and connections that are accepted to be refused; at least, and as a share.
SPARE, SPARE_SHARE = 128, 0.1
#: Connections that may be open for a second after they were refused, so that their clients can read why.
LINGERING = 32
#: Seconds between two log lines about connections that were refused.
LOG_EVERY = 60.0


def most_by_files() -> int:
    """The most connections that the process's limit of open files allows."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit
    except ImportError:  # Windows has no such limit
        return 1_000_000
    limit = getrlimit(RLIMIT_NOFILE)[0]
    if limit == RLIM_INFINITY:
        return 1_000_000
    return max(16, int(limit - max(SPARE, limit * SPARE_SHARE)))


class ConnectionBounds:
    """The open connections of one guard."""

    def __init__(self, settings: Serve) -> None:
        files = most_by_files()
        self.most = files if settings.max_connections is None else min(settings.max_connections, files)
        #: Seconds from the first byte of a request to its last; and of a connection without one.
        self.request_timeout = settings.request_timeout
        self.lingering = 0
        self._open: set[Bounded] = set()
        #: Those that had sent no whole request when they were last looked at, the oldest first.
        self._strange: dict[Bounded, None] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._refused = 0
        self._log_at = 0.0

    def add(self, connection: Bounded, loop: asyncio.AbstractEventLoop) -> bool:
        """Take a connection in. False: there are too many, and it is to be refused."""
        if len(self._open) >= self.most and not self._make_room():
            self._note_refusal("refused")
            return False
        self._open.add(connection)
        self._strange[connection] = None
        if self._sweep is None:
            self._plan_sweep(loop)
        return True

    def remove(self, connection: Bounded) -> None:
        self._open.discard(connection)
        self._strange.pop(connection, None)

    def _make_room(self) -> bool:
        """Drop the connection that has been without a request for longest. False: every one has sent one."""
        while self._strange:
            oldest = next(iter(self._strange))
            del self._strange[oldest]  # one that has sent a request is never looked at again
            if oldest.is_strange:
                self.remove(oldest)
                oldest.drop()
                self._note_refusal("dropped, since they had sent no request")
                return True
        return False

    def _note_refusal(self, what: str) -> None:
        self._refused += 1
        if (now := monotonic()) >= self._log_at:
            self._log_at = now + LOG_EVERY
            log.warning(
                "there are too many connections; some were %s", what, extra={"most": self.most, "since": self._refused}
            )
            self._refused = 0

    def _plan_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep = loop.call_later(min(1.0, self.request_timeout / 4), self._check_all, loop)

    def _check_all(self, loop: asyncio.AbstractEventLoop) -> None:
        self._sweep = None
        now = loop.time()
        for connection in list(self._open):
            connection.check_time(now)
        if self._open:
            self._plan_sweep(loop)

"""Sending requests to a guard, from threads and from event loops, by connections that are kept between requests."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic, sleep

from ...errors import StoreUnavailable
from ..remote.coalescing import Deadline, LoopCoalescer, ThreadCoalescer
from ..remote.jobs import AnswerTimeout, ConnectionLost, fail_all
from .client import ErrorResponse
from .requests import GuardRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..remote.jobs import LoopJob, ThreadJob
    from .client import AsyncHttpConnection, GuardEndpoint, HttpConnection
    from .requests import KnownGates
    from .wire import ToldPolicy

#: Idle connections that are kept for threads.
KEPT = 8


class GuardThreadSender:
    """The requests of a process's threads, and their connections."""

    def __init__(
        self, endpoint: GuardEndpoint, known: KnownGates, on_policy: Callable[[str, ToldPolicy], None]
    ) -> None:
        self._endpoint = endpoint
        self._known = known
        self._on_policy = on_policy
        self.coalescer = ThreadCoalescer(self._run)
        self._idle: list[HttpConnection] = []

    def _run(self, jobs: list[ThreadJob]) -> None:
        """Send jobs until they are answered, or their time is over."""
        request = GuardRequest(self._endpoint, self._known, jobs, self._on_policy)
        end = monotonic() + self._endpoint.timeout
        while request.jobs:
            connection: HttpConnection | None = None
            try:
                connection = self._connect(end)
                if request.hand_out(connection.roundtrip(request.encode(), end)):
                    self._keep(connection)
                    connection = None
                return
            except (ErrorResponse, ConnectionLost, AnswerTimeout) as error:
                if connection is not None and not isinstance(error, ErrorResponse):
                    self.close()
                pause = request.retry_pause(error, end - monotonic())
                if pause is None:
                    return
            finally:
                if connection is not None:
                    connection.close()
            if pause:
                sleep(pause)

    def get(self, path: str) -> bytes:
        """The body of what the guard answers to a GET. Raises StoreUnavailable."""
        request = GuardRequest(self._endpoint, self._known, [], self._on_policy)
        end = monotonic() + self._endpoint.timeout
        while True:
            connection: HttpConnection | None = None
            try:
                connection = self._connect(end)
                response = connection.roundtrip(self._endpoint.get(path, "application/json"), end)
                body = response.checked()
                if response.keeps:
                    self._keep(connection)
                    connection = None
                return body
            except (ErrorResponse, ConnectionLost, AnswerTimeout) as error:
                # A connection that the guard has dropped meanwhile is worth another; to look twice does no harm.
                if not (isinstance(error, ConnectionLost) and error.connected and monotonic() < end):
                    raise request.unavailable(error) from error
            finally:
                if connection is not None:
                    connection.close()

    def _connect(self, end: float) -> HttpConnection:
        """An idle connection, or a new one."""
        with suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.is_fresh:
                    return connection
                connection.close()
        return self._endpoint.connect(end - monotonic())

    def _keep(self, connection: HttpConnection) -> None:
        if len(self._idle) >= KEPT:
            connection.close()
        else:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the idle connections; also where another was lost, since they are likely to be gone too."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class GuardLoopSender:
    """The requests of one event loop, and its connections."""

    def __init__(
        self,
        endpoint: GuardEndpoint,
        known: KnownGates,
        on_policy: Callable[[str, ToldPolicy], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._endpoint = endpoint
        self._known = known
        self._on_policy = on_policy
        self._loop = loop
        self.coalescer = LoopCoalescer(loop, self._run)
        self._idle: list[AsyncHttpConnection] = []
        #: The task that closes the connections when the loop ends.
        self._closer: asyncio.Task[None] | None = None

    async def _run(self, jobs: list[LoopJob]) -> None:
        """Send jobs until they are answered, or their time is over."""
        task = asyncio.current_task()
        assert task is not None
        request = GuardRequest(self._endpoint, self._known, jobs, self._on_policy)
        deadline = Deadline(self._loop, task.cancel, self._endpoint.timeout)
        try:
            await self._attempt(request, self._loop.time() + self._endpoint.timeout)
        except asyncio.CancelledError:
            if not deadline.expired:
                fail_all(request.jobs, StoreUnavailable(f"{self._endpoint.shown}: the event loop is being closed"))
                raise
            task.uncancel()
            fail_all(request.jobs, request.unavailable(AnswerTimeout()))
        except BaseException as error:
            for job in request.jobs:
                job.fail(error)  # a bug, which its caller should see
        finally:
            deadline.cancel()

    async def _attempt(self, request: GuardRequest, end: float) -> None:
        while request.jobs:
            connection: AsyncHttpConnection | None = None
            try:
                connection = await self._connect()
                if request.hand_out(await connection.roundtrip(request.encode())):
                    self._idle.append(connection)
                    connection = None
                return
            except (ErrorResponse, ConnectionLost, AnswerTimeout) as error:
                if connection is not None and not isinstance(error, ErrorResponse):
                    self._close_idle()
                pause = request.retry_pause(error, end - self._loop.time())
                if pause is None:
                    return
            finally:
                if connection is not None:
                    connection.close()
            if pause:
                await asyncio.sleep(pause)

    async def _connect(self) -> AsyncHttpConnection:
        """An idle connection, or a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh:
                return connection
            connection.close()
        if self._closer is None:
            self._closer = self._loop.create_task(self._close_with_loop(), name="headgate-http")
        return await self._endpoint.connect_async()

    def _close_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    async def _close_with_loop(self) -> None:
        """Closes the connections when the loop ends, which is when `asyncio.run` cancels all tasks that are left."""
        try:
            await self._loop.create_future()
        finally:
            self._closer = None
            self._close_idle()

    def close_soon(self) -> None:
        """The store is closed while the loop goes on."""
        if self._closer is not None:
            self._closer.cancel()

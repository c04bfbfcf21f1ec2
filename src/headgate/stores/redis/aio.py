"""Sending from an event loop: everything that is submitted in the same turn of the loop goes out together."""

from __future__ import annotations

import asyncio
from asyncio import Future
from contextlib import suppress

from ...errors import StoreFormatError, StoreUnavailable
from ..remote.coalescing import MOST_IN_FLIGHT, Deadline, fail_waiting, take_turn
from ..remote.jobs import AnswerTimeout, ConnectionLost, LoopJob, fail_all
from .errors import ErrorReply
from .requests import RedisRequest
from .script import library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...kernel.commands import Command
    from .client import Address, AsyncRedisConnection
    from .requests import RedisRequests


#: An event loop does not keep its tasks alive by itself.
_closers: set[asyncio.Task[None]] = set()


class RedisLoopSender:
    """The requests of one event loop, and its connections."""

    def __init__(self, requests: RedisRequests, loop: asyncio.AbstractEventLoop) -> None:
        self.requests = requests
        self.loop = loop
        self._coalescers: dict[str, GateLoopCoalescer] = {}
        self._idle: dict[Address, list[AsyncRedisConnection]] = {}
        #: The task that closes the connections when the loop ends.
        self._closer: asyncio.Task[None] | None = None
        self._closing = False
        self.in_flight: set[InFlight] = set()

    def submit(self, gate: str, commands: Sequence[Command]) -> LoopJob:
        coalescer = self._coalescers.get(gate)
        if coalescer is None:
            coalescer = self._coalescers[gate] = GateLoopCoalescer(self, gate)
        job = LoopJob(commands, Future(loop=self.loop))
        waiting = coalescer.waiting
        waiting.append(job)
        if len(waiting) == 1:
            coalescer.begin_if_free()
        return job

    # --- one request ----------------------------------------------------------------------------------------------

    def start(self, request: RedisRequest, coalescer: GateLoopCoalescer) -> bool:
        """Send a request by an idle connection. Returns False where there is none, or more has to be done first."""
        requests = self.requests
        idle = None if requests.sends_time else self._idle.get(requests.address(request))  # type: ignore[arg-type]
        while idle and idle[-1].has_callbacks:
            connection = idle.pop()
            if not connection.is_lost:
                self.in_flight.add(InFlight(self, coalescer, request, connection))
                return True
            closing = self.loop.create_task(connection.close())
            _closers.add(closing)
            closing.add_done_callback(_closers.discard)
        return False

    async def run(
        self,
        request: RedisRequest,
        end: float = 0.0,
        connection: AsyncRedisConnection | None = None,
        failed: Exception | None = None,
    ) -> None:
        """Send a request until it is answered, or its time is over. Each of its jobs is done then.

        `failed` is the error of a first attempt by `connection`, which had until `end` as well.
        """
        task = asyncio.current_task()
        assert task is not None
        end = end or self.loop.time() + self.requests.endpoint.timeout
        deadline = Deadline(self.loop, task.cancel, end - self.loop.time())
        try:
            await self._attempt(request, end, connection, failed)
        except asyncio.CancelledError:
            if not deadline.expired:
                request.fail(StoreUnavailable(f"{self.requests.endpoint.shown}: the event loop is being closed"))
                raise
            task.uncancel()
            request.fail(self.requests.unavailable(AnswerTimeout()))
        except BaseException as error:
            for job in request.jobs:
                job.fail(error)  # a bug, which its caller should see
        finally:
            deadline.cancel()

    async def _attempt(
        self, request: RedisRequest, end: float, connection: AsyncRedisConnection | None, failed: Exception | None
    ) -> None:
        requests = self.requests
        while request.jobs:
            error: Exception
            try:
                if failed is not None:
                    first, failed = failed, None
                    raise first
                connection = None
                connection = await self._connect(request)
                if requests.must_calibrate:
                    await self._calibrate(connection)
                if request.loads_library:
                    await self._load(connection, request)
                if request.says_asking:
                    await connection.roundtrip("ASKING")
                request.mark_sent()
                raw = await connection.roundtrip(*requests.words_of(request))
                self.keep(connection)
                connection = None
                if requests.hand_out(request, raw):
                    return
                continue
            except ErrorReply as reply:
                if connection is not None and reply.kind not in ("loading", "readonly"):
                    self.keep(connection)
                    connection = None
                if reply.kind == "ask" and await self._follow(request, reply):
                    continue
                error = reply
            except (ConnectionLost, AnswerTimeout) as lost:
                error = lost
                if connection is not None:
                    await self._close_idle(connection.address)
            finally:
                if connection is not None:
                    await connection.close()
            try:
                pause = requests.retry_pause(request, error)
                if self.loop.time() + pause >= end:
                    raise requests.unavailable(error)
            except (StoreUnavailable, StoreFormatError) as failure:
                request.fail(failure)
                return
            if pause:
                await asyncio.sleep(pause)

    # --- connections ----------------------------------------------------------------------------------------------

    async def _connect(self, request: RedisRequest) -> AsyncRedisConnection:
        """An idle connection to the server of a request, or a new one."""
        address = self.requests.address(request)
        if address is None:
            await self._look_up()
            address = self.requests.address(request)
            if address is None:
                raise ErrorReply("moving", "CLUSTERDOWN no master serves the slot of this gate")
        with suppress(LookupError):
            return self._idle[address].pop()
        if self._closer is None:
            self._closer = self.loop.create_task(self._close_with_loop(), name="headgate-redis")
            _closers.add(self._closer)
            self._closer.add_done_callback(_closers.discard)
        return await self.requests.endpoint.connect_async(address)

    def keep(self, connection: AsyncRedisConnection) -> None:
        self._idle.setdefault(connection.address, []).append(connection)

    async def _close_idle(self, address: Address) -> None:
        """One connection to a server is gone, so the others are likely to be."""
        for connection in self._idle.pop(address, ()):
            await connection.close()

    async def _close_with_loop(self) -> None:
        """Closes the connections when the loop ends, which is when `asyncio.run` cancels all tasks that are left."""
        try:
            await self.loop.create_future()
        finally:
            self._closer = None
            if not self._closing:
                for flight in list(self.in_flight):
                    await flight.abort()
            self._closing = False
            await self._close_all()

    def close_soon(self) -> None:
        """The store is closed while the loop goes on."""
        if self._closer is not None:
            self._closing = True
            self._closer.cancel()

    async def _close_all(self) -> None:
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                await connection.close()

    async def _look_up(self) -> None:
        """Ask where the gates are, until one of those who know answers: the masters of a cluster, or the sentinels."""
        error: Exception | None = None
        for address, words in self.requests.lookups():
            try:
                connection = await self.requests.endpoint.connect_async(address)
                try:
                    self.requests.learn(address, await connection.roundtrip(*words))
                finally:
                    await connection.close()
                return
            except (ErrorReply, ConnectionLost, AnswerTimeout) as failure:
                error = failure
        assert error is not None
        raise error

    async def _follow(self, request: RedisRequest, reply: ErrorReply) -> bool:
        """The slot is being moved to another master: have the request go there if all keys of the gate have arrived."""
        source, slot = self.requests.address(request), self.requests.slot(request.gate)
        with suppress(ErrorReply, ConnectionLost, AnswerTimeout):
            connection = await self.requests.endpoint.connect_async(source or self.requests.endpoint.start)
            try:
                count = await connection.roundtrip("CLUSTER", "COUNTKEYSINSLOT", slot)
                left = await connection.roundtrip("CLUSTER", "GETKEYSINSLOT", slot, count) if count else []
            finally:
                await connection.close()
            if not any(key.startswith(self.requests.tag(request.gate).encode()) for key in left):
                request.redirected_to, request.says_asking = reply.address, True
                return True
        return False

    async def _load(self, connection: AsyncRedisConnection, request: RedisRequest) -> None:
        failed: ErrorReply | None = None
        try:
            await connection.roundtrip("FUNCTION", "LOAD", library())
        except ErrorReply as error:
            failed = error
        self.requests.library_loaded(request, failed)

    async def _calibrate(self, connection: AsyncRedisConnection) -> None:
        try:
            self.requests.calibrate(await connection.roundtrip("TIME"))
        except ErrorReply:
            self.requests.calibrate(None)


class InFlight:
    """A request on an idle connection: its answer comes by callback, so that no task waits for it unless it fails."""

    __slots__ = ("_coalescer", "_connection", "_deadline", "_end", "_request", "_sender")

    def __init__(
        self,
        sender: RedisLoopSender,
        coalescer: GateLoopCoalescer,
        request: RedisRequest,
        connection: AsyncRedisConnection,
    ) -> None:
        self._sender = sender
        self._coalescer = coalescer
        self._request = request
        self._connection = connection
        timeout = sender.requests.endpoint.timeout
        self._end = sender.loop.time() + timeout
        self._deadline = Deadline(sender.loop, self._on_timeout, timeout)
        request.mark_sent()
        connection.send(sender.requests.words_of(request), self._on_answer)

    def _over(self) -> None:
        self._deadline.cancel()
        self._sender.in_flight.discard(self)

    def _on_answer(self, answer: Any) -> None:
        self._over()
        sender, request = self._sender, self._request
        if isinstance(answer, ErrorReply | ConnectionLost):
            self._coalescer.run(request, self._end, self._connection, answer)
            return
        sender.keep(self._connection)
        first = request.jobs[0]
        try:
            if not sender.requests.hand_out(request, answer):
                self._coalescer.run(request, self._end)
                return
        except BaseException as error:
            for job in request.jobs:
                job.fail(error)  # a bug, which its caller should see
        self._coalescer.request_done(first)

    def _on_timeout(self) -> None:
        self._over()
        self._coalescer.run(self._request, self._end, self._connection, AnswerTimeout())

    async def abort(self) -> None:
        """The loop ends."""
        self._over()
        self._request.fail(StoreUnavailable(f"{self._sender.requests.endpoint.shown}: the event loop is being closed"))
        await self._connection.close()


class GateLoopCoalescer:
    """The jobs of one gate on one event loop."""

    __slots__ = ("_gate", "_sender", "_sending", "_tasks", "waiting")

    def __init__(self, sender: RedisLoopSender, gate: str) -> None:
        self._sender = sender
        self._gate = gate
        self.waiting: list[LoopJob] = []
        #: Requests that are about to be sent, or in flight.
        self._sending = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def begin_if_free(self) -> None:
        """The first job waits: send it with all that are submitted in the same turn, unless enough is in flight."""
        if self._sending < MOST_IN_FLIGHT:
            self._begin()

    def _begin(self) -> None:
        self._sending += 1
        self._sender.loop.call_soon(self._send)

    def _send(self) -> None:
        # By now every task that was ready in this turn of the loop has submitted its job.
        jobs = take_turn(self.waiting, halved=self._sending < MOST_IN_FLIGHT)
        if self.waiting and self._sending < MOST_IN_FLIGHT:
            self._begin()
        if not jobs:
            self._sending -= 1
            return
        request = RedisRequest(self._gate, jobs)
        if not self._sender.start(request, self):
            self.run(request)

    def run(
        self,
        request: RedisRequest,
        end: float = 0.0,
        connection: AsyncRedisConnection | None = None,
        failed: Exception | None = None,
    ) -> None:
        """Have a task send a request: there is no idle connection, or a first attempt failed."""
        task = self._sender.loop.create_task(self._run(request, end, connection, failed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(
        self, request: RedisRequest, end: float, connection: AsyncRedisConnection | None, failed: Exception | None
    ) -> None:
        first = request.jobs[0]
        try:
            await self._sender.run(request, end, connection, failed)
        except asyncio.CancelledError:
            # The loop ends: tasks that still wait would wait for ever.
            waiting, self.waiting = self.waiting, []
            fail_all(waiting, StoreUnavailable("the event loop is being closed"))
            raise
        finally:
            self.request_done(first)

    def request_done(self, first: LoopJob) -> None:
        """A request was answered, or has failed: another may be sent."""
        fail_waiting(self.waiting, first)
        self._sending -= 1
        if self.waiting and self._sending < MOST_IN_FLIGHT:
            self._begin()

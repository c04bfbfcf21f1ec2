"""Sending from an event loop: everything that is asked in the same turn of the loop goes out together."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import monotonic_ns

from ..errors import StoreFormatError, StoreUnavailable
from .redis_batches import LARGEST_BATCH, Call, repeatable
from .redis_client import Broken, Refused, Silent
from .redis_script import library, tag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..commands import Command
    from .redis_batches import Calls
    from .redis_client import Address, AsyncLink

#: Calls of one gate that are under way at a time: while the server decides one, the other is taken apart and made.
MOST = 2

#: A first call that is larger than this goes as two, so that there are two to alternate.
HALVED = 16

#: Seconds that a loop which was held up has to read what has already arrived.
GRACE = 0.02


#: An event loop does not keep its tasks alive by itself.
_tidying: set[asyncio.Task[None]] = set()


class AsyncJob:
    """The commands of one task, and the future that it waits for."""

    __slots__ = ("commands", "future", "over", "sent")

    def __init__(self, commands: Sequence[Command], future: asyncio.Future[Any]) -> None:
        self.commands = commands
        self.future = future
        self.sent = False
        #: It is known what became of it, whether somebody still waits for that or not.
        self.over = False

    @property
    def done(self) -> bool:
        return self.future.done()

    @property
    def repeatable(self) -> bool:
        return all(repeatable(command) for command in self.commands)

    def finish(self, replies: Any) -> None:
        self.over = True
        future = self.future
        if not future.done():
            future.set_result(replies)

    def fail(self, error: BaseException) -> None:
        self.over = True
        if not self.future.done():
            self.future.set_exception(error)


class Loop:
    """The calls of one event loop, and its connections."""

    def __init__(self, calls: Calls, loop: asyncio.AbstractEventLoop) -> None:
        self._calls = calls
        self.loop = loop
        self._lanes: dict[str, AsyncLane] = {}
        self._idle: dict[Address, list[AsyncLink]] = {}
        self._tidying: asyncio.Task[None] | None = None

    def submit(self, gate: str, commands: Sequence[Command]) -> AsyncJob:
        lane = self._lanes.get(gate)
        if lane is None:
            lane = self._lanes[gate] = AsyncLane(self, gate)
        job = AsyncJob(commands, self.loop.create_future())
        lane.add(job)
        return job

    # --- one call -------------------------------------------------------------------------------------------------

    async def run(self, call: Call) -> None:
        """Send a call until it is answered, or its time is over. Each of its jobs is done then."""
        task = asyncio.current_task()
        assert task is not None
        timeout = self._calls.endpoint.timeout
        watch = Watch(self.loop, task, timeout)
        try:
            await self._send(call, self.loop.time() + timeout)
        except asyncio.CancelledError:
            if not watch.over:
                call.fail(StoreUnavailable(f"{self._calls.endpoint.shown}: the event loop is being closed"))
                raise
            task.uncancel()
            call.fail(self._calls.unavailable(Silent()))
        except BaseException as error:
            for job in call.jobs:
                job.fail(error)  # a bug; whoever asked should see it
        finally:
            watch.end()

    async def _send(self, call: Call, end: float) -> None:
        calls = self._calls
        while call.jobs:
            error: Exception
            link: AsyncLink | None = None
            try:
                link = await self._link(call)
                if calls.must_ask_time:
                    await self._ask_time(link)
                if call.loading:
                    await self._load(link, call)
                if call.asking:
                    await link.call("ASKING")
                for job in call.jobs:
                    job.sent = True
                raw = await link.call(*calls.words(call))
                self._keep(link)
                link = None
                if calls.take(call, raw):
                    return
                continue
            except Refused as refused:
                if link is not None and refused.kind not in ("loading", "readonly"):
                    self._keep(link)
                    link = None
                if refused.kind == "ask" and await self._follow(call, refused):
                    continue
                error = refused
            except (Broken, Silent) as lost:
                error = lost
                if link is not None:
                    await self._forget(link.address)
            finally:
                if link is not None:
                    await link.close()
            try:
                pause = calls.after(call, error)
                if self.loop.time() + pause >= end:
                    raise calls.unavailable(error)
            except (StoreUnavailable, StoreFormatError) as failure:
                call.fail(failure)
                return
            if pause:
                await asyncio.sleep(pause)

    # --- connections ----------------------------------------------------------------------------------------------

    async def _link(self, call: Call) -> AsyncLink:
        address = self._calls.address(call)
        if address is None:
            await self._ask_cluster()
            address = self._calls.address(call)
            if address is None:
                raise Refused("moving", "CLUSTERDOWN no master serves the slot of this gate")
        with suppress(LookupError):
            return self._idle[address].pop()
        if self._tidying is None:
            self._tidying = self.loop.create_task(self._tidy(), name="headgate-redis")
            _tidying.add(self._tidying)
            self._tidying.add_done_callback(_tidying.discard)
        return await self._calls.endpoint.connect_async(address)

    def _keep(self, link: AsyncLink) -> None:
        self._idle.setdefault(link.address, []).append(link)

    async def _forget(self, address: Address) -> None:
        """One connection to a server is gone, so the others are likely to be."""
        for link in self._idle.pop(address, ()):
            await link.close()

    async def _tidy(self) -> None:
        """Closes the connections when the loop ends, which is when `asyncio.run` cancels all that is left."""
        try:
            await self.loop.create_future()
        finally:
            self._tidying = None
            await self.close()

    def shut(self) -> None:
        """The store is closed while the loop goes on."""
        if self._tidying is not None:
            self._tidying.cancel()

    async def close(self) -> None:
        idle, self._idle = self._idle, {}
        for links in idle.values():
            for link in links:
                await link.close()

    async def _ask_cluster(self) -> None:
        error: Exception | None = None
        for address in self._calls.masters():
            try:
                link = await self._calls.endpoint.connect_async(address)
                try:
                    self._calls.learn(address, await link.call("CLUSTER", "SLOTS"))
                finally:
                    await link.close()
                return
            except (Refused, Broken, Silent) as failure:
                error = failure
        assert error is not None
        raise error

    async def _follow(self, call: Call, refused: Refused) -> bool:
        """The slot is on its way to another master: go there if all keys of the gate have arrived."""
        source, slot = self._calls.address(call), self._calls.slot(call.gate)
        with suppress(Refused, Broken, Silent):
            link = await self._calls.endpoint.connect_async(source or self._calls.endpoint.start)
            try:
                count = await link.call("CLUSTER", "COUNTKEYSINSLOT", slot)
                left = await link.call("CLUSTER", "GETKEYSINSLOT", slot, count) if count else []
            finally:
                await link.close()
            if not any(key.startswith(tag(call.gate).encode()) for key in left):
                call.elsewhere, call.asking = refused.address, True
                return True
        return False

    async def _load(self, link: AsyncLink, call: Call) -> None:
        refused: Refused | None = None
        try:
            await link.call("FUNCTION", "LOAD", library())
        except Refused as error:
            refused = error
        self._calls.after_loading(call, refused)

    async def _ask_time(self, link: AsyncLink) -> None:
        before = monotonic_ns()
        try:
            self._calls.set_time(await link.call("TIME"), before)
        except Refused:
            self._calls.set_time(None, before)


class Watch:
    """Cancels a task when its time is over: not before a loop that was held up has read what has arrived."""

    __slots__ = ("_handle", "_loop", "_task", "over")

    def __init__(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any], seconds: float) -> None:
        self._loop = loop
        self._task = task
        self.over = False
        self._handle = loop.call_later(max(0.0, seconds - GRACE), self._nearly)

    def _nearly(self) -> None:
        self._handle = self._loop.call_later(GRACE, self._now)

    def _now(self) -> None:
        self.over = True
        self._task.cancel()

    def end(self) -> None:
        self._handle.cancel()


class AsyncLane:
    """The jobs of one gate on one event loop."""

    __slots__ = ("_gate", "_loop", "_sending", "_waiting")

    def __init__(self, loop: Loop, gate: str) -> None:
        self._loop = loop
        self._gate = gate
        self._waiting: list[AsyncJob] = []
        self._sending: set[asyncio.Task[None]] = set()

    def add(self, job: AsyncJob) -> None:
        waiting = self._waiting
        waiting.append(job)
        if len(waiting) == 1 and len(self._sending) < MOST:
            self._begin()

    def _begin(self) -> None:
        task = self._loop.loop.create_task(self._send())
        self._sending.add(task)

    async def _send(self) -> None:
        # By now all that was ready in this turn of the loop has asked as well.
        task = asyncio.current_task()
        assert task is not None
        try:
            jobs = self._next(halved=len(self._sending) < MOST)
            if self._waiting and len(self._sending) < MOST:
                self._begin()
            if jobs:
                await self._loop.run(Call(self._gate, jobs))
                self._tell_others(jobs[0])
        except asyncio.CancelledError:
            # The loop ends: whoever is left would wait for ever.
            waiting, self._waiting = self._waiting, []
            Call(self._gate, waiting).fail(StoreUnavailable("the event loop is being closed"))
            raise
        finally:
            self._sending.discard(task)
        if self._waiting and len(self._sending) < MOST:
            self._begin()

    def _next(self, halved: bool) -> list[AsyncJob]:
        waiting = self._waiting
        count = min(len(waiting), LARGEST_BATCH)
        if halved and count > HALVED:
            count = (count + 1) // 2
        jobs = [job for job in waiting[:count] if not job.future.done()]  # who left before is not asked for
        del waiting[:count]
        return jobs

    def _tell_others(self, first: AsyncJob) -> None:
        """When a server is away, those who came meanwhile would only find the same, as long again."""
        future = first.future
        if future.done() and not future.cancelled() and type(error := future.exception()) is StoreUnavailable:
            for job in self._waiting:
                failure = StoreUnavailable(*error.args)
                failure.unsent = True  # type: ignore[attr-defined]
                job.fail(failure)
            self._waiting.clear()

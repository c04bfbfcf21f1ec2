"""Sending from an event loop: everything that is asked in the same turn of the loop goes out together."""

from __future__ import annotations

import asyncio
from asyncio import Future
from contextlib import suppress
from time import monotonic_ns

from ...errors import StoreFormatError, StoreUnavailable
from ..remote.coalescing import GRACE, HALVED, LARGEST_BATCH, MOST, AsyncJob
from .errors import Broken, Refused, Silent
from .requests import Call
from .script import library, tag

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...kernel.commands import Command
    from .client import Address, AsyncLink
    from .requests import Calls


#: An event loop does not keep its tasks alive by itself.
_tidying: set[asyncio.Task[None]] = set()


class Loop:
    """The calls of one event loop, and its connections."""

    def __init__(self, calls: Calls, loop: asyncio.AbstractEventLoop) -> None:
        self._calls = calls
        self.loop = loop
        self._lanes: dict[str, AsyncLane] = {}
        self._idle: dict[Address, list[AsyncLink]] = {}
        self._tidying: asyncio.Task[None] | None = None
        self._closing = False
        self.flights: set[Flight] = set()

    def submit(self, gate: str, commands: Sequence[Command]) -> AsyncJob:
        lane = self._lanes.get(gate)
        if lane is None:
            lane = self._lanes[gate] = AsyncLane(self, gate)
        job = AsyncJob(commands, Future(loop=self.loop))
        waiting = lane.waiting
        waiting.append(job)
        if len(waiting) == 1:
            lane.attend()
        return job

    # --- one call -------------------------------------------------------------------------------------------------

    def start(self, call: Call, lane: AsyncLane) -> bool:
        """Send a call by a connection that stands ready; False where there is none, or more is to be done."""
        calls = self._calls
        idle = None if calls.timeless else self._idle.get(calls.address(call))  # type: ignore[arg-type]
        while idle and idle[-1].tells:
            link = idle.pop()
            if not link.gone:
                self.flights.add(Flight(self, lane, call, link))
                return True
            closing = self.loop.create_task(link.close())
            _tidying.add(closing)
            closing.add_done_callback(_tidying.discard)
        return False

    async def run(
        self, call: Call, end: float = 0.0, link: AsyncLink | None = None, failed: Exception | None = None
    ) -> None:
        """Send a call until it is answered, or its time is over. Each of its jobs is done then.

        `failed` is what became of a first attempt by `link`, which had until `end` as well.
        """
        task = asyncio.current_task()
        assert task is not None
        end = end or self.loop.time() + self._calls.endpoint.timeout
        watch = Watch(self.loop, task.cancel, end - self.loop.time())
        try:
            await self._send(call, end, link, failed)
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

    async def _send(self, call: Call, end: float, link: AsyncLink | None, failed: Exception | None) -> None:
        calls = self._calls
        while call.jobs:
            error: Exception
            try:
                if failed is not None:
                    first, failed = failed, None
                    raise first
                link = None
                link = await self._link(call)
                if calls.must_ask_time:
                    await self._ask_time(link)
                if call.loading:
                    await self._load(link, call)
                if call.asking:
                    await link.call("ASKING")
                call.leaves()
                raw = await link.call(*calls.words(call))
                self.keep(link)
                link = None
                if calls.take(call, raw):
                    return
                continue
            except Refused as refused:
                if link is not None and refused.kind not in ("loading", "readonly"):
                    self.keep(link)
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

    def keep(self, link: AsyncLink) -> None:
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
            if not self._closing:
                for flight in list(self.flights):
                    await flight.end()
            self._closing = False
            await self.close()

    def shut(self) -> None:
        """The store is closed while the loop goes on."""
        if self._tidying is not None:
            self._closing = True
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
    """Says when the time is over: not before a loop that was held up has read what has arrived."""

    __slots__ = ("_handle", "_loop", "_tell", "over")

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Callable[[], object], seconds: float) -> None:
        self._loop = loop
        self._tell = tell
        self.over = False
        self._handle = loop.call_later(max(0.0, seconds - GRACE), self._nearly)

    def _nearly(self) -> None:
        self._handle = self._loop.call_later(GRACE, self._now)

    def _now(self) -> None:
        self.over = True
        self._tell()

    def end(self) -> None:
        self._handle.cancel()


class Flight:
    """A call under way by a connection that stood ready: no task has to wait for it while nothing goes wrong."""

    __slots__ = ("_call", "_end", "_lane", "_link", "_loop", "_watch")

    def __init__(self, loop: Loop, lane: AsyncLane, call: Call, link: AsyncLink) -> None:
        self._loop = loop
        self._lane = lane
        self._call = call
        self._link = link
        timeout = loop._calls.endpoint.timeout
        self._end = loop.loop.time() + timeout
        self._watch = Watch(loop.loop, self._late, timeout)
        call.leaves()
        link.ask(loop._calls.words(call), self._told)

    def _land(self) -> None:
        self._watch.end()
        self._loop.flights.discard(self)

    def _told(self, answer: Any) -> None:
        self._land()
        loop, call = self._loop, self._call
        if isinstance(answer, Refused | Broken):
            self._lane.go_on(call, self._end, self._link, answer)
            return
        loop.keep(self._link)
        first = call.jobs[0]
        try:
            if not loop._calls.take(call, answer):
                self._lane.go_on(call, self._end)
                return
        except BaseException as error:
            for job in call.jobs:
                job.fail(error)  # a bug; whoever asked should see it
        self._lane.over(first)

    def _late(self) -> None:
        self._land()
        self._lane.go_on(self._call, self._end, self._link, Silent())

    async def end(self) -> None:
        """The loop ends."""
        self._land()
        self._call.fail(StoreUnavailable(f"{self._loop._calls.endpoint.shown}: the event loop is being closed"))
        await self._link.close()


class AsyncLane:
    """The jobs of one gate on one event loop."""

    __slots__ = ("_gate", "_loop", "_tasks", "_under_way", "waiting")

    def __init__(self, loop: Loop, gate: str) -> None:
        self._loop = loop
        self._gate = gate
        self.waiting: list[AsyncJob] = []
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def attend(self) -> None:
        """There is a job where there was none: it is sent with all that come in the same turn, if there is a place."""
        if self._under_way < MOST:
            self._begin()

    def _begin(self) -> None:
        self._under_way += 1
        self._loop.loop.call_soon(self._send)

    def _send(self) -> None:
        # By now all that was ready in this turn of the loop has asked as well.
        jobs = self._next(halved=self._under_way < MOST)
        if self.waiting and self._under_way < MOST:
            self._begin()
        if not jobs:
            self._under_way -= 1
            return
        call = Call(self._gate, jobs)
        if not self._loop.start(call, self):
            self.go_on(call)

    def go_on(
        self, call: Call, end: float = 0.0, link: AsyncLink | None = None, failed: Exception | None = None
    ) -> None:
        """Whatever has to be done about a call that was not simply answered."""
        task = self._loop.loop.create_task(self._run(call, end, link, failed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, call: Call, end: float, link: AsyncLink | None, failed: Exception | None) -> None:
        first = call.jobs[0]
        try:
            await self._loop.run(call, end, link, failed)
        except asyncio.CancelledError:
            # The loop ends: whoever is left would wait for ever.
            waiting, self.waiting = self.waiting, []
            Call(self._gate, waiting).fail(StoreUnavailable("the event loop is being closed"))
            raise
        finally:
            self.over(first)

    def over(self, first: AsyncJob) -> None:
        """A call was answered, or has failed: its place is free."""
        self._tell_others(first)
        self._under_way -= 1
        if self.waiting and self._under_way < MOST:
            self._begin()

    def _next(self, halved: bool) -> list[AsyncJob]:
        waiting = self.waiting
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
            for job in self.waiting:
                job.fail(StoreUnavailable(*error.args, decided=False))
            self.waiting.clear()

"""What a worker does for one stage: permit first, message second.

    feed      waits for messages, and starts an asker for each lane that has one
    asker     takes permits for its lane, then leases as many messages; permits left over go back as `unsent`
    work      one message: handler, outcome, permit, settlement

An asker asks only while a slot is free and its lane had messages at the last look: an idle stage costs no decisions, and no
message is leased while the gate is full.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import suppress

from ..errors import Denied, HeadgateError, InvalidInput, StoreUnavailable
from ..events import emit
from ..gate import Gate
from ..kernel.model import OUTCOMES
from .job import AsyncJob, Job
from .message import BadMessage, ask_of
from .outcomes import (
    SECOND,
    AttemptFailed,
    Bury,
    Finish,
    Poison,
    QuotaSpent,
    Return,
    StageOutcome,
    UpstreamRefused,
    described,
    on_receipt,
    outcome_of,
    what_becomes,
)
from .queue_io import QueueIo
from .queues.base import Ending, WaitHandle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..gate import AsyncGate, AsyncPermit
    from .job import BaseJob
    from .message import Delivery
    from .outcomes import Verdict
    from .stage import Stage
    from .threads import DaemonThreads

#: Lanes that are asked for at the same time.
MOST_LANES = 64
#: Seconds for which a stage waits for a message in one go; and before it tries again while its queue or gate is away.
WAIT_S, AWAY_S = 20.0, 1.0


class StageRunner:
    """One stage of a worker, with `slots` handlers at a time. To be used on the worker's event loop."""

    def __init__(self, stage: Stage, slots: int, threads: DaemonThreads) -> None:
        self.stage = stage
        self._threads = threads
        self._gate: AsyncGate | None = stage.gate.as_async() if isinstance(stage.gate, Gate) else stage.gate
        following = stage.next
        self._io = QueueIo(stage.queue, None if following is None else following.queue, stage.visibility_us)
        self._slots = self._free = slots
        self._slot_freed = asyncio.Event()
        self._asking: dict[str, asyncio.Task[None]] = {}
        #: Lanes whose asker waits for a slot or a permit, and may be cancelled: it has no message.
        self._in_line: set[str] = set()
        self._work: set[asyncio.Task[None]] = set()
        #: Deliveries whose end was told to the queue.
        self._settling: set[Delivery] = set()
        #: Messages may be ready: nobody has looked since the last sign of one.
        self._look = True
        #: The latest wait for messages.
        self._wait = WaitHandle()
        self._stopping = False
        self._told_away = False
        #: Until when a spent quota was told, in monotonic seconds.
        self._quota_until = 0.0
        #: How many messages ended how, by the name of the outcome; and `dead`, `lost`.
        self.tally: Counter[str] = Counter()
        #: Set whenever something ended or nothing was found: a good moment to see whether all is done.
        self.progress = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """It has nothing in work. It may stand in line for a message that another worker takes."""
        return not self._work

    @property
    def in_work(self) -> int:
        return len(self._work)

    # --- feeding --------------------------------------------------------------------------------------------------

    async def feed(self) -> None:
        """Start askers for as long as the worker runs."""
        while not self._stopping:
            try:
                await self._until_free()
                if self._look:
                    self._look = False
                    await self._start_askers()
                if self._asking and not self._look:
                    await asyncio.wait(self._asking.values(), return_when=asyncio.FIRST_COMPLETED)
                elif not self._look:
                    self.progress.set()
                    self._wait = WaitHandle()
                    await self._wait_for_messages(self._wait)
                self._told_away = False
            except (HeadgateError, OSError) as error:
                await self._is_away(error)

    async def _start_askers(self) -> None:
        lanes = [""] if self.stage.ask is None else await self._io.lanes(MOST_LANES)
        for lane in lanes:
            if lane not in self._asking and len(self._asking) < MOST_LANES:
                self._asking[lane] = asyncio.ensure_future(self._ask(lane))
        if self.stage.ask is not None and self._asking:
            # Lanes that are full stand in line; meanwhile others may get messages, which no asker would see.
            waits: list[asyncio.Task[None]] = list(self._asking.values())
            waiting = None
            if len(waits) < MOST_LANES:
                self._wait = WaitHandle()
                waiting = asyncio.ensure_future(self._wait_for_messages(self._wait, tuple(self._asking)))
                waits.append(waiting)
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if waiting is not None and not waiting.done():
                self._wait.interrupt()
                await waiting
            self._look = True

    async def _wait_for_messages(self, handle: WaitHandle, beyond: tuple[str, ...] = ()) -> None:
        """Sleep until a message has come to another lane. A queue that cannot wake is polled, and may bring some."""
        try:
            arrival = await self._threads.run(self.stage.queue.wait, handle, WAIT_S, self.stage.visibility_us, beyond)
        finally:
            handle.interrupt()  # where the task was cancelled, its thread still waits
        for delivery in arrival.deliveries:
            await self._take_polled(delivery)
        self._look = self._look or arrival.is_ready

    async def _take_polled(self, delivery: Delivery) -> None:
        """A message that a long poll brought: it goes now, or back at once, so that it is not held during a wait."""
        permit = None
        if self._gate is not None:
            permit = await self._gate.try_acquire(**ask_of(delivery.lane), holder=self.stage.queue_name)
        if self._free and (permit is not None or self._gate is None) and not self._stopping:
            self._free -= 1
            self._start(delivery, permit)
            return
        if permit is not None:
            await self._release(permit, "unsent")
        await self._settle(delivery, Return(delivery.history))

    async def _is_away(self, error: Exception) -> None:
        """The queue or the gate's store cannot be reached: say so once, and try again."""
        if not self._told_away:
            self._told_away = True
            emit("stage_away", self.stage.queue_name, error=described(error))
        self._look = True
        await asyncio.sleep(AWAY_S * (0.5 + random.random()))

    async def _until_free(self) -> None:
        while not self._free:
            self._slot_freed.clear()
            await self._slot_freed.wait()

    # --- asking ---------------------------------------------------------------------------------------------------

    async def _ask(self, lane: str) -> None:
        """Take permits and messages of one lane until it has no more."""
        batch = 1
        try:
            while not self._stopping:
                self._in_line.add(lane)
                try:
                    await self._until_free()
                    permits = await self._permits(lane, min(self._free, batch))
                finally:
                    self._in_line.discard(lane)
                slots = min(self._free, len(permits))
                self._free -= slots
                deliveries: list[Delivery] = []
                try:
                    if slots and not self._stopping:
                        deliveries = await self._io.lease(slots, lane)
                finally:
                    self._free += slots - len(deliveries)
                    for permit in permits[len(deliveries) :]:
                        if permit is not None:
                            await self._release(permit, "unsent")
                    self._slot_freed.set()
                for delivery, permit in zip(deliveries, permits, strict=False):
                    self._start(delivery, permit)
                if slots and (len(deliveries) < slots or not deliveries[-1].more):
                    return
                batch = min(2 * batch, self._slots)
        except Denied as error:
            await self._bury_unfit(lane, error)
        except (HeadgateError, OSError) as error:
            await self._is_away(error)
        finally:
            self._asking.pop(lane, None)
            self.progress.set()

    async def _permits(self, lane: str, most: int) -> list[AsyncPermit | None]:
        """One permit, waited for; and as many more as can be had at once."""
        if self._gate is None:
            return [None] * most
        ask = ask_of(lane)
        permits: list[AsyncPermit | None] = [await self._gate.acquire(**ask, holder=self.stage.queue_name)]
        try:
            while len(permits) < most:
                permit = await self._gate.try_acquire(**ask, holder=self.stage.queue_name)
                if permit is None:
                    break
                permits.append(permit)
        except HeadgateError:
            pass  # what was got is used; the next ask meets the same error
        except asyncio.CancelledError:
            for permit in permits:
                await self._release(permit, "unsent")
            raise
        return permits

    async def _bury_unfit(self, lane: str, error: Denied) -> None:
        """The gate can never admit this lane: its messages are bad input. A gate that was closed says so too."""
        if error.retry_after is not None or (self._gate is not None and self._gate.closed):
            await self._is_away(error)
            return
        with suppress(HeadgateError, OSError):
            for delivery in await self._io.lease(MOST_LANES, lane):
                await self._end(delivery, Poison(f"it asks for what its gate can never admit: {error}"))
            self._look = True

    # --- working --------------------------------------------------------------------------------------------------

    def _start(self, delivery: Delivery, permit: AsyncPermit | None) -> None:
        task = asyncio.ensure_future(self._do(delivery, permit))
        self._work.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        self._free += 1
        self._slot_freed.set()
        self.progress.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            emit("stage_away", self.stage.queue_name, error=described(error))

    async def _do(self, delivery: Delivery, permit: AsyncPermit | None) -> None:
        """Work on one message; where the worker's patience ends before that is done, the message goes back."""
        try:
            await self._work_on(delivery, permit)
        except asyncio.CancelledError:
            self._io.unwatch(delivery)
            await self._release(permit, "error")  # harmless where it has ended
            if delivery not in self._settling:
                await self._settle(delivery, Return(delivery.history), "handed_back")
        finally:
            self._settling.discard(delivery)

    async def _work_on(self, delivery: Delivery, permit: AsyncPermit | None) -> None:
        """Its permit ends with the call, the message with its settlement."""
        stage = self.stage
        buried = on_receipt(delivery.history, stage.retry)
        if buried is not None or delivery.recorded is not None:
            await self._release(permit, "unsent")
            await self._settle(delivery, buried or Finish(delivery.recorded or ()), "repeated")
            return
        try:
            body = stage.body_of(delivery.body)
        except BadMessage as error:
            await self._release(permit, "unsent")
            await self._end(delivery, Poison(str(error)))
            return
        job: BaseJob
        if stage.is_async:
            job = AsyncJob(stage, delivery, body, permit)
        else:
            job = Job(stage, delivery, body, permit, asyncio.get_running_loop())
        self._io.watch(job)
        try:
            returned = await self._call(job)
        except Exception as error:
            outcome = outcome_of(error, time.time())
            if outcome is not error:
                outcome.__cause__ = error
            await self._end(delivery, outcome, permit)
            return
        await self._release(permit, "ok")
        try:
            outputs = stage.outputs_of(returned)
        except (BadMessage, InvalidInput) as error:
            await self._end(delivery, Poison(f"its handler returned what cannot be handed on: {error}"))
            return
        if not job.lost:
            await self._settle(delivery, Finish(outputs), "done")
        else:
            self._lost(delivery)

    async def _call(self, job: BaseJob) -> Any:
        """Run the handler, for as long as its deadline allows."""
        stage = self.stage
        deadline_s = stage.deadline_us / SECOND
        call = stage.handler(job) if stage.is_async else self._threads.run(stage.handler, job)
        try:
            async with asyncio.timeout(deadline_s) as deadline:
                return await call
        except TimeoutError as error:
            if deadline.expired():
                raise AttemptFailed(f"the handler gave no outcome within {deadline_s:g} s, its deadline") from error
            raise

    async def _end(self, delivery: Delivery, outcome: StageOutcome, permit: AsyncPermit | None = None) -> None:
        """Work ended with anything but done."""
        verdict = what_becomes(delivery.history, outcome, self.stage.retry, random.random())
        delay_s = verdict.delay_us / SECOND if isinstance(verdict, Return) else None
        if isinstance(outcome, QuotaSpent):
            await self._quota_spent(outcome, delay_s or 0.0)
        pause_s = delay_s if isinstance(outcome, UpstreamRefused) else outcome.retry_after
        if isinstance(outcome, QuotaSpent) or not OUTCOMES[outcome.release].pauses:
            pause_s = None  # a spent quota has paused it already, and said why
        await self._release(permit, outcome.release, pause_s)
        await self._settle(delivery, verdict, outcome.name)

    async def _quota_spent(self, outcome: QuotaSpent, delay_s: float) -> None:
        """Pause the gate until the reset, and say so once, however many calls come back with it."""
        if time.monotonic() < self._quota_until:
            return
        self._quota_until = time.monotonic() + delay_s
        emit("quota_spent", self.stage.queue_name, paused_for=delay_s, error=str(outcome))
        if self._gate is not None:
            with suppress(StoreUnavailable):
                await self._gate.pause(delay_s, f"quota spent: {outcome}"[:200])

    async def _release(self, permit: AsyncPermit | None, outcome: Any, retry_after: float | None = None) -> None:
        if permit is not None:
            # Without its store: the slot comes back with the lease, and the gate tells of the outage.
            with suppress(StoreUnavailable):
                await permit.release(outcome, retry_after)

    # --- settling -------------------------------------------------------------------------------------------------

    async def _settle(self, delivery: Delivery, verdict: Verdict, name: str = "") -> None:
        """Tell the queue what becomes of the message, and go on trying while it is away: its lease is extended."""
        hand_off = self.stage.hand_off(delivery.id, verdict.outputs) if isinstance(verdict, Finish) else None
        ending = Ending(delivery, verdict, hand_off)
        self._settling.add(delivery)
        while True:
            try:
                ok = await asyncio.shield(self._io.settle(ending))
                break
            except (HeadgateError, OSError) as error:
                if self._stopping:
                    raise
                await self._is_away(error)
        self._io.unwatch(delivery)
        if not ok:
            self._lost(delivery)
            return
        if isinstance(verdict, Bury):
            self.tally["dead"] += 1
            emit("buried", self.stage.queue_name, id=delivery.id, reason=verdict.reason, error=verdict.error)
        if name:
            self.tally[name] += 1

    def _lost(self, delivery: Delivery) -> None:
        self._io.unwatch(delivery)
        self.tally["lost"] += 1
        emit("message_lost", self.stage.queue_name, id=delivery.id)

    # --- stopping -------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take no more messages. Asks that wait leave the line."""
        self._stopping = True
        for lane in list(self._in_line):
            self._asking[lane].cancel()
        self._wait.interrupt()
        self._slot_freed.set()

    def hand_back(self) -> None:
        """Wait for nothing that is in work any longer: it goes back to its queue."""
        for task in list(self._work):
            task.cancel()

    async def finish(self, within_s: float) -> None:
        """Wait for what is in work; what is not done in time goes back to its queue, where another worker takes it."""
        if self._asking:
            await asyncio.wait(list(self._asking.values()))
        if self._work:
            _, late = await asyncio.wait(list(self._work), timeout=within_s)
            self.hand_back()
            if late:
                await asyncio.wait(late)
        self._io.stop()
        if self._gate is not None and self._gate is not self.stage.gate:
            await self._gate.aclose()

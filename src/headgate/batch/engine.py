"""The driver of a run: workers on one event loop, each of which takes an item, waits for a permit and makes the call.

What becomes of an item is decided in `step`, how a run goes on after a pause in `ramp`. A call that blocks runs in a thread
of its own; everything else is on the loop, so nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from heapq import heappop, heappush
from inspect import isawaitable
from itertools import count
from math import inf
from random import random
from time import monotonic

from ..errors import Denied, HeadgateError, InvalidInput, StoreUnavailable
from .attempt import AsyncAttempt, Attempt
from .result import ItemResult, RunTally, utilisation
from .step import NO_ANSWER, PLAIN_OK, Answered, Finished, existing, looks_like_response, next_step
from .threads import Threads
from .watch import GateWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Any

    from ..gate import AsyncGate, AsyncPermit
    from .options import Options
    from .result import Statistics, Status

#: A call that never waits would keep the loop to itself: after so many of them, others have their turn.
TURN = 32

#: Items that wait for another attempt, as a multiple of the workers; then no fresh ones are taken. It bounds the memory.
LATER = 2

#: Results that wait for an earlier one, as a multiple of the workers, where they are wanted in order; at least so many.
AHEAD, LEAST_AHEAD = 16, 1000


class Work:
    """An item under way."""

    __slots__ = ("attempts", "begun", "index", "item", "mark")

    def __init__(self, index: int, item: Any, mark: str, attempts: int = 0) -> None:
        self.index = index
        self.item = item
        #: By what the journal knows the item.
        self.mark = mark
        self.attempts = attempts
        self.begun = 0.0


class BatchWorker:
    """One of the tasks that make calls."""

    __slots__ = ("asking", "recalled", "task")

    task: asyncio.Task[None]

    def __init__(self) -> None:
        #: It waits for a permit.
        self.asking = False
        #: Its ask is being cancelled, and its item given back.
        self.recalled = False


class BatchEngine:
    """One run, from its first item to its last result."""

    def __init__(self, options: Options, gate: AsyncGate) -> None:
        self._options = options
        self.gate = gate
        self._loop = asyncio.get_running_loop()
        self._items, self._async_items = _iterators(options.items)
        self._taking = asyncio.Lock()
        self._exhausted = False
        self.tally = RunTally()
        #: Items that were taken and have to be begun again, before any other.
        self._given_back: deque[Work] = deque()
        #: Items whose next attempt has a time: (time, number, work).
        self._later: list[tuple[float, int, Work]] = []
        self._numbers = count()
        self._idlers: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.workers = [BatchWorker() for _ in range(options.workers)]
        #: Workers that ask or call.
        self.under_way = 0
        self.ramp = options.ramp(gate)
        self.ramping = False
        self._threads = None if options.is_async else Threads(options.workers)
        self._turn = 0
        self._begun = self._ended = monotonic()
        # Results that wait for an earlier one, and the one that is waited for.
        self._early: dict[int, ItemResult] = {}
        self._next_result = 0
        self._delivering = False
        self._ahead = max(LEAST_AHEAD, AHEAD * options.workers)
        self._kept: list[ItemResult] = []
        self._wants_results = options.keep or options.on_result is not None or options.journal is not None
        self.stopping = False
        self.aborting = False
        self.interrupted = False
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Make all calls. Returns when nothing is under way any more; raises what made the run impossible."""
        for worker in self.workers:
            worker.task = self._loop.create_task(self._work(worker))
        tasks = [worker.task for worker in self.workers]
        watch = GateWatch(self, self._options)
        watcher = self._loop.create_task(watch.keep_looking())
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            self.abort()
            await asyncio.wait(tasks)
            raise
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])
            if self._timer is not None:
                self._timer.cancel()
            if self._threads is not None:
                self._threads.close()
            self._ended = monotonic()
            watch.close()
        if not watcher.cancelled() and (error := watcher.exception()) is not None:
            self._error = self._error or error
        if self._error is not None:
            raise self._error

    def statistics(self) -> Statistics:
        seconds = (self._ended if self._ended > self._begun else monotonic()) - self._begun
        share = utilisation(self.gate.policy.limits, self.tally.calls, self._options.costs, self.tally.held_s, seconds)
        return self.tally.statistics(seconds, share, self.interrupted, self._kept)

    # --- ending early --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take no more items, give back the asks that wait, and let the calls that are under way finish."""
        self.stopping = True
        self._recall()
        self._wake(len(self._idlers))

    def interrupt(self) -> None:
        """Ctrl-C: stop; the second time do not wait for calls either."""
        if self.interrupted:
            self.abort()
        self.interrupted = True
        self.stop()

    def abort(self) -> None:
        """Cancel the calls that are under way, too. Their permits end as `error`, since they may have been sent."""
        self.stopping = self.aborting = True
        for worker in self.workers:
            worker.task.cancel()

    def fail(self, error: BaseException) -> None:
        """The run cannot go on, for this reason."""
        self._error = self._error or error
        self.stop()

    def pause_seen(self, for_s: float) -> None:
        """The gate gives no grants for so long. Asks that wait are given back, so that they do not all go at its end."""
        if self.ramp.paused(monotonic(), for_s):
            self.ramping = True
            self._recall()

    def pause_over(self) -> None:
        """The gate is not paused, or no longer."""
        self.ramp.resumed(monotonic())
        self._wake(len(self._idlers))

    def _recall(self) -> None:
        for worker in self.workers:
            if worker.asking and not worker.recalled:
                worker.recalled = True
                worker.task.cancel()

    # --- the work of one worker ------------------------------------------------------------------------------------

    async def _work(self, worker: BatchWorker) -> None:
        try:
            while (work := await self._next_work()) is not None:
                self.under_way += 1
                try:
                    await self._attempt(worker, work)
                finally:
                    self.under_way -= 1
                    if self._idlers and (self.ramping or self._is_done):
                        self._wake(len(self._idlers))
        except asyncio.CancelledError:
            if not self.aborting:
                raise
        except Exception as error:
            self.fail(error)
        except BaseException as error:  # a KeyboardInterrupt or SystemExit that a call raised in its thread
            self.fail(error)
            self.abort()

    @property
    def _is_done(self) -> bool:
        return self._exhausted and not (self._later or self._given_back or self.under_way)

    async def _next_work(self) -> Work | None:
        """The next item to call for; None when there will be none."""
        while not self.stopping:
            self._turn += 1
            if not self._turn % TURN:
                await asyncio.sleep(0)
            work: Work | None
            if self._given_back:
                work = self._given_back.popleft()
            elif self._later and self._later[0][0] <= monotonic():
                work = heappop(self._later)[2]
                self._set_timer()
            elif self._may_take:
                work = await self._take()
                if work is None:
                    continue
            elif self._is_done:
                self._wake(len(self._idlers))
                return None
            else:
                await self._idle()
                continue
            if not self.ramping:
                return work
            if await self._turn_in_ramp():
                return work
            self._given_back.appendleft(work)
        return None

    async def _turn_in_ramp(self) -> bool:
        """Wait until the ramp lets one more call ask. False: the run is stopping."""
        while not self.stopping:
            now = monotonic()
            if self.ramp.is_over(now):
                self.ramping = False
                self._wake(len(self._idlers))
                return True
            wait_s = self.ramp.wait(now, self.under_way)
            if wait_s == 0:
                self.ramp.gone(now)
                return True
            await self._idle(None if wait_s == inf else wait_s)
        return False

    @property
    def _may_take(self) -> bool:
        if self._exhausted or len(self._later) >= LATER * len(self.workers):
            return False
        return not self._options.in_order or self.tally.taken - self._next_result < self._ahead

    async def _take(self) -> Work | None:
        """A fresh item that has to be called for; None where the one that was taken needs no call, or there is none."""
        options = self._options
        if self._async_items is None:
            try:
                item = next(self._items)
            except StopIteration:
                self._exhausted = True
                return None
        else:
            async with self._taking:
                if self._exhausted or self.stopping:
                    return None
                try:
                    item = await anext(self._async_items)
                except StopAsyncIteration:
                    self._exhausted = True
                    return None
        index = self.tally.taken
        self.tally.taken += 1
        journal = options.journal
        mark = ""
        attempts = 0
        if journal is not None:
            mark = journal.mark(index, item)
            found, attempts = journal.find(index, item, mark)
            if found is not None:
                await self._emit(found)
                return None
        if options.skip_existing is not None:
            try:
                exists = existing(options.skip_existing(item))
            except Exception as error:
                await self._finish(Work(index, item, mark, attempts), "failed", None, error)
                return None
            if exists:
                await self._finish(Work(index, item, mark, attempts), "skipped")
                return None
        return Work(index, item, mark, attempts)

    async def _attempt(self, worker: BatchWorker, work: Work) -> None:
        if not work.begun:
            work.begun = monotonic()
        permit = await self._permit_for(worker, work)
        if permit is None:
            return
        if self.stopping:
            await permit.release("unsent")
            return
        work.attempts += 1
        self.tally.calls += 1
        begun = monotonic()
        attempt: AsyncAttempt | None = None
        value, error = None, None
        options = self._options
        try:
            if options.wants_attempt:
                attempt = AsyncAttempt(permit, options.id_of(work.index), work.attempts)
            if self._threads is None:
                value = await (options.call(work.item) if attempt is None else options.call(work.item, attempt))
            else:
                arguments = (work.item,) if attempt is None else (work.item, Attempt(attempt, self._loop))
                value = await self._threads.run(options.call, *arguments)
                if isawaitable(value):  # a plain function around a coroutine function
                    value = await value
        except Exception as raised:
            error = raised
        except BaseException:
            await permit.release("error")
            raise
        report = attempt.reported if attempt is not None else None
        if report is None:
            if error is None and not looks_like_response(value):
                report = PLAIN_OK
            else:
                report = await self._report(permit, value, error)
        elif error is not None and report == "ok":
            report = NO_ANSWER  # it was answered, and the call failed all the same
        await permit.release(report.outcome)
        now = monotonic()
        self.tally.held_s += now - begun
        self.tally.ended += 1
        if report.retry_after:
            self.pause_seen(report.retry_after)
        if report == "rate_limited":
            self.tally.rate_limited += 1
        elif self.ramping and report == "ok":
            self.ramp.answered(begun)
        if error is None and report is PLAIN_OK:
            await self._finish(work, "successful", value)
            return
        step = next_step(Answered(report, value, error), work.attempts, now - work.begun, options.retry, random())
        if isinstance(step, Finished):
            await self._finish(work, "failed" if step.error else "successful", value, step.error)
            return
        self.tally.retries += 1
        if options.journal is not None:
            options.journal.tried(work.index, work.mark, work.attempts)
        self._put_later(work, step.wait_s)

    async def _report(self, permit: AsyncPermit, value: Any, error: Exception | None) -> Any:
        """The report of a response or an exception; of an exception that tells of no answer, that there was none."""
        try:
            return await permit.report(value if error is None else error)
        except InvalidInput:
            return NO_ANSWER

    async def _permit_for(self, worker: BatchWorker, work: Work) -> AsyncPermit | None:
        """A permit for an item; None where there is none now, and the item was given back or is finished."""
        options = self._options
        worker.asking = True
        try:
            if options.is_plain:
                return await self.gate.acquire()
            return await self.gate.acquire(**options.ask_of(work.item))
        except asyncio.CancelledError:
            if not worker.recalled or self.aborting:
                raise
            worker.task.uncancel()
            self._given_back.append(work)
            return None
        except Denied as error:
            if error.retry_after is None:
                await self._finish(work, "failed", None, error)
            else:
                self._put_later(work, error.retry_after)
            return None
        except StoreUnavailable as error:
            self.fail(error)
            return None
        except Exception as error:
            if options.same_for_all and isinstance(error, HeadgateError):
                self.fail(error)
            else:  # its cost or key, or the function that tells them
                await self._finish(work, "failed", None, error)
            return None
        finally:
            worker.asking = worker.recalled = False

    # --- results -------------------------------------------------------------------------------------------------

    async def _finish(self, work: Work, status: Status, value: Any = None, error: BaseException | None = None) -> None:
        """An item is finished: the journal has it before anybody is told."""
        options = self._options
        price = 0.0
        if options.price is not None and status == "successful":
            try:
                price = options.price_of(work.index, work.item, value)
            except InvalidInput as wrong:
                self.fail(wrong)  # the call was made, so its result is kept all the same
        if not self._wants_results:
            tally = self.tally
            if status == "successful":
                tally.successful += 1
            elif status == "failed":
                tally.failed += 1
            else:
                tally.skipped += 1
            tally.cost += price
            return
        result = ItemResult(work.index, work.item, status, value, error, work.attempts, price)
        if options.journal is not None:
            try:
                options.journal.finished(result, work.mark)
            except InvalidInput as wrong:
                self.fail(wrong)  # the value cannot be kept, and the caller has it all the same
        await self._emit(result)

    async def _emit(self, result: ItemResult) -> None:
        self.tally.count(result)
        if not self._options.in_order:
            await self._deliver(result)
            return
        self._early[result.index] = result
        if self._delivering:  # by a worker whose `on_result` waits; it goes on with this one
            return
        self._delivering = True
        try:
            while (ready := self._early.pop(self._next_result, None)) is not None:
                self._next_result += 1
                await self._deliver(ready)
        finally:
            self._delivering = False
        if self._idlers:
            self._wake(len(self._idlers))

    async def _deliver(self, result: ItemResult) -> None:
        if self._options.keep:
            self._kept.append(result)
        if self._options.on_result is not None:
            told = self._options.on_result(result)
            if told is not None and hasattr(told, "__await__"):
                await told

    # --- waiting -------------------------------------------------------------------------------------------------

    def _put_later(self, work: Work, wait_s: float) -> None:
        heappush(self._later, (monotonic() + wait_s, next(self._numbers), work))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._later:
            self._timer = self._loop.call_later(max(0.0, self._later[0][0] - monotonic()), self._wake, 1)

    async def _idle(self, seconds: float | None = None) -> None:
        """Wait until something changes, at most so long."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._idlers.append(future)
        timer = None if seconds is None else self._loop.call_later(seconds, _ring, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            if future in self._idlers:
                self._idlers.remove(future)

    def _wake(self, number: int) -> None:
        while number and self._idlers:
            number -= 1
            _ring(self._idlers.popleft())


def _ring(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _iterators(items: Any) -> tuple[Iterator[Any], AsyncIterator[Any] | None]:
    if hasattr(items, "__aiter__"):
        return iter(()), aiter(items)
    return iter(items), None

"""Coalescing: commands that arrive during a round trip are batched into the next one.

Threads meet in a `ThreadCoalescer`, tasks of an event loop in a `LoopCoalescer`. Each is given a function that sends a
list of jobs and returns when every one of them is done. Nothing here knows what is sent, or where to.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from time import sleep

from ...errors import StoreUnavailable
from .jobs import LoopJob, OutcomeUnknown, ThreadJob, fail_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeVar

    from ...kernel.commands import Command

    AnyThreadJob = TypeVar("AnyThreadJob", bound=ThreadJob)

#: Commands in one request at most: the server does nothing else while it decides them.
LARGEST_BATCH = 256

#: Seconds after which a thread that waits for another thread's request checks for itself.
CHECK_EVERY = 0.05

#: For so many requests after one that took several jobs, other threads are expected to ask at the same time.
EXPECT_CONCURRENT = 16

#: Requests of one event loop in flight at a time: while the server decides one, the other is encoded or decoded.
MOST_IN_FLIGHT = 2

#: A first request of more jobs than this goes as two, so that there are two to alternate.
HALVED_ABOVE = 16

#: Seconds that an event loop which was held up has to read what has already arrived.
GRACE = 0.02


# --- threads --------------------------------------------------------------------------------------------------------


class Bell:
    """Wakes one thread. Ringing it twice is no error, and a thread that waits only after it rang does not wait."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self) -> None:
        self._lock.acquire(timeout=CHECK_EVERY)

    def ring(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._lock.release()


def take_batch(queue: deque[AnyThreadJob]) -> list[AnyThreadJob]:
    """Take from a queue what goes into one request."""
    jobs: list[AnyThreadJob] = []
    count = 0
    while queue and count < LARGEST_BATCH:
        job = queue.popleft()
        jobs.append(job)
        count += len(job.commands)
    return jobs


def requeue(queue: deque[AnyThreadJob], job: AnyThreadJob) -> bool:
    """Put a job back whose sender was interrupted. Returns False, and fails it, if it must not be sent again."""
    if job.sent and not job.repeatable:
        job.fail(OutcomeUnknown("whoever sent it was interrupted; whether it was done is not known"))
        return False
    queue.appendleft(job)
    return True


class ThreadCoalescer:
    """The jobs of a process's threads. A thread that finds the lock free sends at once, all that is in the queue.

    The other threads wait on a bell of their own, not on the lock: it is rung when their job is done, or when it is
    their turn to send. They also check every CHECK_EVERY seconds, since the thread that should ring may have been
    interrupted.
    """

    __slots__ = ("_concurrent_callers", "_lock", "_queue", "_send")

    def __init__(self, send: Callable[[list[ThreadJob]], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._queue: deque[ThreadJob] = deque()
        #: Above 0 while several threads ask at the same time.
        self._concurrent_callers = 0

    def run(self, job: ThreadJob) -> None:
        """Have a job done, by this thread or by one that is sending anyway."""
        queue, lock = self._queue, self._lock
        queue.append(job)
        try:
            while not job.done:
                if not lock.locked():
                    with lock:  # not `acquire`: Ctrl-C can come between that and its `try`
                        if not job.done:
                            self._lead(job)
                    if queue:
                        self._ring_next()
                elif job.bell is None:
                    job.bell = Bell()
                else:
                    job.bell.wait()
        except BaseException:
            with suppress(ValueError):
                queue.remove(job)
            self._ring_next()
            raise

    def _lead(self, job: ThreadJob) -> None:
        queue = self._queue
        if job not in queue and not requeue(queue, job):
            return
        if self._concurrent_callers:
            sleep(0)  # other threads just got their replies, and are about to ask again
        jobs = take_batch(queue)
        self._concurrent_callers = EXPECT_CONCURRENT if len(jobs) > 1 else max(0, self._concurrent_callers - 1)
        self._send(jobs)
        if type(error := jobs[0].error) is StoreUnavailable:
            # Jobs that arrived meanwhile would fail as well, after as long again.
            fail_all(take_batch(queue), error)

    def _ring_next(self) -> None:
        with suppress(IndexError):
            bell = self._queue[0].bell
            if bell is not None:
                bell.ring()


# --- event loops ----------------------------------------------------------------------------------------------------


class Deadline:
    """Calls a function when the time is over, but not before a loop that was held up has read what has arrived."""

    __slots__ = ("_expire", "_handle", "_loop", "expired")

    def __init__(self, loop: asyncio.AbstractEventLoop, expire: Callable[[], object], seconds: float) -> None:
        self._loop = loop
        self._expire = expire
        self.expired = False
        self._handle = loop.call_later(max(0.0, seconds - GRACE), self._nearly)

    def _nearly(self) -> None:
        self._handle = self._loop.call_later(GRACE, self._now)

    def _now(self) -> None:
        self.expired = True
        self._expire()

    def cancel(self) -> None:
        self._handle.cancel()


def take_turn(waiting: list[LoopJob], halved: bool) -> list[LoopJob]:
    """Take from the jobs of a loop what goes into one request; without those whose task was cancelled."""
    count = min(len(waiting), LARGEST_BATCH)
    if halved and count > HALVED_ABOVE:
        count = (count + 1) // 2
    jobs = [job for job in waiting[:count] if not job.future.done()]
    del waiting[:count]
    return jobs


def fail_waiting(waiting: list[LoopJob], first: LoopJob) -> None:
    """Where a request failed because the server is away, fail the jobs that arrived meanwhile: they would fail as
    well, after as long again.
    """
    future = first.future
    if future.done() and not future.cancelled() and type(error := future.exception()) is StoreUnavailable:
        fail_all(waiting, error, undecided=True)
        waiting.clear()


class LoopCoalescer:
    """The jobs of one event loop: all that are submitted in the same turn of it go out together."""

    __slots__ = ("_loop", "_send", "_sending", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[list[LoopJob]], Awaitable[None]]) -> None:
        self._loop = loop
        self._send = send
        self._waiting: list[LoopJob] = []
        self._sending: set[asyncio.Task[None]] = set()

    def submit(self, commands: Sequence[Command]) -> LoopJob:
        job = LoopJob(commands, self._loop.create_future())
        waiting = self._waiting
        waiting.append(job)
        if len(waiting) == 1 and len(self._sending) < MOST_IN_FLIGHT:
            self._begin()
        return job

    def _begin(self) -> None:
        self._sending.add(self._loop.create_task(self._run()))

    async def _run(self) -> None:
        # By now every task that was ready in this turn of the loop has submitted its job.
        task = asyncio.current_task()
        assert task is not None
        try:
            jobs = take_turn(self._waiting, halved=len(self._sending) < MOST_IN_FLIGHT)
            if self._waiting and len(self._sending) < MOST_IN_FLIGHT:
                self._begin()
            if jobs:
                await self._send(jobs)
                fail_waiting(self._waiting, jobs[0])
        except asyncio.CancelledError:
            # The loop ends: tasks that still wait would wait for ever.
            waiting, self._waiting = self._waiting, []
            fail_all(waiting, StoreUnavailable("the event loop is being closed"))
            raise
        finally:
            self._sending.discard(task)
        if self._waiting and len(self._sending) < MOST_IN_FLIGHT:
            self._begin()

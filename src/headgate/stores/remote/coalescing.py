"""What stores at the far end of a connection have in common: what waits to be sent goes out together.

Threads meet in a `Lane`, tasks of an event loop in an `AsyncLane`; each is given a function that sends a list of jobs and
leaves every one of them done. Nothing here knows what is sent, or where to.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import suppress
from random import randrange
from time import sleep

from ...errors import HeadgateError, StoreUnavailable
from ...kernel.commands import Admit, Settle
from ..base import Listeners

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from typing import Any

    from ...kernel.commands import Command
    from ...kernel.model import Wake
    from ..base import Listener

#: How many commands go into one call at most: the server does nothing else meanwhile.
LARGEST_BATCH = 256

#: Seconds after which a thread that waits for another one's call looks for itself.
LOOK_EVERY = 0.05

#: For so many calls after one that took several jobs, more company is to be expected.
COMPANY = 16

#: Calls of one event loop that are under way at a time: while the server decides one, the other is taken apart and made.
MOST = 2

#: A first call that is larger than this goes as two, so that there are two to alternate.
HALVED = 16

#: Seconds that a loop which was held up has to read what has already arrived.
GRACE = 0.02

#: Wakes for tickets that nobody listens for yet, as many as are remembered: the reply that makes one wait is on its way.
EARLY = 4096


class OutcomeUnknown(StoreUnavailable):
    """The reply was lost although the store is there, and sending the command again might do it twice."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args, decided=True)


def repeatable(command: Command) -> bool:
    """Whether a command may be sent again when it is unknown whether it was decided.

    An ask whose id is on record is answered with the same permit; an end is an end; a heartbeat, a look or a change does
    the same again. What was really spent is charged as a difference, and twice would be wrong.
    """
    if isinstance(command, Admit):
        return command.remembered
    if isinstance(command, Settle):
        return command.remembered and command.actual is None
    return True


def fail_all(jobs: Iterable[Job | AsyncJob], error: HeadgateError, *, undecided: bool = False) -> None:
    """Tell every job of an error, one of its own each: they are raised in different threads.

    `undecided` says that the server was heard to have done none of it.
    """
    for job in jobs:
        failure = type(error)(*error.args)
        failure.__cause__ = error.__cause__
        if isinstance(failure, StoreUnavailable) and (undecided or not job.sent):
            failure.decided = False
        job.fail(failure)


# --- threads --------------------------------------------------------------------------------------------------------


class Bell:
    """Wakes one thread. Ringing it twice is no error, and it is heard by whoever comes after."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self) -> None:
        self._lock.acquire(timeout=LOOK_EVERY)

    def ring(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self._lock.release()


class Job:
    """The commands of one caller, and what became of them."""

    __slots__ = ("bell", "commands", "done", "error", "replies", "sent")

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.replies: Sequence[Any] = ()
        self.error: BaseException | None = None
        self.done = False
        #: What its thread waits for, where that has to wait.
        self.bell: Bell | None = None
        #: It may have reached a server.
        self.sent = False

    @property
    def repeatable(self) -> bool:
        return all(repeatable(command) for command in self.commands)

    def finish(self, replies: Sequence[Any]) -> None:
        self.replies = replies
        self.done = True
        if self.bell is not None:
            self.bell.ring()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.done = True
        if self.bell is not None:
            self.bell.ring()

    def result(self) -> list[Any]:
        if self.error is not None:
            raise self.error
        return list(self.replies)


class Lane:
    """The jobs that go out together, and the lock of whoever sends them.

    A thread that finds the lock taken waits for its own bell, not for the lock: it is rung when its job is done, or when
    it is its turn to send. It looks by itself as well now and then, since whoever should ring may have been interrupted.
    """

    __slots__ = ("_company", "_lock", "_queue", "_send")

    def __init__(self, send: Callable[[list[Job]], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._queue: deque[Job] = deque()
        #: Above 0 while threads ask together.
        self._company = 0

    def run(self, job: Job) -> None:
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
                        self._call_next()
                elif job.bell is None:
                    job.bell = Bell()
                else:
                    job.bell.wait()
        except BaseException:
            with suppress(ValueError):
                queue.remove(job)
            self._call_next()
            raise

    def _lead(self, job: Job) -> None:
        queue = self._queue
        if job not in queue:  # whoever had taken it was interrupted
            if job.sent and not job.repeatable:
                job.fail(OutcomeUnknown("whoever sent it was interrupted; whether it was done is not known"))
                return
            queue.appendleft(job)
        if self._company:
            sleep(0)  # others have just been told, and are about to ask again
        jobs = self._batch()
        self._company = COMPANY if len(jobs) > 1 else max(0, self._company - 1)
        self._send(jobs)
        if type(error := jobs[0].error) is StoreUnavailable:
            # Those who came meanwhile would only find the same, as long again.
            fail_all(self._batch(), error)

    def _call_next(self) -> None:
        with suppress(IndexError):
            bell = self._queue[0].bell
            if bell is not None:
                bell.ring()

    def _batch(self) -> list[Job]:
        queue = self._queue
        jobs: list[Job] = []
        count = 0
        while queue and count < LARGEST_BATCH:
            job = queue.popleft()
            jobs.append(job)
            count += len(job.commands)
        return jobs


# --- event loops ----------------------------------------------------------------------------------------------------


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
    """The jobs that go out together from one event loop: all that is asked in the same turn of it."""

    __slots__ = ("_loop", "_send", "_sending", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[list[AsyncJob]], Awaitable[None]]) -> None:
        self._loop = loop
        self._send = send
        self._waiting: list[AsyncJob] = []
        self._sending: set[asyncio.Task[None]] = set()

    def submit(self, commands: Sequence[Command]) -> AsyncJob:
        job = AsyncJob(commands, self._loop.create_future())
        waiting = self._waiting
        waiting.append(job)
        if len(waiting) == 1 and len(self._sending) < MOST:
            self._begin()
        return job

    def _begin(self) -> None:
        self._sending.add(self._loop.create_task(self._run()))

    async def _run(self) -> None:
        # By now all that was ready in this turn of the loop has asked as well.
        task = asyncio.current_task()
        assert task is not None
        try:
            jobs = self._next(halved=len(self._sending) < MOST)
            if self._waiting and len(self._sending) < MOST:
                self._begin()
            if jobs:
                await self._send(jobs)
                self._tell_others(jobs[0])
        except asyncio.CancelledError:
            # The loop ends: whoever is left would wait for ever.
            waiting, self._waiting = self._waiting, []
            fail_all(waiting, StoreUnavailable("the event loop is being closed"))
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
            fail_all(self._waiting, error, undecided=True)
            self._waiting.clear()


# --- wakes ----------------------------------------------------------------------------------------------------------


class EarlyListeners(Listeners):
    """Listeners that may come after what they listen for."""

    __slots__ = ("_early", "deaf")

    def __init__(self) -> None:
        super().__init__()
        self._early: dict[str, int | None] = {}
        #: Nothing can be heard now, and those who wait have been told so. Whoever comes meanwhile looks as well: the
        #: store may have gone between the answer that made it wait and this moment, and nobody else would say so.
        self.deaf = False

    def add(self, ticket: str, listener: Listener) -> None:
        super().add(ticket, listener)
        if self._early and ticket in self._early:
            listener(self._early.pop(ticket))
        elif self.deaf:
            listener(0)

    def tell(self, wake: Wake) -> bool:
        if super().tell(wake):
            return True
        early = self._early
        early[wake.ticket] = wake.delay
        if wake.ticket in self._by_ticket:  # it came at this very moment
            early.pop(wake.ticket, None)
            return super().tell(wake)
        while len(early) > EARLY:
            with suppress(StopIteration, KeyError, RuntimeError):
                del early[next(iter(early))]
        return False

    def look_again(self, within: int = 0) -> None:
        """Something may have been missed: have every waiter look, at some moment within so many microseconds."""
        for listener in list(self._by_ticket.values()):
            listener(randrange(within + 1))

    def clear(self) -> None:
        super().clear()
        self._early.clear()

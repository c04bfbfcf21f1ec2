"""Where the threads of a process meet that ask about one gate: one of them sends for all."""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections import deque
from contextlib import suppress

from ...errors import StoreUnavailable
from ..remote.coalescing import COMPANY, LARGEST_BATCH, LOOK_EVERY, Job, OutcomeUnknown
from .requests import Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...kernel.commands import Command
    from .threads import Threads

#: No reply: it has to be asked for in another way.
NOT_YET = object()


class Ask(Job):
    """A job of a lane, which tells its thread in its turn that it is done."""

    __slots__ = ("_bell",)

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.error = None
        self.done = self.sent = False
        #: What its thread waits for, where that has to wait; it is rung by being released.
        self._bell: Any = None

    def finish(self, replies: Sequence[Any]) -> None:
        self.replies = replies
        self.done = True

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.done = True
        self.ring()

    def wait(self) -> bool:
        """Wait to be rung for; False: the bell is only there from now on, and what happened before has to be looked at."""
        if self._bell is None:
            bell = allocate_lock()
            bell.acquire()
            self._bell = bell
            return False
        self._bell.acquire(True, LOOK_EVERY)
        return True

    def leave(self) -> None:
        """Its thread goes: there is nobody to ring for any more."""
        self._bell = None

    def ring(self) -> bool:
        """False: nobody waits for it, or it rings already."""
        bell = self._bell
        if bell is None:
            return False
        try:
            bell.release()
        except RuntimeError:
            return False
        return True


class Lane:
    """The jobs of one gate, and the lock of whoever sends them: the first in the queue, for all who are in it.

    Who is not the first waits for its own bell, not for the lock: it is rung when its job is done, or when it is its turn
    to send. Those whose jobs were done by one call are told one after the other, by each that leaves: told all at once
    they would only wait again, for the interpreter. Whoever finds nobody left to tell calls the first in the queue, and
    by then the others have mostly asked again. A thread looks by itself as well now and then, since whoever should ring
    may have been interrupted.
    """

    __slots__ = ("_company", "_gate", "_lock", "_queue", "_threads", "_untold")

    def __init__(self, threads: Threads, gate: str) -> None:
        self._threads = threads
        self._gate = gate
        self._lock = threading.Lock()
        self._queue: deque[Ask] = deque()
        #: Done, and their threads do not know it yet.
        self._untold: deque[Ask] = deque()
        #: Above 0 while threads ask together.
        self._company = 0

    def decide(self, command: Command) -> Any:
        """The reply to one command. Where nobody else asks, that is all there is to do."""
        if not self._company:
            queue, lock = self._queue, self._lock
            if not queue and not lock.locked():
                reply = NOT_YET
                try:
                    with lock:
                        if not queue:
                            reply = self._threads.quick(self._gate, command)
                except StoreUnavailable as error:
                    self._tell_others(error)
                    raise
                finally:
                    if queue:
                        self._call_next()
                if reply is not NOT_YET:
                    return reply
        return self.execute((command,))[0]

    def execute(self, commands: Sequence[Command]) -> Sequence[Any]:
        """The replies to commands, sent by this thread or by one that is sending anyway."""
        queue, lock, untold = self._queue, self._lock, self._untold
        job = Ask(commands)
        queue.append(job)
        looks = False
        try:
            while not job.done:
                if not lock.locked() and (looks or (not untold and self._is_first(job))):
                    with lock:  # not `acquire`: Ctrl-C can come between that and its `try`
                        if not job.done:
                            self._lead(job)
                    if untold:
                        self._call_next()  # two are called at first: one wakes up while the other is busy
                else:
                    looks = job.wait()
        except BaseException:
            job.leave()
            with suppress(ValueError):
                queue.remove(job)
            self._call_next()
            raise
        job.leave()
        if untold or queue:
            self._call_next()
        if job.error is not None:
            raise job.error
        return job.replies

    def _is_first(self, job: Ask) -> bool:
        try:
            return self._queue[0] is job
        except IndexError:
            return False

    def _lead(self, job: Ask) -> None:
        queue = self._queue
        if job not in queue:  # whoever had taken it was interrupted
            if job.sent and not job.repeatable:
                job.fail(OutcomeUnknown("whoever sent it was interrupted; whether it was done is not known"))
                return
            queue.appendleft(job)
        jobs = self._batch()
        self._company = COMPANY if len(jobs) > 1 else max(0, self._company - 1)
        self._threads.run(Call(self._gate, jobs))
        if isinstance(error := job.error, StoreUnavailable):
            self._tell_others(error)
        self._untold += [other for other in jobs if other is not job]

    def _tell_others(self, error: StoreUnavailable) -> None:
        """Those who came meanwhile would only find the same, as long again."""
        if type(error) is StoreUnavailable:
            Call(self._gate, self._batch()).fail(error)

    def _call_next(self) -> None:
        """Tell one whose job is done; where there is none, call the first in the queue to send."""
        untold = self._untold
        while untold:
            try:
                if untold.popleft().ring():
                    return
            except IndexError:
                break
        if not self._lock.locked():
            with suppress(IndexError):
                self._queue[0].ring()

    def _batch(self) -> list[Ask]:
        queue = self._queue
        jobs: list[Ask] = []
        count = 0
        while queue and count < LARGEST_BATCH:
            job = queue.popleft()
            jobs.append(job)
            count += len(job.commands)
        return jobs

"""Threads of a process that ask about one gate at the same time: one of them sends for all."""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections import deque
from contextlib import suppress

from ...errors import StoreUnavailable
from ..remote.coalescing import CHECK_EVERY, EXPECT_CONCURRENT, requeue, take_batch
from ..remote.jobs import ThreadJob, fail_all
from .requests import RedisRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...kernel.commands import Command
    from .threads import RedisThreadSender

#: In the place of a reply: the command was not sent this way.
NO_REPLY = object()


class QueuedJob(ThreadJob):
    """A job whose thread is woken in its turn: not when the job is done, but by another thread, see GateThreadCoalescer."""

    __slots__ = ("_bell",)

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.error = None
        self.done = self.sent = False
        #: The lock that its thread waits on, if it has to wait; releasing it wakes the thread.
        self._bell: Any = None

    def finish(self, replies: Sequence[Any]) -> None:
        self.replies = replies
        self.done = True

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.done = True
        self.ring()

    def wait(self) -> bool:
        """Wait to be woken. Returns False at first: the lock is only made then, so the job must be checked once more."""
        if self._bell is None:
            bell = allocate_lock()
            bell.acquire()
            self._bell = bell
            return False
        self._bell.acquire(True, CHECK_EVERY)
        return True

    def leave(self) -> None:
        """Its thread goes, and need not be woken any more."""
        self._bell = None

    def ring(self) -> bool:
        """Wake its thread. Returns False if that does not wait, or was woken already."""
        bell = self._bell
        if bell is None:
            return False
        try:
            bell.release()
        except RuntimeError:
            return False
        return True


class GateThreadCoalescer:
    """The jobs of one gate. The thread whose job is the first in the queue sends all that are in it, and holds the lock.

    Followers wait on a lock of their own, released when their reply is there or when they become leader. They are
    released one after the other, each by the one that leaves before it: releasing all would have them queue for the GIL.
    The last of them rings the first of the next batch, and by then most of the others have asked again. A thread also
    checks by itself every CHECK_EVERY seconds, since the thread that should ring may have been interrupted.
    """

    __slots__ = ("_concurrent_callers", "_gate", "_lock", "_queue", "_sender", "_untold")

    def __init__(self, sender: RedisThreadSender, gate: str) -> None:
        self._sender = sender
        self._gate = gate
        self._lock = threading.Lock()
        self._queue: deque[QueuedJob] = deque()
        #: Jobs that are done and whose threads were not woken yet.
        self._untold: deque[QueuedJob] = deque()
        #: Above 0 while several threads ask at the same time.
        self._concurrent_callers = 0

    def decide(self, command: Command) -> Any:
        """The reply to one command. While uncontended it is sent without a job."""
        if not self._concurrent_callers:
            queue, lock = self._queue, self._lock
            if not queue and not lock.locked():
                reply = NO_REPLY
                try:
                    with lock:
                        if not queue:
                            reply = self._sender.decide_idle(self._gate, command)
                except StoreUnavailable as error:
                    self._fail_waiting(error)
                    raise
                finally:
                    if queue:
                        self._ring_next()
                if reply is not NO_REPLY:
                    return reply
        return self.execute((command,))[0]

    def execute(self, commands: Sequence[Command]) -> Sequence[Any]:
        """The replies to commands, sent by this thread or by one that is sending anyway."""
        queue, lock, untold = self._queue, self._lock, self._untold
        job = QueuedJob(commands)
        queue.append(job)
        woken = False
        try:
            while not job.done:
                if not lock.locked() and (woken or (not untold and self._is_first(job))):
                    with lock:  # not `acquire`: Ctrl-C can come between that and its `try`
                        if not job.done:
                            self._lead(job)
                    if untold:
                        self._ring_next()  # two are woken at first: one wakes up while the other is busy
                else:
                    woken = job.wait()
        except BaseException:
            job.leave()
            with suppress(ValueError):
                queue.remove(job)
            self._ring_next()
            raise
        job.leave()
        if untold or queue:
            self._ring_next()
        if job.error is not None:
            raise job.error
        return job.replies

    def _is_first(self, job: QueuedJob) -> bool:
        try:
            return self._queue[0] is job
        except IndexError:
            return False

    def _lead(self, job: QueuedJob) -> None:
        queue = self._queue
        if job not in queue and not requeue(queue, job):
            return
        jobs = take_batch(queue)
        self._concurrent_callers = EXPECT_CONCURRENT if len(jobs) > 1 else max(0, self._concurrent_callers - 1)
        self._sender.run(RedisRequest(self._gate, jobs))
        if isinstance(error := job.error, StoreUnavailable):
            self._fail_waiting(error)
        self._untold += [other for other in jobs if other is not job]

    def _fail_waiting(self, error: StoreUnavailable) -> None:
        """Where the server is away, fail the jobs that arrived meanwhile: they would fail as well, after as long."""
        if type(error) is StoreUnavailable:
            fail_all(take_batch(self._queue), error)

    def _ring_next(self) -> None:
        """Wake a thread whose job is done; if there is none, the first in the queue, to send."""
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

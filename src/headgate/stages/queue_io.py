"""One thread per queue of a worker. What is waiting to be done goes out together, so that throughput grows with load."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic

from ..background import start_daemon
from ..errors import HeadgateError
from .queues.base import settle_handing_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .job import BaseJob
    from .message import Delivery
    from .queues.base import Ending, Queue

#: Endings that go into one operation.
MOST_ENDINGS = 256


class QueueIo:
    """Leases, settles and extends for one stage of a worker. Made on its event loop; futures belong to that.

    `jobs` is what is in work: every third of `visibility_us` all of it is extended in one operation, from this thread, so
    that a handler which blocks the event loop does not lose its messages.
    """

    def __init__(self, queue: Queue, next_queue: Queue | None, visibility_us: int) -> None:
        self.queue = queue
        self._next_queue = next_queue
        self._visibility_us = visibility_us
        self._loop = asyncio.get_running_loop()
        #: In work, by the token and id of the delivery.
        self._jobs: dict[tuple[str, str], BaseJob] = {}
        self._endings: list[tuple[Ending, asyncio.Future[bool]]] = []
        self._leases: list[tuple[int, str | None, asyncio.Future[list[Delivery]]]] = []
        self._lanes: list[tuple[int, asyncio.Future[list[str]]]] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._extend_every_s = visibility_us / 3_000_000
        self._extend_at = monotonic() + self._extend_every_s
        self._thread = start_daemon(f"headgate-queue-{queue.name}", self._run)

    # --- on the event loop ----------------------------------------------------------------------------------------

    def lease(self, most: int, lane: str | None) -> asyncio.Future[list[Delivery]]:
        future: asyncio.Future[list[Delivery]] = self._loop.create_future()
        with self._changed:
            self._leases.append((most, lane, future))
            self._changed.notify()
        return future

    def lanes(self, most: int) -> asyncio.Future[list[str]]:
        future: asyncio.Future[list[str]] = self._loop.create_future()
        with self._changed:
            self._lanes.append((most, future))
            self._changed.notify()
        return future

    def settle(self, ending: Ending) -> asyncio.Future[bool]:
        """False: the lease had ended before, and nothing was done."""
        future: asyncio.Future[bool] = self._loop.create_future()
        with self._changed:
            self._endings.append((ending, future))
            self._changed.notify()
        return future

    def watch(self, job: BaseJob) -> None:
        """Extend its lease from now on."""
        self._jobs[job.delivery.token, job.id] = job

    def unwatch(self, delivery: Delivery) -> None:
        self._jobs.pop((delivery.token, delivery.id), None)

    def stop(self) -> None:
        """End the thread after what is waiting was done."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    # --- in the thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._endings or self._leases or self._lanes or self._stopped):
                    if not self._changed.wait(max(0.0, self._extend_at - monotonic())):
                        break
                endings, self._endings = self._endings[:MOST_ENDINGS], self._endings[MOST_ENDINGS:]
                leases, self._leases = self._leases, []
                lanes, self._lanes = self._lanes, []
                if self._stopped and not (endings or leases or lanes):
                    return
            replies: list[tuple[asyncio.Future[Any], Any]] = []
            if endings:
                self._do_settle(endings, replies)
            for most, lane, future in leases:
                replies.append((future, _attempt(self.queue.lease, most, self._visibility_us, lane)))
            for most, lane_future in lanes:
                replies.append((lane_future, _attempt(self.queue.lanes, most)))
            if monotonic() >= self._extend_at:
                self._do_extend()
            if replies:
                try:
                    self._loop.call_soon_threadsafe(_deliver, replies)
                except RuntimeError:
                    return  # the loop has ended: leases that were just taken run out by themselves

    def _do_settle(
        self, endings: list[tuple[Ending, asyncio.Future[bool]]], replies: list[tuple[asyncio.Future[Any], Any]]
    ) -> None:
        found = _attempt(settle_handing_on, self.queue, self._next_queue, [ending for ending, _ in endings])
        for number, (_, future) in enumerate(endings):
            replies.append((future, found if isinstance(found, Exception) else found[number]))

    def _do_extend(self) -> None:
        jobs = list(self._jobs.values())
        if jobs:
            held = _attempt(self.queue.extend, [job.delivery for job in jobs], self._visibility_us)
            if isinstance(held, Exception):
                # The queue is away. There is time for two more attempts before leases run out.
                self._extend_at = monotonic() + self._extend_every_s / 4
                return
            for job, ok in zip(jobs, held, strict=True):
                if not ok and (job.delivery.token, job.id) in self._jobs:
                    job.lost = True
                    self._jobs.pop((job.delivery.token, job.id), None)
        self._extend_at = monotonic() + self._extend_every_s


def _attempt(function: Callable[..., Any], *args: Any) -> Any:
    """The result, or the error in its place."""
    try:
        return function(*args)
    except (HeadgateError, OSError, ValueError, RuntimeError) as error:
        return error


def _deliver(replies: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, reply in replies:
        if future.done():
            continue
        if isinstance(reply, Exception):
            future.set_exception(reply)
        else:
            future.set_result(reply)

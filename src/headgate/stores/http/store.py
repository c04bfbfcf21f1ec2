"""`http://…`, `https://…`: the state of gates in a guard (`headgate serve`), for workers that reach nothing else."""

from __future__ import annotations

import asyncio
import atexit
import os
import weakref
from asyncio import _get_running_loop, get_running_loop
from contextlib import suppress
from time import monotonic, sleep

from ...errors import HeadgateError, StoreFormatError, StoreUnavailable
from ...kernel.commands import Cancel
from ...kernel.model import Ended
from ..base import Capabilities, at_fork, checked, ignore_loss, new_session
from ..remote.coalescing import AsyncJob, AsyncLane, Job, Lane, OutcomeUnknown, Watch, fail_all
from .client import Broken, Endpoint, Refused, Silent
from .wake import Subscriber
from .wire import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...kernel.commands import Command
    from ..base import Listener
    from .client import AsyncLink, Link, Response

#: Idle connections that are kept.
KEPT = 8

#: Seconds before another attempt at a guard that is starting.
PAUSE = 0.01

_REMEDIES = {
    401: "; give it a token: http://:TOKEN@host, or $HEADGATE_TOKEN",
    403: "; its token lacks the scope 'acquire'",
    404: "; the URL should lead to a guard, without /v1",
}

#: What was inherited by a fork is the parent's: it is neither used nor closed, so it is kept from being tidied away.
_inherited: list[Any] = []


class HttpStore:
    """State in a guard, asked over HTTP: one request for all that waits to be decided in this process.

    Time is the guard's, and so are the limits: what differs from the guard's own file is refused with the difference.
    A guard that does not answer within 200 ms (`?timeout=` in the URL) is unavailable. The token is the URL's, else
    `$HEADGATE_TOKEN`. After `close` the next call connects again.
    """

    capabilities = Capabilities(remote=True)
    keeper: Any = None
    on_loss: Callable[[str], None] = staticmethod(ignore_loss)

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self.url = url
        self._endpoint = Endpoint(url, token or os.environ.get("HEADGATE_TOKEN"))
        #: How far each gate had come, as this process was told.
        self._seen: dict[str, int] = {}
        self._begin()
        at_fork.add(self)
        _stores.add(self)

    def _begin(self) -> None:
        """What each process has of its own."""
        self.session = new_session()
        self._lane = Lane(self._send)
        self._idle: list[Link] = []
        self._loops: dict[Any, _Loop] = {}
        self._subscriber = Subscriber(self._endpoint, self.session)
        #: Still under way although nobody waits for them any more.
        self._orphans: list[AsyncJob] = []

    def begin_in_child(self) -> None:
        _inherited.append((self._idle, self._loops, self._subscriber))
        self._begin()

    # --- deciding -------------------------------------------------------------------------------------------------

    def decide(self, command: Command) -> Any:
        job = Job((command,))
        self._lane.run(job)
        if job.error is not None:
            raise job.error
        return checked(job.replies[0])

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        if not commands:
            return []
        if self._orphans:
            self._await_orphans(commands)
        job = Job(commands)
        self._lane.run(job)
        return job.result()

    async def aexecute(self, commands: Sequence[Command]) -> list[Any]:
        """The same without blocking the event loop. When it is cancelled, what was sent is decided all the same."""
        if not commands:
            return []
        job = self._loop_of(get_running_loop()).lane.submit(commands)
        try:
            replies: list[Any] = await job.future
            return replies
        except asyncio.CancelledError:
            self._orphans = [left for left in (*self._orphans, job) if left.sent and not left.over]
            raise

    def _await_orphans(self, commands: Sequence[Command]) -> None:
        """Undoing an ask must not arrive before the ask does, which goes by another connection."""
        ids = {command.id for command in commands if isinstance(command, Cancel)}
        end = monotonic() + 2 * self._endpoint.timeout
        for job in self._orphans:
            while ids & {getattr(command, "id", "") for command in job.commands} and not job.over:
                if monotonic() > end:
                    return
                sleep(0.001)
        self._orphans = [job for job in self._orphans if not job.over]

    def _loop_of(self, running: Any) -> _Loop:
        loop = self._loops.get(running)
        if loop is None:
            for ended in [known for known in list(self._loops) if known.is_closed()]:
                self._loops.pop(ended, None)
            loop = self._loops[running] = _Loop(self, running)
        return loop

    # --- one request ----------------------------------------------------------------------------------------------

    def _send(self, jobs: list[Job]) -> None:
        """Send jobs of threads until they are answered, or their time is over."""
        call = Call(self, jobs)
        end = monotonic() + self._endpoint.timeout
        while call.jobs:
            link: Link | None = None
            try:
                link = self._link(end)
                if call.take(link.call(call.request(), end)):
                    self._keep(link)
                    link = None
                return
            except (Refused, Broken, Silent) as error:
                if link is not None and not isinstance(error, Refused):
                    self._forget()
                pause = call.after(error, end - monotonic())
                if pause is None:
                    return
            finally:
                if link is not None:
                    link.close()
            if pause:
                sleep(pause)

    def _link(self, end: float) -> Link:
        with suppress(IndexError):
            while True:
                link = self._idle.pop()
                if link.fresh:
                    return link
                link.close()
        return self._endpoint.connect(end - monotonic())

    def _keep(self, link: Link) -> None:
        if len(self._idle) >= KEPT:
            link.close()
        else:
            self._idle.append(link)

    def _forget(self) -> None:
        """One connection is gone, so the others are likely to be."""
        idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    # --- waking -----------------------------------------------------------------------------------------------------

    def listen(self, ticket: str, listener: Listener) -> None:
        """Also after the ticket was made: what was said since is remembered. A thread waits until it can be told."""
        self._subscriber.listeners.add(ticket, listener)
        self._subscriber.attend(self._endpoint.timeout if _get_running_loop() is None else 0.0)

    def unlisten(self, ticket: str) -> None:
        self._subscriber.listeners.remove(ticket)

    def close(self) -> None:
        from .. import forget_store

        forget_store(self)
        self._subscriber.close()
        self._forget()
        for running, loop in list(self._loops.items()):
            if running.is_running():
                running.call_soon_threadsafe(loop.shut)


class Call:
    """Jobs that go out together, and what is to be done about each kind of answer."""

    def __init__(self, store: HttpStore, jobs: list[Any]) -> None:
        self._store = store
        self._endpoint = store._endpoint
        self.jobs = jobs
        self._count = 0
        self._tries = 0
        #: An answer to it was lost.
        self._repeated = False

    def request(self) -> bytes:
        for job in self.jobs:
            job.sent = True
        commands = [command for job in self.jobs for command in job.commands]
        self._count = len(commands)
        return self._endpoint.post("/v1/execute", encode(commands, self._store._seen))

    def take(self, response: Response) -> bool:
        """Hand out an answer. Returns whether the connection may be used again. Raises Refused."""
        try:
            replies, seen = decode(response.checked(), self._count)
        except StoreFormatError as error:
            fail_all(self.jobs, StoreFormatError(f"{self._endpoint.shown}: {error}"))
            return False
        known = self._store._seen
        for gate, seq in seen.items():
            if seq > known.get(gate, 0):
                known[gate] = seq
        if self._repeated:
            # "It had already ended" may be the work of the first attempt.
            replies = [Ended(at=reply.at) if reply.__class__ is Ended and reply.lost else reply for reply in replies]
        at = 0
        for job in self.jobs:
            mine = replies[at : at + len(job.commands)]
            at += len(job.commands)
            # The guard is there, and its own store is not: for a gate here that is the same.
            away = next((reply for reply in mine if isinstance(reply, StoreUnavailable)), None)
            if away is None:
                job.finish(mine)
            else:
                job.fail(away)
        return response.keeps

    def after(self, error: Exception, left: float) -> float | None:
        """Seconds until it should go again; None when it should not, and its jobs have been told why."""
        self._tries += 1
        if isinstance(error, Broken) and error.begun and left > PAUSE:
            again = [job for job in self.jobs if job.repeatable]
            for job in self.jobs:
                if job not in again:
                    told = (
                        f"{self._endpoint.shown}: the answer was lost ({error}), and whether it was done is not known"
                    )
                    job.fail(OutcomeUnknown(told))
            self.jobs, self._repeated = again, True
            return 0.0 if self._tries == 1 else PAUSE
        # What a guard refuses with a status was not decided, unless an earlier attempt was.
        undecided = isinstance(error, Refused) and not self._repeated
        if isinstance(error, Refused) and error.status in (400, 413, 415, 422, 426):
            failure: HeadgateError = StoreFormatError(
                f"{self._endpoint.shown} does not understand this version of Headgate: {error.text}; upgrade the older "
                f"of the two"
            )
        else:
            failure = self.unavailable(error)
        fail_all(self.jobs, failure, undecided=undecided)
        return None

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """An error in words for people."""
        shown = self._endpoint.shown
        if isinstance(error, Silent):
            told = f"{shown} does not answer within {self._endpoint.timeout * 1000:.0f} ms"
        elif isinstance(error, Refused):
            told = f"{shown} refuses: {error.text}{_REMEDIES.get(error.status, '')}"
        else:
            told = f"{shown} cannot be reached: {error}"
        failure = StoreUnavailable(told)
        failure.__cause__ = error
        return failure


class _Loop:
    """The requests of one event loop, and its connections."""

    def __init__(self, store: HttpStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._endpoint = store._endpoint
        self._loop = loop
        self.lane = AsyncLane(loop, self.run)
        self._idle: list[AsyncLink] = []
        self._tidying: asyncio.Task[None] | None = None

    async def run(self, jobs: list[AsyncJob]) -> None:
        """Send jobs until they are answered, or their time is over."""
        task = asyncio.current_task()
        assert task is not None
        call = Call(self._store, jobs)
        watch = Watch(self._loop, task, self._endpoint.timeout)
        try:
            await self._send(call, self._loop.time() + self._endpoint.timeout)
        except asyncio.CancelledError:
            if not watch.over:
                fail_all(call.jobs, StoreUnavailable(f"{self._endpoint.shown}: the event loop is being closed"))
                raise
            task.uncancel()
            fail_all(call.jobs, call.unavailable(Silent()))
        except BaseException as error:
            for job in call.jobs:
                job.fail(error)  # a bug; whoever asked should see it
        finally:
            watch.end()

    async def _send(self, call: Call, end: float) -> None:
        while call.jobs:
            link: AsyncLink | None = None
            try:
                link = await self._link()
                if call.take(await link.call(call.request())):
                    self._idle.append(link)
                    link = None
                return
            except (Refused, Broken, Silent) as error:
                if link is not None and not isinstance(error, Refused):
                    self._forget()
                pause = call.after(error, end - self._loop.time())
                if pause is None:
                    return
            finally:
                if link is not None:
                    link.close()
            if pause:
                await asyncio.sleep(pause)

    async def _link(self) -> AsyncLink:
        while self._idle:
            link = self._idle.pop()
            if link.fresh:
                return link
            link.close()
        if self._tidying is None:
            self._tidying = self._loop.create_task(self._tidy(), name="headgate-http")
        return await self._endpoint.connect_async()

    def _forget(self) -> None:
        idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    async def _tidy(self) -> None:
        """Closes the connections when the loop ends, which is when `asyncio.run` cancels all that is left."""
        try:
            await self._loop.create_future()
        finally:
            self._tidying = None
            self._forget()

    def shut(self) -> None:
        """The store is closed while the loop goes on."""
        if self._tidying is not None:
            self._tidying.cancel()


_stores: weakref.WeakSet[HttpStore] = weakref.WeakSet()


def _close_all() -> None:
    for store in list(_stores):
        with suppress(Exception):
            store.close()


atexit.register(_close_all)


def open_url(url: str) -> HttpStore:
    """`http://[:token@]host:8080[/prefix]`, `https://` with TLS; `?timeout=200ms`, `?ca=/path/of/certificates.pem`."""
    return HttpStore(url)

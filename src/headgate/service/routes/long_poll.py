"""A request that waits for its turn: an acquire with `wait`, answered when its ticket is called or its time is over."""

from __future__ import annotations

import asyncio

from ...errors import Denied
from ...http.problems import Problem
from ..web import Disconnected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...gate.served import ServedGate
    from ...kernel.commands import Stand
    from ...kernel.model import Grant
    from ..app import Guard
    from ..web import Request


#: Seconds for which a ticket stays in line after its request timed out, if the client gave an id.
LINGER = 5.0


class LongPoll:
    """One waiting request. It ends with a grant, at its time-out, when the client disconnects or the guard shuts down.

    A client that gave an id may ask again after its time-out: the ticket stays in line for `LINGER` seconds more.
    """

    __slots__ = (
        "_lingering",
        "_registered",
        "_sent_away",
        "_superseded",
        "_waiting",
        "guard",
        "own",
        "served",
        "stand",
    )

    def __init__(self, guard: Guard, served: ServedGate, stand: Stand, own: bool) -> None:
        self.guard = guard
        self.served = served
        self.stand = stand
        #: Whether the id is the client's own, so that the client can ask again under it.
        self.own = own
        self._sent_away = self._superseded = self._lingering = False
        self._registered = True

    async def wait(self, request: Request, seconds: float, reply: Any, delay: float) -> tuple[Grant, float]:
        """The grant and the seconds that it took. Raises Denied, Disconnected, or Problem when the guard shuts down.

        `delay` is the seconds until a promised time; 0 for a ticket in line.
        """
        guard, served, stand = self.guard, self.served, self.stand
        loop = asyncio.get_running_loop()
        begun = loop.time()
        lingers = self.own and not delay
        self._waiting = loop.create_task(
            _sleep(reply, delay) if delay else served.wait(stand, seconds + LINGER if lingers else seconds, reply)
        )
        gone: asyncio.Task[Any] = loop.create_task(request.receive())  # type: ignore[arg-type]
        guard.waiting.add(self)
        guard.caps.waiters += 1
        if self.own:
            guard.polls_by_id[served.name, stand.id] = self
        if guard.closing:
            self.send_away()
        detached = False
        try:
            both = (self._waiting, gone)
            await asyncio.wait(both, timeout=seconds if lingers else None, return_when=asyncio.FIRST_COMPLETED)
            if not self._waiting.done():
                if not gone.done():
                    self._linger(loop)
                    raise served.refusal(stand, reply, loop.time() - begun)
                detached = served.detach(stand.id)
                if not detached:
                    self._waiting.cancel()
                await asyncio.wait((self._waiting,))
            if self._superseded:
                raise Problem(409, "conflict", f"another request waits under the id {stand.id!r} now")
            if self._waiting.cancelled():
                if delay and not (self._sent_away and self.own):
                    await served.give_back(stand)
                raise shutting_down() if self._sent_away else Disconnected()
            if (detached or self._sent_away) and isinstance(self._waiting.exception(), Denied):
                if not (self._sent_away and self.own):
                    # Cancels of one moment share a transaction: one each would hold up the remaining waiters.
                    await served.cancel(stand)
                raise shutting_down() if self._sent_away else Disconnected
            if gone.done() and self._waiting.exception() is None:  # granted just as the client disconnected
                await undelivered(served, stand, self.own)
            return self._waiting.result(), loop.time() - begun
        finally:
            gone.cancel()
            if not self._lingering:
                self._waiting.cancel()
                self._unregister()

    def _linger(self, loop: asyncio.AbstractEventLoop) -> None:
        """Keep the ticket in line after the time-out. A grant that comes meanwhile is kept as long, then given back."""
        self._lingering = True

        def over(waiting: asyncio.Task[Grant]) -> None:
            if waiting.cancelled() or waiting.exception() is not None:
                self._unregister()
            else:
                loop.call_later(LINGER, self._give_back)

        self._waiting.add_done_callback(over)

    def _give_back(self) -> None:
        if self._registered:
            self._unregister()
            task = asyncio.ensure_future(self.served.give_back(self.stand))
            tasks = self.guard.state.setdefault("giving back", set())
            tasks.add(task)  # or it may be collected while it runs
            task.add_done_callback(tasks.discard)

    def _unregister(self) -> None:
        guard, key = self.guard, (self.served.name, self.stand.id)
        if self._registered:
            self._registered = False
            guard.waiting.discard(self)
            guard.caps.waiters -= 1
            if guard.polls_by_id.get(key) is self:
                del guard.polls_by_id[key]

    async def supersede(self) -> None:
        """Another request came under the same id: it takes over the ticket, or the grant made for it."""
        self._superseded = True
        if not self._waiting.done():
            if not self.served.detach(self.stand.id):
                self._waiting.cancel()
            await asyncio.wait((self._waiting,))
        self._unregister()

    def send_away(self) -> None:
        """The guard shuts down. The ticket of a client that can ask again by its id stays in line; any other leaves it."""
        self._sent_away = True
        if not self.served.detach(self.stand.id):
            self._waiting.cancel()


async def _sleep(grant: Grant, delay: float) -> Grant:
    await asyncio.sleep(delay)
    return grant


async def undelivered(served: ServedGate, stand: Stand, own: bool) -> None:
    """The client disconnected: give the grant back, unless the client can ask again under its own id."""
    if not own:
        await served.give_back(stand)
    raise Disconnected


def shutting_down() -> Problem:
    return Problem(
        503,
        "shutting-down",
        "this guard is shutting down; come again with the same id to keep your place",
        retry_after=1.0,
    )

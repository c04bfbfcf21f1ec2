"""`redis://…`: the state of gates in a Redis or Valkey server, or a cluster of them, for any number of machines."""

from __future__ import annotations

import asyncio
import atexit
import weakref
from asyncio import _get_running_loop, get_running_loop
from contextlib import suppress
from time import monotonic, sleep

from ...errors import HeadgateError
from ...kernel.commands import Cancel, Stand
from ...kernel.model import Wait
from ..base import Capabilities, at_fork, ignore_loss, new_session
from ..remote.coalescing import AsyncJob, Job
from .aio import Loop
from .client import Endpoint
from .coalescer import NOT_YET, Lane
from .requests import Call, Calls
from .threads import Threads
from .wake import Errands, Subscriber

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...clock import Clock
    from ...kernel.commands import Command
    from ...kernel.model import Wake
    from ..base import Listener
    from .client import Address

#: What was inherited by a fork is the parent's: it is neither used nor closed, so it is kept from being tidied away.
_inherited: list[Any] = []


class RedisStore:
    """State in a Redis or Valkey server (6.2 or newer), decided there by one script call per gate and batch.

    Each call takes all that is waiting to be decided for a gate in this process. Time is the server's; `clock`
    (microseconds) is for tests. A server that does not answer within 200 ms (`?timeout=` in the URL) is unavailable.
    After `close` the next call connects again.
    """

    capabilities = Capabilities(
        remote=True, recognises_retries=True, forwards_wakes=True, compares_seen=True, examines=True
    )
    keeper: Any = None
    on_loss: Callable[[str], None] = staticmethod(ignore_loss)

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.url = url
        self._endpoint = Endpoint(url)
        self._calls = Calls(self._endpoint, clock, self._lost)
        self._begin()
        at_fork.add(self)
        _stores.add(self)

    def _begin(self) -> None:
        """What each process has of its own."""
        self.session = new_session()
        self._threads = Threads(self._calls)
        self._lanes: dict[str, Lane] = {}
        self._loops: dict[Any, Loop] = {}
        self._loop: Loop | None = None
        self._errands = Errands(self._calls, self._threads)
        self._subscriber = Subscriber(self._endpoint, self.session, self._near, self._errands)
        #: Still under way although nobody waits for them any more.
        self._orphans: list[AsyncJob] = []

    def begin_in_child(self) -> None:
        _inherited.append((self._threads, self._loops, self._subscriber, self._errands))
        self._begin()

    def _lost(self, gate: str) -> None:
        self.on_loss(gate)

    # --- deciding -------------------------------------------------------------------------------------------------

    def decide(self, command: Command) -> Any:
        reply = NOT_YET
        if self._errands and isinstance(command, Stand):
            reply = self._errands.reply_to(command)
        if reply is NOT_YET:
            lane = self._lanes.get(command.gate)
            if lane is None:
                lane = self._lanes[command.gate] = self._threads.lane(command.gate)
            reply = lane.decide(command)
        if reply.__class__ is Wait:
            if command.__class__ is Stand and command.waits and command.remembered:
                self._errands.add(command)
        elif isinstance(reply, HeadgateError):
            raise reply
        return reply

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        if not commands:
            return []
        if self._orphans:
            self._await_orphans(commands)
        if self._errands:
            for command in commands:
                if isinstance(command, Cancel):
                    self._errands.leave(command.id)
        by_gate = _by_gate(commands)
        if len(by_gate) == 1:
            return list(self._threads.lane(commands[0].gate).execute(commands))
        jobs = {gate: Job([commands[at] for at in places]) for gate, places in by_gate.items()}
        self._threads.run_all([Call(gate, [job]) for gate, job in jobs.items()])
        return _in_order(len(commands), [(places, jobs[gate].result()) for gate, places in by_gate.items()])

    async def aexecute(self, commands: Sequence[Command]) -> list[Any]:
        """The same without blocking the event loop. When it is cancelled, what was sent is decided all the same."""
        loop = self._loop
        if loop is None or loop.loop is not get_running_loop():
            loop = self._loop_of(get_running_loop())
        if len(commands) == 1:
            job = loop.submit(commands[0].gate, commands)
            try:
                replies: list[Any] = await job.future
                return replies
            except asyncio.CancelledError:
                self._leave([job])
                raise
        by_gate = _by_gate(commands)
        jobs = {gate: loop.submit(gate, [commands[at] for at in places]) for gate, places in by_gate.items()}
        try:
            results = await asyncio.gather(*(job.future for job in jobs.values()))
        except asyncio.CancelledError:
            self._leave(list(jobs.values()))
            raise
        return _in_order(len(commands), list(zip(by_gate.values(), results, strict=True)))

    def _leave(self, jobs: list[AsyncJob]) -> None:
        """Nobody waits for these any more, but what was sent may yet be decided."""
        self._orphans = [job for job in (*self._orphans, *jobs) if job.sent and not job.over]

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

    def _loop_of(self, running: Any) -> Loop:
        loop = self._loops.get(running)
        if loop is None:
            for ended in [known for known in list(self._loops) if known.is_closed()]:
                self._loops.pop(ended, None)
            loop = self._loops[running] = Loop(self._calls, running)
        self._loop = loop
        return loop

    # --- waking -----------------------------------------------------------------------------------------------------

    def listen(self, ticket: str, listener: Listener) -> None:
        """Also after the ticket was made: what was said since is remembered. A thread waits until it can be told."""
        self._subscriber.listeners.add(ticket, listener)
        self._subscriber.attend(self._endpoint.timeout if _get_running_loop() is None else 0.0)

    def unlisten(self, ticket: str) -> None:
        self._subscriber.listeners.remove(ticket)
        self._errands.leave(ticket)

    def adopt(self, session: str, tell: Callable[[Wake], None]) -> None:
        self._subscriber.listeners.adopt(session, tell)
        self._subscriber.adopt(session)
        self._subscriber.attend(self._endpoint.timeout if _get_running_loop() is None else 0.0)

    def disown(self, session: str) -> None:
        self._subscriber.listeners.disown(session)
        self._subscriber.disown(session)

    def _near(self) -> list[Address]:
        """Where to listen: best where the gates are, since a server knows only whether somebody listens to itself."""
        calls = self._calls
        mine = [calls.slots.get(calls.slot(gate)) for gate in list(calls.seen)]
        return list(dict.fromkeys([*(address for address in mine if address is not None), *calls.masters()]))

    def saw(self, gate: str, number: int) -> int:
        """Somebody was told that the gate had come so far; a server that is behind that has lost state."""
        known = self._calls.seen.get(gate, 0)
        if number > known:
            self._calls.seen[gate] = known = number
        return known

    def examine(self) -> list[tuple[str, str, str]]:
        """For `headgate doctor`: ok, note or wrong; what was found; what would mend it. Of each master of a cluster."""
        from functools import partial

        from .doctor import examine

        cluster = self._endpoint.cluster
        return [
            finding
            for address in self._calls.masters()
            for finding in examine(partial(self._threads.ask, address=address), ":".join(map(str, address)), cluster)
        ]

    def close(self) -> None:
        from .. import forget_store

        forget_store(self)
        self._subscriber.close()
        self._errands.close()
        self._threads.close()
        for running, loop in list(self._loops.items()):
            with suppress(RuntimeError):  # it has ended
                running.call_soon_threadsafe(loop.shut)


def _by_gate(commands: Sequence[Command]) -> dict[str, list[int]]:
    by_gate: dict[str, list[int]] = {}
    for at, command in enumerate(commands):
        by_gate.setdefault(command.gate, []).append(at)
    return by_gate


def _in_order(count: int, parts: list[tuple[list[int], list[Any]]]) -> list[Any]:
    replies: list[Any] = [None] * count
    for places, found in parts:
        for at, reply in zip(places, found, strict=True):
            replies[at] = reply
    return replies


_stores: weakref.WeakSet[RedisStore] = weakref.WeakSet()


def _close_all() -> None:
    for store in list(_stores):
        with suppress(Exception):
            store.close()


atexit.register(_close_all)


def open_url(url: str) -> RedisStore:
    """`redis://[user:password@]host:6379/0`, `rediss://` with TLS, `redis+cluster://` for a cluster, `unix:///path`."""
    return RedisStore(url)

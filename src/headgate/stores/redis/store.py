"""`redis://…`: the state of gates in a Redis or Valkey server, or a cluster of them, for any number of machines."""

from __future__ import annotations

import asyncio
import atexit
import weakref
from asyncio import _get_running_loop, get_running_loop
from contextlib import suppress

from ...background import at_end, is_ending
from ...errors import HeadgateError, InvalidInput
from ...kernel.commands import Cancel, Stand
from ...kernel.model import Wait
from ..base import Capabilities, Seen, at_fork, ignore_loss, new_session
from ..remote.jobs import ThreadJob
from .aio import RedisLoopSender
from .coalescer import NO_REPLY, GateThreadCoalescer
from .endpoint import RedisEndpoint
from .requests import RedisRequest, RedisRequests
from .script import KINDS
from .threads import RedisThreadSender
from .wake import EarlyTakes, RedisSubscriber

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...clock import Clock
    from ...kernel.commands import Command
    from ...kernel.model import Wake
    from ..base import Listener
    from .client import Address

#: Connections that a forked child inherited belong to its parent: they are kept here so that they are never closed.
_inherited: list[Any] = []


class RedisStore:
    """State in a Redis or Valkey server (6.2 or newer), decided there by one script call per gate and batch.

    Commands that arrive during a round trip are batched into the next one, per gate. Time is the server's; `clock`
    (microseconds) is for tests. A server that does not answer within 200 ms (`timeout`) is unavailable. `prefix` is what
    all keys and channels begin with. In the place of a URL it takes a `client` of redis-py, for what a URL cannot say, such
    as a provider of credentials: the store makes connections of its own that are like the client's. After `close` the next
    command connects again.
    """

    capabilities = Capabilities(
        remote=True,
        forwards_wakes=True,
        compares_seen=True,
        examines=True,
        kinds=frozenset(KINDS),
    )
    keeper: Any = None

    def __init__(
        self,
        url: str | None = None,
        *,
        client: object = None,
        prefix: str | None = None,
        timeout: str | float | None = None,
        clock: Clock | None = None,
    ) -> None:
        if (url is None) is (client is None):
            raise InvalidInput("a RedisStore takes a URL, or client=redis.Redis(…): one of the two")
        self._endpoint = endpoint = RedisEndpoint.of_url(url) if url is not None else RedisEndpoint.of_client(client)
        if prefix is not None:
            endpoint.set_prefix(prefix)
        if timeout is not None:
            endpoint.set_timeout(timeout)
        if url is None and prefix is not None:
            endpoint.shown += f"?prefix={prefix}"
        self.url = endpoint.shown if url is None else url
        self.on_loss: Callable[[str], None] = ignore_loss
        self._requests = RedisRequests(self._endpoint, clock, self._lost)
        self._begin()
        at_fork.add(self)
        _stores.add(self)

    def _begin(self) -> None:
        """Make what each process has of its own."""
        self._requests.session = self.session = new_session()
        self._threads = RedisThreadSender(self._requests)
        self._coalescers: dict[str, GateThreadCoalescer] = {}
        self._loops: dict[Any, RedisLoopSender] = {}
        #: That of the loop that was used last.
        self._loop: RedisLoopSender | None = None
        self._early_takes = EarlyTakes(self._requests, self._threads)
        self._subscriber = RedisSubscriber(self._endpoint, self.session, self._subscribe_at, self._early_takes)

    def begin_in_child(self) -> None:
        _inherited.append((self._threads, self._loops, self._subscriber, self._early_takes))
        self._begin()

    def _lost(self, gate: str) -> None:
        self.on_loss(gate)

    # --- deciding -------------------------------------------------------------------------------------------------

    def decide(self, command: Command) -> Any:
        if is_ending():
            raise at_end(self._endpoint.shown)
        reply = NO_REPLY
        if self._early_takes and isinstance(command, Stand):
            reply = self._early_takes.reply_to(command)
        if reply is NO_REPLY:
            coalescer = self._coalescers.get(command.gate)
            if coalescer is None:
                coalescer = self._coalescers[command.gate] = self._threads.coalescer(command.gate)
            reply = coalescer.decide(command)
        if reply.__class__ is Wait:
            if command.__class__ is Stand and command.waits and command.remembered:
                self._early_takes.add(command)
        elif isinstance(reply, HeadgateError):
            raise reply
        return reply

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        if not commands:
            return []
        if is_ending():
            raise at_end(self._endpoint.shown)
        if self._early_takes:
            for command in commands:
                if isinstance(command, Cancel):
                    self._early_takes.forget(command.id)
        by_gate = _by_gate(commands)
        if len(by_gate) == 1:
            return list(self._threads.coalescer(commands[0].gate).execute(commands))
        jobs = {gate: ThreadJob([commands[at] for at in places]) for gate, places in by_gate.items()}
        self._threads.run_all([RedisRequest(gate, [job]) for gate, job in jobs.items()])
        return _in_order(len(commands), [(places, jobs[gate].result()) for gate, places in by_gate.items()])

    async def aexecute(self, commands: Sequence[Command]) -> list[Any]:
        """`execute` without blocking the event loop. Commands that were sent when it is cancelled may still be decided."""
        if is_ending():
            raise at_end(self._endpoint.shown)
        loop = self._loop
        if loop is None or loop.loop is not get_running_loop():
            loop = self._loop_of(get_running_loop())
        if len(commands) == 1:
            replies: list[Any] = await loop.submit(commands[0].gate, commands).future
            return replies
        by_gate = _by_gate(commands)
        jobs = {gate: loop.submit(gate, [commands[at] for at in places]) for gate, places in by_gate.items()}
        results = await asyncio.gather(*(job.future for job in jobs.values()))
        return _in_order(len(commands), list(zip(by_gate.values(), results, strict=True)))

    def _loop_of(self, running: Any) -> RedisLoopSender:
        loop = self._loops.get(running)
        if loop is None:
            for ended in [known for known in list(self._loops) if known.is_closed()]:
                self._loops.pop(ended, None)
            loop = self._loops[running] = RedisLoopSender(self._requests, running)
        self._loop = loop
        return loop

    # --- waking -----------------------------------------------------------------------------------------------------

    def listen(self, ticket: str, listener: Listener) -> None:
        """Have a waiter notified, also of what came between its reply and now. A thread waits until it is subscribed."""
        self._subscriber.listeners.add(ticket, listener)
        self._subscriber.start(self._endpoint.timeout if _get_running_loop() is None else 0.0)

    def unlisten(self, ticket: str) -> None:
        self._subscriber.listeners.remove(ticket)
        if not is_ending():
            self._early_takes.forget(ticket)

    def adopt(self, session: str, tell: Callable[[Wake], None]) -> None:
        self._subscriber.listeners.adopt(session, tell)
        self._subscriber.adopt(session)
        self._subscriber.start(self._endpoint.timeout if _get_running_loop() is None else 0.0)

    def disown(self, session: str) -> None:
        self._subscriber.listeners.disown(session)
        self._subscriber.disown(session)

    def _subscribe_at(self) -> list[Address]:
        """Where to subscribe: best where the gates are, since a server only counts the subscribers of its own."""
        requests = self._requests
        mine = [requests.slots.get(requests.slot(gate)) for gate in list(requests.seen)]
        return list(dict.fromkeys([*(address for address in mine if address is not None), *requests.masters()]))

    def saw(self, gate: str, number: int = 0, epoch: str = "") -> Seen:
        """Another process was told this of the gate: a server that is behind it, or of another epoch, has lost state."""
        requests = self._requests
        known = requests.seen.get(gate, 0)
        if number > known:
            requests.seen[gate] = known = number
        if epoch:
            requests.told[gate] = epoch
        return Seen(known, requests.told.get(gate, ""))

    def examine(self) -> list[tuple[str, str, str]]:
        """For `headgate doctor`: ok, note or wrong; what was found; what would mend it. Of each master of a cluster."""
        from functools import partial

        from .doctor import examine

        cluster, prefix = self._endpoint.cluster, self._endpoint.prefix
        findings: list[tuple[str, str, str]] = []
        for address in self._requests.masters():
            where = ":".join(map(str, address))
            findings += examine(partial(self._threads.ask, address=address), where, cluster, prefix)
        return findings

    def close(self) -> None:
        from .. import forget_store

        forget_store(self)
        self._subscriber.close()
        self._early_takes.close()
        self._threads.close()
        for running, loop in list(self._loops.items()):
            with suppress(RuntimeError):  # it has ended
                running.call_soon_threadsafe(loop.close_soon)


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
    """`redis://[user:password@]host:6379/0`, `rediss://` with TLS, `redis+cluster://`, `redis+sentinel://`, `unix:///path`."""
    return RedisStore(url)

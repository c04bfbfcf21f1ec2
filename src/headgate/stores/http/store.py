"""`http://…`, `https://…`: the state of gates in a guard (`headgate serve`), for workers that reach nothing else."""

from __future__ import annotations

import atexit
import os
import weakref
from asyncio import _get_running_loop, get_running_loop
from contextlib import suppress

from ...background import at_end, is_ending
from ...errors import StoreFormatError
from ...kernel.limits import KINDS
from ..base import Capabilities, at_fork, checked, ignore_loss, new_session
from ..remote.jobs import ThreadJob
from .client import GuardEndpoint
from .requests import KnownGates
from .senders import GuardLoopSender, GuardThreadSender
from .wake import GuardSubscriber

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...kernel.commands import Command
    from ...kernel.plan import Policy
    from ..base import Listener
    from .wire import ToldPolicy

#: Connections that a forked child inherited belong to its parent: they are kept here so that they are never closed.
_inherited: list[Any] = []


class HttpStore:
    """State in a guard, asked over HTTP. Commands that arrive during a round trip are batched into the next one.

    Time is the guard's, and so are the limits: a gate without limits takes them from there, and where those that it was
    given differ, the guard's count.
    A guard that does not answer within 200 ms (`?timeout=` in the URL) is unavailable. The token is the URL's, else
    `$HEADGATE_TOKEN`. After `close` the next command connects again.
    """

    keeper: Any = None

    def __init__(self, url: str, *, token: str | None = None) -> None:
        self.url = url
        self.on_loss: Callable[[str], None] = ignore_loss
        # A guard makes a limit again from the name of its kind, so that has to be one.
        self.capabilities = Capabilities(remote=True, kinds=frozenset(KINDS), has_policies=True, examines=True)
        self._endpoint = GuardEndpoint(url, token or os.environ.get("HEADGATE_TOKEN"))
        self._known = KnownGates(lambda gate: self.on_loss(gate))
        #: Gate → what its gate objects here do with a policy that the guard tells of.
        self._followers: dict[str, list[weakref.WeakMethod[Any]]] = {}
        self._begin()
        at_fork.add(self)
        _stores.add(self)

    def _begin(self) -> None:
        """Make what each process has of its own."""
        self.session = new_session()
        self._threads = GuardThreadSender(self._endpoint, self._known, self._told)
        self._loops: dict[Any, GuardLoopSender] = {}
        self._subscriber = GuardSubscriber(self._endpoint, self.session)

    def begin_in_child(self) -> None:
        _inherited.append((self._threads, self._loops, self._subscriber))
        self._begin()

    # --- deciding -------------------------------------------------------------------------------------------------

    def decide(self, command: Command) -> Any:
        if is_ending():
            raise at_end(self._endpoint.shown)
        job = ThreadJob((command,))
        self._threads.coalescer.run(job)
        if job.error is not None:
            raise job.error
        return checked(job.replies[0])

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        if not commands:
            return []
        if is_ending():
            raise at_end(self._endpoint.shown)
        job = ThreadJob(commands)
        self._threads.coalescer.run(job)
        return job.result()

    async def aexecute(self, commands: Sequence[Command]) -> list[Any]:
        """`execute` without blocking the event loop. Commands that were sent when it is cancelled may still be decided."""
        if not commands:
            return []
        if is_ending():
            raise at_end(self._endpoint.shown)
        replies: list[Any] = await self._loop_of(get_running_loop()).coalescer.submit(commands).future
        return replies

    def _loop_of(self, running: Any) -> GuardLoopSender:
        loop = self._loops.get(running)
        if loop is None:
            for ended in [known for known in list(self._loops) if known.is_closed()]:
                self._loops.pop(ended, None)
            loop = self._loops[running] = GuardLoopSender(self._endpoint, self._known, self._told, running)
        return loop

    # --- policies ---------------------------------------------------------------------------------------------------

    def policies(self) -> dict[str, Policy]:
        """The policies of the guard's gates by name. Blocks for one round trip. Raises StoreUnavailable."""
        from .wire import read_policies

        try:
            return read_policies(self._threads.get("/v1/policies"))
        except StoreFormatError as error:
            raise StoreFormatError(f"{self._endpoint.shown}: {error}") from None

    def follow(self, gate: str, adopt: Callable[[Policy, Sequence[str], bool], None]) -> None:
        followers = [known for known in self._followers.get(gate, ()) if known() is not None]
        self._followers[gate] = [*followers, weakref.WeakMethod(adopt)]

    def _told(self, gate: str, told: ToldPolicy) -> None:
        """The guard has another policy for a gate than one of its gate objects here asked with."""
        policy = None
        for follower in self._followers.get(gate, ()):
            if (adopt := follower()) is not None:
                policy = policy or told.policy()
                adopt(policy, told.differences, told.fits)

    def examine(self) -> list[tuple[str, str, str]]:
        """What `headgate doctor` tells of the guard: level, detail, remedy."""
        found = self.policies()
        return [("ok", f"the guard has {', '.join(found) or 'no gates'}; its limits count", "")]

    # --- waking -----------------------------------------------------------------------------------------------------

    def listen(self, ticket: str, listener: Listener) -> None:
        """Have a waiter notified, also of what came between its reply and now. A thread waits until it is subscribed."""
        self._subscriber.listeners.add(ticket, listener)
        self._subscriber.start(self._endpoint.timeout if _get_running_loop() is None else 0.0)

    def unlisten(self, ticket: str) -> None:
        self._subscriber.listeners.remove(ticket)

    def close(self) -> None:
        from .. import forget_store

        forget_store(self)
        self._subscriber.close()
        self._threads.close()
        for running, loop in list(self._loops.items()):
            if running.is_running():
                running.call_soon_threadsafe(loop.close_soon)


_stores: weakref.WeakSet[HttpStore] = weakref.WeakSet()


def _close_all() -> None:
    for store in list(_stores):
        with suppress(Exception):
            store.close()


atexit.register(_close_all)


def open_url(url: str) -> HttpStore:
    """`http://[:token@]host:8080[/prefix]`, `https://` with TLS; `?timeout=200ms`, `?ca=/path/of/certificates.pem`."""
    return HttpStore(url)

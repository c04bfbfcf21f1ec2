"""What a gate does while its store cannot be reached, and when it tries the store again.

`Outage` is what a process knows of one gate's store: whether it is away, and the local share that is used meanwhile. All
gate objects of one name on one store have the same one, so that the process has one share however many objects there are.
`OnStoreError` is what one gate object was told to do.
"""

from __future__ import annotations

import threading
from time import monotonic
from weakref import WeakValueDictionary

from ..background import is_ending
from ..errors import InvalidInput, StoreUnavailable
from ..events import emit
from ..kernel.model import SECOND
from ..stores.base import at_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..kernel.commands import Command
    from ..kernel.model import Wait
    from ..kernel.plan import Policy
    from ..stores.base import Store
    from .share import LocalShare

#: While the store is away, one ask in so many seconds tries it; the others do not wait for it.
RETRY_EVERY = 0.5


def parse_mode(gate: str, mode: object) -> tuple[str, float]:
    """`closed`, `open`, or `local:SHARE`."""
    if mode in ("closed", "open"):
        return str(mode), 0.0
    name, separator, text = str(mode).partition(":")
    if name == "local" and separator:
        try:
            share = float(text)
        except ValueError:
            share = 0.0
        if 0.0 < share <= 1.0:
            return "local", share
    raise InvalidInput(
        f"gate {gate!r}: on_store_error must be 'closed', 'open' or 'local:SHARE' with a share between 0 and 1 "
        f"(such as 'local:0.02'), not {mode!r}"
    )


class OnStoreError:
    """What one gate object does while its store is away: its `mode`, and the share of each limit in the mode `local`."""

    __slots__ = ("_scaled", "mode", "share", "text")

    def __init__(self, gate: str, on_store_error: object) -> None:
        self.mode, self.share = parse_mode(gate, on_store_error)
        #: As it is written in a configuration.
        self.text = f"local:{self.share}" if self.mode == "local" else self.mode
        self._scaled: tuple[Policy, Policy] | None = None

    def scaled(self, policy: Policy) -> Policy:
        """The policy that asks go by while the store is away."""
        scaled = self._scaled
        if scaled is None or scaled[0] is not policy:  # a source of values may have replaced it
            scaled = self._scaled = (policy, policy.scaled(self.share))
        return scaled[1]


class StillAway(StoreUnavailable):
    """The store was away a moment ago and was not tried again: the command has not been sent."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args, decided=False)


class Outage:
    """Whether the store of one gate is away, and the share of the gate's limits that this process uses meanwhile."""

    __slots__ = ("__weakref__", "_error", "_gate", "_lock", "_retry_at", "_since", "away", "modes", "share")

    def __init__(self, gate: str) -> None:
        self._gate = gate
        #: The modes of the gate objects here, for people; in the order in which they were made.
        self.modes: dict[str, None] = {}
        self.begin_in_child()
        at_fork.add(self)

    def begin_in_child(self) -> None:
        """Begin anew, in the child of a fork too: what its parent holds of a share is the parent's."""
        self._lock = threading.Lock()
        self.away = False
        self._since = self._retry_at = 0.0
        self._error: StoreUnavailable | None = None
        #: None until it is used. It outlives the outage: what was admitted from it may still be held when the store goes
        #: away again.
        self.share: LocalShare | None = None

    def began(self, error: StoreUnavailable) -> None:
        """The store did not answer."""
        if isinstance(error, StillAway) or is_ending():
            return
        self._error = error
        if self.away:
            return
        with self._lock:
            if self.away:
                return
            if self.share is not None:
                self.share.use_up(self._gate)
            self._since = monotonic()
            self._retry_at = self._since + RETRY_EVERY
            self.away = True
        emit("store_down", self._gate, error=str(error), mode=" or ".join(self.modes))

    def ended(self) -> None:
        """The store answered."""
        if not self.away or is_ending():
            return
        with self._lock:
            if not self.away:
                return
            self.away = False
            seconds = monotonic() - self._since
        emit("store_up", self._gate, down_for=seconds)

    def check(self) -> None:
        """Raise at once while the store is away, except for the one whose turn it is to try it again."""
        if self.away:
            now = monotonic()
            if now < self._retry_at and self._error is not None:
                raise StillAway(str(self._error)) from self._error
            self._retry_at = now + RETRY_EVERY

    def guard(self, store: Store, command: Command) -> Any:
        self.check()
        try:
            reply = store.decide(command)
        except StoreUnavailable as error:
            self.failed(error)
            raise
        self.ended()
        return reply

    async def guard_async(self, store: Store, command: Command) -> Any:
        if self.away:
            self.check()
        try:
            [reply] = await store.aexecute([command])
        except StoreUnavailable as error:
            self.failed(error)
            raise
        if self.away:
            self.ended()
        return reply

    def failed(self, error: StoreUnavailable) -> None:
        """A command failed: an outage begins, unless the store is there and was only busy, or lost one reply."""
        if error.outage and not error.decided:
            self.began(error)

    def pause(self, reply: Wait, begun: float, wait: int | None) -> float | None:
        """Seconds until an ask that cannot go now looks again: at its share, or whether the store is back.

        `begun` is when it began (monotonic seconds), `wait` for how many microseconds it may; None: it has no time left.
        """
        seconds = min(max(reply.retry_after, 0.001), RETRY_EVERY)
        if wait is None:
            return seconds
        left = begun + wait / SECOND - monotonic()
        return min(seconds, left) if left > 0 else None

    def local_share(self) -> LocalShare:
        """The one share of this process."""
        if self.share is None:
            from .share import LocalShare

            with self._lock:
                if self.share is None:
                    self.share = LocalShare()
        return self.share


class Outages(dict[str, Outage]):
    """The outages of one store's gates, by name."""

    __slots__ = ("__weakref__",)

    def of(self, gate: str) -> Outage:
        return self.get(gate) or self.setdefault(gate, Outage(gate))


#: Two store objects of one URL are one store: a process has one share of its gates.
_by_url: WeakValueDictionary[str, Outages] = WeakValueDictionary()


def outages_of(store: Store) -> Outages:
    """For the keeper of a store, which keeps them and asks once at a time. State in this process is one store object's."""
    if store.capabilities.in_process:
        return Outages()
    return _by_url.setdefault(store.url, Outages())

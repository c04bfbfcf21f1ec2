"""What a gate does while its store cannot be reached, and when it tries the store again."""

from __future__ import annotations

from time import monotonic

from ..errors import InvalidInput, StoreUnavailable
from ..events import emit
from ..kernel.model import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..kernel.commands import Command
    from ..kernel.model import Wait
    from ..kernel.plan import Policy
    from ..stores.base import Store

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


class StillAway(StoreUnavailable):
    """The store was away a moment ago and was not tried again: the command has not been sent."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args, decided=False)


class Outage:
    """Whether the store is away, for one gate in one process."""

    __slots__ = ("_error", "_gate", "_local", "_retry_at", "_shares", "_since", "away", "mode", "share")

    def __init__(self, gate: str, on_store_error: object) -> None:
        self._gate = gate
        self.mode, self.share = parse_mode(gate, on_store_error)
        self.away = False
        self._since = self._retry_at = 0.0
        self._error: StoreUnavailable | None = None
        self._local: tuple[Store, Policy] | None = None
        self._shares: dict[str, Store] = {}

    def began(self, error: StoreUnavailable) -> str:
        """The store did not answer. Returns what the gate does now."""
        self._error = error
        if not self.away:
            self.away = True
            self._since = monotonic()
            self._retry_at = self._since + RETRY_EVERY
            emit("store_down", self._gate, error=str(error), mode=self.mode)
        return self.mode

    def ended(self) -> None:
        if self.away:
            self.away = False
            self._local = None
            self._shares.pop(self._gate, None)
            emit("store_up", self._gate, seconds=monotonic() - self._since)

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
        """A command was not answered: an outage begins, unless the store is there."""
        if error.outage and not error.decided:  # else the store is there: it was busy, or one reply was lost
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

    def local(self, policy: Policy, shares: dict[str, Store]) -> tuple[Store, Policy]:
        """A share of every limit in this process, starting as if it had just been used up.

        `shares` has those of all gates here on one store: however often a gate is made, the process has one share of it.
        """
        if self._local is None or self._local[1].name != policy.name:
            from ..stores.memory import MemoryStore

            self._shares = shares
            self._local = (shares.setdefault(policy.name, MemoryStore(used_up=True)), policy.scaled(self.share))
        return self._local

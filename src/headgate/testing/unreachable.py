"""A store that cannot be reached, until it is told otherwise."""

from __future__ import annotations

from itertools import count

from ..errors import StoreUnavailable
from ..stores.base import Capabilities
from ..stores.memory import MemoryStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..clock import Clock
    from ..kernel.commands import Command


_numbers = count(1)


class UnreachableStore(MemoryStore):
    """A store in memory that is away: every command raises `StoreUnavailable`, as with a server that is down.

    `reachable = True` brings it back with what it knew, and False takes it away again. For tests of what a program does
    with `on_store_error`; to test waiting and limits use `MemoryStore`.
    """

    #: Not in this process, as far as gates are told: those never fail.
    capabilities = Capabilities(instant=True)

    def __init__(self, clock: Clock | None = None, reachable: bool = False) -> None:
        # Each is a store of its own: what a gate knows of an outage goes by the URL.
        super().__init__(clock, url=f"unreachable://{next(_numbers)}")
        self._reachable = reachable
        #: How many times it was asked in vain.
        self.failures = 0

    @property
    def reachable(self) -> bool:
        return self._reachable

    @reachable.setter
    def reachable(self, value: bool) -> None:
        self._reachable = value
        if value and self.keeper is not None:
            for outage in list(self.keeper.outages.values()):
                outage.ended()  # else a gate would try it again after half a second only

    def _check(self) -> None:
        if not self._reachable:
            self.failures += 1
            raise StoreUnavailable(f"{self.url} cannot be reached, as a test wants it", decided=False)

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        self._check()
        return super().execute(commands)

    async def aexecute(self, commands: Sequence[Command]) -> list[Any]:
        return self.execute(commands)

    def decide(self, command: Command) -> Any:
        self._check()
        return super().decide(command)

"""The local share: what a process uses of a gate's limits while the store is away and `on_store_error` is `local:SHARE`."""

from __future__ import annotations

from ..kernel.commands import Extend, Renew
from ..stores.memory import MemoryStore

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ..kernel.commands import Command
    from ..kernel.records import DictRecords


class LocalShare(MemoryStore):
    """Decides by limits that were scaled to the share. Rates begin as if they had just been used up."""

    def _records(self, gate: str) -> DictRecords:
        known = gate in self._gates
        records = super()._records(gate)
        if not known:
            records.head.amend(lost=self._clock())
        return records

    def use_up(self, gate: str) -> None:
        """Another outage begins: rates begin once more as if just used up, and leases that live go on counting."""
        with self._lock:
            records = self._gates.get(gate)
            if records is not None:
                records.drop("assumed")
                records.head.amend(lost=max(self._clock(), records.head.now))

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        decide = super().execute
        return [self._without_return(command, lambda command: decide([command])[0]) for command in commands]

    def decide(self, command: Command) -> Any:
        return self._without_return(command, super().decide)

    def _without_return(self, command: Command, decide: Callable[[Command], Any]) -> Any:
        """Decide without letting an ended lease return, as it may where state was lost: here none was."""
        with self._lock:
            head = self._records(command.gate).head
            lost = head.lost
            if not lost or not isinstance(command, Renew | Extend):
                return decide(command)
            head.amend(lost=0)
            try:
                return decide(command)
            finally:
                head.amend(lost=lost)

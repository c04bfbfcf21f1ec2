"""The gates of a configuration, by name, made when they are first asked for."""

from __future__ import annotations

from collections.abc import Mapping

from ..events import switch_on
from .aio import AsyncGate
from .sync import Gate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..config.file import Config


class Gates(Mapping[str, Gate]):
    """`load()["adobe"]` is a `Gate`; `load().async_gate("adobe")` the same for asyncio, on the same state."""

    def __init__(self, config: Config) -> None:
        self.config = config
        if config.sinks is not None:
            switch_on(*config.sinks)
        self._gates: dict[str, Gate] = {}
        self._async_gates: dict[str, AsyncGate] = {}

    def __getitem__(self, name: str) -> Gate:
        gate = self._gates.get(name)
        if gate is None:
            gate = self._gates[name] = Gate(**self.config[name].arguments())
        return gate

    def async_gate(self, name: str) -> AsyncGate:
        gate = self._async_gates.get(name)
        if gate is None:
            gate = self._async_gates[name] = AsyncGate(**self.config[name].arguments())
        return gate

    def __contains__(self, name: object) -> bool:
        return name in self.config  # without making it

    def __iter__(self) -> Iterator[str]:
        return iter(self.config)

    def __len__(self) -> int:
        return len(self.config)

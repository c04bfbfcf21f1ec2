"""The gates of a configuration or of a guard, by name, made when they are first asked for."""

from __future__ import annotations

from collections.abc import Mapping

from ..config.account import Account
from ..errors import InvalidInput
from ..events import switch_on
from ..stores.base import shown
from .account import AccountFollower, with_contract
from .aio import AsyncGate
from .sync import Gate
from .tightening import Tightening

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from ..config.file import Config, GateSpec
    from ..kernel.model import OnStoreErrorMode
    from ..stores.base import PolicySource, Store


class MadeGates(Mapping[str, Gate]):
    """Gates that are made when they are first asked for, and closed together."""

    _gates: dict[str, Gate]
    _async_gates: dict[str, AsyncGate]

    def close(self) -> None:
        """Close every gate that was made; see `Gate.close`. One that is asked for again is made anew."""
        while self._gates:
            self._gates.popitem()[1].close()

    async def aclose(self) -> None:
        """Close every gate that was made, those for threads too; see `AsyncGate.aclose`."""
        import asyncio

        while self._async_gates:
            await self._async_gates.popitem()[1].aclose()
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


class GuardGates(MadeGates):
    """The gates of a guard: `connect(url)["adobe"]` is a `Gate`, `connect(url).async_gate("adobe")` the same for asyncio.

    Their limits are the guard's, and follow its changes. `on_store_error` says what each does while the guard is away.
    """

    def __init__(self, store: Store, on_store_error: OnStoreErrorMode = "closed") -> None:
        if not store.capabilities.has_policies:
            raise InvalidInput(
                f"{shown(store.url)} is no guard, and knows no limits: connect to http://… or https://…, or give a Gate "
                f"its limits and this store"
            )
        self._store = store
        self._policies: PolicySource = store  # type: ignore[assignment]
        self._on_store_error = on_store_error
        self._gates: dict[str, Gate] = {}
        self._async_gates: dict[str, AsyncGate] = {}

    def __getitem__(self, name: str) -> Gate:
        gate = self._gates.get(name)
        if gate is None:
            gate = self._gates[name] = Gate(name, store=self._store, on_store_error=self._on_store_error)
        return gate

    def async_gate(self, name: str) -> AsyncGate:
        gate = self._async_gates.get(name)
        if gate is None:
            gate = self._async_gates[name] = AsyncGate(name, store=self._store, on_store_error=self._on_store_error)
        return gate

    def __contains__(self, name: object) -> bool:
        return name in self._policies.policies()  # without making it

    def __iter__(self) -> Iterator[str]:
        return iter(self._policies.policies())

    def __len__(self) -> int:
        return len(self._policies.policies())

    def __repr__(self) -> str:
        return f"<the gates of {shown(self._store.url)}>"


class Gates(MadeGates):
    """`load()["adobe"]` is a `Gate`; `load().async_gate("adobe")` the same for asyncio, on the same state."""

    def __init__(self, config: Config) -> None:
        self.config = config
        if config.sinks is not None:
            switch_on(*config.sinks)
        self._gates: dict[str, Gate] = {}
        self._async_gates: dict[str, AsyncGate] = {}
        #: The gates that have what goes on beside them: a tightening, an account.
        self._watched: dict[str, list[Tightening | AccountFollower]] = {}
        self._specs: dict[str, GateSpec] = {}

    def __getitem__(self, name: str) -> Gate:
        gate = self._gates.get(name)
        if gate is None:
            gate = self._gates[name] = Gate(**self._spec(name).arguments())
            self._watch(name, gate)
        return gate

    def async_gate(self, name: str) -> AsyncGate:
        gate = self._async_gates.get(name)
        if gate is None:
            gate = self._async_gates[name] = AsyncGate(**self._spec(name).arguments())
            if self.config[name].tighten or self.config[name].account:
                self[name]  # the same gate for threads, by which it is watched
        return gate

    def close(self) -> None:
        while self._watched:
            for watcher in self._watched.popitem()[1]:
                watcher.close()
        super().close()

    def _spec(self, name: str) -> GateSpec:
        """The gate's description with its limits: where it has an account, with those of its contract too."""
        spec = self._specs.get(name)
        if spec is None:
            spec = self.config[name]
            if spec.account is not None:
                spec = with_contract(spec, self.config.path)
            self._specs[name] = spec
        return spec

    def _watch(self, name: str, gate: Gate) -> None:
        spec = self.config[name]
        if (spec.tighten is None and spec.account is None) or name in self._watched:
            return
        watchers: list[Tightening | AccountFollower] = []
        if spec.tighten is not None:
            watchers.append(Tightening(gate, spec.tighten))
        if spec.account is not None:
            follower = AccountFollower(gate, Account(spec.account))
            follower.refresh()
            follower.start()
            watchers.append(follower)
        self._watched[name] = watchers

    def __contains__(self, name: object) -> bool:
        return name in self.config  # without making it

    def __iter__(self) -> Iterator[str]:
        return iter(self.config)

    def __len__(self) -> int:
        return len(self.config)

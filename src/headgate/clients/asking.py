"""What a request asks of its gate: cost, key, priority and holder, each a value or a function of the request."""

from __future__ import annotations

from .. import duration
from ..errors import InvalidInput
from ..gate import AsyncGate, Gate
from .answers import Answer
from .calls import Call
from .discovery import Discovery
from .retry import Retry

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..gate import AsyncPermit, Permit
    from ..gate.base import Cost, Duration, Key

    #: What really was used, by unit, read from the whole answer; None where the answer does not say.
    SettleBy = Callable[[Answer], Mapping[str, float] | None]


class Asking:
    """The terms on which the requests of one client ask one gate. Values are checked here, functions as they are called."""

    __slots__ = (
        *("_cost", "_discover", "_fixed", "_holder", "_key", "_priority"),
        *("_settle", "gate", "retry", "timeout_s"),
    )

    def __init__(
        self,
        gate: Any,
        *,
        is_async: bool,
        cost: Cost | Callable[[Any], Cost] = 1,
        key: Key | Callable[[Any], Key | None] | None = None,
        priority: str | Callable[[Any], str | None] | None = None,
        holder: str | Callable[[Any], str | None] | None = None,
        settle: SettleBy | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        discover: Discovery | None = None,
    ) -> None:
        wanted: type[Any] = AsyncGate if is_async else Gate
        if not isinstance(gate, wanted):
            way = "on an event loop" if is_async else "in threads"
            raise InvalidInput(f"a client that runs {way} takes its permits from {_a(wanted)}, not from {gate!r}")
        if settle is not None and not callable(settle):
            raise InvalidInput(f"settle is a function of the answer that returns what it cost by unit, not {settle!r}")
        if retry is not None and not isinstance(retry, Retry):
            raise InvalidInput(f"retry is a headgate.clients.Retry, not {retry!r}")
        if discover is not None and not isinstance(discover, Discovery):
            raise InvalidInput(f"discover is a headgate.clients.Discovery, not {discover!r}")
        self.gate = gate
        self._settle = settle
        self._discover = None if discover is None else discover.on(gate)
        self.retry = retry
        #: Seconds that a request may wait for its permit; None for as long as it takes.
        self.timeout_s = None if timeout is None else duration.parse(timeout, what="timeout", zero=True) / 1e6
        self._cost, self._key, self._priority, self._holder = cost, key, priority, holder
        if holder is not None and not isinstance(holder, str) and not callable(holder):
            raise InvalidInput(f"holder is a text or a function of the request, not {holder!r}")
        functions = [callable(value) for value in (cost, key, priority)]
        if not any(functions):
            gate.policy.plan(cost, key, priority)  # a mistake shows where the client is made
        #: The ask itself where it is the same for every request.
        self._fixed: dict[str, Any] | None = None
        if not any(functions) and not callable(holder):
            said = {"cost": cost, "key": key, "priority": priority, "holder": holder}
            self._fixed = {name: value for name, value in said.items() if value is not None}

    def call(self, permit: Permit | AsyncPermit) -> Call:
        """A call under a permit that was granted on these terms."""
        return Call(permit, self._settle, self._discover)

    def of(self, request: Any, where: Callable[[], str]) -> dict[str, Any]:
        """What `acquire` is called with for this request. An error of a function goes to the caller, who has spent nothing.

        `where` tells which request it was, for people.
        """
        if self._fixed is not None:
            return self._fixed
        ask: dict[str, Any] = {}
        for name, given in (
            ("cost", self._cost),
            ("key", self._key),
            ("priority", self._priority),
            ("holder", self._holder),
        ):
            if callable(given):
                try:
                    given = given(request)
                except Exception as error:
                    error.add_note(
                        f"raised by {name}= of the client of gate {self.gate.name!r} for {where()}; nothing was asked"
                    )
                    raise
            if given is not None:
                ask[name] = given
        return ask


def _a(kind: type[Any]) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"

"""What every face has that stands in front of a service of your own: who asks, for how much, and what a refusal says."""

from __future__ import annotations

import logging
from time import monotonic

from ..errors import Denied, InvalidInput
from .headers import FRESH, RemainingHeaders, policy_field, with_limit
from .keys import key_value
from .problems import problem_of
from .report import REFUSALS
from .spread import Spread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..errors import HeadgateError
    from .problems import Problem

#: Seconds between two log lines about a store that cannot be reached.
LOG_EVERY = 60.0

log = logging.getLogger("headgate.middleware")

#: How the service's own answer ends the permit, where that is not `ok`: an adaptive limit goes by it.
OUTCOMES_OF_STATUS = {status: REFUSALS[status] for status in (429, 503, 504)}


class Boundary:
    """A gate at the boundary where calls are counted: its slack is taken as 0.

    `key`, `cost`, `priority` and `holder` are values, or functions of what the framework calls a request. A key of None
    lets the request pass without a permit.
    """

    def __init__(
        self,
        gate: Any,
        *,
        key: Any = None,
        cost: Any = 1,
        priority: Any = None,
        holder: Any = None,
        remaining: bool = False,
    ) -> None:
        self.gate = gate.at_boundary()
        self._by = self.gate.policy.keys
        if self._by and key is None:
            raise InvalidInput(
                f"gate {gate.name!r} has limits by {', '.join(self._by)}; say where that is in a request: "
                f'key="x-{self._by[0]}" for a header, or a function of the request'
            )
        self._key, self._cost, self._priority, self._holder = key, cost, priority, holder
        self.remaining, self.fresh_s = RemainingHeaders(), 0.0 if remaining else FRESH
        self._spread = Spread()
        self._log_at = 0.0
        #: The header that says what the gate allows.
        self.policy = (b"ratelimit-policy", policy_field(self.gate.policy.limits))

    def one_header(self) -> None:
        """Refuse a key that is one header, where the gate's limits are by none or by several."""
        if len(self._by) != 1:
            raise InvalidInput(
                f"gate {self.gate.name!r} has limits by {', '.join(self._by) or 'nothing'}, and one header is one key; "
                f"give a function that returns a mapping, or leave key out where no limit is by one"
            )

    def key_of(self, request: Any) -> Any:
        """The value of the key; None lets the request pass where a key was given."""
        return self._key(request) if callable(self._key) else self._key

    def passes(self, key: Any) -> bool:
        """Whether a request with this key needs no permit."""
        return key is None and self._key is not None

    def mapped(self, key: Any) -> Mapping[str, str] | None:
        """The key as `acquire` takes it."""
        if not self._by:
            return None
        if hasattr(key, "items"):
            return {by: key_value(str(value)) for by, value in key.items()}
        return {self._by[0]: key_value(str(key))}

    def ask(self, request: Any, key: Any) -> dict[str, Any]:
        """What `acquire` is called with for a request."""
        ask: dict[str, Any] = {
            "key": self.mapped(key),
            "cost": self._cost(request) if callable(self._cost) else self._cost,
        }
        if self._priority is not None:
            ask["priority"] = self._priority(request) if callable(self._priority) else self._priority
        if self._holder is not None:
            ask["holder"] = self._holder(request) if callable(self._holder) else self._holder
        return ask

    def problem(self, error: HeadgateError, key: Any) -> Problem:
        """What a request is answered that gets no permit."""
        problem = problem_of(error)
        if problem.status >= 500:
            # The service's clients are strangers to its store: what is wrong with which is for the log alone. Once a
            # minute, since it is the same for every request.
            if (now := monotonic()) >= self._log_at:
                self._log_at = now + LOG_EVERY
                log.warning("gate %s admits no request: %s", self.gate.name, problem.detail)
            problem.detail = "requests cannot be admitted at the moment"
        if isinstance(error, Denied):
            problem = with_limit(problem, self.gate.policy, error, self._spread, key=self.mapped(key))
        return problem


def text_headers(headers: Any) -> list[tuple[str, str]]:
    """Headers as the frameworks take them."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]

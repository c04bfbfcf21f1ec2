"""When refused clients are asked to come back: one after the other, as there will be room for them."""

from __future__ import annotations

from time import monotonic

from ..kernel.model import SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..errors import Denied
    from ..kernel.plan import Policy

#: A moment that lies further than this after the first free one is not told: the next stretch begins instead.
LONGEST_S = 3600.0

#: So many limits and keys are remembered; then all are forgotten.
REMEMBERED = 10_000


class Spread:
    """Spreads `Retry-After` over the capacity that there will be.

    Clients that are refused in one stretch would all be told the first free moment, and come back together. The first of
    them is told that moment, and each other one a moment that is later by what the one before it takes of the limit. The
    moments of one limit (and key) are those of this process: several guards spread each their own.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        #: Gate, limit and value of the key → the last moment that was told.
        self._told: dict[tuple[str, str | None, str | None], float] = {}

    def seconds(
        self,
        policy: Policy,
        error: Denied,
        cost: Mapping[str, float] | None = None,
        key: Mapping[str, str] | None = None,
    ) -> float:
        """Seconds after which the client of this refusal should come back; never before `error.retry_after`."""
        first = error.retry_after or 0.0
        blocking = [limit for limit in policy.limits if limit.name == error.limit] or policy.limits
        paces = [
            limit.pace(limit.limit) * (1.0 if limit.leased or cost is None else cost.get(limit.unit, 1.0))
            for limit in blocking
        ]
        by = blocking[0].by if error.limit is not None else None
        place = (policy.name, error.limit, None if by is None or key is None else key.get(by))
        if len(self._told) >= REMEMBERED and place not in self._told:
            self._told.clear()
        now = self._clock()
        at = max(now + first, self._told.get(place, 0.0) + max(paces) / SECOND)
        if at > now + first + LONGEST_S:
            at = now + first
        self._told[place] = at
        return at - now

"""`RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers), as structured fields."""

from __future__ import annotations

from math import ceil, isfinite
from time import monotonic

from ..errors import HeadgateError
from .problems import NOSNIFF, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Protocol

    from ..errors import Denied
    from ..kernel.limits import Limit
    from ..kernel.model import LimitUsage, Usage
    from ..kernel.plan import Policy
    from .spread import Spread

    Header = tuple[bytes, bytes]

    class AsyncUsage(Protocol):
        """The part of an `AsyncGate` that these headers need."""

        @property
        def name(self) -> str: ...

        async def usage(self, key: Mapping[str, str] | None = ...) -> Usage: ...

    class SyncUsage(Protocol):
        """The same part of a `Gate`."""

        @property
        def name(self) -> str: ...

        def usage(self, key: Mapping[str, str] | None = ...) -> Usage: ...


JSON: list[Header] = [(b"content-type", b"application/json"), NOSNIFF]

#: Seconds for which a `RateLimit` header is repeated before the gate's usage is read again.
FRESH = 0.1


def policy_field(limits: Iterable[Limit]) -> bytes:
    """`"rpm";q=190;w=60, "in_flight";q=150;qu="concurrent-requests"`: what each limit allows, and in how many seconds."""
    items = []
    for limit in limits:
        item = f'"{limit.name}";q={int(limit.limit)}'
        if limit.leased:
            item += ';qu="concurrent-requests"'
        elif limit.unit != "requests":
            item += f';qu="{limit.unit}"'
        if (window_s := limit.window_s()) is not None:
            item += f";w={max(1, ceil(window_s))}"
        items.append(item)
    return ", ".join(items).encode()


def usage_field(usages: Iterable[LimitUsage]) -> bytes:
    """`"rpm";r=50;t=30`: what is left of each limit, and in how many seconds there is more."""
    items = []
    for usage in usages:
        item = f'"{usage.name}";r={max(0, int(usage.available))}'
        moment = usage.free_in or usage.resets_in
        if moment is not None and isfinite(moment):
            item += f";t={max(0, ceil(moment))}"
        items.append(item)
    return ", ".join(items).encode()


class RemainingHeaders:
    """A cache of `RateLimit` headers: what is left of each gate.

    Reading the usage of a gate costs more than a decision, so it is read at most once in 100 ms per gate, for one key. An
    answer for another key has the limits that are not by a key.
    """

    __slots__ = ("_cache", "_on_usage", "_with_policy")

    def __init__(self, on_usage: Callable[[Usage], Usage] | None = None) -> None:
        #: Called with every usage that is read.
        self._on_usage = on_usage
        #: Gate → until when it is fresh, the key it was read for, the headers for that key, and those for others.
        self._cache: dict[str, tuple[float, Mapping[str, str] | None, list[Header], list[Header]]] = {}
        #: The headers that `with_policy` was last called with, and both together.
        self._with_policy: tuple[list[Header], list[Header], list[Header]] = ([], [], [])

    def cached(self, gate: str, key: Mapping[str, str] | None = None) -> list[Header] | None:
        """The headers, if they were read less than 100 ms ago; None where `fetch` has to read them."""
        until, whose, mine, others = self._cache.get(gate, _NOTHING)
        return None if monotonic() >= until else mine if whose == key else others

    def latest(self, gate: str, key: Mapping[str, str] | None = None) -> list[Header]:
        """The headers that were read last, however long ago."""
        _, whose, mine, others = self._cache.get(gate, _NOTHING)
        return mine if whose == key else others

    def with_policy(self, policy: Policy, remaining: list[Header]) -> list[Header]:
        """The headers of a grant; the same list as last time where they are the same, so that its bytes can be cached."""
        of_policy = policy_header(policy)
        last_policy, last_remaining, both = self._with_policy
        if last_policy is not of_policy or last_remaining is not remaining:
            both = of_policy + remaining
            self._with_policy = (of_policy, remaining, both)
        return both

    async def fetch(self, gate: AsyncUsage, key: Mapping[str, str] | None = None, fresh: float = FRESH) -> list[Header]:
        """The headers, from the cache or read now; none while the store is away."""
        if (cached := self._begin(gate.name, key, fresh)) is not None:
            return cached
        try:
            usage = await gate.usage(key or None)
        except HeadgateError:
            return []
        return self._keep(gate.name, key, fresh, usage)

    def fetch_now(self, gate: SyncUsage, key: Mapping[str, str] | None = None, fresh: float = FRESH) -> list[Header]:
        """The same as `fetch`, with a `Gate` and in a thread."""
        if (cached := self._begin(gate.name, key, fresh)) is not None:
            return cached
        try:
            usage = gate.usage(key or None)
        except HeadgateError:
            return []
        return self._keep(gate.name, key, fresh, usage)

    def _begin(self, gate: str, key: Mapping[str, str] | None, fresh: float) -> list[Header] | None:
        """The headers from the cache; None where the caller has to read them, and the others have the last meanwhile."""
        if (cached := self.cached(gate, key)) is not None:
            return cached
        others = self._cache.get(gate, _NOTHING)[3]
        self._cache[gate] = (monotonic() + fresh, None, others, others)
        return None

    def _keep(self, gate: str, key: Mapping[str, str] | None, fresh: float, usage: Usage) -> list[Header]:
        if self._on_usage is not None:
            self._on_usage(usage)
        rows = [row for row in usage.limits if "@" not in row.name]
        mine, others = _header(rows), _header([row for row in rows if row.key is None])
        self._cache[gate] = (monotonic() + fresh, key, mine, others)
        return mine


_NOTHING: tuple[float, None, list[Header], list[Header]] = (0.0, None, [], [])


def _header(rows: list[LimitUsage]) -> list[Header]:
    return [(b"ratelimit", usage_field(rows))] if rows else []


_made: dict[str, list[Header]] = {}


def policy_header(policy: Policy) -> list[Header]:
    """The headers of a JSON answer for a gate; made once per version of its policy."""
    made = _made.get(policy.fingerprint)
    if made is None:
        if len(_made) >= 1000:
            _made.clear()
        made = _made[policy.fingerprint] = [*JSON, (b"ratelimit-policy", policy_field(policy.limits))]
    return made


def with_limit(
    problem: Problem,
    policy: Policy,
    error: Denied,
    spread: Spread,
    cost: Mapping[str, float] | None = None,
    key: Mapping[str, str] | None = None,
) -> Problem:
    """Add the headers to a refusal that name the limit and say when it has room again, and when to come back."""
    if error.retry_after is not None:
        problem.come_back_in = spread.seconds(policy, error, cost, key)
    problem.headers.append((b"ratelimit-policy", policy_field(policy.limits)))
    if error.limit is not None and error.retry_after is not None:
        problem.headers.append((b"ratelimit", f'"{error.limit}";r=0;t={ceil(error.retry_after)}'.encode()))
    return problem

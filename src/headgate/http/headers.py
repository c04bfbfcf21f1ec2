"""`RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers), as structured fields."""

from __future__ import annotations

from math import ceil, isfinite
from time import monotonic

from ..errors import HeadgateError
from .problems import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Protocol

    from ..errors import Denied
    from ..kernel.limits import Limit
    from ..kernel.model import LimitUsage, Usage
    from ..kernel.plan import Policy

    Header = tuple[bytes, bytes]

    class AsyncUsage(Protocol):
        """As much of an `AsyncGate` as these headers need."""

        @property
        def name(self) -> str: ...

        async def usage(self, key: Mapping[str, str] | None = ...) -> Usage: ...


JSON: list[Header] = [(b"content-type", b"application/json")]

#: Seconds for which what is left of a gate, as it was looked up, is told again.
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
        moment = usage.next_free or usage.time_left
        if moment is not None and isfinite(moment):
            item += f";t={max(0, ceil(moment))}"
        items.append(item)
    return ", ".join(items).encode()


class Left:
    """What is left of gates, for `RateLimit` on grants.

    A look costs more than a decision, so there is one for a gate in 100 ms, and the others are told the same. Limits by a
    key are told to those alone whose key was looked at.
    """

    __slots__ = ("_looked", "_told", "_whole")

    def __init__(self, looked: Callable[[Usage], Usage] | None = None) -> None:
        #: Told of every look.
        self._looked = looked
        #: Gate → until when it is told, of which key, the headers for that key, and for others.
        self._told: dict[str, tuple[float, Mapping[str, str] | None, list[Header], list[Header]]] = {}
        #: The headers of the last answer: of the policy, of what is left, and both.
        self._whole: tuple[list[Header], list[Header], list[Header]] = ([], [], [])

    def known(self, gate: str, key: Mapping[str, str] | None = None) -> list[Header] | None:
        """What was looked up a moment ago; None where somebody has to look."""
        until, whose, mine, all_ = self._told.get(gate, _NOTHING)
        return None if monotonic() >= until else mine if whose == key else all_

    def last(self, gate: str, key: Mapping[str, str] | None = None) -> list[Header]:
        """What was looked up last, however long ago."""
        _, whose, mine, all_ = self._told.get(gate, _NOTHING)
        return mine if whose == key else all_

    def whole(self, policy: Policy, left: list[Header]) -> list[Header]:
        """The headers of a grant; the same list as before, where they are the same."""
        made = policy_header(policy)
        of_policy, was_left, both = self._whole
        if of_policy is not made or was_left is not left:
            both = made + left
            self._whole = (made, left, both)
        return both

    async def headers(
        self, gate: AsyncUsage, key: Mapping[str, str] | None = None, fresh: float = FRESH
    ) -> list[Header]:
        """None at all while the store is away."""
        if (told := self.known(gate.name, key)) is not None:
            return told
        now, all_ = monotonic(), self._told.get(gate.name, _NOTHING)[3]
        self._told[gate.name] = (now + fresh, None, all_, all_)  # who comes meanwhile need not look as well
        try:
            usage = await gate.usage(key or None)
        except HeadgateError:
            return []
        if self._looked is not None:
            self._looked(usage)
        rows = [row for row in usage.limits if "@" not in row.name]
        mine, all_ = _header(rows), _header([row for row in rows if row.key is None])
        self._told[gate.name] = (now + fresh, key, mine, all_)
        return mine


_NOTHING: tuple[float, None, list[Header], list[Header]] = (0.0, None, [], [])


def _header(rows: list[LimitUsage]) -> list[Header]:
    return [(b"ratelimit", usage_field(rows))] if rows else []


_made: dict[str, list[Header]] = {}


def policy_header(policy: Policy) -> list[Header]:
    """The headers of an answer in JSON for a gate; made once for each version of it."""
    made = _made.get(policy.fingerprint)
    if made is None:
        if len(_made) >= 1000:
            _made.clear()
        made = _made[policy.fingerprint] = [*JSON, (b"ratelimit-policy", policy_field(policy.limits))]
    return made


def with_limit(problem: Problem, policy: Policy, error: Denied) -> Problem:
    """A refusal with the headers that say of which limit, and when there is room again."""
    problem.headers.append((b"ratelimit-policy", policy_field(policy.limits)))
    if error.limit is not None and error.retry_after is not None:
        problem.headers.append((b"ratelimit", f'"{error.limit}";r=0;t={ceil(error.retry_after)}'.encode()))
    return problem

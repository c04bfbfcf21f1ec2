"""`RateLimit` and `RateLimit-Policy` (draft-ietf-httpapi-ratelimit-headers), as structured fields."""

from __future__ import annotations

from math import ceil

from ..limits import RateLimit
from ..model import SECOND
from .problems import Problem
from .web import JSON

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..errors import Denied
    from ..limits import Limit
    from ..model import LimitUsage
    from ..plan import Policy

    Header = tuple[bytes, bytes]


def policy_field(limits: Iterable[Limit]) -> bytes:
    """`"rpm";q=190;w=60, "in_flight";q=150;qu="concurrent-requests"`: what each limit allows, and in how many seconds."""
    items = []
    for limit in limits:
        item = f'"{limit.name}";q={int(limit.limit)}'
        if limit.leased:
            item += ';qu="concurrent-requests"'
        elif limit.unit != "requests":
            item += f';qu="{limit.unit}"'
        if isinstance(limit, RateLimit):
            item += f";w={max(1, ceil(limit.per / SECOND))}"
        items.append(item)
    return ", ".join(items).encode()


def usage_field(usages: Iterable[LimitUsage]) -> bytes:
    """`"rpm";r=50;t=30`: what is left of each limit, and in how many seconds there is more."""
    items = []
    for usage in usages:
        item = f'"{usage.name}";r={max(0, int(usage.available))}'
        if usage.time_left is not None or usage.next_free:
            item += f";t={max(0, ceil(usage.next_free or usage.time_left or 0.0))}"
        items.append(item)
    return ", ".join(items).encode()


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

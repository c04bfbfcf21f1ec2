"""PURE. The kinds of limit, one file each. A new kind is one file and one line in `KINDS`."""

from __future__ import annotations

from ...errors import InvalidInput
from .aimd import Aimd
from .base import LARGEST, NO_LEASE, Limit, RateLimit, check_name, positive
from .bucket import Bucket
from .concurrency import DUST, RULES, Concurrency, prune
from .probing import Probing
from .quota import Quota
from .rule import AdaptiveRule
from .window import Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: Kind → class: what a configuration may say, and what stored state may be.
KINDS: dict[str, type[Limit]] = {
    "window": Window,
    "bucket": Bucket,
    "quota": Quota,
    "concurrency": Concurrency,
}


def from_spec(spec: Any) -> Limit:
    """The limit that `limit.spec()` described. Raises InvalidInput for a kind that this process does not have."""
    kind = KINDS.get(spec[0])
    if kind is None:
        raise InvalidInput(
            f"there is no kind of limit {spec[0]!r} in this process, which has {', '.join(KINDS)}; a kind of one's own "
            f"needs its line in headgate.limits.KINDS in every process that meets it, a guard's too"
        )
    return kind.from_spec(spec)


def kind_of(name: str) -> type[Limit]:
    """The class of a kind, for what is the same for all limits of it; of one that is unknown here, the plain `Limit`."""
    return KINDS.get(name, Limit)


__all__ = [
    "DUST",
    "KINDS",
    "LARGEST",
    "NO_LEASE",
    "RULES",
    "AdaptiveRule",
    "Aimd",
    "Bucket",
    "Concurrency",
    "Limit",
    "Probing",
    "Quota",
    "RateLimit",
    "Window",
    "check_name",
    "from_spec",
    "kind_of",
    "positive",
    "prune",
]

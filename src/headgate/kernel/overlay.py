"""PURE. Records over other records: what a command changes here is forgotten, and what is below stays as it is.

A look runs the decision's own rules on one of these: it serves the line, ends what has ended and asks the limits, and
nothing of that is kept.
"""

from __future__ import annotations

from .records import ByKind, DictSpace, Kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .head import Head
    from .model import Wake
    from .records import Member, Records, Score, Space

#: The kinds of spaces that limits change when they are asked: they forget what no longer counts.
FORGETTING = frozenset({"leases", "promised", "windows"})

#: In the place of a value: it was deleted.
_GONE = object()


class OverlaySpace:
    """A space over another one, of which nothing is changed. `below` is None where there is none."""

    __slots__ = ("_added", "_below", "_hidden", "_next", "_order", "_values")

    def __init__(self, below: Space | None) -> None:
        self._below = below
        self._values: dict[Any, Any] = {}
        #: The members that were put here, in order (None: none were); and those whose place below no longer counts.
        self._order: DictSpace | None = None
        self._hidden: set[Any] = set()
        #: How many more members there are than below.
        self._added = 0
        #: The order below from its first member on that still counts, and that member.
        self._next: tuple[Iterator[tuple[Any, Any]], tuple[Any, Any] | None] | None = None

    def get(self, member: Member, /) -> Any:
        value = self._values.get(member, self)
        if value is self:
            return None if self._below is None else self._below.get(member)
        return None if value is _GONE else value

    def _has(self, member: Member) -> bool:
        if member in self._values:
            return self._values[member] is not _GONE
        below = self._below
        return below is not None and (below.get(member) is not None or below.score(member) is not None)

    def __setitem__(self, member: Member, value: Any, /) -> None:
        if not self._has(member):
            self._added += 1
        self._values[member] = value

    def put(self, member: Member, value: Any, score: Score) -> None:
        self[member] = value
        self._hidden.add(member)
        if self._order is None:
            self._order = DictSpace()
        self._order.put(member, None, score)

    def delete(self, member: Member) -> Any:
        if not self._has(member):
            return None
        score = self.score(member)
        self._added -= 1
        self._values[member] = _GONE
        self._hidden.add(member)
        if self._order is not None:
            self._order.delete(member)
        return score

    def score(self, member: Member) -> Any:
        if member in self._hidden:
            return None if self._order is None else self._order.score(member)
        return None if self._below is None else self._below.score(member)

    def first(self) -> tuple[Any, Any] | None:
        own = None if self._order is None else self._order.first()
        if self._below is None:
            return own
        if self._next is None:
            order = self._below.scan()
            pair = next(order, None)
        else:
            order, pair = self._next
        while pair is not None and pair[1] in self._hidden:
            pair = next(order, None)
        self._next = (order, pair)
        if own is None or pair is None:
            return own or pair
        return min(own, pair)

    def scan(self, since: Score = float("-inf")) -> Iterator[tuple[Any, Any]]:
        hidden, order = self._hidden, self._order
        if self._below is None:
            return iter(()) if order is None else order.scan(since)
        if not hidden:
            return self._below.scan(since)
        return _merged(self._below.scan(since), hidden, [] if order is None else list(order.scan(since)))

    def added(self, prefix: str) -> list[str]:
        """The members that were put here and begin with `prefix`."""
        return [member for member in self._order or () if member.startswith(prefix)]

    def __len__(self) -> int:
        return self._added + (0 if self._below is None else len(self._below))

    def __bool__(self) -> bool:
        return self.first() is not None

    def clear(self) -> None:
        self.__init__(None)  # type: ignore[misc]


def _merged(
    below: Iterator[tuple[Any, Any]], hidden: set[Any], own: list[tuple[Any, Any]]
) -> Iterator[tuple[Any, Any]]:
    """Both in one order. Mostly a few of many are hidden or one's own."""
    at = 0
    for pair in below:
        if pair[1] not in hidden:
            while at < len(own) and own[at] < pair:
                yield own[at]
                at += 1
            yield pair
    yield from own[at:]


class _OverlaySpaces(dict):  # type: ignore[type-arg]
    """Spaces by name over those of other records, made when they are first asked for."""

    __slots__ = ("_below", "_kind")

    def __init__(self, below: Records, kind: str) -> None:
        self._below = below
        self._kind = kind

    def __missing__(self, name: str) -> OverlaySpace:
        space = self[name] = OverlaySpace(self._below.existing(self._kind, name))
        return space


class Overlay(ByKind):
    """The state of one gate as a command sees it that is not to change it."""

    __slots__ = ("_below", "gate", "head", "kinds", "seen", "states", "told", "wakes")

    def __init__(self, below: Records, head: Head, kinds: frozenset[str] | None = None) -> None:
        """`head` is a copy of the one below, or itself where nothing is done that changes it. `kinds` are the kinds of
        spaces that are overlaid (None: all), where the others are only read."""
        self._below = below
        self.gate = below.gate
        self.head = head
        self.seen = below.seen
        self.told = below.told
        self.wakes: list[Wake] = []
        self.states = OverlaySpace(below.states)
        self.kinds = Kinds(
            lambda kind: _OverlaySpaces(below, kind) if kinds is None or kind in kinds else below.kinds[kind]
        )

    def space(self, kind: str, name: str = "") -> OverlaySpace:
        return self.kinds[kind][name]  # type: ignore[no-any-return]

    def existing(self, kind: str, name: str = "") -> OverlaySpace:
        return self.space(kind, name)

    def keyed(self, prefix: str) -> Iterator[str]:
        return iter(dict.fromkeys([*self._below.keyed(prefix), *self.states.added(prefix)]))

    def drop(self, kind: str, name: str = "") -> None:
        self.space(kind, name).clear()

    def names(self, kind: str) -> list[str]:
        return list(dict.fromkeys([*self._below.names(kind), *self.kinds.get(kind, ())]))

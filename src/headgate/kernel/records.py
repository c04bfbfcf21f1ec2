"""PURE. Where the state of one gate lives: a head and a few ordered maps.

A command reads and writes nothing but a `Records`. This file is the port and its reference
implementation in dicts; it is what `memory://` uses, and what other stores imitate with one table
(SQLite) or with hashes and sorted sets (Redis).

A *space* maps members to values. A member that was put with a score is also kept in order of it:
that is all that is needed for "the next lease to expire" or "the first ticket of a lane". Values are
numbers, strings, `None`, and tuples of those; a store may hand them back as lists.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice
from operator import itemgetter

from .head import Head

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, Protocol

    from .model import Wake

    #: A space's member: a name, or a moment in microseconds (the slots of a window).
    Member = str | int
    Score = int | float

    class Space(Protocol):
        """Members with values; those that were put with a score are kept in order of it."""

        def get(self, member: Member, /) -> Any:
            """The value, or None."""

        def __setitem__(self, member: Member, value: Any, /) -> None:
            """Set a value and leave the member's place in the order."""

        def put(self, member: Member, value: Any, score: Score) -> None:
            """Set a value, and (re)place the member in the order."""

        def delete(self, member: Member) -> Any:
            """Forget a member; one that is not there is no error. Returns the score it had, or None."""

        def score(self, member: Member) -> Any:
            """The score it was put with, or None."""

        def first(self) -> tuple[Any, Any] | None:
            """The lowest (score, member), or None."""

        def scan(self, since: Score = ...) -> Iterator[tuple[Any, Any]]:
            """(score, member) in order, from `since` on. The space must not change meanwhile."""

        def __len__(self) -> int:
            """How many members there are. Never kept apart from the members themselves. A space is true when there are
            any, also one that is not counted, as long as its members have scores."""

    class Spaces(Protocol):
        """Spaces by member, made when they are first asked for."""

        def __getitem__(self, member: str, /) -> Space: ...

    class Records(Protocol):
        """The state of one gate. What a command reads and writes, and all that it does."""

        gate: str
        #: It stays the same object.
        head: Head

        #: One value per limit and key; and the spaces of those that need one, by the same member.
        @property
        def states(self) -> Space: ...
        @property
        def windows(self) -> Spaces: ...
        @property
        def leases(self) -> Spaces: ...
        @property
        def promised(self) -> Spaces: ...

        #: What the line is made of: see there.
        @property
        def calls(self) -> Space: ...
        @property
        def looks_due(self) -> Space: ...
        @property
        def lane(self) -> Spaces: ...
        @property
        def lanes(self) -> Space: ...
        @property
        def line_state(self) -> Space: ...
        @property
        def session_tickets(self) -> Spaces: ...
        @property
        def parked(self) -> Spaces: ...
        @property
        def policies(self) -> Space: ...
        @property
        def ready(self) -> Spaces: ...
        @property
        def resting_lanes(self) -> Spaces: ...
        @property
        def sessions(self) -> Space: ...
        @property
        def tickets(self) -> Space: ...
        @property
        def patience(self) -> Space: ...

        #: All spaces but the states by kind and name, made where they are not there.
        @property
        def kinds(self) -> Mapping[str, Spaces]: ...

        #: The highest sequence number that this process was told, and the epoch; before it was told of one, the name of its
        #: session. A head below that number, or of another epoch, has lost state: see `head.py`. A store that has just read
        #: the head sets both by `compare`.
        seen: int
        told: str
        #: The tickets to wake once the command stands.
        wakes: list[Wake]

        def space(self, kind: str, name: str = ...) -> Space:
            """`kinds[kind][name]`, for where it need not be quick."""

        def existing(self, kind: str, name: str = ...) -> Space | None:
            """The space, or None: one that is not there is not made. For looks."""

        def keyed(self, prefix: str) -> Iterator[str]:
            """The members of `states` that begin with `prefix`; of a store that cannot list all, those that it can.

            Walks them: not for decisions.
            """

        def drop(self, kind: str, name: str = ...) -> None:
            """Forget a whole space."""

        def names(self, kind: str) -> list[str]:
            """The names of all spaces of a kind. Walks them: not for decisions."""


_CHUNK = 512
_last_of = itemgetter(-1)

#: The kinds that have one space each, under no name; and those with many.
ALONE = (
    *(
        "assumed",
        "calls",
        "due",
        "lanes",
        "line",
        "overrides",
        "permits",
        "policies",
        "sessions",
        "terms",
        "tickets",
        "young",
    ),
)
NAMED = ("lane", "leases", "of", "parked", "promised", "ready", "rest", "windows")

#: The spaces that records have as attributes → the kind under which each is stored: those alone, and those with names.
ALONE_ATTRIBUTES = {
    "calls": "calls",
    "lanes": "lanes",
    "line_state": "line",
    "looks_due": "due",
    "patience": "young",
    "policies": "policies",
    "sessions": "sessions",
    "tickets": "tickets",
}
NAMED_ATTRIBUTES = {
    "lane": "lane",
    "leases": "leases",
    "parked": "parked",
    "promised": "promised",
    "ready": "ready",
    "resting_lanes": "rest",
    "session_tickets": "of",
    "windows": "windows",
}


class DictSpace(dict):  # type: ignore[type-arg]
    """A space in memory: a dict, and an order that is made up when it is asked for.

    `fresh` has the scores of members whose place was not asked for since they were put: most leases come and go
    without. `scores` has the others, which stand in `chunks`: pairs (score, member), sorted. Leaving the order is lazy: a
    pair counts only while `scores` still says the same, and stale ones go when they come to the front.
    """

    __slots__ = ("chunks", "fresh", "scores")

    def __init__(self) -> None:
        self.fresh: dict[Any, Any] = {}
        self.scores: dict[Any, Any] = {}
        self.chunks: list[list[tuple[Any, Any]]] = [[]]

    def put(self, member: Member, value: Any, score: Score) -> None:
        self[member] = value
        scores = self.scores
        if member not in scores:
            if not self.fresh and (last := self.chunks[-1]) and len(last) < _CHUNK:
                if last[-1][0] < score:
                    scores[member] = score  # at the end, where most are put: a line, what ends so long from now
                    last.append((score, member))
                    return
                if len(self.chunks) == 1:
                    scores[member] = score  # among few whose order was asked for
                    insort(last, (score, member))
                    return
            self.fresh[member] = score
        elif scores[member] != score:
            if len(scores) == 1 and not self.fresh:
                # Alone, and so the first: the one process that waits, the one lane that is ready.
                scores[member] = score
                self.chunks = [[(score, member)]]
            else:
                del scores[member]
                self.fresh[member] = score

    def delete(self, member: Member) -> Any:
        self.pop(member, None)
        score = self.scores.pop(member, None)
        if score is None:
            return self.fresh.pop(member, None)
        chunk = self.chunks[0]
        if chunk[0][1] == member and len(chunk) > 1:
            del chunk[0]  # mostly it is the first that leaves
        return score

    def clear(self) -> None:
        super().clear()
        self.fresh.clear()
        self.scores.clear()
        self.chunks = [[]]

    def score(self, member: Member) -> Any:
        score = self.fresh.get(member)
        return self.scores.get(member) if score is None else score

    def first(self) -> tuple[Any, Any] | None:
        if self.fresh:
            self._order()
        if scores := self.scores:
            chunk = self.chunks[0]
            if scores.get((pair := chunk[0])[1]) == pair[0]:
                return pair
            return self._first_of(scores)
        return None

    def _first_of(self, scores: dict[Any, Any]) -> tuple[Any, Any]:
        """The first pair that still counts; those before it go."""
        while True:
            chunk = self.chunks[0]
            for stale, pair in enumerate(chunk):
                if scores.get(pair[1]) == pair[0]:
                    del chunk[:stale]
                    return pair
            del self.chunks[0]

    def scan(self, since: Score = float("-inf")) -> Iterator[tuple[Any, Any]]:
        if self.fresh:
            self._order()
        last = None
        scores = self.scores
        chunks = self.chunks if since == float("-inf") else self._from(since)
        for chunk in chunks:
            if not chunk or chunk[-1] < (since,):
                continue
            for index in range(bisect_left(chunk, (since,)), len(chunk)):
                pair = chunk[index]
                # A member deleted and put again with its old score stands twice, side by side.
                if pair != last and scores.get(pair[1]) == pair[0]:
                    last = pair
                    yield pair

    def _from(self, since: Score) -> Iterator[list[tuple[Any, Any]]]:
        """The chunks from the first on that ends at or after a score; none is empty, unless it is the only one."""
        chunks = self.chunks
        begin = bisect_left(chunks, (since,), key=_last_of) if chunks[-1] else 0
        return islice(chunks, begin, None)

    def _order(self) -> None:
        """Give those that are fresh their places."""
        fresh, scores = self.fresh, self.scores
        if len(fresh) == 1:
            member, score = fresh.popitem()
            if scores:
                scores[member] = score
                self._place((score, member))
            else:
                scores[member] = score
                self.chunks = [[(score, member)]]
            return
        if len(fresh) > _CHUNK and 5 * len(fresh) > len(scores):
            scores.update(fresh)
            fresh.clear()
            self._sort()
            return
        pairs = [(score, member) for member, score in fresh.items()]
        scores.update(fresh)
        fresh.clear()
        for pair in pairs:
            self._place(pair)

    def _place(self, pair: tuple[Any, Any]) -> None:
        last = self.chunks[-1]
        if last and pair < last[-1]:
            self._insert(pair)
        elif len(last) < _CHUNK:  # adding at the end, the usual case
            last.append(pair)
        elif not self._tidied():
            self.chunks.append([pair])

    def _insert(self, pair: tuple[Any, Any]) -> None:
        chunks = self.chunks
        low, high = 0, len(chunks) - 1
        while low < high:  # the first chunk that ends at or after the pair; none is empty, unless it is the only one
            middle = (low + high) // 2
            if chunks[middle][-1] < pair:
                low = middle + 1
            else:
                high = middle
        chunk = chunks[low]
        chunk.insert(bisect_left(chunk, pair), pair)
        if len(chunk) > 2 * _CHUNK and not self._tidied():
            chunks.insert(low + 1, chunk[_CHUNK:])
            del chunk[_CHUNK:]

    def _tidied(self) -> bool:
        """A chunk is full. Where most pairs are stale, sort what is left instead of beginning another."""
        if len(self.chunks) * _CHUNK < 4 * len(self.scores) + 2 * _CHUNK:
            return False
        self._sort()
        return True

    def _sort(self) -> None:
        pairs = sorted((score, member) for member, score in self.scores.items())
        self.chunks = [pairs[at : at + _CHUNK // 2] for at in range(0, len(pairs), _CHUNK // 2)] or [[]]


class _Spaces(dict):  # type: ignore[type-arg]
    """Spaces by name, made when they are first asked for."""

    def __missing__(self, name: str) -> DictSpace:
        space = self[name] = DictSpace()
        return space


class Kinds(dict):  # type: ignore[type-arg]
    """The same by kind: `make` makes those of one."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[str], Any]) -> None:
        self._make = make

    def __missing__(self, kind: str) -> Any:
        spaces = self[kind] = self._make(kind)
        return spaces


def _alone(kind: str) -> Any:
    return property(lambda records: records.kinds[kind][""])


def _named(kind: str) -> Any:
    return property(lambda records: records.kinds[kind])


class ByKind:
    """Spaces by the name of their kind, for records that make them when they are asked for."""

    __slots__ = ()
    calls, lanes, line_state, looks_due, patience, policies, sessions, tickets = map(_alone, ALONE_ATTRIBUTES.values())
    lane, leases, parked, promised, ready, resting_lanes, session_tickets, windows = map(
        _named, NAMED_ATTRIBUTES.values()
    )

    def existing(self, kind: str, name: str = "") -> Any:
        return self.kinds[kind][name]  # type: ignore[attr-defined]

    def keyed(self, prefix: str) -> Iterator[str]:
        return (member for _, member in self.states.scan() if member.startswith(prefix))  # type: ignore[attr-defined]


class DictRecords:
    """The state of one gate in memory."""

    __slots__ = (*ALONE_ATTRIBUTES, *NAMED_ATTRIBUTES, "gate", "head", "kinds", "seen", "states", "told", "wakes")

    calls: DictSpace
    lanes: DictSpace
    line_state: DictSpace
    looks_due: DictSpace
    patience: DictSpace
    policies: DictSpace
    sessions: DictSpace
    tickets: DictSpace
    lane: dict[str, DictSpace]
    leases: dict[str, DictSpace]
    parked: dict[str, DictSpace]
    promised: dict[str, DictSpace]
    ready: dict[str, DictSpace]
    resting_lanes: dict[str, DictSpace]
    session_tickets: dict[str, DictSpace]
    windows: dict[str, DictSpace]

    def __init__(self, gate: str = "", told: str = "") -> None:
        self.gate = gate
        self.head = Head()
        self.seen = 0
        self.told = told
        self.wakes: list[Wake] = []
        self.states = DictSpace()
        self.kinds: dict[str, dict[str, DictSpace]] = {kind: {"": DictSpace()} for kind in ALONE}
        self.kinds.update((kind, _Spaces()) for kind in NAMED)
        # Spaces as attributes: to look them up in two dicts takes longer than most of what is done with them.
        for attribute, kind in ALONE_ATTRIBUTES.items():
            setattr(self, attribute, self.kinds[kind][""])
        for attribute, kind in NAMED_ATTRIBUTES.items():
            setattr(self, attribute, self.kinds[kind])

    def space(self, kind: str, name: str = "") -> DictSpace:
        return self.kinds[kind][name]

    def existing(self, kind: str, name: str = "") -> DictSpace | None:
        return self.kinds[kind].get(name)

    def keyed(self, prefix: str) -> Iterator[str]:
        return (member for _, member in self.states.scan() if member.startswith(prefix))

    def drop(self, kind: str, name: str = "") -> None:
        if kind in ALONE:
            self.kinds[kind][name].clear()
        else:
            self.kinds[kind].pop(name, None)

    def names(self, kind: str) -> list[str]:
        return list(self.kinds[kind])

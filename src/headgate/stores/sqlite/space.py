"""A space in SQLite: what a transaction has read and changed of it, in dicts over what the table has.

Nothing is written before the end of a transaction: until then the dicts are the truth, and rows that are read from the
table are corrected by them. So a batch on one gate writes each record once, and a command that only reads cannot write.

A number is stored as it is, `None` as NULL, everything else as JSON text. Members and scores have columns without a type,
so they come back as they went in.
"""

from __future__ import annotations

import json
from bisect import bisect_left, insort

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ...kernel.records import Member, Score
    from .records import SqliteRecords

    Pair = tuple[Any, Any]

_COUNT = "SELECT value FROM members WHERE space = ? AND member = ''"
_GET = "SELECT value, score FROM members WHERE space = ? AND member = ?"
_MORE = (
    "SELECT score, member FROM members WHERE space = ? AND score IS NOT NULL AND (score, member) > (?, ?) "
    "ORDER BY score, member LIMIT ?"
)
_MORE_WITH_VALUES = _MORE.replace("score, member FROM", "score, member, value FROM")
_FROM_WITH_VALUES = (
    "SELECT score, member, value FROM members WHERE space = ? AND score >= ? ORDER BY score, member LIMIT ?"
)
# The first two keep the place in the order, and do not touch the index; the third (re)places.
_UPDATE = "UPDATE members SET value = ? WHERE space = ? AND member = ?"
_SET = "INSERT INTO members VALUES (?, ?, NULL, ?) ON CONFLICT (space, member) DO UPDATE SET value = excluded.value"
_PUT = (
    "INSERT INTO members VALUES (?, ?, ?, ?) "
    "ON CONFLICT (space, member) DO UPDATE SET score = excluded.score, value = excluded.value"
)
_DELETE = "DELETE FROM members WHERE space = ? AND member = ?"
WIPE = "DELETE FROM members WHERE space = ?"

#: Below and above every (score, member).
LOWEST: Pair = (float("-inf"), "")
_TOP: Pair = (float("inf"), "")
_UNKNOWN = object()

#: What is to be done with a member at the end of the transaction. The first is for those that are known to be there; it
#: and the second leave the order to the table.
_TO_UPDATE, _TO_SET, _TO_PUT, _TO_DELETE = 1, 2, 3, 4

#: How many pairs of an order are fetched at first, and at most, at a time.
_FEW, _MANY = 8, 512


def _encoder() -> Callable[[Any], str]:
    """`json.dumps` without what it does before it begins, which is half of the time for a short value."""
    plain = json.JSONEncoder(separators=(",", ":"), check_circular=False, default=lambda value: value.packed())
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    chunks = make(None, plain.default, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, True)

    def encode(value: Any) -> str:
        return "".join(chunks(value, 0))

    return encode


encode_json = _encoder()
decode_json: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().scan_once  # type: ignore[attr-defined]


def encode(value: Any) -> Any:
    kind = value.__class__
    return value if kind is float or kind is int or value is None else encode_json(value)


class Damaged(Exception):
    """A record in the file is not one that a store has written."""


def decode(stored: Any) -> Any:
    if stored.__class__ is not str:
        return stored
    try:
        return decode_json(stored, 0)[0]
    except (StopIteration, ValueError) as error:
        raise Damaged(f"a record holds {stored[:60]!r}, which is not JSON") from error


class SqliteSpace:
    """One space: what is cached of it, and what this transaction has changed.

    The order is cached up to `_bound`: `_front` has exactly the pairs up to there. The next ones are read from the table
    when they are needed, and corrected by what has changed. A space that is `_complete` is wholly cached, because it was
    dropped or its gate is new: what the dicts do not have is not there.
    """

    __slots__ = (
        *("_bound", "_changed", "_complete", "_counted", "_delta", "_fetch", "_front", "_key", "_owner"),
        *("_scores", "_size", "_values", "_wiped"),
    )

    def __init__(self, owner: SqliteRecords, key: str, counted: bool, complete: bool) -> None:
        self._owner = owner
        self._key = key
        self._counted = counted
        self._values: dict[Any, Any] = {}
        #: The score of a member, None without one; every member of the front is here.
        self._scores: dict[Any, Any] = {}
        self._changed: dict[Any, int] = {}
        self._front: list[Pair] = []
        self._fetch = _FEW
        self._wiped = False
        self._complete = complete
        self._bound = _TOP if complete else LOWEST
        #: How many members there are (of the kinds whose size matters), None until it is read; and by how many the table
        #: is off until the changes are written.
        self._size: int | None = 0 if complete else None
        self._delta = 0

    # --- members ------------------------------------------------------------------------------------------------

    def get(self, member: Member, /) -> Any:
        value = self._values.get(member, _UNKNOWN)
        return self._load(member) if value is _UNKNOWN else value

    def _load(self, member: Member) -> Any:
        if self._complete:
            return None
        owner = self._owner
        row = owner.execute(_GET, (self._key, member)).fetchone()
        owner.load += 1
        if row is None:
            value = self._scores[member] = None
        else:
            value, self._scores[member] = decode(row[0]), row[1]
        return self._values.setdefault(member, value)  # it may have been set without having been read

    def __setitem__(self, member: Member, value: Any, /) -> None:
        if self._counted:
            self._enters(member)
        values, changed = self._values, self._changed
        if member not in changed:
            self._touch()
            changed[member] = _TO_SET if values.get(member) is None else _TO_UPDATE
        elif changed[member] == _TO_DELETE:
            changed[member] = _TO_PUT  # its old score went with it
        values[member] = value

    def put(self, member: Member, value: Any, score: Score) -> None:
        if self._counted:
            self._enters(member)
        old = self._scores.get(member, _UNKNOWN)
        if old == score and old is not None:
            self[member] = value
            return
        if old is not _UNKNOWN and old is not None:
            self._leave((old, member))
        self._values[member] = value
        self._scores[member] = score
        self._enter((score, member))
        if member not in self._changed:
            self._touch()
        self._changed[member] = _TO_PUT

    def score(self, member: Member) -> Any:
        score = self._scores.get(member, _UNKNOWN)
        if score is _UNKNOWN:
            self._load(member)
            score = self._scores.get(member)
        return score

    def delete(self, member: Member) -> Any:
        old = self.score(member)
        if old is not None:
            self._leave((old, member))
        elif self._values.get(member) is None:
            return None
        if self._counted:
            self._count(-1)
        self._values[member] = self._scores[member] = None
        if member not in self._changed:
            self._touch()
        self._changed[member] = _TO_DELETE
        return old

    def _touch(self) -> None:
        if not self._changed and not self._wiped:
            self._owner.touched.append(self)
            self._owner.dirty = True

    # --- size ---------------------------------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return self.first() is not None

    def __len__(self) -> int:
        if not self._counted:
            raise NotImplementedError(f"{self._key} is not counted: see COUNTED in stores/sqlite/records.py")
        if self._size is None:
            row = self._owner.execute(_COUNT, (self._key.replace("/#", "/!"),)).fetchone()
            in_table = row[0] if row is not None else 0
            self._size = in_table + self._delta
            if not in_table and not self._changed:
                self._complete, self._bound = True, _TOP
        return self._size

    def _enters(self, member: Member) -> None:
        """A member of a space whose size is kept is about to be set."""
        if self.get(member) is None:
            self._count(1)

    def _count(self, by: int) -> None:
        self._delta += by
        if self._size is not None:
            self._size += by

    # --- order --------------------------------------------------------------------------------------------------

    def first(self) -> Pair | None:
        front = self._front
        while not front:
            if self._bound is _TOP:
                return None
            self._advance(_MORE)
        return front[0]

    def scan(self, since: Score = float("-inf")) -> Iterator[Pair]:
        low = (since,)
        if low > self._bound:
            yield from self._beyond(since)
            return
        front = self._front
        at = bisect_left(front, low)
        while True:
            while at < len(front):
                yield front[at]
                at += 1
            if self._bound is _TOP:
                return
            self._advance(_MORE_WITH_VALUES)

    def _advance(self, statement: str) -> None:
        """Cache more of the order: fetch the next pairs from the table, and correct them by what has changed."""
        low = self._bound
        rows = self._owner.execute(statement, (self._key, *low, self._fetch)).fetchall()
        self._bound = high = rows[-1][:2] if len(rows) == self._fetch else _TOP
        self._fetch = min(2 * self._fetch, _MANY)
        self._front.extend(self._pairs(rows, low, high))

    def _beyond(self, since: Score) -> Iterator[Pair]:
        """A scan that begins where the order is not cached."""
        low: Any = (since,)
        fetch = _FEW
        rows = self._owner.execute(_FROM_WITH_VALUES, (self._key, since, fetch)).fetchall()
        while True:
            high = rows[-1][:2] if len(rows) == fetch else _TOP
            yield from self._pairs(rows, low, high)
            if high is _TOP:
                return
            low, fetch = high, min(2 * fetch, _MANY)
            rows = self._owner.execute(_MORE_WITH_VALUES, (self._key, *low, fetch)).fetchall()

    def _pairs(self, rows: list[Any], low: Any, high: Any) -> list[Pair]:
        """The pairs above `low` up to `high`, where the table has `rows`."""
        changed, scores, values = self._changed, self._scores, self._values
        pairs = []
        for row in rows:
            member = row[1]
            if changed.get(member, _TO_SET) <= _TO_SET:
                pairs.append(row[:2])
                scores[member] = row[0]
                if len(row) == 3 and member not in values:
                    values[member] = decode(row[2])
        self._owner.load += len(rows)
        moved = [pair for pair in self._moved() if low < pair <= high]
        if moved:
            pairs += moved
            pairs.sort()
        return pairs

    def _moved(self) -> Iterator[Pair]:
        """Every pair that the table does not have."""
        scores = self._scores
        for member, change in self._changed.items():
            if change == _TO_PUT and scores[member] is not None:
                yield scores[member], member

    def _enter(self, pair: Pair) -> None:
        if pair <= self._bound:
            insort(self._front, pair)

    def _leave(self, pair: Pair) -> None:
        if pair <= self._bound:
            front = self._front
            del front[bisect_left(front, pair)]

    # --- the whole space ------------------------------------------------------------------------------------------

    def wipe(self) -> None:
        self._touch()
        self._wiped = self._complete = True
        self._values.clear()
        self._scores.clear()
        self._changed.clear()
        self._front.clear()
        self._bound = _TOP
        self._size = self._delta = 0

    def write(self, execute: Callable[..., Any], execute_many: Callable[..., Any]) -> int:
        """Write what has changed to the table. Returns about how many rows that took."""
        key, values, scores = self._key, self._values, self._scores
        if self._wiped:
            execute(WIPE, (key,))
            if self._counted:
                execute(WIPE, (key.replace("/#", "/!"),))
        if len(self._changed) == 1:
            [(member, change)] = self._changed.items()
            if change == _TO_UPDATE:
                execute(_UPDATE, (encode(values[member]), key, member))
            elif change == _TO_SET:
                execute(_SET, (key, member, encode(values[member])))
            elif change == _TO_PUT:
                execute(_PUT, (key, member, scores[member], encode(values[member])))
            elif not self._wiped:
                execute(_DELETE, (key, member))
            return 1
        rows: dict[str, list[tuple[Any, ...]]] = {_UPDATE: [], _SET: [], _PUT: [], _DELETE: []}
        for member, change in self._changed.items():
            if change == _TO_UPDATE:
                rows[_UPDATE].append((encode(values[member]), key, member))
            elif change == _TO_SET:
                rows[_SET].append((key, member, encode(values[member])))
            elif change == _TO_PUT:
                rows[_PUT].append((key, member, scores[member], encode(values[member])))
            elif not self._wiped:
                rows[_DELETE].append((key, member))
        for statement, parameters in rows.items():
            if parameters:
                execute_many(statement, parameters)
        return len(self._changed) + self._wiped

    def written(self) -> None:
        """The transaction is committed: the table is as it is cached here."""
        for member, change in self._changed.items():
            # Deleted for good; cached as absent they would pile up.
            if change == _TO_DELETE:
                del self._values[member], self._scores[member]
        self._owner.load += len(self._changed)
        self._changed.clear()
        self._wiped = False
        self._delta = 0

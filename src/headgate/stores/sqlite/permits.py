"""The permits of a gate in SQLite: ids that a guard numbers lie together in runs, all others in rows of their own.

A guard remembers every permit that it gives, under ids that are a name and a number: `1cdb134f4fed-000000000012`. A row for
each would be most of what a decision costs. So those that come one after the other are packed into a *run*. The latest one
lies in the row of the gate's head, which is written anyway; when it is long it becomes a row of its own, under the highest
id that it ever had:

    <gate>/runs/    id    [name, first number, first time, first fence, how long beyond its end a permit is remembered,
                           highest number, [asked for …], "number,granted,ends,fence,how,asked for;…"]

The numbers of entries are differences to the first. Numbers of a name only rise from run to run, so runs do not overlap: an
id is in the run with the lowest key that is not below it, or in none. An id is in one place: in a run, or in a row.
"""

from __future__ import annotations

from ...kernel.commands.permits import UNCONFIRMED_PERMIT
from ..base import DIGITS
from .space import SqliteSpace, decode, encode_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ...kernel.records import Score
    from .records import SqliteRecords
    from .space import Pair

#: Signs of a run up to which it stays with the head: together they should fit into one page of the file.
_SHORT = 560
#: How many permits are in a run at most: to change one of them the whole run is written.
_LONGEST = 128

#: How a permit on record has ended: not yet, it has, or with its charge given back.
_ENDED = (False, True, 2)

_COVERING = "SELECT member, score, value FROM members WHERE space = ? AND member >= ? ORDER BY member LIMIT 1"
_LAST = "SELECT max(member) FROM members WHERE space = ? AND member < ?"


def is_numbered(id: Any) -> bool:
    """Whether an id is one that could be in a run."""
    number = id[-DIGITS:]
    return len(id) > DIGITS and id[-DIGITS - 1] == "-" and number.isascii() and number.isdigit()


def _is_usual(value: Any) -> bool:
    """Whether it is a permit that was not confirmed."""
    return value.__class__ is tuple and len(value) == UNCONFIRMED_PERMIT


class Run:
    """Permits whose ids are a name and rising numbers."""

    __slots__ = (
        *("_asked", "_asked_last", "_begins", "_first", "key", "last", "name", "order", "parts"),
        *("scores", "size"),
    )

    def __init__(self, name: str, first: tuple[int, int, int, int], last: int) -> None:
        self.name = name
        #: The number, time and fence of its first, and how long beyond its end a permit is remembered.
        self._first = first
        self._begins = f"{encode_json((name, *first))[:-1]},"
        self.last = last
        #: The member under which it is stored; None for the run in the head.
        self.key: str | None = None
        self._asked: dict[str, tuple[int, Any]] = {}
        self._asked_last: tuple[Any, int] = (None, 0)
        #: By id: the text of its entry, and the time at which it may be forgotten.
        self.parts: dict[str, str] = {}
        self.scores: dict[str, Score] = {}
        #: Pairs, the lowest last; None until `first` needs them.
        self.order: list[Pair] | None = None
        self.size = 0

    @classmethod
    def unpacked(cls, packed: Any) -> Run:
        name, number, time, fence, over, last, asked, entries = packed
        run = cls(name, (number, time, fence, over), last)
        run._asked = {encode_json(ref): (at, ref) for at, ref in enumerate(asked)}
        since = time + over
        parts, scores = run.parts, run.scores
        for part in entries.split(";"):
            by, granted, ends, _ = part.split(",", 3)
            id = name + str(number + int(by)).zfill(DIGITS)
            parts[id] = part
            scores[id] = since + int(granted) + int(ends)
        run.size = len(entries)
        return run

    def packed(self) -> list[Any]:
        asked = [ref for _, ref in self._asked.values()]
        return [self.name, *self._first, self.last, asked, ";".join(self.parts.values())]

    def text(self) -> str:
        """`packed` as JSON, made directly from the texts."""
        return f'{self._begins}{self.last},[{",".join(self._asked)}],"{";".join(self.parts.values())}"]'

    def value(self, id: str) -> Any:
        _, granted, ends, fence, how, asked = map(int, self.parts[id].split(","))
        _, time, first_fence, _ = self._first
        granted += time
        ref, at = self._asked_last
        if at != asked or ref is None:
            ref = next(ref for at, ref in self._asked.values() if at == asked)
            self._asked_last = (ref, asked)
        return (ref, granted, granted + ends, first_fence + fence, bool(how & 1), _ENDED[how >> 2], bool(how & 2))

    def add(self, id: str, value: Any, score: Score) -> bool:
        """Add the permit with the next number; False where it is not that, or not of the kind that can be here."""
        digits = id[-DIGITS:]
        if id[:-DIGITS] != self.name or not digits.isdigit() or not digits.isascii():
            return False
        number = int(digits)
        if number <= self.last or not self.set(id, number, value, score):
            return False
        self.last = number
        return True

    def set(self, id: str, number: int, value: Any, score: Score) -> bool:
        """Add a permit or change it; False where it is not of the kind that can be here."""
        first, time, first_fence, over = self._first
        if value.__class__ is not tuple or len(value) != UNCONFIRMED_PERMIT:  # as `_is_usual`, for each that is granted
            return False
        ref, granted, ends, fence, leased, ended, worth = value
        if score != ends + over:
            return False
        known, asked = self._asked_last
        if ref is not known:
            asked = self._asking(ref)
        how = leased + 2 * worth + 4 * ended
        part = f"{number - first},{granted - time},{ends - granted},{fence - first_fence},{how},{asked}"
        self.size += len(part) - len(self.parts.get(id, "")) + 1
        self.parts[id] = part
        self.scores[id] = score
        self.order = None
        return True

    def _asking(self, ref: Any) -> int:
        text = encode_json(ref)
        found = self._asked.get(text)
        if found is None:
            found = self._asked[text] = (len(self._asked), ref)
            self.size += len(text)
        self._asked_last = (ref, found[0])
        return found[0]

    def remove(self, id: str) -> None:
        del self.parts[id], self.scores[id]
        if self.order is not None and self.order[-1][1] == id:
            self.order.pop()
        else:
            self.order = None

    def lowest(self) -> Score:
        """The time at which the first of its permits may be forgotten."""
        return min(self.scores.values()) if self.order is None else self.order[-1][0]

    def first(self) -> Pair:
        if self.order is None:
            self.order = sorted(((score, id) for id, score in self.scores.items()), reverse=True)
        return self.order[-1]


class Permits(SqliteSpace):
    """The ids that a gate remembers. `packed` is the run that lies in its head."""

    __slots__ = ("_lasts", "_runs", "_thinned", "_where", "run")

    def __init__(self, owner: SqliteRecords, packed: Any, complete: bool) -> None:
        super().__init__(owner, f"{owner.gate}/permits/", False, complete)
        #: The runs that are rows of their own, by key and in order of the time at which their first may be forgotten.
        self._runs = SqliteSpace(owner, f"{owner.gate}/runs/", False, complete)
        #: Runs among them that have lost some of their permits in this transaction.
        self._thinned: dict[str, Run] = {}
        #: The run of each id, as far as it is cached.
        self._where: dict[Any, Run] = {}
        #: The highest number of each name, as far as it is cached.
        self._lasts: dict[str, int] = {}
        self.run: Run | None = None
        if packed is not None:
            self.run = self._known(Run.unpacked(packed))

    def _known(self, run: Run) -> Run:
        self._owner.load += len(run.parts)
        self._where.update(dict.fromkeys(run.parts, run))
        return run

    # --- members ------------------------------------------------------------------------------------------------

    def get(self, member: Any, /) -> Any:
        run = self._where.get(member)
        return super().get(member) if run is None else run.value(member)

    def _load(self, member: Any) -> Any:
        if not self._complete and is_numbered(member) and self._covering(member):
            return self._where[member].value(member)
        return super()._load(member)

    def _covering(self, id: str) -> bool:
        """Read the run that an id would be in, of those that are rows of their own. Returns whether it is there."""
        runs = self._runs
        row = self._owner.execute(_COVERING, (runs._key, id)).fetchone()
        if row is None or row[0][:-DIGITS] != id[:-DIGITS] or row[0] in runs._values:
            return False
        key, runs._scores[row[0]], value = row
        runs._values[key] = run = self._known(Run.unpacked(decode(value)))
        run.key = key
        return id in run.parts

    def put(self, member: Any, value: Any, score: Score) -> None:
        run = self._where.get(member)
        if run is not None:
            self._change(run, member, value, score)
        elif self._values.get(member) is not None or not self._add(member, value, score):
            super().put(member, value, score)

    def _add(self, id: str, value: Any, score: Score) -> bool:
        """Put an id that is nowhere yet into the latest run. False where it has to have a row of its own."""
        run, owner = self.run, self._owner
        if run is None or len(run.parts) >= _LONGEST or run.name != id[:-DIGITS]:
            if not is_numbered(id) or not _is_usual(value):
                return False
            name, number = id[:-DIGITS], int(id[-DIGITS:])
            if number <= self._last(name):
                return False
            if run is not None:
                self._store(run)
            self.run = run = Run(name, (number, value[1], value[3], int(score - value[2])), number - 1)
        if not run.add(id, value, score):
            return False
        self._where[id] = run
        owner.load += 1
        owner.dirty = True
        return True

    def _last(self, name: str) -> int:
        """The highest number that a name has in any run."""
        if self.run is not None and self.run.name == name:
            return self.run.last
        last = self._lasts.get(name, -1)
        if last < 0 and not self._complete:
            [key] = self._owner.execute(_LAST, (self._runs._key, f"{name}:")).fetchone()  # ":" comes right after "9"
            if key is not None and key[:-DIGITS] == name:
                last = int(key[-DIGITS:])
        return last

    def _store(self, run: Run) -> None:
        """Make a row of its own of a run."""
        self._lasts[run.name] = run.last
        run.key = f"{run.name}{run.last:0{DIGITS}d}"
        self._place(run.key, run)

    def _place(self, key: str, run: Run) -> None:
        self._runs.put(key, run, run.lowest())

    def _change(self, run: Run, id: str, value: Any, score: Score) -> None:
        if run.set(id, int(id[-DIGITS:]), value, score):
            self._owner.dirty = True
            if run.key is not None:
                self._place(run.key, run)
        else:
            self._remove(run, id)
            super().put(id, value, score)

    def _remove(self, run: Run, id: str) -> None:
        del self._where[id]
        run.remove(id)
        self._owner.dirty = True
        key = run.key
        if run.parts:
            if key is not None:
                self._thinned[key] = run
        elif key is None:
            self.run = None
        else:
            self._thinned.pop(key, None)
            self._runs.delete(key)

    def __setitem__(self, member: Any, value: Any, /) -> None:
        score = self.score(member)
        if member in self._where:
            self.put(member, value, score)
        else:
            super().__setitem__(member, value)

    def score(self, member: Any) -> Any:
        self.get(member)
        run = self._where.get(member)
        return super().score(member) if run is None else run.scores[member]

    def delete(self, member: Any) -> Any:
        if member not in self._where:
            self.get(member)
        run = self._where.get(member)
        if run is None:
            return super().delete(member)
        score = run.scores[member]
        self._remove(run, member)
        return score

    # --- order --------------------------------------------------------------------------------------------------

    def first(self) -> Pair | None:
        found = self._first_stored()
        if self.run is not None and (found is None or self.run.first() < found):
            found = self.run.first()
        if (row := super().first()) is not None and (found is None or row < found):
            found = row
        return found

    def _first_stored(self) -> Pair | None:
        runs = self._runs
        while (stored := runs.first()) is not None:
            score, key = stored
            run = runs.get(key)
            if run.__class__ is not Run:
                run = runs._values[key] = self._known(Run.unpacked(run))
                run.key = key
            pair: Pair = run.first()
            # What is left of a run that was thinned may come after the next one.
            if pair[0] <= score or (len(front := runs._front) > 1 and pair[0] < front[1][0]):
                return pair
            self._place(key, run)
        return None

    def scan(self, since: Score = float("-inf")) -> Iterator[Pair]:
        # They are in three places, and a scan would read all of them: no command does that.
        raise NotImplementedError("permits are read by their ids or one after the other, and not scanned")

    # --- the whole space ------------------------------------------------------------------------------------------

    def wipe(self) -> None:
        super().wipe()
        self._runs.wipe()
        self._where.clear()
        self._lasts.clear()
        self._thinned.clear()
        self.run = None

    def before_write(self) -> None:
        """Before the transaction is written: a run that has become long goes into a row of its own."""
        if self._thinned:
            for key, thin in self._thinned.items():
                self._place(key, thin)
            self._thinned.clear()
        run = self.run
        if run is not None and run.size > _SHORT:
            self._store(run)
            self.run = None

"""The records of one gate in SQLite: what transactions have read and changed of them is cached in dicts.

Nothing is written before the end of a transaction: see `space.py`. The tables are in `schema.py`.
"""

from __future__ import annotations

from ...kernel.commands.base import compare
from ...kernel.head import Head
from ...kernel.records import ByKind, Kinds
from .permits import Permits
from .schema import NEXT_SPACE
from .space import LOWEST, WIPE, SqliteSpace, decode, encode_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ...kernel.model import Wake
    from ...kernel.records import Score
    from .space import Pair

#: The kinds of space whose size decisions need.
COUNTED = frozenset(("leases", "tickets", "sessions", "overrides", "terms"))

_HEAD = "SELECT id, value FROM heads WHERE gate = ?"
_NEW_HEAD = "INSERT INTO heads (gate, value) VALUES (?, ?)"
_SET_HEAD = "UPDATE heads SET value = ? WHERE id = ?"
SWAP_HEAD = "UPDATE heads SET value = ? WHERE id = ? AND value = ?"


class SqliteStates(SqliteSpace):
    """The states of the limits. Those of limits that are not by a key lie in the row of the head, and are always cached."""

    __slots__ = ("resident",)

    def __init__(self, owner: SqliteRecords, resident: dict[str, Any], complete: bool) -> None:
        super().__init__(owner, f"{owner.gate}/states/", False, complete)
        #: Member → (score, state), as they are in that row; never among what has changed in the table.
        self.resident = resident
        for member, (score, value) in resident.items():
            self._scores[member] = score
            self._values[member] = value
            if complete:
                self._enter((score, member))

    def _load(self, member: Any) -> Any:
        return super()._load(member) if "|" in member else None

    def __setitem__(self, member: Any, value: Any, /) -> None:
        if "|" in member:
            super().__setitem__(member, value)
            return
        self._values[member] = value
        self.resident[member] = (self._scores.get(member), value)
        self._owner.dirty = True

    def put(self, member: Any, value: Any, score: Score) -> None:
        if "|" in member:
            super().put(member, value, score)
            return
        old = self._scores.get(member)
        if old != score:
            if old is not None:
                self._leave((old, member))
            self._scores[member] = score
            self._enter((score, member))
        self[member] = value

    def delete(self, member: Any) -> Any:
        if "|" in member:
            return super().delete(member)
        old = self._scores.pop(member, None)
        if old is not None:
            self._leave((old, member))
        self._values.pop(member, None)
        if self.resident.pop(member, None) is not None:
            self._owner.dirty = True
        return old

    def _moved(self) -> Iterator[Pair]:
        yield from super()._moved()
        for member, (score, _) in self.resident.items():
            if score is not None:
                yield score, member

    def written(self) -> None:
        # States by key are not cached: the next ask is likely for another key. To cache them would make few keys fast, many
        # slow, and all of them fill the memory of every process.
        super().written()
        self._scores = {member: score for member, (score, _) in self.resident.items()}
        self._values = {member: value for member, (_, value) in self.resident.items()}
        self._front.clear()
        self._bound, self._complete = LOWEST, False

    def __len__(self) -> int:
        raise NotImplementedError("states are not counted: no command needs their number")

    def wipe(self) -> None:
        raise NotImplementedError("states go one by one, with the spaces that belong to them")


class SqliteSpaces(dict):  # type: ignore[type-arg]
    """The spaces of a kind by name, made when they are first used."""

    __slots__ = ("_kind", "_owner")

    def __init__(self, owner: SqliteRecords, kind: str) -> None:
        self._owner = owner
        self._kind = kind

    def __missing__(self, name: str) -> SqliteSpace:
        owner, kind = self._owner, self._kind
        owner.load += 1
        if kind == "permits":
            permits = self[name] = owner.permits = Permits(owner, owner.run, owner.is_new)
            return permits
        key = _prefix(owner.gate, kind) + name
        space = self[name] = SqliteSpace(owner, key, kind in COUNTED, owner.is_new or key in owner.wiped)
        return space


class SqliteRecords(ByKind):
    """The records of one gate, as one transaction sees them, and the next ones until another connection commits.

    Under contention they are read anew for nearly every decision, so what may not be needed is made when it is.
    """

    __slots__ = (
        *(
            "_epoch",
            "_epoch_text",
            "_row",
            "_stored_seq",
            "_text",
            "dirty",
            "execute",
            "execute_many",
            "gate",
            "head",
            "is_new",
            "kinds",
            "load",
        ),
        *("permits", "run", "seen", "states", "told", "touched", "wakes", "wiped"),
    )
    seen: int
    told: str

    def __init__(
        self, gate: str, seen: int, told: str, execute: Callable[..., Any], execute_many: Callable[..., Any]
    ) -> None:
        self.gate = gate
        self.execute = execute
        self.execute_many = execute_many
        self.wakes: list[Wake] = []
        #: Whether anything but the head has changed; the spaces that have; the keys of spaces that were dropped unread.
        self.dirty = False
        self.touched: list[SqliteSpace] = []
        self.wiped: set[str] = set()
        #: About how many records are cached.
        self.load = 0
        row = execute(_HEAD, (gate,)).fetchone()
        #: Whether the table has nothing of this gate but what these records have written.
        self.is_new = row is None
        #: The row of the head, and the text in it.
        self._row: int | None
        self._text: str
        self._row, self._text = (None, "") if row is None else row
        head, resident, *more = ((), {}) if row is None else decode(self._text)
        epoch: Any = more[1] if len(more) > 1 else ()
        self.head = Head(*head, *epoch)
        #: The epoch as it was last written, and its text.
        self._epoch: tuple[str, int] = ("", 0)
        self._epoch_text = ""
        #: The sequence number of the head in that row: every command that changes anything has one of its own.
        self._stored_seq = self.head.seq
        if compare(self, seen, told):
            # An older file came back, or another one. The short path of a decision looks at the head alone, so the head has
            # to say so.
            self.head.quiet = False
            self.dirty = True
        self.states = SqliteStates(self, resident, self.is_new)
        self.kinds = Kinds(lambda kind: SqliteSpaces(self, kind))
        #: The latest permits, packed as they were in the row; and all of them, once a command has used them.
        self.run: Any = more[0] if more else None
        self.permits: Permits | None = None

    def space(self, kind: str, name: str = "") -> SqliteSpace:
        return self.kinds[kind][name]  # type: ignore[no-any-return]

    def drop(self, kind: str, name: str = "") -> None:
        spaces = self.kinds.get(kind)
        if kind == "permits":  # they are in several places, and only their space knows which
            self.space(kind, name).wipe()
        elif spaces is not None and name in spaces:
            spaces[name].wipe()
        elif not self.is_new:
            self.wiped.add(_prefix(self.gate, kind) + name)
            self.dirty = True

    def names(self, kind: str) -> list[str]:
        prefix = _prefix(self.gate, kind)
        names = dict.fromkeys(self.kinds.get(kind, ()))
        found = self._next_space(prefix)
        while found.startswith(prefix):
            if found not in self.wiped:
                names[found[len(prefix) :]] = None
            found = self._next_space(found + "\0")
        return list(names)

    def _next_space(self, since: str) -> str:
        [found] = self.execute(NEXT_SPACE, (since,)).fetchone()
        return found or ""

    # --- the end of a transaction -----------------------------------------------------------------------------------

    @property
    def changed(self) -> bool:
        return self.dirty or self.head.seq != self._stored_seq

    def write(self) -> int:
        """Write all that has changed. Returns about how many rows that took."""
        if self.permits is not None:
            self.permits.before_write()
        count = self.write_members()
        self._text = text = self._packed()
        if self._row is None:
            self._row = self.execute(_NEW_HEAD, (self.gate, text)).lastrowid
        else:
            self.execute(_SET_HEAD, (text, self._row))
        return count + 1

    def swap(self) -> tuple[str, int, str] | None:
        """The parameters of SWAP_HEAD, with which a write can begin; None for a gate that has no row yet.

        Afterwards `touched` and `wiped` are what is left for `write_members`.
        """
        if self.permits is not None:
            self.permits.before_write()
        if self._row is None:
            return None
        was, self._text = self._text, self._packed()
        return self._text, self._row, was

    def write_members(self) -> int:
        """Write all that has changed but the head's row. Returns about how many rows that took."""
        execute, execute_many = self.execute, self.execute_many
        count = 0
        if self.wiped:
            keys = [(key,) for key in self.wiped]
            keys += [(key.replace("/#", "/!"),) for key in self.wiped if "/#" in key]
            execute_many(WIPE, keys)
            count = len(keys)
        for space in self.touched:
            count += space.write(execute, execute_many)
        return count

    def _packed(self) -> str:
        head, permits = self.head, self.permits
        # On every decision: `stored` where there is something to heed, and the same without two calls where not.
        stored = (head.seq, head.now, None) if head.quiet else head.stored()
        text = encode_json((stored, self.states.resident))
        if permits is None:
            run = "null" if self.run is None else encode_json(self.run)
        else:
            run = "null" if permits.run is None else permits.run.text()
        if self._epoch[0] is not head.epoch or self._epoch[1] != head.lost_before:
            self._epoch = head.stored_epoch()
            self._epoch_text = encode_json(self._epoch)
        return f"{text[:-1]},{run},{self._epoch_text}]" if head.epoch else f"{text[:-1]},{run}]"

    def written(self) -> None:
        """The transaction is committed."""
        self._stored_seq = seq = self.head.seq
        if self.seen < seq:
            self.seen = seq
        self.told = self.head.epoch or self.told
        if self.touched:
            for space in self.touched:
                space.written()
            self.touched.clear()
        self.wiped.clear()
        self.dirty = False


def _prefix(gate: str, kind: str) -> str:
    return f"{gate}/#{kind}/" if kind in COUNTED else f"{gate}/{kind}/"

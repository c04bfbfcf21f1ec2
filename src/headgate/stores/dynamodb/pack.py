"""How state is packed into the bytes of an item: small, since a write is paid by the kilobyte, and always the same way."""

from __future__ import annotations

import json
import zlib
from itertools import accumulate, pairwise
from math import gcd

from ...kernel.records import DictSpace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: From so many rows on it is worth storing them by column; and a number above this is a time, in microseconds.
MANY, A_TIME = 8, 10**14


def dumps(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":")).encode()
    return b"z" + zlib.compress(text, 6) if len(text) > 128 else b"j" + text


def loads(packed: bytes) -> Any:
    return json.loads(zlib.decompress(packed[1:]) if packed[:1] == b"z" else packed[1:])


def pack(space: DictSpace) -> list[Any]:
    """A space as [grid, table, rows]: the slots of a window, many rows that are alike, and the others.

    Slots lie on a grid, so how many steps they are apart is stored. A table is stored by column, times relative to the
    row's score and other numbers relative to the row before.
    """
    pairs = list(space.scan())
    slots = [member for score, member in pairs if member.__class__ is int and score == member]
    grid: Any = 0
    if slots:
        steps = [after - before for before, after in pairwise(slots)]
        step = gcd(*steps) or 1
        grid = [slots[0], step, [apart // step for apart in steps], [space.get(member) for member in slots]]
        on_grid = set(slots)
        rows = [[member, space.get(member), score] for score, member in pairs if member not in on_grid]
    else:
        rows = [[member, space.get(member), score] for score, member in pairs]
    if len(pairs) < len(space):
        scored = {member for _, member in pairs}
        rows += [[member, value, None] for member, value in space.items() if member not in scored]
    table: Any = 0
    if len(rows) >= MANY and (columns := _columns(rows)):
        table, rows = columns, []
    return [grid, table, rows]


def _columns(rows: list[list[Any]]) -> list[Any] | None:
    widths = {len(value) if isinstance(value, list | tuple) else -1 for _, value, _ in rows}
    if (
        len(widths) > 1
        or widths == {-1}
        or any(score is not None and score.__class__ is not int for _, _, score in rows)
    ):
        return None
    scores = [score or 0 for _, _, score in rows]
    bare = [at for at, (_, _, score) in enumerate(rows) if score is None]
    columns: list[Any] = []
    for column in zip(*(value for _, value, _ in rows), strict=True):
        if all(isinstance(entry, list | tuple) for entry in column):
            columns.append({"k": _once(column)})
        elif any(entry.__class__ is not int for entry in column):
            columns.append(list(column))
        elif max(column) < A_TIME or bare:
            columns.append({"d": _apart(column)})
        else:
            columns.append({"t": [entry - score for entry, score in zip(column, scores, strict=True)]})
    return [[member for member, _, _ in rows], _apart(scores), bare, columns]


def _once(column: Sequence[Any]) -> list[Any]:
    """The distinct entries, and for each row the number of its own: thousands of tickets ask for the same."""
    entries: list[Any] = []
    by_text: dict[str, int] = {}
    by_id: dict[int, int] = {}
    for entry in column:
        if id(entry) not in by_id:
            place = by_text.setdefault(json.dumps(entry), len(entries))
            if place == len(entries):
                entries.append(entry)
            by_id[id(entry)] = place
    return [entries, [by_id[id(entry)] for entry in column]]


def _apart(numbers: Sequence[int]) -> list[int]:
    return [after - before for before, after in zip([0, *numbers], numbers, strict=False)]


def unpack(packed: Any, space: DictSpace) -> DictSpace:
    grid, table, rows = packed
    if grid:
        member, step, steps, values = grid
        space.put(member, values[0], member)
        for apart, value in zip(steps, values[1:], strict=True):
            member += apart * step
            space.put(member, value, member)
    if table:
        members, apart, bare, columns = table
        scores = list(accumulate(apart))
        full = []
        for column in columns:
            if column.__class__ is list:
                full.append(column)
            elif "k" in column:  # one object for all of them, which spares the garbage collector work
                entries, places = column["k"]
                full.append([entries[place] for place in places])
            elif "d" in column:
                full.append(list(accumulate(column["d"])))
            else:
                full.append([entry + score for entry, score in zip(column["t"], scores, strict=True)])
        unscored = set(bare)
        for at, (member, *value) in enumerate(zip(members, *full, strict=True)):
            if at in unscored:
                space[member] = value
            else:
                space.put(member, value, scores[at])
    for member, value, score in rows:
        if score is None:
            space[member] = value
        else:
            space.put(member, value, score)
    return space

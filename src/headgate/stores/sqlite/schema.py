"""The tables of a SQLite store, and its older format.

    heads (id, gate, value)                      one row for each gate
    members (space, member, score, value)        primary key (space, member); ordered by (space, score, member)

A row of `heads` has the head of a gate, the states of all its limits that are not by a key, the latest permits that a
guard gave (or null), and the epoch: nearly every command needs them together, and most decisions write that row alone.
The last two may be missing: earlier versions wrote no epoch, and pass over it.

It is a table of its own so that such a decision is one statement, `UPDATE … WHERE id = ? AND value = ?`. The price is paid
by decisions that write members too: they change one page more than in format 1, where the head lay beside the number of
leases. A commit costs about 3.5 µs per page, and a decision with a lease changes three to seven.

    <gate>/<kind>/<name>    member    a space; the kinds whose size matters are written `#leases`, `#tickets` …
    <gate>/!<kind>/<name>   ""        how many members such a space has: kept by a trigger, in the same transaction
    <gate>/runs/            id        permits that a guard gave, many in a row: see `permits.py`
"""

from __future__ import annotations

from ...sqlite_file import FileFormat
from .space import WIPE, decode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: "hdgt": in the header of every file of a store.
APPLICATION_ID = 0x68646774

_HEADS = "CREATE TABLE heads (id INTEGER PRIMARY KEY, gate TEXT NOT NULL UNIQUE, value)"
_TRIGGERS = (
    "CREATE TRIGGER counted_in AFTER INSERT ON members WHEN instr(new.space, '/#') BEGIN "
    "INSERT INTO members VALUES (replace(new.space, '/#', '/!'), '', NULL, 1) "
    "ON CONFLICT (space, member) DO UPDATE SET value = value + 1; END",
    "CREATE TRIGGER counted_out AFTER DELETE ON members WHEN instr(old.space, '/#') BEGIN "
    "UPDATE members SET value = value - 1 WHERE space = replace(old.space, '/#', '/!') AND member = ''; END",
)

NEXT_SPACE = "SELECT min(space) FROM members WHERE space >= ?"


def _latest_us(execute: Callable[..., Any]) -> int:
    """The latest time that any gate has seen."""
    return max((decode(value)[0][1] for (value,) in execute("SELECT value FROM heads")), default=0)


def _from_format_1(execute: Callable[..., Any]) -> None:
    """Format 1 had the heads among the other records, in a table `records`, and each permit in a row of its own.

    A process that still has the file open as format 1 finds that table gone, not empty.
    """
    execute(_HEADS)
    for trigger in ("counted_in", "counted_out"):
        execute(f"DROP TRIGGER {trigger}")
    execute("ALTER TABLE records RENAME TO members")
    for statement in _TRIGGERS:
        execute(statement)
    # From gate to gate, past all else that they have.
    [space] = execute(NEXT_SPACE, ("",)).fetchone()
    while space is not None:
        gate, separator, _ = space.partition("/")
        if not separator:
            execute("INSERT INTO heads (gate, value) SELECT space, value FROM members WHERE space = ?", (gate,))
            execute(WIPE, (gate,))
        # "0" comes right after "/".
        [space] = execute(NEXT_SPACE, (f"{gate}0" if separator else f"{space}\0",)).fetchone()


STORE_FORMAT = FileFormat(
    application_id=APPLICATION_ID,
    number=2,
    schema=(
        _HEADS,
        "CREATE TABLE members (space, member, score, value, PRIMARY KEY (space, member)) WITHOUT ROWID",
        "CREATE INDEX ordered ON members (space, score, member) WHERE score IS NOT NULL",
        *_TRIGGERS,
    ),
    upgrades={1: _from_format_1},
    latest_us=_latest_us,
    noun="a SQLite store",
    example="gates.db",
)

"""PURE. The values of limits while running: what an operator has set, what has only been lowered, and when each ends.

Spaces, both of one gate. A member is where overrides of a limit are filed: its name, or name|value for one key.

    overrides   member → the value that an operator has set
    terms       "=" and a member → (ends, reason) of that value, where it has any; "<" and a member → its tightenings, rows
                of (value, ends, reason). By the first moment at which something of it ends; NEVER for a reason alone

An operator's value takes the place of the configured one. A tightening never does: the lowest of all that hold is in
force, so it lowers what is there and can raise nothing, and when it ends, whatever was there is in force again. Of several
tightenings each holds until its own end; one that another makes superfluous (lower, and for as long) is not kept.

Terms end at the store's time, by whichever command comes first then (`lapse`); `terms` is among the clocks of the line.
"""

from __future__ import annotations

from . import model
from .model import NEVER, SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from .model import Override
    from .records import Records, Space

    #: A tightening: its value, when it ends, and its reason.
    Row = tuple[float, int, str]

#: So many tightenings of one member are kept; beyond it the two that differ least become one that is as strong as both.
MOST_ROWS = 8


def value_of(records: Records, base: str, member: str, own: float, share: float = 1.0) -> float:
    """The value in force of a limit that is `own` where nothing overrides it, times a share of it.

    `member` is where its state lives, which names the key where it is by one.
    """
    overrides, terms = records.space("overrides"), records.space("terms")
    members = _members(base, member)
    value = own
    for one in members:
        if (found := overrides.get(one)) is not None:
            value = round(found * share, 9)
    for one in members:
        if (rows := terms.get(f"<{one}")) is not None:
            value = min(value, round(rows[0][0] * share, 9))
    return value


def lifts_at(records: Records, base: str, member: str) -> int:
    """When something next ends that governs the value of a state; NEVER where nothing does by itself."""
    terms = records.space("terms")
    moments = [terms.score(sign + one) for one in _members(base, member) for sign in "=<"]
    return min((moment for moment in moments if moment is not None), default=NEVER)


def _members(base: str, member: str) -> tuple[str, ...]:
    """Where overrides of a state are filed: those of its limit, and those of its key, which go before them."""
    _, bar, key = member.partition("|")
    return (base, f"{base}|{key}") if bar else (base,)


def is_overridden(records: Records, member: str) -> bool:
    """Whether any value but its own may be in force for a state."""
    overrides, terms = records.space("overrides"), records.space("terms")
    base = member.partition("|")[0].partition("@")[0]
    return any(overrides.get(one) is not None or terms.get(f"<{one}") is not None for one in _members(base, member))


def put_value(records: Records, member: str, value: float, ends: int, reason: str) -> None:
    """An operator sets a value. It takes the place of the one before, with its reason and its end."""
    records.space("overrides").put(member, value, 0)
    if ends < NEVER or reason:
        records.space("terms").put(f"={member}", (ends, reason), ends)
    else:
        records.space("terms").delete(f"={member}")


def clear_value(records: Records, member: str) -> None:
    records.space("overrides").delete(member)
    records.space("terms").delete(f"={member}")


def clear_tightenings(records: Records, member: str) -> None:
    records.space("terms").delete(f"<{member}")


def tighten(records: Records, member: str, value: float, ends: int, reason: str) -> bool:
    """Have a value hold at most until `ends`. Returns whether a lower value is in force by it than by those before."""
    terms = records.space("terms")
    before = [tuple(row) for row in terms.get(f"<{member}") or ()]
    if any(row[0] <= value and row[1] >= ends for row in before):
        return False
    rows = [row for row in before if row[0] < value or row[1] > ends]
    rows.append((value, ends, reason))
    rows.sort(key=lambda row: row[0])  # and so by their ends
    if len(rows) > MOST_ROWS:
        near = min(range(MOST_ROWS), key=lambda at: rows[at + 1][0] - rows[at][0])
        rows[near : near + 2] = [(rows[near][0], rows[near + 1][1], rows[near][2])]
    terms.put(f"<{member}", tuple(rows), rows[0][1])
    return not before or rows[0][0] < before[0][0]


def lapse(records: Records) -> None:
    """End what has come to its end by the time of the head."""
    terms, now = records.space("terms"), records.head.now
    first = terms.first()
    if first is None or first[0] > now:
        return
    while first is not None and first[0] <= now:
        _, member = first
        if member[0] == "=":
            clear_value(records, member[1:])
        else:
            rows = tuple(row for row in terms.get(member) if row[1] > now)
            if rows:
                terms.put(member, rows, rows[0][1])
            else:
                terms.delete(member)
        first = terms.first()
    changed(records)


def changed(records: Records) -> None:
    """Values have changed: what was worked out by the old ones is worked out again."""
    count(records)
    for kind in ("windows", "promised"):
        for member in records.names(kind):
            forget_known(records.space(kind, member))
    if records.head.tickets:
        due = records.looks_due
        for _, member in list(due.scan()):
            due.put(member, 1, records.head.now)


def forget_known(space: Space) -> None:
    """Where nothing fits, and how high the level will be, was known for other values."""
    space.delete("hint")
    space.delete("tail")


def count(records: Records) -> None:
    """Have the head say whether there is anything here."""
    records.head.amend(overrides=len(records.space("overrides")) + len(records.space("terms")))


def listed(records: Records, now: int) -> tuple[Override, ...]:
    """What operators have set, and of each member's tightenings the one in force."""
    overrides, terms = records.space("overrides"), records.space("terms")
    found = []
    for _, member in overrides.scan():
        ends, reason = terms.get(f"={member}") or (NEVER, "")
        found.append(_override(now, member, overrides.get(member), ends, reason))
    for member in sorted(member for _, member in terms.scan() if member[0] == "<"):
        value, ends, reason = terms.get(member)[0]
        found.append(_override(now, member[1:], value, ends, reason, tightened=True))
    return tuple(found)


def _override(now: int, member: str, value: float, ends: int, reason: str, tightened: bool = False) -> Override:
    name, _, key = member.partition("|")
    expires_in = None if ends >= NEVER else (ends - now) / SECOND
    return model.Override(name, key or None, value, reason, expires_in, tightened)


def in_force(overrides: Iterable[Override], own: Override) -> Override:
    """What is in force for the limit and the key of `own`, which is the configured value, and holds where no other does."""
    mine = [one for one in overrides if one.limit == own.limit and one.key in (None, own.key)]
    found = own
    # The key's own value after the gate's: it takes its place.
    for one in sorted((one for one in mine if not one.tightened), key=lambda one: one.key is not None):
        found = one
    for one in mine:
        if one.tightened and one.value < found.value:
            found = one
    return found

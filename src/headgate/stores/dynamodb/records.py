"""The state of one gate as DynamoDB items, and as the records that commands work on.

The gate's own item holds its head, its line and the state of all limits that are not by a key. State under `limit|value`
is stored in it too (*inline*) while there is little, since writing one item is half the price of a transaction; else in one
item per value. The gate's item is written with every change, so its token stands for all of them. Items of values are read
when a command first touches them: it is interrupted by `Missing`, and runs again with them.
"""

from __future__ import annotations

import json
import zlib
from typing import NamedTuple
from weakref import proxy

from ...errors import StoreFormatError
from ...kernel.commands.base import SPACES
from ...kernel.head import Head
from ...kernel.limits import KINDS
from ...kernel.model import SECOND
from ...kernel.overrides import forget_known
from ...kernel.records import ByKind, DictSpace, Kinds
from .pack import dumps, loads, pack, unpack
from .table import FORMAT, STATE, TOKEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ...kernel.model import Wake
    from ...kernel.records import Member, Score
    from .table import Item

#: What the keys of our items begin with, so that a table can hold other items as well.
PREFIX = "headgate:"

#: The format of items. One that is newer is refused.
VERSION = 1

#: How many bytes of values (before packing) are stored in the gate's own item, and how many more items go with one write.
INLINE, WITH_ONE_WRITE = 4096, 90

DAY = 86_400 * SECOND
#: Microseconds for which an item stays after its state has run off. A gate's own stays long: it has the sequence number.
KEEP_GATE, KEEP_VALUE, AT_MOST = 30 * DAY, DAY, 400 * DAY


def item_name(gate: str, value: str | None = None) -> str:
    return f"{PREFIX}{gate}" if value is None else f"{PREFIX}{gate}|{value}"


class Missing(Exception):
    """A command needs the state of these values of a key, and their items have not been read."""

    def __init__(self, values: list[str]) -> None:
        super().__init__(values)
        self.values = values


# --- records ----------------------------------------------------------------------------------------------------------


class InlineValue(NamedTuple):
    """A value in the gate's own item: stored as a list of three."""

    #: The gate's sequence number when it was written.
    written: int
    #: Whether it has an item of its own as well, with an older state.
    has_item: bool
    packed: Any


class ValueState:
    """The state of one value of a key: the states of its limits, and their spaces."""

    __slots__ = ("clean", "has_item", "spaces", "states")

    def __init__(self, has_item: bool = False) -> None:
        self.states = DictSpace()
        self.spaces: dict[str, dict[str, DictSpace]] = {kind: {} for kind in SPACES}
        #: Whether it has an item of its own, which then must be written with every change.
        self.has_item = has_item
        #: Its packed state as it was read.
        self.clean: Any = {}

    def space(self, kind: str, member: str) -> DictSpace:
        spaces = self.spaces[kind]
        found = spaces.get(member)
        if found is None:
            found = spaces[member] = DictSpace()
        return found

    def forget(self, limit: str | None) -> None:
        """Drop the state of one limit, or of all, after a reset."""
        # What was written before the reset no longer counts, so the state is written again even if it comes out the same.
        self.clean = None
        for member in list(self.states):
            if limit is None or limit_of(member) == limit:
                self.drop(member)

    def drop(self, member: str) -> None:
        self.states.delete(member)
        for kind in SPACES:
            self.spaces[kind].pop(member, None)

    def packed(self) -> dict[str, Any]:
        packed: dict[str, Any] = {}
        for kind, named in self.spaces.items():
            if kept := {name: pack(space) for name, space in named.items() if len(space)}:
                packed[kind] = kept
        if len(self.states):
            packed["states"] = {"": pack(self.states)}
        return packed


def limit_of(member: str) -> str:
    return member.partition("|")[0].partition("@")[0]


class DynamoStates(DictSpace):
    """`records.states`: the states of limits by a key are with their `ValueState`, all others here, in order."""

    __slots__ = ("_records",)

    def __init__(self, records: DynamoRecords) -> None:
        super().__init__()
        self._records = records

    def get(self, member: Any, default: Any = None) -> Any:
        if "|" in member:
            return self._records.value_of(member).states.get(member, default)
        return dict.get(self, member, default)

    def __setitem__(self, member: Any, value: Any) -> None:
        if "|" in member:
            self._records.value_of(member).states[member] = value
        else:
            dict.__setitem__(self, member, value)

    def put(self, member: Any, value: Any, score: Score) -> None:
        if "|" in member:
            self._records.value_of(member).states.put(member, value, score)
        else:
            super().put(member, value, score)

    def scan(self, since: Score = float("-inf")) -> Iterator[tuple[Any, Any]]:
        records = self._records
        if records.resetting is not None:  # only a reset scans all states: reset those by a key as well
            records.reset(*records.resetting)
        return super().scan(since)

    def delete(self, member: Member) -> Any:
        if isinstance(member, str) and "|" in member:
            return self._records.value_of(member).states.delete(member)
        return super().delete(member)


class DynamoSpaces(dict):  # type: ignore[type-arg]
    """Spaces by name, made on first use; those of limits by a key are with their `ValueState`."""

    __slots__ = ("_kind", "_records")

    def __init__(self, records: DynamoRecords, kind: str) -> None:
        super().__init__()
        self._records = records
        self._kind = kind

    def __missing__(self, name: str) -> DictSpace:
        if self._kind in SPACES and "|" in name:
            return self._records.value_of(name).space(self._kind, name)
        space = self[name] = DictSpace()
        return space


class DynamoRecords(ByKind):
    """The state of one gate, as far as it has been read."""

    def __init__(self, gate: str) -> None:
        self.gate = gate
        self.head = Head()
        self.seen = 0
        self.told = ""
        self.wakes: list[Wake] = []
        # No reference cycles, so that records are freed at once when they are done with. Left to the garbage collector they
        # would have it walk all of the driver's objects again and again, for a tenth of a second each time.
        itself = proxy(self)
        self.states = DynamoStates(itself)
        self.kinds = Kinds(lambda kind: DynamoSpaces(itself, kind))
        self.values: dict[str, ValueState] = {}
        self.inline: dict[str, InlineValue] = {}
        #: limit ("" for all) → the sequence number of its last reset: state that was written before it does not count.
        self.resets: dict[str, int] = {}
        #: The limit (or None for all) that is being reset.
        self.resetting: tuple[str | None] | None = None
        #: The sequence number of the last override.
        self.configured = 0
        #: Values of keys under which leases are held.
        self.held: set[str] = set()

    # --- the port -----------------------------------------------------------------------------------------------

    def value_of(self, member: str) -> ValueState:
        value = member.partition("|")[2]
        found = self.values.get(value)
        if found is not None:
            return found
        if value not in self.inline:
            raise Missing([value])
        inline = self.inline[value]
        return self.add(value, inline.has_item, inline.written, inline.packed)

    def space(self, kind: str, name: str = "") -> DictSpace:
        return self.kinds[kind][name]  # type: ignore[no-any-return]

    def keyed(self, prefix: str) -> Iterator[str]:
        # A table cannot be asked for the items of a gate. The gate's own item names the values that are inline or held.
        known = dict.fromkeys([*self.inline, *sorted(self.held)[:WITH_ONE_WRITE], *self.values])
        return (f"{prefix}{value}" for value in known)

    def drop(self, kind: str, name: str = "") -> None:
        if kind in SPACES and "|" in name:
            self.value_of(name).spaces[kind].pop(name, None)
        elif (spaces := self.kinds.get(kind)) is not None:
            spaces.pop(name, None)

    def names(self, kind: str) -> list[str]:
        names = list(self.kinds.get(kind, ()))
        if kind == "leases":
            for value in self.held & self.inline.keys():
                self.value_of(f"|{value}")
            if missing := sorted(self.held - self.values.keys()):
                raise Missing(missing)
        if kind in SPACES:
            for found in self.values.values():
                names += found.spaces[kind]
        return names

    # --- all values at once ---------------------------------------------------------------------------------------

    def reset(self, limit: str | None) -> None:
        """Drop the state of all values of keys, read or not."""
        self.resetting = None
        for value in self.values.values():
            value.forget(limit)
        if limit is None:
            self.resets.clear()
            self.held.clear()
        self.resets[limit or ""] = self.head.seq

    # --- items --------------------------------------------------------------------------------------------------

    def packed(self, now: int) -> tuple[bytes, int | None, dict[str, tuple[bytes, int]]]:
        """The gate's own state and when it expires (epoch seconds; None: never), and those of values to write with it."""
        others = self._pack_values(now)
        spaces: dict[str, Any] = {}
        for kind, named in self.kinds.items():
            if kept := {name: pack(space) for name, space in named.items() if len(space)}:
                spaces[kind] = kept
        if len(self.states):
            spaces["states"] = {"": pack(self.states)}
        last = max(now, self.head.paused, self._until(self.states, self.kinds["leases"]))
        if "permits" in spaces:
            last = max(last, _latest(self.space("permits")))
        for value in self.inline.keys() & self.values.keys():
            last = max(last, self._until(self.values[value].states, self.values[value].spaces["leases"]))
        # A space like the others, which earlier versions hand on though they have no epochs.
        spaces["epoch"] = {"": [0, 0, [["", self.head.stored_epoch(), None]]]}
        state = dumps([self.head.stored(), self.resets, self.configured, sorted(self.held), self.inline, spaces])
        forever = self.head.overrides > 0
        return state, None if forever else (min(last, now + AT_MOST) + KEEP_GATE) // SECOND, others

    def _pack_values(self, now: int) -> dict[str, tuple[bytes, int]]:
        """Put changed values inline. Returns those that go to items of their own: they have one, or inline is full."""
        for value, found in self.values.items():
            packed = found.packed()
            if packed == found.clean:
                continue
            for member, state in list(found.states.items()):  # state that has run off need not be written
                kind = KINDS[state[0]]
                free = not found.spaces["leases"].get(member) and not kind.held(state)
                if free and kind.until(self, member, state) + KEEP_VALUE <= now:
                    found.drop(member)
            packed = found.clean = found.packed()
            (self.held.add if any(found.spaces["leases"].values()) else self.held.discard)(value)
            if packed or found.has_item:
                self.inline[value] = InlineValue(self.head.seq, found.has_item, packed)
            else:
                self.inline.pop(value, None)
        sizes = {value: len(json.dumps(entry.packed)) + len(value) for value, entry in self.inline.items()}
        total = sum(sizes.values())
        others: dict[str, tuple[bytes, int]] = {}
        for value in sorted(sizes, key=lambda value: not self.inline[value].has_item):  # those with an item first
            if (total <= INLINE and not self.inline[value].has_item) or len(others) == WITH_ONE_WRITE:
                break
            total -= sizes[value]
            found = self.value_of(f"|{value}")
            found.has_item = True
            until = max(now, self._until(found.states, found.spaces["leases"]))
            others[value] = (dumps(self.inline.pop(value).packed), (min(until, now + AT_MOST) + KEEP_VALUE) // SECOND)
        return others

    def _until(self, states: DictSpace, leases: Any) -> int:
        moments = [KINDS[state[0]].until(self, member, state) for member, state in list(states.items())]
        moments += [_latest(space) for space in list(leases.values())]
        return int(max(moments, default=0))

    def add(self, value: str, has_item: bool, written: int, packed: Any) -> ValueState:
        """Add a value that was read; `written` is the gate's sequence number when it was written."""
        found = self.values[value] = ValueState(has_item)
        for kind, named in packed.items():
            for name, space in named.items():
                unpack(space, found.states if kind == "states" else found.space(kind, name))
        found.clean = found.packed()
        for limit, seq in self.resets.items():
            if written < seq:
                found.forget(limit or None)
        if written < self.configured:
            for kind in ("windows", "promised"):
                for space in found.spaces[kind].values():
                    forget_known(space)
        return found


def _latest(space: DictSpace) -> int:
    """The highest score."""
    last = 0
    for score, _ in space.scan():
        last = score
    return int(last)


def read_item(item: Item, name: str) -> tuple[str, bytes]:
    """The token and the state of an item of ours. Raises StoreFormatError where it is none, or a newer one."""
    try:
        version = int(item[FORMAT]["N"])
        token, state = str(item[TOKEN]["S"]), bytes(item[STATE]["B"])
    except (KeyError, ValueError, TypeError) as error:
        raise StoreFormatError(
            f"the item {name!r} is not one that Headgate wrote ({type(error).__name__}: {error}); delete it, or use "
            f"another table"
        ) from error
    if version > VERSION:
        raise StoreFormatError(f"the item {name!r} has format {version}; this version of Headgate knows {VERSION}")
    return token, state


def gate_records(gate: str, state: bytes | None) -> DynamoRecords:
    """Records of a gate's own item."""
    records = DynamoRecords(gate)
    if state is None:
        return records
    try:
        head, records.resets, records.configured, held, inline, spaces = loads(state)
        known = spaces.pop("epoch", None)
        records.head = Head(*head, *(known[""][2][0][1] if known else ()))
        records.held = set(held)
        records.inline = {value: InlineValue(*entry) for value, entry in inline.items()}
        for kind, named in spaces.items():
            for name, space in named.items():
                unpack(space, records.states if kind == "states" else records.space(kind, name))
    except (ValueError, TypeError, KeyError, IndexError, zlib.error) as error:
        raise StoreFormatError(
            f"the item {item_name(gate)!r} is damaged ({error}); delete it, and its limits begin as if just used up"
        ) from error
    return records

"""PURE. What every limit is: a rule with a name, and five questions about its state.

State is usage in units and absolute times, never "what is left", so it survives a changed value. It lives in
`records.states` under the limit's name (and key), as a tuple that starts with its kind, plus a space where it needs one.
`value` is always passed in: it may be overridden while running, so a limit never trusts its own number in a decision.
"""

from __future__ import annotations

from ... import duration
from ...errors import InvalidInput, KindChanged
from .. import model
from ..model import NEVER, SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..model import LimitUsage
    from ..records import Records

    Duration = str | int | float
    #: A permit's lease: its id, when it expires, and what others need to know of it (see commands.Admit).
    Lease = tuple[str, int, Any]
    Taker = Callable[[Records, int, str], int]
    #: The working limit of an adaptive limit before and after.
    Moved = tuple[float, float]

#: The largest amount that a double holds.
LARGEST = 1.7976931348623157e308

NO_LEASE: Lease = ("", 0, None)

#: The fields that are lengths of time, in microseconds where they are numbers.
DURATIONS = frozenset({"per", "slack", "lease"})

#: It was charged; and a confirmation would be worth it. Neither is a moment.
TAKEN, WORTH_IT = 0, -1

NAME_ALPHABET = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
NAME_RULE = "1 to 100 letters, digits, '.', '_' or '-', starting with a letter or digit"


def check_name(what: str, name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name[0].isalnum() or not set(name) <= NAME_ALPHABET:
        raise InvalidInput(f"{what} {name!r} is not a name; use {NAME_RULE}")
    return name


def positive(what: str, number: object) -> float:
    """A finite number above zero, or an error that says so."""
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise InvalidInput(f"{what} must be a number above 0, not {number!r}")
    if not 0 < number <= LARGEST:  # NaN is not, and neither is an int that no double can hold
        raise InvalidInput(f"{what} must be a finite number above 0, not {number!r}")
    return number


def default_slack(per: int, part: int = 100) -> int:
    """One in `part` of `per`, at least 100 ms, at most 1 s."""
    return min(max(per // part, SECOND // 10), SECOND)


def fitting(value: float, size: float) -> int:
    """How many asks of a size fit into a limit at once; one at least."""
    return max(1, int(value / size + 1e-9))


class Limit:
    """A rule. Two limits are equal when they would decide alike."""

    __slots__ = ("by", "limit", "name", "unit")
    kind = ""
    #: What stands in `spec()` after the kind, by name: an attribute of the limit each.
    fields: tuple[str, ...] = ()
    #: Those of the fields that move with the value when that is changed.
    moving: tuple[str, ...] = ("limit",)
    #: Arguments that a configuration writes as a table (or as `true`): the classes that can be made of it, by what stands
    #: under `rule` in the table; the first is the default.
    tables: Mapping[str, Mapping[str, Callable[..., Any]]] = {}
    #: Whether a permit under it holds a lease.
    leased = False
    #: Whether a confirmation changes anything.
    confirmable = False
    #: Where its state says what called tickets hold; None where that is no part of the state.
    held_index: int | None = None
    #: How `LimitUsage.resets_in` is told: "all free in 3 s".
    frees = "all free"

    def __init__(self, limit: float, name: str | None, unit: str, by: str | None) -> None:
        self.limit = positive(f"the {self.kind} limit", limit)
        self.name = check_name("limit name", self.kind if name is None else name)
        self.unit = check_name("unit", unit)
        self.by = None if by is None else check_name("by", by)

    def spec(self) -> tuple[Any, ...]:
        """The kind and all that a decision depends on, as plain values: what is stored with a ticket."""
        raise NotImplementedError

    @classmethod
    def from_spec(cls, spec: Any) -> Limit:
        """The limit that `spec()` described."""
        raise NotImplementedError

    def with_limit(self, limit: float) -> Limit:
        """The same rule with another value."""
        kind, _, *rest = self.spec()
        return self.from_spec((kind, limit, *rest))

    def scaled(self, share: float) -> Limit:
        """The same rule for a share of it: what a priority class may use."""
        return self.with_limit(self.limit * share)

    def share_for_class(self, share: float) -> Limit:
        """The rule for a priority class's share of this one, in the same gate and beside it."""
        return self.scaled(share)

    def replaced(self, field: str, value: Any) -> Limit:
        """The same rule with another value of one of its `fields`, as `spec()` has it; itself where that is its value."""
        spec = list(self.spec())
        place = 1 + self.fields.index(field)
        if spec[place] == value:
            return self
        spec[place] = value
        return self.from_spec(spec)

    def with_slack(self, us: int) -> Limit:
        """The same rule with a slack of so many microseconds: 0 where the gate itself is the boundary that counts."""
        return self.replaced("slack", us) if "slack" in self.fields else self

    def widened(self, us: int) -> Limit:
        """The same rule for a store whose processes may disagree on the time by so many microseconds."""
        return self.replaced("slack", self.slack + us) if "slack" in self.fields else self  # type: ignore[attr-defined]

    def checked_value(self, gate: str, value: float) -> float:
        """A value that an override may set, or an InvalidInput that says what is wrong with it."""
        return positive(f"gate {gate!r}: the limit {self.name!r}", value)

    def in_words(self, field: str) -> str:
        """The value of a field, for people."""
        value = getattr(self, field)
        if field in DURATIONS and isinstance(value, int):
            return f"{value / SECOND:.15g} s"
        return f"{value:.15g}" if isinstance(value, float) else repr(value)

    def window_s(self) -> float | None:
        """Seconds of the time that the value is for; None where that has no fixed length."""
        return None

    def per_minute(self, cost: float, call_s: float) -> float:
        """Calls a minute that pass in the long run, where each costs `cost` of the unit and takes `call_s` seconds."""
        raise InvalidInput(
            f"limit {self.name!r} is of the kind {self.kind!r}, which does not say how many calls a minute it lets pass; "
            f"give its class a per_minute(cost, call_s)"
        )

    def numbers(self) -> tuple[Any, ...]:
        """What its script on Redis is given besides the value, in the order in which `lua/KIND.lua` reads it."""
        raise NotImplementedError

    def remembers(self) -> int:
        """For how many microseconds after its last use its state can matter, at most: for stores that forget idle gates."""
        raise NotImplementedError

    def largest(self, value: float) -> float:
        """The largest cost that can ever fit."""
        return value

    def earliest(self, records: Records, now: int, member: str, cost: float, value: float, start: int) -> int:
        """The first moment at or after `start` at which `cost` fits, or NEVER. `start` is `now` except for promises."""
        raise NotImplementedError

    def after(self, records: Records, now: int, member: str, cost: float, value: float, ahead: int, size: float) -> int:
        """The first moment at which `cost` fits once `ahead` asks of `size` each have gone, as soon as each could."""
        return self.earliest(records, now, member, cost, value, now)

    def is_far(self, value: float, ahead: int, size: float) -> bool:
        """Whether so many are ahead that `after` is an estimate, since telling it exactly would take too long."""
        return False

    def pace(self, value: float) -> float:
        """Microseconds that a unit takes in the long run; 0 where no time passes between them."""
        return 0.0

    def charge(self, records: Records, now: int, member: str, cost: float, value: float, at: int, lease: Lease) -> bool:
        """Count `cost` from `at` (`now`, or the time of a promise). Returns whether a confirmation would be worth it."""
        raise NotImplementedError

    def taker(self, cost: float, value: float) -> Taker:
        """`earliest` for now and, where that is now, `charge`, made ready for one cost.

        Called with the records, the time and the member; returns the moment when refused, else TAKEN or WORTH_IT.
        """

        def take(records: Records, now: int, member: str) -> int:
            at = self.earliest(records, now, member, cost, value, now)
            if at > now:
                return at
            return WORTH_IT if self.charge(records, now, member, cost, value, now, NO_LEASE) else TAKEN

        return take

    def refund(
        self, records: Records, now: int, member: str, cost: float, value: float, at: int, confirmed: int = 0
    ) -> None:
        """Take back `cost` that was charged at `at`, where it still counts; a negative cost charges more."""
        raise NotImplementedError

    def hold(self, records: Records, now: int, member: str, cost: float, lease: Lease) -> None:
        """Keep `cost` for a called ticket: it counts and does not run off. A negative cost lets go of it."""
        raise NotImplementedError

    def restamp(self, records: Records, now: int, member: str, cost: float, value: float, at: int, sent: int) -> int:
        """Count from `sent` on (now, or before) what was charged at `at`: it was written no earlier than that.

        Nothing comes free by it, and it may exceed the limit, which holds back later asks. Returns the first moment at
        which it may be written: now, or when enough of what others were charged meanwhile has stopped counting.
        """
        self.refund(records, now, member, cost, value, at)
        self.charge(records, now, member, cost, value, sent, NO_LEASE)
        return self.earliest(records, now, member, 0.0, value, now)

    def confirm(self, records: Records, now: int, member: str, cost: float, value: float, at: int) -> None:
        """The upstream is known to have counted by now what was charged at `at`."""

    def feedback(
        self, records: Records, now: int, member: str, value: float, outcome: str, granted: int
    ) -> Moved | None:
        """A permit that was granted at `granted` ends with `outcome`. Returns how an adaptive limit moved, if it did."""
        return None

    @staticmethod
    def until(records: Records, member: str, state: Any) -> int:
        """When a state says nothing any more, so that it can be forgotten."""
        raise NotImplementedError

    @staticmethod
    def until_overridden(state: Any, until: int) -> int:
        """The same for a state whose value is overridden; `until` is what it would be by the limit's own value."""
        return until

    @classmethod
    def held(cls, state: Any) -> float:
        """What called tickets hold of a state: it counts, whatever has run off."""
        return 0.0 if cls.held_index is None else float(state[cls.held_index])

    def assume_used(self, records: Records, now: int, member: str, value: float, lost: int) -> None:
        """State was lost at `lost`: make what is there look as if all had just been used up then."""

    def describe(self, records: Records, now: int, member: str, value: float) -> LimitUsage:
        raise NotImplementedError

    @classmethod
    def rough_use(cls, records: Records, now: int, member: str, state: Any) -> float:
        """About how many units of a state count, and no fewer: to find the fullest of many keys without describing all."""
        return 0.0

    def _state(self, records: Records, member: str) -> Any:
        state = records.states.get(member)
        if state is not None and state[0] != self.kind:
            raise KindChanged(gate=records.gate, limit=member, was=state[0], now=self.kind)
        return state

    def _usage(
        self,
        member: str,
        used: float,
        value: float,
        free_in: int,
        resets_in: int | None = None,
        maximum: float | None = None,
        promised: float = 0.0,
    ) -> LimitUsage:
        _, _, key = member.partition("|")
        return model.LimitUsage(
            name=self.name,
            kind=self.kind,
            unit=self.unit,
            key=key or None,
            used=used,
            limit=value,
            available=max(0.0, value - used - promised),
            utilisation=used / value,
            free_in=max(0, free_in) / SECOND if free_in < NEVER // 2 else float("inf"),
            resets_in=None if resets_in is None else max(0, resets_in) / SECOND,
            maximum=maximum,
            promised=promised,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Limit) and self.spec() == other.spec()

    def __hash__(self) -> int:
        return hash(self.spec())

    def __repr__(self) -> str:
        per = getattr(self, "per", None)
        if isinstance(per, int):  # in seconds, as it may be written
            per = per // SECOND if per % SECOND == 0 else per / SECOND
        parts = [f"{self.limit:.15g}", *([] if per is None else [f"per={per!r}"]), f"name={self.name!r}"]
        parts += [f"unit={self.unit!r}"] if self.unit != "requests" else []
        parts += [f"by={self.by!r}"] if self.by else []
        return f"{type(self).__name__}({', '.join(parts)})"


class RateLimit(Limit):
    """Units per time. `per` and `slack` are microseconds."""

    __slots__ = ("per", "slack")
    #: The default slack is one in so many of `per`.
    slack_part = 100

    def __init__(
        self,
        limit: float,
        per: Duration,
        slack: Duration | None,
        name: str | None,
        unit: str,
        by: str | None,
    ) -> None:
        super().__init__(limit, name, unit, by)
        self.per = duration.parse(per, what=f"per of {self.kind} {self.name!r}")
        if slack is None:
            self.slack = default_slack(self.per, self.slack_part)
        else:
            self.slack = duration.parse(slack, what=f"slack of {self.kind} {self.name!r}", zero=True)

    def window_s(self) -> float:
        return self.per / SECOND

    def per_minute(self, cost: float, call_s: float) -> float:
        return self.limit / cost * 60.0 * SECOND / self.per

    def remembers(self) -> int:
        return self.per + self.slack

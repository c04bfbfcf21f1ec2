"""Commands and replies as JSON: what `POST /v1/execute` of a guard carries, both ways.

A request names each policy once, by its fingerprint, and its commands refer to that by number. Here is what the client
needs; how a guard reads a request, of which it trusts nothing, is in `service/store_protocol/read.py`. Lists, not objects:
this is read by machines thousands of times a second, and the routes for people are others.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from json import JSONEncoder, loads
from typing import NamedTuple

from ...errors import (
    AttemptOver,
    ConfigError,
    HeadgateError,
    IdConflict,
    InvalidInput,
    KindChanged,
    PolicyChanged,
    StoreFormatError,
    StoreUnavailable,
)
from ...kernel.commands import FORMS
from ...kernel.commands.table import PLAIN, REMEMBERED, WAITS, writer
from ...kernel.model import (
    Adapted,
    Ended,
    Grant,
    HeldLease,
    LimitUsage,
    Override,
    Pulse,
    Refusal,
    Snapshot,
    Wait,
    WaitingTicket,
    names_of,
    plain,
)
from ...kernel.plan import Policy
from ..base import Seen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ...kernel.commands import Command
    from ...kernel.plan import Plan

#: The version of this form. A guard that does not know it says so, and nothing is decided.
VERSION = 1

#: `json.dumps` makes an encoder on every call that names separators.
_encode = JSONEncoder(separators=(",", ":")).encode


class NotAllowed(HeadgateError):
    """The guard does not let this token do that. Nothing was done."""


class TooMany(HeadgateError):
    """The guard has as many waiters or keys as it takes. Nothing was done; the message says what to do about it."""


#: The errors that travel. Any other would be a bug of the guard, and comes as a HeadgateError.
ERRORS: dict[str, type[HeadgateError]] = {
    "invalid": InvalidInput,
    "config": ConfigError,
    "policy": PolicyChanged,
    "id": IdConflict,
    "over": AttemptOver,
    "format": StoreFormatError,
    "unavailable": StoreUnavailable,
    "allowed": NotAllowed,
    "many": TooMany,
}
_NAMES = {kind: name for name, kind in ERRORS.items()}


# --- asking ---------------------------------------------------------------------------------------------------------


class Policies:
    """The policies that the commands of one request name."""

    __slots__ = ("_numbers", "rows")

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.rows: list[str] = []

    def number(self, policy: Policy) -> int:
        fingerprint = policy.fingerprint
        number = self._numbers.get(fingerprint)
        if number is None:
            number = self._numbers[fingerprint] = len(self.rows)
            self.rows.append(_policy_row(policy))
        return number

    def ask(self, plan: Plan) -> tuple[Any, ...]:
        """A plan: its policy, class, costs and key."""
        _, rank, costs, key = plan.ref
        return (self.number(plan.policy), rank, dict(costs), dict(key))


@lru_cache(1024)
def _policy_row(policy: Policy) -> str:
    """A policy as it is sent with every request that names it: made once for each."""
    return _encode((policy.fingerprint, policy.spec()))


#: How fields are written that do not travel as they are.
_FORMS = {
    "plan": "*policies.ask(command.plan)",
    "policy": "policies.number(command.policy)",
    "asked": "None if command.plan is None else policies.ask(command.plan)",
    "bits": f"command.waits * {WAITS} | command.remembered * {REMEMBERED} | command.plain * {PLAIN}",
    "actual": "None if command.actual is None else dict(command.actual)",
    "lease_rows": "[(*policies.ask(plan), *rest) for plan, *rest in command.leases]",
}

#: Command → what makes its row, which names its policies by number.
_WRITERS: dict[type[Command], Callable[[Any, Policies], tuple[Any, ...]]] = {
    command: writer(("letter", *form.fields), _FORMS | {"letter": repr(form.letter)}, "policies")
    for command, form in FORMS.items()
}


_LATER = {command: form.later for command, form in FORMS.items()}


def _row(command: Command, policies: Policies) -> tuple[Any, ...]:
    kind = type(command)
    told = _WRITERS[kind](command, policies)
    later = _LATER[kind]
    while later and not told[-1]:
        told, later = told[:-1], later - 1
    return told


def encode(commands: Sequence[Command], seen: Mapping[str, int], epochs: Mapping[str, str] | None = None) -> bytes:
    """A request. `seen` is how far each gate had come, and `epochs` in which epoch, as this process was told."""
    policies = Policies()
    rows = _encode([_row(command, policies) for command in commands])
    gates = {command.gate for command in commands}
    known = _encode({gate: seen[gate] for gate in gates if gate in seen})
    # A guard that tells no epochs is older, and would refuse them.
    told = {gate: epochs[gate] for gate in gates if gate in epochs} if epochs else None
    also = f'"epochs":{_encode(told)},' if told else ""
    named = ",".join(policies.rows)
    return f'{{"v":{VERSION},"policies":[{named}],"seen":{known},{also}"commands":{rows}}}'.encode()


# --- answering ------------------------------------------------------------------------------------------------------


def _error_row(error: BaseException) -> tuple[Any, ...]:
    if isinstance(error, KindChanged):
        return ("x", "kind", str(error), {"gate": error.gate, "limit": error.limit, "was": error.was, "now": error.now})
    for kind in type(error).__mro__:
        if kind in _NAMES:
            return ("x", _NAMES[kind], str(error), {})
    return ("x", "error", str(error), {})


def _values(things: Any) -> list[Any]:
    """Usages, overrides or moves, each as the list of its fields; what is infinite is None, as JSON has no infinity."""
    return [list(plain(thing).values()) for thing in things]


def _decision_row(decision: Any) -> Any:
    return None if decision is None else row(decision)


#: The fields of a snapshot that are no numbers or texts: how each is written.
_SNAPSHOT_WRITERS: dict[str, Callable[[Any], Any]] = {
    "limits": _values,
    "leases": _values,
    "overrides": _values,
    "waiters": _values,
    "keys": _values,
    "decision": _decision_row,
}


def row(reply: Any) -> Any:
    """One reply. A grant stays the list of its four numbers."""
    kind = type(reply)
    if kind is Grant:
        at, expires, fence, worth, now = reply
        return (
            at,
            now or expires,
            fence,
            worth,
        )  # a promise has no lease: the time of the decision stands in its place
    if kind is Ended:
        return ("e", reply.lost, _values(reply.adapted), reply.at)
    if kind is Wait:
        return ("w", *(getattr(reply, name) for name in names_of(Wait)))
    if kind is Refusal:
        return ("r", reply.limit, reply.reason, reply.at, reply.now)
    if kind is Pulse:
        lists = (reply.gone, reply.called, reply.unknown)
        return ("p", reply.now, dict(reply.expires), *lists, reply.timer, reply.timer_at, reply.sessions)
    if kind is Override:
        return ("o", *plain(reply).values())
    if kind is Snapshot:
        told = [(_SNAPSHOT_WRITERS.get(name), getattr(reply, name)) for name in names_of(Snapshot)]
        return ("s", *[value if write is None else write(value) for write, value in told])
    return _error_row(reply)


class ToldPolicy(NamedTuple):
    """A gate's policy as its guard has it, told to a process that asked with another."""

    fingerprint: str
    spec: Any
    #: How the two differ, in words. Empty where they differ by no more than the store of the guard brings along.
    differences: Sequence[str]
    #: The guard can decide asks that were made with the other one. Where it cannot, it has refused them.
    fits: bool

    def policy(self) -> Policy:
        """The guard's policy. Raises InvalidInput for a kind of limit that this process does not have."""
        return Policy.from_spec(self.spec)


def answer(replies: Sequence[Any], seen: Mapping[str, Seen], policies: Mapping[str, ToldPolicy] | None = None) -> bytes:
    """The answer to a request; `policies` are those of the gates that were asked with another."""
    numbers = {gate: known.number for gate, known in seen.items()}
    epochs = {gate: known.epoch for gate, known in seen.items() if known.epoch}
    rows = [row(reply) for reply in replies]
    told: dict[str, Any] = {"v": VERSION, "seen": numbers, "epochs": epochs, "replies": rows}
    if policies:
        told["policies"] = policies
    return _encode(told).encode()


def policies_answer(policies: Mapping[str, Policy]) -> bytes:
    """The answer to `GET /v1/policies`."""
    rows = {name: (policy.fingerprint, policy.spec()) for name, policy in policies.items()}
    return _encode({"v": VERSION, "policies": rows}).encode()


# --- and what the client makes of it --------------------------------------------------------------------------------


def _ended(raw: Any) -> Ended:
    _, lost, adapted, at = raw
    # A guard of an earlier version says only whether a limit moved.
    moves = () if isinstance(adapted, bool) else tuple(Adapted(*move) for move in adapted)
    return Ended(lost, moves, at)


def _wait(raw: Any) -> Wait:
    return Wait(*raw[1 : 1 + len(names_of(Wait))])  # a guard of another version may tell more, or less


def _refusal(raw: Any) -> Refusal:
    return Refusal(*raw[1:])


def _pulse(raw: Any) -> Pulse:
    _, now, expires, gone, called, unknown, *timer = raw
    return Pulse(now, expires, tuple(gone), tuple(called), tuple(unknown), *timer)


def _usage(raw: Any) -> LimitUsage:
    usage = LimitUsage(*raw[: len(names_of(LimitUsage))])  # a guard of a later version may tell more
    return replace(usage, free_in=float("inf")) if usage.free_in is None else usage


def _rows(kind: Any) -> Callable[[Any], tuple[Any, ...]]:
    """Reads the rows of a kind of record; a guard of a later version may tell more."""
    return lambda raw: tuple(kind(*row[: len(names_of(kind))]) for row in raw)


#: The fields of a snapshot that are no numbers or texts: how each is read.
_SNAPSHOT_READERS: dict[str, Callable[[Any], Any]] = {
    "limits": lambda raw: tuple(map(_usage, raw)),
    "leases": _rows(HeldLease),
    "overrides": _rows(Override),
    "decision": lambda raw: None if raw is None else read_reply(raw),
    "waiters": _rows(WaitingTicket),
    "keys": lambda raw: tuple(map(_usage, raw)),
}


def _snapshot(raw: Any) -> Snapshot:
    told = dict(zip(names_of(Snapshot), raw[1:], strict=False))  # a guard of another version may tell more, or less
    return Snapshot(**told | {name: read(told[name]) for name, read in _SNAPSHOT_READERS.items() if name in told})


def _error(raw: Any) -> HeadgateError:
    _, name, message, facts = raw
    if name == "kind":
        return KindChanged(message, **facts)
    return ERRORS.get(name, HeadgateError)(message)


_READERS: dict[str, Callable[[Any], Any]] = {
    "e": _ended,
    "w": _wait,
    "r": _refusal,
    "p": _pulse,
    "s": _snapshot,
    "o": lambda raw: Override(*raw[1 : 1 + len(names_of(Override))]),
    "x": _error,
}


def read_reply(raw: Any) -> Any:
    """A reply of the type that `Command.apply` returns, or an error in its place."""
    return _READERS[raw[0]](raw)


def _grant(command: Any, raw: Any) -> Grant:
    at, expires, fence, worth = raw
    if command.plan.policy.waiting == "promise":
        return Grant(at, 0, fence, worth, expires)
    return Grant(at, expires, fence, worth, 0)


def read_policies(body: bytes) -> dict[str, Policy]:
    """The policies of a guard's gates by name. Raises StoreFormatError where it is no answer that tells them."""
    try:
        told = loads(body)
        if told["v"] != VERSION:
            raise ValueError(f"it is of version {told['v']}")
        return {name: Policy.from_spec(spec) for name, (_, spec) in told["policies"].items()}
    except InvalidInput as error:
        raise StoreFormatError(f"the guard has a gate that this process cannot have: {error}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise StoreFormatError(f"what answers is no guard, or one of another version of Headgate: {error!r}") from None


def decode(body: bytes, commands: Sequence[Command]) -> tuple[list[Any], dict[str, Seen], dict[str, ToldPolicy]]:
    """The replies of an answer, how far each gate has come, and the policies of gates that were asked with another.

    Raises StoreFormatError where it is none.
    """
    try:
        told = loads(body)
        rows = told["replies"]
        if told["v"] != VERSION or len(rows) != len(commands):
            raise ValueError(f"it is of version {told['v']}, with {len(rows)} replies to {len(commands)} commands")
        replies = [
            _grant(command, raw) if raw[0].__class__ is int else read_reply(raw)
            for command, raw in zip(commands, rows, strict=True)
        ]
        policies = {gate: ToldPolicy(*row[:4]) for gate, row in told.get("policies", {}).items()}
        epochs = told.get("epochs", {})
        return replies, {gate: Seen(number, epochs.get(gate, "")) for gate, number in told["seen"].items()}, policies
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise StoreFormatError(f"what answers is no guard, or one of another version of Headgate: {error!r}") from None

"""Commands as arguments of the script, and its answers as replies. `lua/main.lua` is the other end.

Everything that many commands of a batch have in common is sent once: a policy, compiled to the rows of its limits; and the
*head* of a command, which is all of it but an ask's id, holder, attempt and key, or an end's id, moment, fence and key.
Structures are
MessagePack, which Lua on a Redis server reads without loss; None is false there.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import lru_cache

from ...errors import HeadgateError, IdConflict, KindChanged, StoreFormatError
from ...kernel.commands import FORMS, Admit, Renew, Settle
from ...kernel.commands.admit import attempt_over
from ...kernel.commands.table import writer
from ...kernel.limits import KINDS
from ...kernel.model import (
    SECOND,
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
)
from .pack import CHUNK, inside, offsets, pack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any, NamedTuple

    from ...kernel.commands import Command
    from ...kernel.plan import Policy

    class Decoded(NamedTuple):
        """What a script call answered: the gate's sequence number and time, and the replies."""

        seq: int
        now: int
        #: Whether state was lost: 0, 1, or NOTICED_BEFORE.
        lost: int
        #: The gate's epoch, where it is not the one that was sent; else empty.
        epoch: str
        replies: list[Any]
else:
    from collections import namedtuple

    Decoded = namedtuple("Decoded", "seq now lost epoch replies")

#: State was lost, and another process has noticed it first.
NOTICED_BEFORE = 2

#: The format of what is stored, and of the arguments.
FORMAT = 1

#: For how long an idle gate is kept: this, and twice the longest of what its limits remember.
IDLE = 7 * 86_400 * SECOND

_KEPT = 1024


class NeedCalendar(HeadgateError):
    """The script needs the offsets of a zone that it does not have. Nothing was decided: encode again with `calendars`."""

    def __init__(self, zone: str, chunk: int) -> None:
        super().__init__(f"the script needs the offsets of {zone} from {chunk * CHUNK} s on")
        self.zone = zone
        self.chunk = chunk
        #: What `encode` is given to send it.
        self.calendars = ((zone, chunk),)


# --- what is sent ---------------------------------------------------------------------------------------------------


@lru_cache(_KEPT)
def compiled(policy: Policy) -> bytes:
    """A policy as rows: kind, member, by, unit, value, base, share, class, numbers; a class passes those up to its own."""
    rows, longest = [], 0
    for step in policy.all_steps():
        limit = step.limit
        told = (step.value, step.base, step.share, step.rank)
        rows.append((limit.kind, step.member, limit.by, limit.unit, *told, *limit.numbers()))
        longest = max(longest, limit.remembers())
    life = min(2 * longest + IDLE, 2**50)
    names = list(policy.priorities)
    return pack((policy.name, policy.waiting, policy.patience, policy.claim, policy.keys, names, life, rows))


@lru_cache(_KEPT)
def _ref(ref: Any) -> bytes:
    """A ref as it is stored and compared: a string of MessagePack inside MessagePack."""
    return inside(pack(ref))


@lru_cache(_KEPT)
def _template(ref: Any) -> bytes:
    """What a ref begins with, up to its key."""
    return inside(b"".join(map(pack, ref)))


@lru_cache(_KEPT)
def _head(letter: str, ref: Any, *told: Any) -> bytes:
    """What asks or ends have in common; `actual` is pairs here, so that it can be kept."""
    return pack((letter, _template(ref), *told))


def _key(key: Mapping[str, str]) -> bytes:
    """What a ref ends with: pairs of name and value."""
    if len(key) == 1:
        for by, value in key.items():
            raw = value.encode()
            if len(raw) < 32:
                return _by(by) + _SHORT[len(raw)] + raw
    return pack(tuple(key.items()))


@lru_cache(_KEPT)
def _by(by: str) -> bytes:
    return b"\x91\x92" + pack(by)


#: The heads of short strings.
_SHORT = [bytes((0xA0 | size,)) for size in range(32)]


#: How fields are written that do not travel as they are. `ref` and `keyed` are of its plan, where it is an ask or an end.
_FORMS = {
    "policy": "command.policy.fingerprint",
    "asked": "None if command.plan is None else _ref(command.plan.ref)",
    "everything": "None if command.plan is not None else _ref(command.policy.everything().ref)",
    "actual": "None if command.actual is None else tuple(command.actual.items())",
    "lease_rows": "[(_ref(plan.ref), *rest) for plan, *rest in command.leases]",
    "ref": "ref",
    "keyed": "keyed",
    "held": "command.holder is not None",
    "attempted": "command.attempt != ''",
}
_LETTERS = {command: form.for_script()[0] for command, form in FORMS.items()}

#: Command → what makes a tuple of its fields.
_WRITERS: dict[type[Command], Callable[..., tuple[Any, ...]]] = {
    command: writer(form.for_script()[1], _FORMS, "ref=None, keyed=False", {"_ref": _ref})
    for command, form in FORMS.items()
}
_ask, _end = _WRITERS[Admit], _WRITERS[Settle]
_ASK, _END = _LETTERS[Admit], _LETTERS[Settle]


def _policies(command: Any) -> list[Policy]:
    """The policies that a command which is sent whole names."""
    plans = [plan for plan, *_ in command.leases] if isinstance(command, Renew) else [getattr(command, "plan", None)]
    policies = [getattr(command, "policy", None), *(plan.policy for plan in plans if plan is not None)]
    return [policy for policy in policies if policy is not None]


def encode(
    gate: str,
    commands: Sequence[Command],
    *,
    seen: int = 0,
    told: str = "",
    now: int = 0,
    calendars: Iterable[tuple[str, int]] = (),
) -> list[Any]:
    """The script's arguments for commands on one gate. `now` 0 is the server's time; `calendars` are `NeedCalendar`'s.

    `seen` and `told` are what this process knows of the gate: its sequence number, and its epoch or else a session's name.
    """
    heads: dict[bytes, int] = {}
    policies: dict[str, Policy] = {}
    body: list[Any] = []
    run, count = 0, 0  # the head that the last few have in common, and where it says how many they are
    alike = True
    last: Policy | None = None
    asked: tuple[Any, ...] = ()
    head = b""
    for command in commands:
        if isinstance(command, Admit):
            plan = command.plan
            key = plan.key
            holder = command.holder
            common = _ask(command, plan.template.ref, bool(key))
            if common != asked:  # most are as the one before
                asked, head = common, _head(_ASK, *common)
            argument: Any = holder
            attempt = command.attempt
        elif isinstance(command, Settle):
            plan = command.plan
            key = plan.key
            asked = ()
            head = _head(_END, *_end(command, plan.template.ref, bool(key)))
            argument = f"{command.at}:{command.fence}" if command.fence else command.at
            attempt = ""
        else:
            sent = type(command)
            parts = (_LETTERS[sent], *_WRITERS[sent](command))
            body += (heads.setdefault(pack(parts), len(heads) + 1), 1)
            for policy in _policies(command):
                policies[policy.fingerprint] = policy
            run, alike = 0, False
            continue
        number = heads.get(head) or heads.setdefault(head, len(heads) + 1)
        if number == run:
            body[count] += 1
        else:
            run, count = number, len(body) + 1
            body += (number, 1)
        body.append(command.id)
        if argument is not None:
            body.append(argument)
        if attempt:
            body.append(attempt)
        if key:
            body.append(_key(key))
        if plan.policy is not last:
            last = plan.policy
            policies[last.fingerprint] = last
    if alike and len(heads) == 1:
        del body[:2]
    return [_frame(tuple(policies.values()), tuple(calendars), tuple(heads)), seen, told, now, *body]


@lru_cache(_KEPT)
def _frame(policies: tuple[Policy, ...], calendars: tuple[tuple[str, int], ...], heads: tuple[bytes, ...]) -> bytes:
    """What a script call begins with, and many calls have in common."""
    compiled_ = [part for policy in policies for part in (policy.fingerprint, inside(compiled(policy)))]
    zones = [part for zone, chunk in calendars for part in (f"{zone} {chunk}", inside(offsets(zone, chunk)))]
    return pack((str(FORMAT), compiled_, zones, list(map(inside, heads))))


# --- what comes back ------------------------------------------------------------------------------------------------

_ENDED = (Ended(), Ended(lost=True))


def decode(commands: Sequence[Command], raw: Any) -> Decoded:
    """Replies of the types that `Command.apply` returns; an error takes the place of a reply. Raises NeedCalendar."""
    seq = raw[0]
    if seq.__class__ is not int:
        code = _text(seq)
        if code == "N":
            raise NeedCalendar(_text(raw[1]), raw[2])
        raise StoreFormatError(
            f"the server holds gates of format {_text(raw[1])}, and this version of Headgate knows {FORMAT}; "
            f"upgrade the older of the two, or use another database of the server"
        )
    replies: list[Any] = []
    for reply in raw[3]:
        if reply.__class__ is int:
            replies.append(_ENDED[reply])
        elif reply[0].__class__ is int:
            at, expires, number, worth, count = reply  # so many in a row, which differ by their sequence numbers only
            now = 0
            if commands[len(replies)].plan.policy.waiting == "promise":  # type: ignore[attr-defined]
                expires, now = 0, expires  # there is no lease: the time of the decision stands in its place
            replies += [_new(Grant, (at, expires, fence, worth == 1, now)) for fence in range(number, number + count)]
        else:
            replies.append(_READERS[_text(reply[0])](commands[len(replies)], reply))
    return Decoded(seq, raw[1], raw[2], _text(raw[4]) if len(raw) > 4 else "", replies)


def wakes(payload: Any) -> list[tuple[str, int | None]]:
    """What was published to a process: tickets, and after how many microseconds to ask again (None: it was called)."""
    from json import loads

    return [(ticket, None if delay is None else int(delay)) for ticket, delay in loads(payload)]


def _text(raw: Any) -> str:
    return raw.decode() if raw.__class__ is bytes else raw


def _name(raw: Any) -> str | None:
    return None if raw is None else _text(raw)


def _float(raw: Any) -> float | None:
    return None if raw is None else float(raw)


def _wait(command: Any, raw: Any) -> Wait:
    return Wait(int(raw[1]), _name(raw[2]), raw[3], raw[4], raw[5], _text(raw[6]), _text(raw[7]))


def _refusal(command: Any, raw: Any) -> Refusal:
    return Refusal(_name(raw[1]), _text(raw[2]), int(raw[3]), raw[4])


def _goes_on(command: Any, raw: Any) -> Ended:
    return Ended(raw[1] == 1, at=raw[2])


def _adapted(command: Any, raw: Any) -> Ended:
    moves = tuple(Adapted(_text(limit), _name(key), float(old), float(new)) for limit, key, old, new in raw[2])
    return Ended(raw[1] == 1, moves)


def _error(command: Any, raw: Any) -> HeadgateError:
    if _text(raw[1]) == "KindChanged":
        return KindChanged(gate=command.gate, limit=_text(raw[2]), was=_text(raw[3]), now=_text(raw[4]))
    if _text(raw[1]) == "AttemptOver":
        return attempt_over(command.gate, command.id)
    return IdConflict(
        f"gate {command.gate!r}: the id {command.id!r} stands for another ask; use a new id for each ask, "
        f"and the same id only to repeat one"
    )


def _pulse(command: Any, raw: Any) -> Pulse:
    _, now, flat, called, unknown, timer, timer_at, sessions = raw
    expires = {_text(id): until for id, until in zip(flat[::2], flat[1::2], strict=True)}
    gone = tuple(id for id, until in expires.items() if not until)
    names = tuple(map(_text, called)), tuple(map(_text, unknown))
    return Pulse(now, expires, gone, *names, _text(timer), timer_at, sessions)


#: By the type of a field of `LimitUsage`: how the script's answer for it is read.
_TYPES: dict[Any, Callable[[Any], Any]] = {"str": _text, "str | None": _name, "float": float, "float | None": _float}
_USAGE = [_TYPES[one.type] for one in fields(LimitUsage)]


def _usage(raw: Any) -> LimitUsage:
    usage = LimitUsage(*[read(part) for read, part in zip(_USAGE, raw, strict=True)])
    # Slots are whole, and Lua has one type of number.
    return replace(usage, used=int(usage.used)) if KINDS[usage.kind].leased else usage


def _row(kind: Any, raw: Any) -> Any:
    """A lease or a ticket: id, holder, key, and numbers."""
    id, holder, key, *numbers = raw
    return kind(_text(id), _name(holder), {_text(by): _text(value) for by, value in key}, *numbers)


def _ticket(raw: Any) -> WaitingTicket:
    id, holder, key, since, rank, cost, state, limit, left, goes_at = raw
    costs = {_text(unit): float(amount) for unit, amount in cost}
    ticket: WaitingTicket = _row(WaitingTicket, (id, holder, key, since, rank))
    return replace(ticket, cost=costs, state=_text(state), limit=_name(limit), left=float(left), goes_at=int(goes_at))


def _held(raw: Any) -> tuple[HeldLease, ...]:
    return tuple(sorted([_row(HeldLease, one) for one in raw], key=lambda lease: (lease.granted_at, lease.id)))


#: The fields of `Snapshot` that are no numbers: how the script's answer for them is read.
_SNAPSHOT: dict[str, Callable[[Any, Any], Any]] = {
    **{one.name: lambda command, raw: _text(raw) for one in fields(Snapshot) if one.type == "str"},
    "limits": lambda command, raw: tuple(map(_usage, raw)),
    "leases": lambda command, raw: _held(raw),
    "overrides": lambda command, raw: tuple(map(_override, raw)),
    "decision": lambda command, raw: None if raw is None else _READERS[_text(raw[0])](command, raw),
    "waiters": lambda command, raw: tuple(map(_ticket, raw)),
    "keys": lambda command, raw: tuple(map(_usage, raw)),
}


def _override(raw: Any) -> Override:
    limit, key, value, reason, expires_in, tightened = raw
    return Override(_text(limit), _name(key), float(value), _text(reason), _float(expires_in), tightened == 1)


def _snapshot(command: Any, raw: Any) -> Snapshot:
    told = dict(zip(names_of(Snapshot), raw[1:], strict=True))
    return Snapshot(**told | {name: read(command, told[name]) for name, read in _SNAPSHOT.items()})


#: A grant from its parts: naming them takes longer.
_new = tuple.__new__

#: By the letter that a reply begins with, where it is no grant and no plain end.
_READERS: dict[str, Callable[[Any, Any], Any]] = {
    "W": _wait,
    "R": _refusal,
    "D": _goes_on,
    "A": _adapted,
    "E": _error,
    "P": _pulse,
    "S": _snapshot,
    "O": lambda command, raw: _override(raw[1:]),
}

"""`POST /v1/execute`: commands of other processes' `http://` stores, checked in full and decided on the guard's gates.

The encoding is in `stores/http/wire.py`. The guard's own gates are authoritative: a client's policy is compared with the
guard's; where they are the same the guard's decides, else the command is refused with the difference.
"""

from __future__ import annotations

import re
from time import monotonic
from typing import NamedTuple

from ...errors import HeadgateError, InvalidInput, StoreUnavailable, UnknownGate
from ...gate.base import widened
from ...gate.served import execute_on
from ...http.headers import JSON
from ...kernel.commands import Admit, Cancel, Configure, Pause, Release, Reset, Settle, Stand, Tighten
from ...kernel.model import NEVER, SECOND, Ended, Grant, Refusal, Wait
from ...kernel.plan import Policy
from ...stores import open_store
from ...stores.http.wire import VERSION, ToldPolicy, TooMany, answer, policies_answer
from ..schema.shapes import Field, Shape, wrong
from .read import RequestReader, is_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ...gate.served import ServedGate
    from ...kernel.commands import Command
    from ...kernel.limits import Limit
    from ...stores.base import Comparing, Seen, Store
    from ..app import Guard
    from ..caps import Caps
    from ..web import Request, Response

#: Bytes of one request: a heartbeat may carry the leases and tickets of a busy process.
LARGEST_BODY = 8 * 1024 * 1024

#: Commands in one request; the client sends 256 at most, and a heartbeat is one.
MOST_COMMANDS = 1024

#: The most tickets whose wait is timed; that of a process that died stays among them.
MOST_STANDING = 100_000

#: What `kernel/head.py` calls an epoch.
EPOCH_PATTERN = "[0-9]{1,16}[.][0-9]{1,16}[.][0-9a-z]{0,32}"
_EPOCH = re.compile(EPOCH_PATTERN)

#: The most client policies that are cached as equal to the guard's, by their fingerprint.
KNOWN = 1024


class KnownPolicy(NamedTuple):
    """What a client's policy is to this guard."""

    #: The policy that its commands are decided with.
    ours: Policy
    #: What the client is told; None for a gate that the guard's file does not name.
    told: ToldPolicy | None


class StoreServer:
    """Decides the requests of `http://` stores on the gates of one guard.

    `fallback` is the store of gates that the guard's file does not name; None: those are refused.
    """

    def __init__(
        self, gates: Mapping[str, ServedGate], fallback: Store | None = None, caps: Caps | None = None
    ) -> None:
        self.gates = gates
        self._fallback = fallback
        self.caps = caps
        self._known: dict[str, KnownPolicy] = {}
        #: Ticket → since when it stands in line (monotonic seconds), where its ask came through this guard.
        self.standing: dict[str, float] = {}

    def stores(self) -> list[Store]:
        """Every store that a command may go to, once each."""
        stores = [served.store for served in self.gates.values()]
        if self._fallback is not None:
            stores.append(self._fallback)
        return list({id(store): store for store in stores}.values())

    def store_of(self, gate: str) -> Store:
        found = self.gates.get(gate)
        if found is not None:
            return found.store
        if self._fallback is not None:
            return self._fallback
        raise self._unknown(gate)

    def _unknown(self, gate: str) -> UnknownGate:
        names = ", ".join(self.gates) or "none"
        return UnknownGate(
            f"this guard has no gate {gate!r}", remedy=f"it has {names}; others need `headgate serve --any-gate`"
        )

    async def execute(
        self,
        body: Mapping[str, Any],
        allows: Callable[[str], bool],
        on_reply: Callable[[Command, Any], None] | None = None,
    ) -> bytes:
        """The answer to a request whose body was checked by `EXECUTE`.

        `allows` says whether its token has a scope; `on_reply` is called with each command and its reply.
        """
        reader = RequestReader(self, body.get("policies"), allows)
        commands: list[Any] = []
        for row in body["commands"]:
            try:
                commands.append(reader.command(row))
            except HeadgateError as error:
                commands.append(error)
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                commands.append(InvalidInput(f"a command is not well formed: {type(error).__name__}: {error}"))
        self._note_seen(body.get("seen") or {}, body.get("epochs") or {})
        replies = await self._decide(commands)
        if on_reply is not None:
            for command, reply in zip(commands, replies, strict=True):
                if not isinstance(command, HeadgateError):
                    on_reply(command, reply)
        named = {command.gate for command in commands if not isinstance(command, Exception)}
        return answer(replies, self._seen(named), reader.told)

    async def _decide(self, commands: list[Any]) -> list[Any]:
        replies: list[Any] = list(commands)  # errors stay where they are
        by_store: dict[int, tuple[Store, list[int]]] = {}
        for at, command in enumerate(commands):
            if not isinstance(command, HeadgateError):
                store = self.store_of(command.gate)
                by_store.setdefault(id(store), (store, []))[1].append(at)
        for store, places in by_store.values():
            try:
                served = self.gates.get(commands[places[0]].gate)
                found = await execute_on(store, served, [commands[at] for at in places])
            except StoreUnavailable as error:
                found = [error] * len(places)
            for at, reply in zip(places, found, strict=True):
                replies[at] = reply
        if self.caps is not None:
            await self._cancel_beyond(commands, replies, self.caps.settings.max_waiters)
        return replies

    async def _cancel_beyond(self, commands: list[Any], replies: list[Any], most: int) -> None:
        """Cancel the tickets that came to stand behind as many as the guard takes."""
        for at, reply in enumerate(replies):
            if (
                isinstance(reply, Wait)
                and reply.position > most
                and commands[at].__class__ is Stand
                and commands[at].waits
            ):
                stand = commands[at]
                cancel = Cancel(stand.plan.policy, stand.id, stand.attempt, answered=True)
                await self.store_of(stand.gate).aexecute([cancel])
                replies[at] = TooMany(f"gate {stand.gate!r}: {most} wait already, and this guard takes no more")

    # --- how far gates have come ------------------------------------------------------------------------------------

    def _note_seen(self, seen: Mapping[str, int], epochs: Mapping[str, str]) -> None:
        """Pass on what a client has seen: a store that is behind its number, or of another epoch, has lost state."""
        for gate, number in seen.items():
            try:
                store = self.store_of(gate)
            except UnknownGate:
                continue
            if store.capabilities.compares_seen:
                comparing: Comparing = store  # type: ignore[assignment]
                comparing.saw(gate, number, epochs.get(gate, ""))

    def _seen(self, gates: set[str]) -> dict[str, Seen]:
        found = {}
        for gate in gates:
            store = self.store_of(gate)
            if store.capabilities.compares_seen:
                comparing: Comparing = store  # type: ignore[assignment]
                found[gate] = comparing.saw(gate)
        return found

    # --- policies ---------------------------------------------------------------------------------------------------

    def policy(self, fingerprint: Any, spec: Any, told: dict[str, ToldPolicy]) -> Policy:
        """The guard's own policy for one that a client names; where it is another, `told` is given it."""
        served = self.gates.get(spec[0])
        if served is not None and served.policy.fingerprint == fingerprint:
            return served.policy
        known = self._known.get(fingerprint)
        if known is None or (served is not None and known.ours is not served.policy):
            known = self._compare(served, fingerprint, spec)
        if known.told is not None:
            told[known.ours.name] = known.told
        return known.ours

    def _compare(self, served: ServedGate | None, fingerprint: Any, spec: Any) -> KnownPolicy:
        if served is None and self._fallback is None:
            raise self._unknown(str(spec[0]))
        try:
            theirs = Policy.from_spec(spec)
        except InvalidInput:
            raise
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise InvalidInput(f"a policy is not well formed: {type(error).__name__}: {error}") from None
        if theirs.fingerprint != fingerprint:
            raise InvalidInput(f"gate {theirs.name!r}: the fingerprint of its policy is another")
        if served is None:
            known = KnownPolicy(theirs, None)
        else:
            ours = served.policy
            limits = tuple(widened(theirs.limits, served.store.capabilities.clock_spread_us))
            misfits, others = differences(ours, theirs, limits, served.refreshed)
            told = ToldPolicy(ours.fingerprint, ours.spec(), (*misfits, *others), not misfits)
            known = KnownPolicy(ours, told)
        if len(self._known) >= KNOWN:
            self._known.clear()
        self._known[fingerprint] = known
        return known


def differences(
    ours: Policy, theirs: Policy, limits: tuple[Limit, ...], moving: frozenset[str]
) -> tuple[list[str], list[str]]:
    """In words, how a client's policy differs from the guard's: where asks made with it make no sense, and elsewhere.

    The values of `moving` limits may differ.
    """
    misfits: list[str] = []
    others: list[str] = []
    if ours.waiting != theirs.waiting:
        misfits.append(f"it waits by {ours.waiting} there and by {theirs.waiting} here")
    if ours.priorities != theirs.priorities or list(ours.priorities) != list(theirs.priorities):
        # An ask names its class by its place among them.
        alike = list(ours.priorities) == list(theirs.priorities)
        told = f"its priorities are {ours.priorities or 'none'} there and {theirs.priorities or 'none'} here"
        (others if alike else misfits).append(told)
    mine, other = {limit.name: limit for limit in ours.limits}, {limit.name: limit for limit in limits}
    alike = ours.units == theirs.units and ours.keys == theirs.keys and _leased(ours.limits) == _leased(limits)
    for name in mine.keys() - other.keys():
        (others if alike else misfits).append(f"it has a limit {name!r} there and not here")
    for name in other.keys() - mine.keys():
        (others if alike else misfits).append(f"it has a limit {name!r} here and not there")
    for name in [name for name in mine if name in other]:
        one, two = mine[name], other[name]
        if one.kind != two.kind:
            misfits.append(f"limit {name!r} is a {one.kind} there and a {two.kind} here")
            continue
        for field, there, here in zip(one.fields, one.spec()[1:], two.spec()[1:], strict=False):
            if there != here and not (name in moving and field in one.moving):
                told = f"limit {name!r} has {field} {one.in_words(field)} there and {two.in_words(field)} here"
                (misfits if field in ("unit", "by") else others).append(told)
        if not one.fields and one != two:
            misfits.append(f"limit {name!r} is {one.spec()[1:]} there and {two.spec()[1:]} here")
    return misfits, others


def _leased(limits: Iterable[Limit]) -> bool:
    return any(limit.leased for limit in limits)


# --- the route ------------------------------------------------------------------------------------------------------


def store_server_of(guard: Guard) -> StoreServer:
    """The guard's `StoreServer`, made when it is first needed."""
    server: StoreServer | None = guard.state.get("store server")
    if server is None:
        gates = {name: guard.served(name) for name in guard.gates}
        fallback = open_store(guard.gates.config.store) if guard.any_gate else None
        server = guard.state["store server"] = StoreServer(gates, fallback, guard.caps)
    return server


def _version(name: str, value: Any) -> None:
    if value.__class__ is not int or value != VERSION:
        raise wrong(name, f"{VERSION}, the version that this guard speaks", value)


def _rows(name: str, value: Any) -> None:
    if value.__class__ is not list:
        raise wrong(name, "an array", value)


def _commands(name: str, value: Any) -> None:
    _rows(name, value)
    if not 0 < len(value) <= MOST_COMMANDS:
        raise wrong(name, f"an array of 1 to {MOST_COMMANDS}", len(value))


def _numbers(name: str, value: Any) -> None:
    if value.__class__ is not dict or not all(is_whole(number, 0, NEVER) for number in value.values()):
        raise wrong(name, "an object of gates and whole numbers", value)


def _epochs(name: str, value: Any) -> None:
    if value.__class__ is not dict or not all(
        epoch.__class__ is str and _EPOCH.fullmatch(epoch) for epoch in value.values()
    ):
        raise wrong(name, "an object of gates and epochs, as this guard has told them", value)


EXECUTE = Shape(
    "Execute",
    "What the `http://` store of a process sends: commands in the form of `stores/http/wire.py`. For people: `/v1/batch`.",
    {
        "v": Field(_version, "The version of the form.", type="integer", const=VERSION),
        "policies": Field(_rows, "The policies that commands name by number.", type="array", items={}),
        "seen": Field(
            _numbers,
            "How far each gate had come, as the process was told.",
            type="object",
            additionalProperties={"type": "integer", "minimum": 0, "maximum": NEVER},
        ),
        "epochs": Field(
            _epochs,
            "In which epoch that was, as the process was told.",
            type="object",
            additionalProperties={"type": "string", "pattern": f"^{EPOCH_PATTERN}$"},
        ),
        "commands": Field(
            _commands,
            "The commands; each is decided or refused by itself.",
            type="array",
            # One that is not well formed has an error in its place, as any other that cannot be decided.
            items={},
            minItems=1,
            maxItems=MOST_COMMANDS,
        ),
    },
    ("v", "commands"),
)


async def execute(guard: Guard, request: Request) -> Response:
    """`POST /v1/execute`."""
    body = await request.json(LARGEST_BODY)
    EXECUTE.check(body)
    bearer = request.bearer
    allows = bearer.scopes.__contains__ if bearer is not None else lambda scope: guard.tokens is None

    def on_reply(command: Command, reply: Any) -> None:
        if isinstance(command, Configure | Pause | Reset | Tighten):
            if not isinstance(reply, HeadgateError):
                _audit(guard, request, command, reply)
        else:
            _count(guard, server.standing, command, reply)

    server = store_server_of(guard)
    return 200, JSON, await server.execute(body, allows, on_reply)


async def policies(guard: Guard, request: Request) -> Response:
    """`GET /v1/policies`."""
    served = {name: guard.served(name).policy for name in guard.gates}
    return 200, JSON, policies_answer(served)


def _count(guard: Guard, standing: dict[str, float], command: Command, reply: Any) -> None:
    """Count what became of an ask or a permit."""
    if isinstance(command, Admit):
        since = standing.pop(command.id, None) if standing else None
        if reply.__class__ is Grant:
            guard.count(command.gate, "granted", 0.0 if since is None else monotonic() - since, command)
        elif isinstance(reply, Wait) and command.waits:
            if len(standing) < MOST_STANDING:
                standing[command.id] = monotonic() if since is None else since
        elif isinstance(reply, Wait | Refusal):
            guard.count(command.gate, "refused", 0.0, command)
    elif isinstance(command, Settle | Release):
        if isinstance(reply, Ended) and not reply.lost:
            guard.count(command.gate, command.outcome or "goes on", 0.0, command)
    elif isinstance(command, Cancel) and standing.pop(command.id, None) is not None:
        guard.count(command.gate, "refused")


def _audit(guard: Guard, request: Request, command: Configure | Pause | Reset | Tighten, reply: Any) -> None:
    client = request.client or "unknown"
    record = guard.audit.record
    if isinstance(command, Configure):
        name, _, key = command.member.partition("|")
        action = "set limit" if command.value is not None else "end tightening" if command.tightened else "clear limit"
        facts: dict[str, Any] = {"limit": name, "key": key or None, "value": command.value}
        if command.reason:
            facts["reason"] = command.reason
        if command.length:
            facts["expires_in"] = command.length / SECOND
        record(action, command.gate, request.bearer, client, **facts)
    elif isinstance(command, Tighten):
        guard.audit.record_tightening(command.gate, reply, request.bearer, client)
    elif isinstance(command, Reset):
        record("reset", command.gate, request.bearer, client, limit=command.limit)
    elif not command.length:
        record("resume", command.gate, request.bearer, client)
    elif not command.reason.startswith("upstream: "):
        record("pause", command.gate, request.bearer, client, seconds=command.length / SECOND, reason=command.reason)

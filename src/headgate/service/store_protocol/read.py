"""Reads the commands of a `POST /v1/execute`: every number, name and amount is checked here.

The letters, their scopes and the order of what follows them are those of `FORMS` (`kernel/commands/table.py`): a method for
each command, whose arguments are its fields.
"""

from __future__ import annotations

import re

from ...errors import HeadgateError, InvalidInput, PolicyChanged
from ...gate.inspection import checked_search, checked_tightening
from ...http.problems import Problem
from ...kernel.commands import (
    FORMS,
    Admit,
    Cancel,
    Configure,
    Extend,
    Pause,
    Peek,
    Release,
    Renew,
    Reset,
    Settle,
    Stamp,
    Stand,
    Tighten,
)
from ...kernel.commands.table import PLAIN, REMEMBERED, WAITS
from ...kernel.limits import LARGEST, positive
from ...kernel.model import NEVER, checked_outcome, label_of
from ...stores.http.wire import NotAllowed, TooMany

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...gate.served import ServedGate
    from ...kernel.commands import Command
    from ...kernel.limits import Limit
    from ...kernel.plan import Plan, Policy
    from ...stores.http.wire import ToldPolicy
    from .execute import StoreServer

#: What ids are made of: a key's alphabet, and the commas of an id that names its keys.
_ID = re.compile(r"[A-Za-z0-9._:@/+~=,-]{1,600}")
_ATTEMPT = re.compile(r"[A-Za-z0-9._:@+~=-]{1,100}")
_SESSION = re.compile(r"[0-9a-z][0-9a-z-]{0,31}")


class RequestReader:
    """Reads one request: its policies, and its commands one after the other."""

    def __init__(self, server: StoreServer, policies: Any, allows: Callable[[str], bool]) -> None:
        self._server = server
        self._rows = policies if isinstance(policies, list) else []
        self._policies: dict[int, Policy | HeadgateError] = {}
        #: Gate → the guard's policy, where the request names another.
        self.told: dict[str, ToldPolicy] = {}
        self._allows = allows

    def command(self, row: Any) -> Command:
        """The command of a row. Raises an error where it is not well formed or its scope is missing."""
        kind = row[0]
        reader, scope = _READERS[kind]
        self._need(scope)
        return reader(self, *row[1:])

    def _need(self, scope: str) -> None:
        if not self._allows(scope):
            raise NotAllowed(f"this needs a token with the scope {scope!r}, and the token sent does not have it")

    def policy(self, number: Any) -> Policy:
        """The guard's policy for the one that the request has under a number. Raises HeadgateError."""
        _int("the number of a policy", number, 0, len(self._rows) - 1)
        found = self._policies.get(number)
        if found is None:
            try:
                fingerprint, spec, *_ = self._rows[number]
                found = self._server.policy(fingerprint, spec, self.told)
            except HeadgateError as error:
                found = error
            self._policies[number] = found
        if isinstance(found, HeadgateError):
            raise found
        return found

    def fitting(self, number: Any) -> Policy:
        """The same, for a command whose costs, class and key were made with the client's policy.

        Raises PolicyChanged with the difference where they make no sense with the guard's.
        """
        policy = self.policy(number)
        told = self.told.get(policy.name)
        if told is not None and not told.fits:
            raise PolicyChanged(
                f"gate {policy.name!r} is another in the guard: {'; '.join(told.differences)}. The guard's file decides: "
                f"make this process's the same, or leave the limits out of it"
            )
        return policy

    def ask(self, number: Any, rank: Any, costs: Any, key: Any) -> Plan:
        """The plan of an ask, checked as any ask is."""
        policy = self.fitting(number)
        if costs.__class__ is not dict or key.__class__ is not dict:
            raise InvalidInput("costs and key are objects")
        return policy.plan(costs, key or None, self._class(policy, rank))

    def held(self, number: Any, rank: Any, costs: Any, key: Any) -> Plan:
        """The plan of a held permit, whose settled cost may be 0."""
        policy = self.fitting(number)
        self._class(policy, rank)
        amounts = {unit: amount for unit, amount in costs.items() if amount != 0 or isinstance(amount, bool)}
        policy.checked_costs({**dict.fromkeys(policy.units, 1), **amounts})
        if costs.keys() != policy.units:
            raise InvalidInput(f"gate {policy.name!r}: a permit has a cost in {', '.join(sorted(policy.units))}")
        checked = policy.checked_key(key)
        return policy.plan_of((policy.fingerprint, rank, tuple(costs.items()), tuple(checked.items())))

    def _class(self, policy: Policy, rank: Any) -> str | None:
        names = list(policy.priorities)
        _int("a priority's rank", rank, 0, max(0, len(names) - 1))
        return names[rank] if names else None

    def gate(self, name: Any) -> ServedGate | None:
        """The gate of a command that names no policy; None for a gate that the guard's file does not name."""
        if not isinstance(name, str):
            raise InvalidInput(f"a gate is named by a text, not by {name!r}")
        self._server.store_of(name)
        return self._server.gates.get(name)

    # --- the commands -----------------------------------------------------------------------------------------------

    def admit(
        self, number: Any, rank: Any, costs: Any, key: Any, id: Any, holder: Any, lease: Any, bits: Any, session: Any,
        latest: Any, attempt: Any = "",
    ) -> Command:  # fmt: skip
        plan = self.ask(number, rank, costs, key)
        if plan.key and self._server.caps is not None:
            try:
                self._server.caps.check_key(plan.policy.name, plan.lane)
            except Problem as problem:
                raise TooMany(problem.detail) from None
        if plan.lease:
            _int("a lease", lease, 10_000, NEVER)
        else:
            _int("the lease of an ask without slots", lease, 0, 0)
        _int("an ask's bits", bits, 0, 7)
        holder = label_of(holder)
        if bits & PLAIN:
            return Admit(plan, _id(id, empty=not plan.lease), holder, lease)
        waits, remembered = bool(bits & WAITS), bool(bits & REMEMBERED)
        _id(id, empty=not (waits or remembered or plan.lease))
        if waits or session:
            check_session(session)
        _int("latest", latest, 0, NEVER)
        return Stand(
            plan, id, holder, lease, waits=waits, session=session, remembered=remembered, latest=latest,
            attempt=_attempt(attempt),
        )  # fmt: skip

    def settle(
        self, number: Any, rank: Any, costs: Any, key: Any, at: Any, id: Any, outcome: Any, remembered: Any,
        retry_after: Any, actual: Any, confirmed: Any, worth: Any, fence: Any = 0,
    ) -> Command:  # fmt: skip
        plan = self.held(number, rank, costs, key)
        _int("at", at, 0, NEVER)
        _int("confirmed", confirmed, 0, NEVER)
        _int("a fence", fence, 0, NEVER)
        if outcome is not None:
            checked_outcome(outcome)
        delay = _int("retry_after", retry_after, 0, NEVER)
        amounts = _actual(plan.policy, actual)
        return Settle(
            plan, at, _id(id, empty=True), outcome, bool(remembered), delay, amounts, confirmed, bool(worth), fence,
        )  # fmt: skip

    def release(self, number: Any, id: Any, outcome: Any, retry_after: Any, actual: Any, ago: Any = 0) -> Command:
        policy = self.policy(number)
        delay = _int("retry_after", retry_after, 0, NEVER)
        return Release(policy, _id(id), outcome, delay, _actual(policy, actual), _int("ago", ago, 0, NEVER))

    def cancel(self, number: Any, id: Any, attempt: Any = "", answered: Any = False) -> Command:
        return Cancel(self.policy(number), _id(id), _attempt(attempt), bool(answered))

    def extend(self, number: Any, id: Any, length: Any) -> Command:
        if length != 0:
            _int("a lease", length, 10_000, NEVER)
        return Extend(self.policy(number), _id(id), length)

    def stamp(self, number: Any, id: Any, asked: Any, at: Any, ago: Any, fence: Any) -> Command:
        policy = self.policy(number)
        plan = None if asked is None else self.held(*asked)
        if plan is not None and plan.policy is not policy:
            raise InvalidInput(f"a stamp for gate {policy.name!r} carries a plan of another policy")
        _int("at", at, 0, NEVER)
        _int("ago", ago, 0, NEVER)
        _int("a fence", fence, 0, NEVER)
        return Stamp(policy, _id(id, empty=plan is not None), plan, at, ago, fence)

    def renew(self, gate: Any, session: Any, tickets: Any, lease_rows: Any) -> Command:
        self.gate(gate)
        rows = []
        for number, rank, costs, key, id, at, length, fence, holder in lease_rows:
            plan = self.held(number, rank, costs, key)
            if plan.policy.name != gate or not plan.lease:
                raise InvalidInput(f"a heartbeat for gate {gate!r} carries a lease of another")
            _int("at", at, 0, NEVER)
            _int("a lease", length, 10_000, NEVER)
            _int("a fence", fence, 0, NEVER)
            rows.append((plan, _id(id), at, length, fence, label_of(holder)))
        if tickets:
            check_session(session)
        return Renew(gate, tuple(rows), session if tickets else "", tuple(_id(ticket) for ticket in tickets))

    def peek(
        self, number: Any, asked: Any, leases: Any, waiters: Any, keys: Any = None, top: Any = 0, search: Any = ""
    ) -> Command:
        plan, policy = None if asked is None else self.ask(*asked), self.policy(number)
        if keys is not None:
            checked_search(policy, keys, top, search)
        return Peek(policy, plan=plan, leases=bool(leases), waiters=bool(waiters), keys=keys, top=top, search=search)

    def configure(
        self, gate: Any, member: Any, value: Any, length: Any = 0, reason: Any = "", tightened: Any = False
    ) -> Command:
        self._value(gate, member, value)
        _int("for how long a value is set", length, 0, NEVER)
        return Configure(gate, str(member), value, length, label_of(reason) or "", bool(tightened) and value is None)

    def tighten(self, gate: Any, member: Any, value: Any, configured: Any, length: Any, reason: Any) -> Command:
        limit = self._value(gate, member, positive(f"gate {gate!r}: a limit", value))
        own = positive(f"gate {gate!r}: the configured limit", configured) if limit is None else limit.limit
        checked_tightening(gate, _int("for how long a limit is tightened", length, 1, NEVER))
        return Tighten(gate, str(member), value, own, length, label_of(reason) or "")

    def _value(self, gate: Any, member: Any, value: Any) -> Limit | None:
        """Check a limit, its key and its value. Returns the limit; None of a gate that the guard's file does not name."""
        found = self.gate(gate)
        name, bar, key = str(member).partition("|")
        if value is not None:
            positive(f"gate {gate!r}: the limit {name!r}", value)
        if found is None:
            return None
        limit = found.policy.limit(name)
        found.policy.member(name, {limit.by or "": key} if bar else None)
        if value is not None:
            limit.checked_value(gate, value)
        return limit

    def pause(self, gate: Any, length: Any, reason: Any) -> Command:
        self.gate(gate)
        # A worker may pass on a pause that an upstream asked for. Any other pause needs the scope configure.
        if not (length and str(reason).startswith("upstream: ")):
            self._need("configure")
        return Pause(gate, _int("a pause", length, 0, NEVER), label_of(reason) or "")

    def reset(self, gate: Any, limit: Any) -> Command:
        found = self.gate(gate)
        if limit is not None and found is not None:
            found.policy.limit(limit)
        return Reset(gate, limit)


#: Letter → what reads a command, and the scope that it needs.
_READERS: dict[str, tuple[Callable[..., Command], str]] = {
    form.letter: (getattr(RequestReader, form.name), form.scope) for form in FORMS.values()
}


def is_whole(value: Any, least: int, most: int) -> bool:
    return value.__class__ is int and least <= value <= most


def _int(what: str, value: Any, least: int, most: int) -> int:
    if not is_whole(value, least, most):
        raise InvalidInput(f"{what} is a whole number from {least} to {most}, not {value!r}")
    return int(value)


def _id(value: Any, empty: bool = False) -> str:
    if empty and value == "":
        return ""
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidInput(f"an id is of 1 to 600 letters, digits or any of . _ : @ / + ~ = , - and not {value!r}")
    return value


def _attempt(value: Any) -> str:
    if value == "":
        return ""
    if not isinstance(value, str) or not _ATTEMPT.fullmatch(value):
        raise InvalidInput(f"an attempt is of 1 to 100 letters, digits or any of . _ : @ + ~ = - and not {value!r}")
    return value


def check_session(value: Any) -> str:
    """A session names a file and a channel in some stores: nothing that means anything else there may get in."""
    if not isinstance(value, str) or not _SESSION.fullmatch(value):
        raise InvalidInput(f"a session is of 1 to 32 small letters, digits and -, not {value!r}")
    return value


def _actual(policy: Policy, value: Any) -> dict[str, float] | None:
    if value is None:
        return None
    for unit, amount in value.items():
        if unit not in policy.units:
            raise InvalidInput(f"gate {policy.name!r} limits no unit {unit!r}")
        if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 <= amount <= LARGEST:
            raise InvalidInput(f"gate {policy.name!r}: what it cost in {unit!r} is a number from 0 on, not {amount!r}")
    return dict(value)

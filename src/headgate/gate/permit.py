"""What a granted ask holds, until it ends with an outcome. `Permit` and `AsyncPermit` differ in how they wait, only.

It is a little over 500 lines because what waits is written twice, once for threads and once to be awaited.
"""

from __future__ import annotations

from collections import namedtuple
from time import sleep

from ..errors import InvalidInput, LeaseLost, StoreUnavailable
from ..events import emit
from ..kernel.commands import Pause, Renew, Settle, end
from ..kernel.model import OUTCOMES, SECOND, Ended, checked_outcome
from .keeper import keeper_of
from .stamping import ENDED, LIVE, UNTRACKED, Stamping

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any, NamedTuple, TypeVar

    from ..http.report import Report
    from ..kernel.model import Grant, OutcomeName
    from ..kernel.plan import Plan, Policy
    from ..stores.base import Store
    from .aio import AsyncGate
    from .base import BaseGate
    from .prepared import Finish
    from .sync import Gate

    AnyPermit = TypeVar("AnyPermit", bound="BasePermit")

    class Terms(NamedTuple):
        """What the store was told of an ask besides its plan."""

        remembered: bool  #: its id is on record
        lease_us: int  #: the length of its lease, 0 for none
        holder: str | None
        attempt: str = ""  #: which ask under its id it was, where that is the caller's
else:
    Terms = namedtuple("Terms", "remembered lease_us holder attempt", defaults=("",))

NOT_LEASED = Terms(False, 0, None)

_new = object.__new__


class BasePermit(Stamping):
    """One admission. Its times are the store's; what it shows is in seconds. Made by `hand_out`."""

    __slots__ = ("_expires", "_fence", "_finish", "_gate", "_terms", "_worth")

    _gate: BaseGate
    _store: Store
    _plan: Plan
    # What the grant said.
    #: When it was granted, in the store's time; on a promise gate when it may go.
    _at: int
    #: When its lease ends, in the store's time; 0 without one.
    _expires: int
    _fence: int
    #: Whether a confirmation is worth its round trip.
    _worth: bool
    _state: int
    #: Ends it with `ok` in one call where that was made ready, or says that it did not.
    _finish: Finish | None
    #: What the store was told; NOT_LEASED for most.
    _terms: Terms
    #: Identifies it in the store and in logs; `gate.release(id)` ends it from any process. Empty where it holds no lease
    #: and its caller gave it none.
    id: str

    # What most permits never change is set on the class.
    #: When it was confirmed, in the store's time.
    _confirmed = 0
    _reported: OutcomeName | None = None
    #: Seconds that the ask waited.
    waited = 0.0
    #: The lease ended before this holder let go of it: another holder may have the slot.
    lost = False

    @property
    def fence(self) -> int:
        """Grows with every grant of a gate: hand it to a resource that should refuse an older holder's writes."""
        return self._fence

    @property
    def lease_expires_at(self) -> float | None:
        """Epoch seconds (of the store's clock) at which the lease ends unless it is renewed; None without a lease."""
        return self._expires / SECOND if self._plan.lease else None

    # --- for the keeper -----------------------------------------------------------------------------------------

    @property
    def gate_name(self) -> str:
        return self._plan.policy.name

    @property
    def lease_seconds(self) -> float:
        return self._terms.lease_us / SECOND

    def lease_row(self) -> tuple[Any, ...]:
        """What `Renew` needs to know of it."""
        return (self._plan, self.id, self._at, self._terms.lease_us, self._fence, self._terms.holder)

    def lease_moved(self, expires: int) -> None:
        self._expires = expires

    def disown(self) -> None:
        """It is another process's: here it ends without telling the store."""
        self._state = UNTRACKED

    def lease_gone(self) -> None:
        if self._state == LIVE and not self.lost:
            self.lost = True
            emit("lease_lost", self.gate_name, id=self.id, holder=self._terms.holder)

    # --- what both ways of waiting share ------------------------------------------------------------------------

    def _end_in_process(self) -> Ended | None:
        """End a lease with `ok` by one call into a store in this process. None: send a `Settle`."""
        gate = self._gate
        call = gate._call
        if (
            call is None
            or self._confirmed
            or self._terms.remembered
            or not self._plan.lease
            or self._store is not gate._store
        ):
            return None
        self._state = ENDED
        gate._keeper.unwatch(self.id)
        return call(end, self._plan, self.id, self._at, self._worth)  # type: ignore[no-any-return]

    def _ending(self, outcome: str, retry_after: float | None) -> Settle | None:
        """The command that ends it, or None when the store need not know."""
        refunds = OUTCOMES[checked_outcome(outcome)].refunds
        if self._state:
            return None
        if refunds and self._confirmed:
            raise InvalidInput(f"permit {self.id!r} was confirmed: the upstream has counted it, so it was sent")
        delay = 0
        if retry_after is not None:
            delay = _delay(retry_after)
        self._state = ENDED
        plan = self._plan
        if outcome == "rate_limited":
            emit("rate_limited", self.gate_name)
        if plan.lease:
            keeper_of(self._store).unwatch(self.id)  # not always the gate's: a local share has its own
        elif not self._worth_telling(outcome, delay):
            return None
        remembered = self._terms.remembered
        return Settle(
            plan, self._at, self.id, outcome, remembered, delay, None, self._confirmed, self._worth, self._told_fence
        )

    def release_soon(self, outcome: OutcomeName = "ok", retry_after: float | None = None) -> None:
        """End it without waiting for the store, which is told in the background: from a finaliser or a callback.

        Harmless when it has ended. Use `release` where waiting is possible: it tells whether the lease had been lost.
        """
        command = self._ending(outcome, retry_after)
        if command is not None:
            keeper_of(self._store).later(command)

    def _worth_telling(self, outcome: str, delay: int) -> bool:
        meaning = OUTCOMES[outcome]
        if meaning.refunds or delay or self._terms.attempt:  # asked again, a caller's id must not get what has ended
            return True
        return meaning.answered and self._worth and not self._confirmed

    def _ended(self, reply: Any, outcome: str) -> bool:
        if reply.lost:
            self.lease_lost_at_end()
        tell_adapted(self.gate_name, reply, outcome)
        return not self.lost

    def lease_lost_at_end(self) -> None:
        if not self.lost:
            self.lost = True
            emit("lease_lost", self.gate_name, id=self.id, holder=self._terms.holder)

    def _confirmation(self) -> Settle | None:
        # A caller that confirms has reason to, also where the grant said that a release would not be worth a round trip.
        if self._state or self._confirmed or not any(step.limit.confirmable for step in self._plan.steps):
            return None
        self._finish = None
        return Settle(self._plan, self._at, self.id, None, self._terms.remembered, fence=self._told_fence)

    def _was_confirmed(self, reply: Any) -> None:
        if reply.at:
            self._confirmed = reply.at
        else:  # it will be, or perhaps was: the end must not tell it a second time
            self._worth = False

    def _settlement(self, actual: Mapping[str, float]) -> Settle | None:
        plan = self._plan
        costs = dict(plan.ref[2])
        if not hasattr(actual, "items"):
            raise InvalidInput(
                f"settle takes what it cost by unit, as in {{{next(iter(costs))!r}: 2.9}}, not {actual!r}"
            )
        for unit in actual:
            if unit not in costs:
                raise InvalidInput(f"permit {self.id!r} was charged in {', '.join(costs)}, not in {unit!r}")
        fresh = plan.policy.plan_of(
            (plan.ref[0], plan.rank, tuple(checked(plan, {**costs, **actual}).items()), plan.ref[3])
        )
        if self._state == UNTRACKED:
            return None
        if self._state == ENDED:
            raise InvalidInput(f"permit {self.id!r} has ended; settle it before its block is left")
        remembered, fence = self._terms.remembered, self._told_fence
        command = Settle(plan, self._at, self.id, None, remembered, 0, dict(actual), self._confirmed, fence=fence)
        self._plan = fresh
        self._finish = None
        return command

    def _renewal(self) -> Renew:
        if not self._plan.lease:
            raise InvalidInput(f"permit {self.id!r} has no lease to renew: gate {self.gate_name!r} limits rates only")
        return Renew(self.gate_name, (self.lease_row(),))

    def _renewed(self, pulse: Any) -> float:
        expires = pulse.expires[self.id]
        if not expires:
            keeper_of(self._store).unwatch(self.id)
            self.lease_lost_at_end()
            raise LeaseLost(f"gate {self.gate_name!r}: the lease of permit {self.id!r} had already ended")
        self.lease_moved(expires)
        return float(expires / SECOND)

    def _read(self, response: Any) -> tuple[Report, Pause | None]:
        from time import time

        from ..http.report import read

        report = read(response, time())
        pause = None
        if report != "ok":
            self._reported = report.outcome
        if report.retry_after:
            delay = _delay(report.retry_after)
            pause = Pause(self.gate_name, delay, f"upstream: {report.outcome}")
        return report, pause

    def _outcome(self, error: type[BaseException] | None) -> OutcomeName:
        if self._reported is not None:
            return self._reported
        return "ok" if error is None else "error"

    def __repr__(self) -> str:
        state = "lost" if self.lost else ("live", "ended", "untracked")[self._state]
        return f"<{type(self).__name__} {self.id or 'without id'} of gate {self.gate_name!r}, {state}>"


def tell_adapted(gate: str, ended: Ended, outcome: str) -> None:
    """Tell of the adaptive limits that moved when a permit ended."""
    for move in ended.adapted:
        emit("adapted", gate, limit=move.limit, key=move.key, old=move.old, new=move.new, outcome=outcome)


def hand_out(kind: type[AnyPermit], gate: BaseGate, plan: Plan, grant: Grant, id: str, terms: Terms) -> AnyPermit:
    """A permit for a grant. Making one through its class would cost a third of a decision more."""
    permit = _new(kind)
    permit._gate = gate
    permit._store = gate._store
    permit._plan = plan
    permit._at, permit._expires, permit._fence, permit._worth, _ = grant
    permit._state = LIVE
    permit._finish = None
    permit._terms = terms
    permit.id = id
    return permit


def checked(plan: Plan, costs: Mapping[str, float]) -> Mapping[str, float]:
    """What something really cost may also be 0."""
    positive = {unit: amount for unit, amount in costs.items() if amount != 0 or isinstance(amount, bool)}
    plan.policy.checked_costs({**dict.fromkeys(plan.policy.units, 1), **positive})
    return costs


def checked_actual(policy: Policy, cost: Any) -> dict[str, float] | None:
    """What something really cost, by unit; a number alone is requests. It may be 0, and must name units of the gate."""
    if cost is None:
        return None
    if isinstance(cost, int | float):
        cost = {"requests": cost}
    if not hasattr(cost, "items"):
        raise InvalidInput(f"cost is what it really cost by unit, as in {{'pu': 2.9}}, not {cost!r}")
    positive = {unit: amount for unit, amount in cost.items() if amount != 0 or isinstance(amount, bool)}
    policy.checked_costs({**dict.fromkeys(policy.units, 1), **dict.fromkeys(cost, 1), **positive})
    return dict(cost)


def _delay(seconds: float) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        raise InvalidInput(f"retry_after is a number of seconds, not {seconds!r}")
    return round(seconds * SECOND)


class Permit(BasePermit):
    """What `Gate.acquire` gives. Leaving its `with` block releases it; an exception there releases it with `error`."""

    __slots__ = ()
    _gate: Gate

    def sent(self) -> None:
        """Say that the call is about to be written, just before it is. Costs nothing while the grant is fresh.

        After a quarter of the slack it is one command, by which the permit counts from now on rather than from its grant;
        where others have filled a bucket meanwhile it sleeps until the call may go. Raises LeaseLost where the permit has
        ended or lost its lease, and StoreUnavailable where `on_store_error` is `closed`.
        """
        if self._is_fresh:
            return
        try:
            self._stamped(*self._gate._drive(self._stamping(), None, self._store))
        except StoreUnavailable as error:
            sleep(self._gate._unstamped(self, error))

    def release(
        self, outcome: OutcomeName = "ok", retry_after: float | None = None, *, sent_for: float | None = None
    ) -> bool:
        """End it. Harmless when it has ended. Returns False when the lease had been lost before.

        `sent_for` is how many seconds ago the call was written, where `sent()` was not said then.
        """
        if sent_for is not None and not OUTCOMES[checked_outcome(outcome)].refunds:
            self._tell_sent(sent_for)
        if outcome == "ok" and retry_after is None and not self._state:
            if (finish := self._finish) is not None and finish(self.id):
                self._state = ENDED
                return True
            if not (self._worth or self._plan.lease or self._terms.attempt):
                self._state = ENDED  # the store need not know
                return True
            if (reply := self._end_in_process()) is not None:
                return self._ended(reply, "ok") if reply.lost or reply.adapted else True
        command = self._ending(outcome, retry_after)
        return not self.lost if command is None else self._ended(self._gate._settle(self, command), outcome)

    def _tell_sent(self, sent_for: float | None) -> None:
        if (command := self._stamp_afterwards(sent_for)) is not None:
            reply = self._gate._settle(self, command)
            if reply.at:
                self._stamped(reply.at, None)

    def confirm(self) -> None:
        """The upstream has counted it: from now on it counts for `per`, no longer for `per + slack`."""
        command = self._confirmation()
        if command is not None:
            self._was_confirmed(self._gate._settle(self, command))

    def settle(self, actual: Mapping[str, float]) -> None:
        """Charge what it really cost, by unit: the difference is given back or charged."""
        command = self._settlement(actual)
        if command is not None:
            self._gate._settle(self, command)

    def renew(self) -> float:
        """Renew the lease now; returns its new expiry in epoch seconds, or raises LeaseLost."""
        return self._renewed(self._gate._run_on(self._store, self._renewal()))

    def report(self, response: Any, *, sent_for: float | None = None) -> Report:
        """Read an answer of the upstream: confirm, pause the fleet, or remember how it went.

        Returns the `Report`: the outcome as text, with `retry_after`, `permanent` and `status`. `sent_for` is how many
        seconds ago the call was written, where `sent()` was not said then.
        """
        report, pause = self._read(response)
        self._tell_sent(sent_for)
        if pause is not None:
            self._gate._settle(self, pause)
        if OUTCOMES[report].answered:
            self.confirm()
        return report

    def __enter__(self) -> Permit:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish = self._finish  # as in `release`
        if kind is None and finish is not None and self._reported is None and not self._state and finish(self.id):
            self._state = ENDED
        else:
            self.release(self._outcome(kind))


class AsyncPermit(BasePermit):
    """What `AsyncGate.acquire` gives. Like `Permit`, to be awaited."""

    __slots__ = ()
    _gate: AsyncGate

    async def sent(self) -> None:
        """Say that the call is about to be written, just before it is; see `Permit.sent`."""
        if self._is_fresh:
            return
        try:
            self._stamped(*await self._gate._drive(self._stamping(), None, self._store))
        except StoreUnavailable as error:
            if pause := self._gate._unstamped(self, error):
                from asyncio import sleep

                await sleep(pause)

    async def release(
        self, outcome: OutcomeName = "ok", retry_after: float | None = None, *, sent_for: float | None = None
    ) -> bool:
        """End it; see `Permit.release`."""
        if sent_for is not None and not OUTCOMES[checked_outcome(outcome)].refunds:
            await self._tell_sent(sent_for)
        if outcome == "ok" and retry_after is None and not self._state:
            if (finish := self._finish) is not None and finish(self.id):
                self._state = ENDED
                return True
            if not (self._worth or self._plan.lease or self._terms.attempt):
                self._state = ENDED  # the store need not know
                return True
            if (reply := self._end_in_process()) is not None:
                return self._ended(reply, "ok") if reply.lost or reply.adapted else True
        command = self._ending(outcome, retry_after)
        return not self.lost if command is None else self._ended(await self._gate._settle(self, command), outcome)

    async def _tell_sent(self, sent_for: float | None) -> None:
        if (command := self._stamp_afterwards(sent_for)) is not None:
            reply = await self._gate._settle(self, command)
            if reply.at:
                self._stamped(reply.at, None)

    async def confirm(self) -> None:
        """The upstream has counted it: from now on it counts for `per`, no longer for `per + slack`."""
        command = self._confirmation()
        if command is not None:
            self._was_confirmed(await self._gate._settle(self, command))

    async def settle(self, actual: Mapping[str, float]) -> None:
        """Charge what it really cost, by unit: the difference is given back or charged."""
        command = self._settlement(actual)
        if command is not None:
            await self._gate._settle(self, command)

    async def renew(self) -> float:
        """Renew the lease now; returns its new expiry in epoch seconds, or raises LeaseLost."""
        return self._renewed(await self._gate._run_on(self._store, self._renewal()))

    async def report(self, response: Any, *, sent_for: float | None = None) -> Report:
        """Read an answer of the upstream: confirm, pause the fleet, or remember how it went.

        Returns the `Report`: the outcome as text, with `retry_after`, `permanent` and `status`. `sent_for` is how many
        seconds ago the call was written, where `sent()` was not said then.
        """
        report, pause = self._read(response)
        await self._tell_sent(sent_for)
        if pause is not None:
            await self._gate._settle(self, pause)
        if OUTCOMES[report].answered:
            await self.confirm()
        return report

    async def __aenter__(self) -> AsyncPermit:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.release(self._outcome(kind))


class Place:
    """A promised time. `delay` is the seconds from the answer to it; `permit` is what may be used then."""

    __slots__ = ("delay", "permit")

    def __init__(self, permit: Permit, delay: float) -> None:
        self.permit = permit
        self.delay = delay

    @property
    def id(self) -> str:
        return self.permit.id

    def sent(self) -> None:
        """Say that the call is about to be written; see `Permit.sent`. Before its time it sleeps until then."""
        self.permit.sent()

    def cancel(self) -> None:
        """Give it back. Before its time, as if it had never been asked for."""
        self.permit.release("unsent")


class AsyncPlace:
    """A promised time. `delay` is the seconds from the answer to it; `permit` is what may be used then."""

    __slots__ = ("delay", "permit")

    def __init__(self, permit: AsyncPermit, delay: float) -> None:
        self.permit = permit
        self.delay = delay

    @property
    def id(self) -> str:
        return self.permit.id

    async def sent(self) -> None:
        """Say that the call is about to be written; see `Permit.sent`. Before its time it sleeps until then."""
        await self.permit.sent()

    async def cancel(self) -> None:
        """Give it back. Before its time, as if it had never been asked for."""
        await self.permit.release("unsent")

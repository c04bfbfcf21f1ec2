"""`Gate`: the driver for threads."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic, sleep

from .. import duration
from ..errors import AttemptOver, Denied, HeadgateError, IdConflict, PolicyChanged, StoreUnavailable
from ..kernel import flows
from ..kernel.commands import Pause, Peek
from ..kernel.flows import AwaitWake, Execute, Sleep, denied, granted, undoing
from ..kernel.model import SECOND, Grant, Wait
from .base import ONE, BaseGate, decide, ends
from .keeper import keeper_of
from .limited import LimitedAsk
from .outage import StillAway
from .permit import Permit, Place
from .stamping import steady

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from queue import SimpleQueue
    from typing import Any, ParamSpec, Self, TypeVar

    from ..kernel.commands import Cancel, Command
    from ..kernel.flows import Flow
    from ..kernel.model import Explanation, Holder, LimitUsage, OutcomeName, Override, Usage, Waiter
    from ..kernel.plan import Plan
    from ..stores.base import Store
    from .aio import AsyncGate
    from .base import Cost, Duration, Key
    from .permit import BasePermit

    P = ParamSpec("P")
    R = TypeVar("R")


class Gate(BaseGate):
    """A named set of limits that are always asked together, for threads. `AsyncGate` is the same for asyncio.

    `store` is a URL or a store; gates of the same name on the same store share their state. `waiting` is `"line"` or
    `"promise"`, `priorities` maps classes to shares, the highest first; `on_store_error` is `"closed"`, `"open"` or
    `"local:0.02"`; durations are `"1m"`, `"250ms"`, or seconds.
    """

    _permit = Permit

    def acquire(
        self,
        cost: Cost = 1,
        key: Key | None = None,
        priority: str | None = None,
        timeout: Duration | None = None,
        holder: str | None = None,
        lease: Duration | None = None,
        renew: bool = True,
        id: str | None = None,
    ) -> Permit:
        """Wait for a permit. Raises `Denied` when `timeout` (seconds) runs out, or when the cost can never fit.

        `cost` is a number of requests, or unit → amount; `holder` is shown to people; `lease` is the length of the slot's
        lease and `renew=False` leaves it to expire by itself; the same `id` again gets the same permit.
        """
        if (
            (quick := self._plain_ask) is not None
            and cost is ONE
            and (key is None and priority is None and timeout is None and id is None)
            and (holder is None and lease is None and renew is True)
        ):
            reply = quick()
            if reply.__class__ is Permit:
                return reply
            tried = True
        else:
            reply, tried = None, False
        plan = self._plan_for(cost, key, priority)
        wait = None if timeout is None else duration.parse(timeout, what="timeout", zero=True)
        if id is None and self._short_way and not self._outage.away:
            if reply is None:
                reply = self._ask_now(plan, holder, lease, renew, not tried)
            if reply.__class__ is Permit:
                return reply
            self._must_wait(plan, reply, wait)
        begun, left = monotonic(), wait
        while True:
            reply = self._ask_by_id(plan, id, holder, lease, renew, left)
            if reply.__class__ is Permit:
                return reply
            pause = self._outage.pause(reply, begun, wait)
            if pause is None:
                raise denied(plan, reply)
            sleep(pause)
            left = None if wait is None else max(0, wait - int((monotonic() - begun) * SECOND))

    def try_acquire(
        self,
        cost: Cost = 1,
        key: Key | None = None,
        priority: str | None = None,
        holder: str | None = None,
        lease: Duration | None = None,
        renew: bool = True,
        id: str | None = None,
    ) -> Permit | None:
        """A permit, or None when the ask would have to wait. It never waits, and never overtakes the line."""
        if (
            (quick := self._plain_ask) is not None
            and cost is ONE
            and (key is None and priority is None and id is None)
            and (holder is None and lease is None and renew is True)
        ):
            reply = quick()
            if reply.__class__ is Permit:
                return reply
            if isinstance(reply, Wait):
                return None
            tried = True
        else:
            tried = False
        plan = self._plan_for(cost, key, priority)
        if id is None and self._short_way and not self._outage.away:
            reply = self._ask_now(plan, holder, lease, renew, not tried)
            if reply.__class__ is Permit:
                return reply
            if isinstance(reply, Wait):
                return None
            granted(plan, reply)
        try:
            reply = self._ask_by_id(plan, id, holder, lease, renew, 0)
            return reply if reply.__class__ is Permit else None
        except Denied as error:
            # What does not fit the share that a process has while the store is away fits when it is back.
            if error.retry_after is None and not isinstance(error.__cause__, StoreUnavailable):
                raise
            return None

    def _ask_by_id(
        self, plan: Plan, id: str | None, holder: str | None, lease: Duration | None, renew: bool, wait: int | None
    ) -> Any:
        """Ask under an id, as an ask must that may wait or whose reply may be lost.

        Returns a permit; or a `Wait` where the ask may not wait, or has to wait for a local share while the store is away.
        On a remote store most asks can go immediately, and need no flow.
        """
        name, terms = self._identify(plan, id, holder, lease)
        if id is not None and (late := self._keeper.late_release(self.name, name)) is not None:
            with suppress(StoreUnavailable):  # which the ask itself will find
                self._outage.guard(self._store, late)
        cancel = undoing(plan, name, terms.attempt, terms.remembered)
        begun, due = monotonic(), steady()
        try:
            first: Any = None
            if self._remote_way:
                try:
                    first = self._outage.guard(self._store, self._standing(plan, name, terms, wait))
                except BaseException as error:
                    self._cancel_unanswered(error, cancel)
                    raise
                if first.__class__ is Grant:
                    return self._permit_for(plan, first, name, terms, renew, due=due if id is None else None)
                if wait == 0 and isinstance(first, Wait):
                    return first
                self._must_wait(plan, first, wait)
            grant, due = self._drive(self._waiting(plan, name, terms, wait, first), cancel)
        except AttemptOver:
            # It was admitted, and had ended before the answer came: the lease ran out, or another process released the id.
            return self._ask_by_id(plan, id, holder, lease, renew, wait)
        except StoreUnavailable as error:
            return self._without_store(plan, name, terms, error, renew)
        except PolicyChanged as error:
            return self._ask_by_id(self._planned_again(plan, error), id, holder, lease, renew, wait)
        # An id that a caller gave may have been granted long ago.
        permit: Permit = self._permit_for(plan, grant, name, terms, renew, due=due if id is None else None)
        permit.waited = monotonic() - begun
        return permit

    def reserve(
        self, cost: Cost = 1, key: Key | None = None, priority: str | None = None, id: str | None = None
    ) -> Place:
        """A time at once, on a promise gate: sleep `place.delay` seconds, then go. `place.cancel()` gives it back."""
        plan, name, terms = self._reservable(cost, key, priority, id)
        cancel = undoing(plan, name, terms.attempt, terms.remembered)
        flow = flows.reserve(plan, name, steady, terms.remembered, None, self._max_delay, terms.attempt)
        try:
            grant, delay, due = self._drive(flow, cancel)
        except AttemptOver:  # as in `_ask_by_id`
            return self.reserve(cost, key, priority, id)
        except PolicyChanged as error:
            self._planned_again(plan, error)
            return self.reserve(cost, key, priority, id)
        permit: Permit = self._permit_for(plan, grant, name, terms, False, due=due if id is None else None)
        return Place(permit, delay / SECOND)

    def _drive(self, flow: Flow, cancel: Cancel | None, store: Store | None = None) -> Any:
        """Run a flow in this thread; `cancel` is what undoes its ask, where it is one.

        `store` is for a permit that may be of the local share.
        """
        from queue import Empty

        if store is None:
            store = self._store
        guard = self._outage.guard if store is self._store else decide
        keeper = self._keeper
        mailbox: SimpleQueue[int | None] | None = None
        ticket = "" if cancel is None else cancel.id
        answer: Any = None
        sent = interrupted = False
        clean = False
        try:
            effect = next(flow)
            while True:
                try:
                    if isinstance(effect, Execute):
                        if mailbox is None and getattr(effect.command, "waits", False):
                            mailbox = self._mailbox(ticket)
                        try:
                            answer = guard(store, effect.command)
                        except (AttemptOver, IdConflict) as error:
                            answer = error  # nothing of it is there, or the id is another ask's: nothing may be undone
                        sent = True
                    elif isinstance(effect, AwaitWake):
                        if mailbox is None:  # it stood in line before
                            sent = True
                            mailbox = self._mailbox(ticket)
                        try:
                            answer = mailbox.get(timeout=None if effect.delay is None else effect.delay / SECOND)
                        except Empty:
                            answer = flows.TIMED_OUT
                    elif isinstance(effect, Sleep):
                        sleep(effect.delay / SECOND)
                        answer = None
                    else:
                        if sent:
                            self._undo(effect, background=interrupted)
                        answer = None
                except StillAway as error:
                    interrupted = True
                    effect = flow.throw(error)
                except BaseException as error:
                    sent = interrupted = True  # for all one knows
                    effect = flow.throw(error)
                else:
                    effect = flow.send(answer)
        except StopIteration as done:
            clean = True
            return done.value
        except HeadgateError:
            clean = True
            raise
        finally:
            if mailbox is not None:
                store.unlisten(ticket)
                keeper.dismiss(self.name, ticket)
                if not clean and cancel is not None:
                    # A Ctrl-C may come between any two lines, also where the flow does not see it. Twice is harmless.
                    keeper.later(cancel)
            if not clean:
                with suppress(BaseException):
                    while True:
                        flow.throw(GeneratorExit)

    def _mailbox(self, ticket: str) -> SimpleQueue[int | None]:
        """Where the waiter of a ticket is told what becomes of it."""
        from queue import SimpleQueue

        mailbox: SimpleQueue[int | None] = SimpleQueue()
        self._store.listen(ticket, mailbox.put)
        self._keeper.attend(self.name, ticket, mailbox.put)
        if self.closed:  # perhaps just now, after the reply that makes it wait
            mailbox.put(flows.CLOSED)
        return mailbox

    def _run(self, command: Command) -> Any:
        return self._outage.guard(self._store, command)

    def _run_on(self, store: Store, command: Command) -> Any:
        return store.decide(command)

    def _settle(self, permit: BasePermit, command: Command) -> Any:
        try:
            if permit._store is self._store:
                return self._run(command)
            return permit._store.decide(command)
        except PolicyChanged:
            return self._run(self._ending(permit, command))
        except StoreUnavailable as error:
            # The lease would come back by itself; telling it later is better than failing work that is done.
            return self._settled_later(permit, command, error)
        except BaseException as error:
            # Interrupted on the way: whether it arrived is unknown, and ending twice is harmless.
            if self._can.remote and not isinstance(error, HeadgateError) and ends(command):
                keeper_of(permit._store).later(command)
            raise

    def as_async(self) -> AsyncGate:
        """The same gate on the same state for asyncio. It is closed by itself, with `await gate.aclose()`."""
        from .aio import AsyncGate as Async

        return self._made_again(Async, None if self._follows else self._given_limits())

    def close(self) -> None:
        """Let go of the gate: tell the store what it was still to be told, and close its connections with the last gate.

        Waiters are denied. A permit that is still held is renewed no longer, so release it before. State stays in the
        store. A gate that is asked after it was closed connects again, and never waits in line.
        """
        self._keeper.close_gate(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # --- looking and changing ------------------------------------------------------------------------------------

    def usage(self, key: Key | None = None) -> Usage:
        """How full each limit is, and how many wait. With a key, also the limits by that key."""
        return self._usage_of(self._run(self._peek_key(key)))

    def holders(self) -> list[Holder]:
        """The live leases, the oldest first."""
        return self._holders_of(self._run(Peek(self._policy, leases=True)))

    def waiters(self) -> list[Waiter]:
        """The asks that wait in line, the oldest first, 50 at most. `usage().waiting` is how many there are."""
        return self._waiters_of(self._run(Peek(self._policy, waiters=True)))

    def why(self) -> str:
        """One sentence: what keeps asks from going, who is first in line, and when it goes; "free now" if nothing."""
        return self._why_of(self._run(self._look_for_why()))

    def keys(self, limit: str, top: int = 10, search: str = "") -> list[LimitUsage]:
        """The keys that use most of a limit that is by one, the fullest first; with `search` those that have it in them.

        At most 10,000 keys are looked at. On DynamoDB they are those that the gate's own item names: keys that hold slots
        and those of which little is stored.
        """
        return list((self._run(self._look_for_keys(limit, top, search))).keys)

    def explain(self, cost: Cost = 1, key: Key | None = None, priority: str | None = None) -> Explanation:
        """What would become of an ask, which limit blocks it and which leases hold that limit. Spends nothing."""
        return self._explanation_of(self._run(self._question(cost, key, priority)))

    def release(
        self,
        permit_id: str,
        outcome: OutcomeName = "ok",
        retry_after: float | None = None,
        cost: Cost | None = None,
        later: bool = False,
    ) -> bool:
        """End a permit by its id, from any process; `cost` is what it really cost. False when there was none to end.

        Where the store cannot be reached, `later=True` has this process tell it when it is back, and returns True.
        """
        command = self._release_of(permit_id, outcome, retry_after, cost)
        if self._in_share(command) is not None:
            return True
        try:
            return self._released(command, self._run(command))
        except StoreUnavailable as error:
            return self._released_later(command, error, later)

    def renew(self, permit_id: str, lease: Duration | None = None) -> float:
        """Renew a lease by its id, from any process; returns its new expiry in epoch seconds, or raises LeaseLost."""
        command = self._extension_of(permit_id, lease)
        return self._extended(permit_id, self._in_share(command) or self._run(command))

    def set_limit(
        self,
        name: str,
        value: float,
        key: Key | None = None,
        reason: str | None = None,
        expires_in: Duration | None = None,
    ) -> None:
        """Override a limit's value for the whole fleet, from the next decision on; with a key, for that key alone.

        It stays until it is cleared, or ends by itself after `expires_in`. Use `tighten` where it may only lower.
        """
        self._run(self._override(name, value, key, reason, expires_in))

    def tighten(
        self,
        name: str,
        value: float,
        key: Key | None = None,
        *,
        expires_in: Duration,
        reason: str | None = None,
    ) -> Override:
        """Lower a limit for the whole fleet for a time. Returns what is in force then.

        Any process may say it, as often as it likes: the lowest value that holds is in force, never more than what is
        configured or what an operator has set, and what an operator has set stays on record.
        """
        found: Override = self._run(self._tightening(name, value, key, reason, expires_in))
        return found

    def clear_limit(self, name: str, key: Key | None = None, tightened: bool = False) -> None:
        """End an override; with `tightened`, end what `tighten` has lowered instead."""
        self._run(self._own_value(name, key, tightened))

    def overrides(self) -> list[Override]:
        """The overrides in force."""
        return list(self._run(Peek(self._policy)).overrides)

    def pause(self, seconds: Duration | None, reason: str = "") -> None:
        """No new grants for so long; None: until `resume()`."""
        self._run(self._pause_for(seconds, reason))

    def resume(self) -> None:
        """End a pause."""
        self._run(Pause(self.name, 0))

    def reset(self, limit: str | None = None) -> None:
        """Forget all that counts, or what counts on one limit. Late releases of what was held change nothing."""
        self._run(self._reset_of(limit))

    def limited(
        self,
        amount: Cost | None = None,
        /,
        *,
        cost: Cost | Callable[..., Cost] = 1,
        key: Key | Callable[..., Key | None] | None = None,
        priority: str | Callable[..., str | None] | None = None,
        timeout: Duration | None = None,
        holder: str | Callable[..., str | None] | None = None,
        lease: Duration | None = None,
        renew: bool = True,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator: every call of the function takes a permit first. The function keeps its signature.

        `cost`, `key`, `priority` and `holder` are values, or functions of the arguments of the call; a cost that is a value
        may also come first. Values are checked here. Coroutine functions need an AsyncGate; generators hold no permit while
        they run, and are refused.
        """
        rest = {"timeout": timeout, "lease": lease, "renew": renew}
        ask = LimitedAsk(self, amount, cost, key, priority, holder, **rest)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            from functools import wraps

            ask.check(function, is_async=False)

            @wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                with self.acquire(**ask.of(args, kwargs)):
                    return function(*args, **kwargs)

            return call

        return decorate

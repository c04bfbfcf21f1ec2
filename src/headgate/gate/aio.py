"""`AsyncGate`: the driver for asyncio.

It is over 500 lines because every public method is here a second time, awaited; what they decide is in `base` and `flows`.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from time import monotonic

from .. import duration
from ..errors import AttemptOver, Denied, HeadgateError, PolicyChanged, StoreUnavailable
from ..kernel import flows
from ..kernel.commands import Admit, Pause, Peek
from ..kernel.flows import AwaitWake, Execute, Sleep, denied, granted, undoing
from ..kernel.model import SECOND, Grant, Wait, label_of
from ..stores.base import checked
from .base import ONE, BaseGate, ends
from .keeper import keeper_of
from .limited import LimitedAsk
from .outage import StillAway
from .permit import AsyncPermit, AsyncPlace, Terms
from .stamping import ENDED, steady

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator
    from types import TracebackType
    from typing import Any, NoReturn, ParamSpec, Self, TypeVar

    from ..kernel.commands import Cancel, Command
    from ..kernel.flows import Flow, Undo
    from ..kernel.model import Explanation, Holder, LimitUsage, OutcomeName, Override, Usage, Waiter
    from ..kernel.plan import Plan
    from ..stores.base import Store
    from .base import Cost, Duration, Key
    from .permit import BasePermit

    P = ParamSpec("P")
    R = TypeVar("R")


#: The arguments of an ask that says nothing.
NOTHING = (1, None, None, None, None, None, True, None)

_new = object.__new__


class _Acquiring:
    """`await gate.acquire()` gives the permit; `async with gate.acquire() as permit` also releases it.

    It can be sent to like a coroutine, so that `asyncio.create_task` takes it as well as `gather` and `wait_for` do.
    """

    __slots__ = ("_ask", "_awaited", "_gate", "_permit", "_running")

    _gate: AsyncGate
    #: What `AsyncGate._acquire` takes; None for an ask that says nothing.
    _ask: tuple[Any, ...] | None
    _permit: AsyncPermit
    _running: Coroutine[Any, Any, AsyncPermit]
    #: Set when it is awaited or entered; what is dropped without is a mistake that would let a call go without a permit.
    _awaited: bool

    def __del__(self) -> None:
        try:
            self._awaited  # noqa: B018  looking is all that most of them can afford
        except AttributeError:
            from warnings import warn

            told = f"acquire() of AsyncGate {self._gate.name!r} was never awaited, so no permit was taken: write "
            warn(f"{told}`async with gate.acquire()`, or `await gate.acquire()`", RuntimeWarning, stacklevel=2)

    def __enter__(self) -> NoReturn:
        self._awaited = True
        raise TypeError(f"acquire() of AsyncGate {self._gate.name!r} is awaited: use `async with`, not `with`")

    def __exit__(self, *error: object) -> None:
        """Never called, and looked up before `__enter__`."""

    def send(self, value: None) -> Any:
        self._awaited = True  # also where it is cancelled before its first step
        if not hasattr(self, "_running"):
            self._running = self.__aenter__()
        return self._running.send(value)

    def throw(self, *error: Any) -> Any:
        self._awaited = True
        if not hasattr(self, "_running"):
            self._running = self.__aenter__()
        return self._running.throw(*error)

    def close(self) -> None:
        self._awaited = True
        if hasattr(self, "_running"):
            self._running.close()

    def __await__(self) -> Generator[Any, None, AsyncPermit]:
        self._awaited = True
        return self.__aenter__().__await__()

    async def __aenter__(self) -> AsyncPermit:
        self._awaited = True
        ask, quick = self._ask, self._gate._plain_ask
        if ask is None and quick is not None:
            reply = quick()
            if reply.__class__ is AsyncPermit:
                self._permit = reply
                return reply
            self._permit = permit = await self._gate._acquire(*NOTHING, True, reply)
        else:
            self._permit = permit = await self._gate._acquire(*(ask or NOTHING))
        return permit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        permit = self._permit
        finish = permit._finish  # as in `release`
        if kind is None and finish is not None and permit._reported is None and not permit._state and finish(permit.id):
            permit._state = ENDED
        else:
            await permit.release(permit._outcome(kind))


Coroutine.register(_Acquiring)


class AsyncGate(BaseGate):
    """The same as `Gate` for asyncio: `async with gate.acquire() as permit`, or `permit = await gate.acquire()`."""

    _permit = AsyncPermit

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
    ) -> _Acquiring:
        """Wait for a permit; see `Gate.acquire`. Cancelling it leaves nothing behind."""
        acquiring = _new(_Acquiring)
        acquiring._gate = self
        acquiring._ask = None
        if not (
            cost is ONE
            and (key is None and priority is None and timeout is None and id is None)
            and (holder is None and lease is None and renew is True)
        ):
            acquiring._ask = (cost, key, priority, timeout, holder, lease, renew, id)
        return acquiring

    async def _acquire(
        self,
        cost: Cost,
        key: Key | None,
        priority: str | None,
        timeout: Duration | None,
        holder: str | None,
        lease: Duration | None,
        renew: bool,
        id: str | None,
        tried: bool = False,
        reply: Any = None,
    ) -> AsyncPermit:
        """`tried` says that the prepared ask has been made, and `reply` what it was answered: None, or a `Wait`."""
        plan = self._plan_for(cost, key, priority)
        wait = None if timeout is None else duration.parse(timeout, what="timeout", zero=True)
        if id is None and self._short_way and not self._outage.away:
            if reply is not None:
                pass
            elif self._can.instant:
                reply = self._ask_now(plan, holder, lease, renew, not tried)
            else:
                reply = await self._ask(plan, holder, lease, renew)
            if reply.__class__ is AsyncPermit:
                return reply
            self._must_wait(plan, reply, wait)
        begun, left = monotonic(), wait
        while True:
            reply = await self._ask_by_id(plan, id, holder, lease, renew, left)
            if reply.__class__ is AsyncPermit:
                return reply
            pause = self._outage.pause(reply, begun, wait)
            if pause is None:
                raise denied(plan, reply)
            from asyncio import sleep

            await sleep(pause)
            left = None if wait is None else max(0, wait - int((monotonic() - begun) * SECOND))

    async def try_acquire(
        self,
        cost: Cost = 1,
        key: Key | None = None,
        priority: str | None = None,
        holder: str | None = None,
        lease: Duration | None = None,
        renew: bool = True,
        id: str | None = None,
    ) -> AsyncPermit | None:
        """A permit, or None when the ask would have to wait. It never waits, and never overtakes the line."""
        if (
            (quick := self._plain_ask) is not None
            and cost is ONE
            and (key is None and priority is None and id is None)
            and (holder is None and lease is None and renew is True)
        ):
            reply = quick()
            if reply.__class__ is AsyncPermit:
                return reply
            if isinstance(reply, Wait):
                return None
            tried = True
        else:
            tried = False
        plan = self._plan_for(cost, key, priority)
        if id is None and self._short_way and not self._outage.away:
            if self._can.instant:
                reply = self._ask_now(plan, holder, lease, renew, not tried)
            else:
                reply = await self._ask(plan, holder, lease, renew)
            if reply.__class__ is AsyncPermit:
                return reply
            if isinstance(reply, Wait):
                return None
            granted(plan, reply)
        try:
            reply = await self._ask_by_id(plan, id, holder, lease, renew, 0)
            return reply if reply.__class__ is AsyncPermit else None
        except Denied as error:
            # What does not fit the share that a process has while the store is away fits when it is back.
            if error.retry_after is None and not isinstance(error.__cause__, StoreUnavailable):
                raise
            return None

    async def _ask_by_id(
        self, plan: Plan, id: str | None, holder: str | None, lease: Duration | None, renew: bool, wait: int | None
    ) -> Any:
        """Ask under an id, as an ask must that may wait or whose reply may be lost.

        Returns a permit; or a `Wait` where the ask may not wait, or has to wait for a local share while the store is away.
        On a remote store most asks can go immediately, and need no flow.
        """
        name, terms = self._identify(plan, id, holder, lease)
        if id is not None and (late := self._keeper.late_release(self.name, name)) is not None:
            with suppress(StoreUnavailable):  # which the ask itself will find
                await self._outage.guard_async(self._store, late)
        cancel = undoing(plan, name, terms.attempt, terms.remembered)
        begun, due = monotonic(), steady()
        try:
            first: Any = None
            if self._remote_way:
                try:
                    first = await self._outage.guard_async(self._store, self._standing(plan, name, terms, wait))
                except BaseException as error:
                    self._cancel_unanswered(error, cancel)
                    raise
                if first.__class__ is Grant:
                    return self._permit_for(plan, first, name, terms, renew, due=due if id is None else None)
                if wait == 0 and isinstance(first, Wait):
                    return first
                self._must_wait(plan, first, wait)
            grant, due = await self._drive(self._waiting(plan, name, terms, wait, first), cancel)
        except AttemptOver:
            # It was admitted, and had ended before the answer came: the lease ran out, or another process released the id.
            return await self._ask_by_id(plan, id, holder, lease, renew, wait)
        except StoreUnavailable as error:
            return self._without_store(plan, name, terms, error, renew)
        except PolicyChanged as error:
            return await self._ask_by_id(self._planned_again(plan, error), id, holder, lease, renew, wait)
        # An id that a caller gave may have been granted long ago.
        permit = self._permit_for(plan, grant, name, terms, renew, due=due if id is None else None)
        permit = await self._unless_cancelled(permit)
        permit.waited = monotonic() - begun
        return permit

    async def _unless_cancelled(self, permit: AsyncPermit) -> AsyncPermit:
        """The permit; or the cancellation that SQLite leaves for later where it had decided already, without the permit.

        A task that ends before its next `await` would drop the permit with its result, and the slot with that.
        """
        if not (self._can.instant or self._can.remote):
            import asyncio

            task = asyncio.current_task()
            if task is not None and task.cancelling():
                try:
                    await asyncio.sleep(0)
                except asyncio.CancelledError:
                    if (command := permit._ending("unsent", None)) is not None:
                        keeper_of(permit._store).later(command)
                    raise
        return permit

    async def _ask(self, plan: Plan, holder: str | None, lease: Duration | None, renew: bool) -> Any:
        """One `Admit`, without a flow, on a store whose reply has to be awaited."""
        length = plan.lease if lease is None else self._lease_for(plan, lease)
        holder = label_of(holder)
        terms = Terms(False, length, holder)
        id = self._new_id(plan) if length else ""
        due = steady()
        try:
            [reply] = await self._store.aexecute([Admit(plan, id, holder, length)])
        except StoreUnavailable as error:
            return self._while_away(plan, id or self._new_id(plan), terms, error, renew)
        if reply.__class__ is not Grant:
            return reply
        return await self._unless_cancelled(self._permit_for(plan, reply, id, terms, renew, due=due))

    async def reserve(
        self, cost: Cost = 1, key: Key | None = None, priority: str | None = None, id: str | None = None
    ) -> AsyncPlace:
        """A time at once, on a promise gate: sleep `place.delay` seconds, then go. `place.cancel()` gives it back."""
        plan, name, terms = self._reservable(cost, key, priority, id)
        cancel = undoing(plan, name, terms.attempt, terms.remembered)
        flow = flows.reserve(plan, name, steady, terms.remembered, None, self._max_delay, terms.attempt)
        try:
            grant, delay, due = await self._drive(flow, cancel)
        except AttemptOver:  # as in `_ask_by_id`
            return await self.reserve(cost, key, priority, id)
        except PolicyChanged as error:
            self._planned_again(plan, error)
            return await self.reserve(cost, key, priority, id)
        permit = self._permit_for(plan, grant, name, terms, False, due=due if id is None else None)
        permit = await self._unless_cancelled(permit)
        return AsyncPlace(permit, delay / SECOND)

    async def _drive(self, flow: Flow, cancel: Cancel | None, store: Store | None = None) -> Any:
        """Run a flow on the running event loop; `cancel` is what undoes its ask, where it is one.

        `store` is for a permit that may be of the local share.
        """
        import asyncio

        if store is None:
            store = self._store
        keeper = self._keeper
        mailbox: asyncio.Queue[int | None] | None = None
        ticket = "" if cancel is None else cancel.id
        answer: Any = None
        sent = interrupted = False
        try:
            effect = next(flow)
            while True:
                try:
                    if isinstance(effect, Execute):
                        if mailbox is None and getattr(effect.command, "waits", False):
                            assert cancel is not None
                            mailbox = self._mailbox(cancel)
                        if store is self._store:
                            answer = await self._outage.guard_async(store, effect.command)
                        else:
                            answer = store.decide(effect.command)
                        sent = True
                    elif isinstance(effect, AwaitWake):
                        if mailbox is None:  # it stood in line before
                            assert cancel is not None
                            sent = True
                            mailbox = self._mailbox(cancel)
                        try:
                            async with asyncio.timeout(None if effect.delay is None else effect.delay / SECOND):
                                answer = await mailbox.get()
                        except TimeoutError:
                            answer = flows.TIMED_OUT
                    elif isinstance(effect, Sleep):
                        await asyncio.sleep(effect.delay / SECOND)
                        answer = None
                    else:
                        if sent and self._can.remote and not (interrupted or self._outage.away):
                            await self._undo_now(effect)
                        elif sent:
                            self._undo(effect, background=True)
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
            return done.value
        finally:
            if mailbox is not None:
                store.unlisten(ticket)
                keeper.dismiss(self.name, ticket)

    async def _undo_now(self, effect: Undo) -> None:
        """Cancel the ticket and wait for the reply: nothing is wrong, so that takes one round trip."""
        try:
            await self._store.aexecute([effect.command])
        except BaseException as error:
            self._keeper.later(effect.command)
            if not isinstance(error, HeadgateError):
                raise

    def _mailbox(self, cancel: Cancel) -> asyncio.Queue[int | None]:
        """Where the waiter of a ticket is told what becomes of it."""
        import asyncio

        mailbox: asyncio.Queue[int | None] = asyncio.Queue()
        tell = _teller(asyncio.get_running_loop(), mailbox, self._gone(cancel))
        self._store.listen(cancel.id, tell)
        self._keeper.attend(self.name, cancel.id, tell)
        if self.closed:  # perhaps just now, after the reply that makes it wait
            tell(flows.CLOSED)
        return mailbox

    def _gone(self, cancel: Cancel) -> Callable[[], None]:
        """Takes a ticket out of the line whose event loop was closed under it."""

        def gone() -> None:
            self._store.unlisten(cancel.id)
            self._keeper.dismiss(self.name, cancel.id)
            self._keeper.later(cancel)

        return gone

    async def _run(self, command: Command) -> Any:
        return checked(await self._outage.guard_async(self._store, command))

    async def _run_on(self, store: Store, command: Command) -> Any:
        [reply] = await store.aexecute([command])
        return checked(reply)

    async def _settle(self, permit: BasePermit, command: Command) -> Any:
        try:
            if permit._store.capabilities.instant:
                return permit._store.decide(command)
            return await self._run(command)
        except PolicyChanged:
            return await self._run(self._ending(permit, command))
        except StoreUnavailable as error:
            return self._settled_later(permit, command, error)
        except BaseException as error:
            # Cancelled on the way: whether it arrived is unknown, and ending twice is harmless.
            if not isinstance(error, HeadgateError) and ends(command):
                keeper_of(permit._store).later(command)
            raise

    async def aclose(self) -> None:
        """Let go of the gate; see `Gate.close`. Connections of an event loop are closed in its next turns."""
        import asyncio

        await asyncio.to_thread(self._keeper.close_gate, self)
        await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    # --- looking and changing ------------------------------------------------------------------------------------

    async def usage(self, key: Key | None = None) -> Usage:
        """How full each limit is, and how many wait. With a key, also the limits by that key."""
        return self._usage_of(await self._run(self._peek_key(key)))

    async def holders(self) -> list[Holder]:
        """The live leases, the oldest first."""
        return self._holders_of(await self._run(Peek(self._policy, leases=True)))

    async def waiters(self) -> list[Waiter]:
        """The asks that wait in line, the oldest first, 50 at most. `usage().waiting` is how many there are."""
        return self._waiters_of(await self._run(Peek(self._policy, waiters=True)))

    async def why(self) -> str:
        """One sentence: what keeps asks from going, who is first in line, and when it goes; "free now" if nothing."""
        return self._why_of(await self._run(self._look_for_why()))

    async def keys(self, limit: str, top: int = 10, search: str = "") -> list[LimitUsage]:
        """The keys that use most of a limit that is by one, the fullest first; with `search` those that have it in them.

        At most 10,000 keys are looked at. On DynamoDB they are those that the gate's own item names: keys that hold slots
        and those of which little is stored.
        """
        return list((await self._run(self._look_for_keys(limit, top, search))).keys)

    async def explain(self, cost: Cost = 1, key: Key | None = None, priority: str | None = None) -> Explanation:
        """What would become of an ask, which limit blocks it and which leases hold that limit. Spends nothing."""
        return self._explanation_of(await self._run(self._question(cost, key, priority)))

    async def release(
        self,
        permit_id: str,
        outcome: OutcomeName = "ok",
        retry_after: float | None = None,
        cost: Cost | None = None,
        later: bool = False,
    ) -> bool:
        """End a permit by its id, from any process; see `Gate.release`."""
        command = self._release_of(permit_id, outcome, retry_after, cost)
        if self._in_share(command) is not None:
            return True
        try:
            return self._released(command, await self._run(command))
        except StoreUnavailable as error:
            return self._released_later(command, error, later)

    async def renew(self, permit_id: str, lease: Duration | None = None) -> float:
        """Renew a lease by its id, from any process; returns its new expiry in epoch seconds, or raises LeaseLost."""
        command = self._extension_of(permit_id, lease)
        return self._extended(permit_id, self._in_share(command) or await self._run(command))

    async def set_limit(
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
        await self._run(self._override(name, value, key, reason, expires_in))

    async def tighten(
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
        found: Override = await self._run(self._tightening(name, value, key, reason, expires_in))
        return found

    async def clear_limit(self, name: str, key: Key | None = None, tightened: bool = False) -> None:
        """End an override; with `tightened`, end what `tighten` has lowered instead."""
        await self._run(self._own_value(name, key, tightened))

    async def overrides(self) -> list[Override]:
        """The overrides in force."""
        return list((await self._run(Peek(self._policy))).overrides)

    async def pause(self, seconds: Duration | None, reason: str = "") -> None:
        """No new grants for so long; None: until `resume()`."""
        await self._run(self._pause_for(seconds, reason))

    async def resume(self) -> None:
        """End a pause."""
        await self._run(Pause(self.name, 0))

    async def reset(self, limit: str | None = None) -> None:
        """Forget all that counts, or what counts on one limit. Late releases of what was held change nothing."""
        await self._run(self._reset_of(limit))

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
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
        """A decorator: every call of the coroutine function takes a permit first; see `Gate.limited`."""
        rest = {"timeout": timeout, "lease": lease, "renew": renew}
        ask = LimitedAsk(self, amount, cost, key, priority, holder, **rest)

        def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
            from functools import wraps

            ask.check(function, is_async=True)

            @wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> R:
                async with self.acquire(**ask.of(args, kwargs)):
                    return await function(*args, **kwargs)

            return call

        return decorate


def _teller(loop: Any, mailbox: Any, gone: Callable[[], None]) -> Callable[[int | None], None]:
    """Puts into an asyncio queue from any thread; calls `gone` when the loop has ended, and its waiter with it."""

    def tell(delay: int | None) -> None:
        try:
            loop.call_soon_threadsafe(mailbox.put_nowait, delay)
        except RuntimeError:
            gone()

    return tell

"""A gate that a guard asks on behalf of its clients: every permit is on record under an id.

An answer can be lost between the guard and its client, and a client may renew or release a permit at another guard than
the one that granted it. So every ask is remembered by its id, and renewing, settling and ending take the id alone.
"""

from __future__ import annotations

from contextlib import suppress

from ..errors import Denied, LeaseLost, StoreUnavailable
from ..events import emit
from ..kernel.commands import Extend, Release, Stamp, Stand
from ..kernel.flows import denied, granted, undoing
from ..kernel.model import NEVER, OUTCOMES, SECOND, Ended, Grant, Refusal, Wait, label_of
from ..stores.base import DIGITS, checked
from .permit import Terms, tell_adapted
from .prepared import numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..kernel.commands import Cancel, Command, Peek
    from ..kernel.model import Holder, Snapshot, Usage, Waiter
    from ..kernel.plan import Policy
    from ..stores.base import AtOnce, Store
    from .aio import AsyncGate
    from .base import Cost, Key


class ServedGate:
    """One gate as a guard serves it. Durations are in seconds.

    An operation has two parts, so that commands of several requests can share a round trip: `…_command` checks the input
    and makes the command, `resolve_…` turns the store's reply into a result. `ask`, `release` and `renew` send one command
    and resolve its reply.
    """

    def __init__(self, gate: AsyncGate) -> None:
        self.gate = gate
        self.name = gate.name

    @property
    def store(self) -> Store:
        return self.gate._store

    @property
    def policy(self) -> Policy:
        """The policy in force; a source of limit values may replace it."""
        return self.gate._policy

    @property
    def refreshed(self) -> frozenset[str]:
        """The names of the limits whose values come from a source."""
        return frozenset(self.gate._sources)

    @property
    def away(self) -> bool:
        """Whether the last command could not reach the store."""
        return self.gate._outage.away

    def store_failed(self, error: StoreUnavailable) -> None:
        """Record that the store could not be reached, for a caller that sends its commands by itself."""
        self.gate._outage.began(error)

    # --- commands -----------------------------------------------------------------------------------------------------

    def ask_command(
        self,
        cost: Cost = 1,
        key: Key | None = None,
        priority: str | None = None,
        holder: str | None = None,
        lease: float | None = None,
        id: str | None = None,
        wait: float = 0.0,
        attempt: str | None = None,
    ) -> Stand:
        """The command of an ask that waits for at most `wait` seconds. Raises InvalidInput.

        `attempt` is what the client calls this ask under its id; None: every request is an ask of its own.
        """
        gate = self.gate
        plan = gate._plan_for(cost, key, priority)
        if holder is not None:
            holder = label_of(holder)
        length = plan.lease if lease is None else gate._lease_for(plan, lease)
        name, attempt = self._identify(id, attempt)
        stand = Stand(plan, name, holder, length, session=gate._store.session, remembered=True, attempt=attempt)
        stand.fresh = id is None and not gate._can.remote
        if plan.policy.waiting == "promise":
            stand.latest = min(round(wait * SECOND), NEVER if gate._max_delay is None else gate._max_delay)
        else:
            stand.waits = wait > 0
        return stand

    def ask_like(self, stand: Stand) -> Stand:
        """The same ask under another new id, for an ask whose client gave none."""
        name, _ = self._identify(None, None)
        other = Stand(stand.plan, name, stand.holder, stand.lease, session=stand.session, remembered=True)
        other.fresh, other.waits, other.latest = stand.fresh, stand.waits, stand.latest
        return other

    def reserve_command(
        self,
        cost: Cost = 1,
        key: Key | None = None,
        priority: str | None = None,
        id: str | None = None,
        attempt: str | None = None,
    ) -> Stand:
        """The command of an ask for a promised time. Raises InvalidInput on a gate that has a line."""
        gate = self.gate
        plan, _, _ = gate._reservable(cost, key, priority, id)
        latest = NEVER if gate._max_delay is None else gate._max_delay
        name, attempt = self._identify(id, attempt)
        return Stand(plan, name, remembered=True, latest=latest, attempt=attempt)

    def _identify(self, id: str | None, attempt: str | None) -> tuple[str, str]:
        """The client's id and the name of this ask under it, or a new id, which is a name already.

        New ids do not name their key, unlike a gate's own: all are on record.
        """
        if id is None:
            return f"{self.gate._store.session}-{str(next(numbers)).zfill(DIGITS)}", ""
        return id, self.gate._new_attempt() if attempt is None else attempt

    def release_command(
        self, id: str, outcome: str = "ok", retry_after: float | None = None, cost: Cost | None = None
    ) -> Release:
        """The command that ends a permit. `cost` is what it really cost."""
        return self.gate._release_of(id, outcome, retry_after, cost)

    def stamp_command(self, id: str, sent_for: float | None = None) -> Stamp:
        """The command that stamps a permit: its request is about to be written, or was `sent_for` seconds ago."""
        return Stamp(self.policy, id, ago=0 if sent_for is None else max(1, round(sent_for * SECOND)))

    def renew_command(self, id: str, lease: float | None = None) -> Extend:
        """The command that renews a lease, by the gate's own length where `lease` is None."""
        return self.gate._extension_of(id, lease)

    def peek_command(self, key: Key | None = None) -> Peek:
        """The command that looks at the gate; with a key, also at the limits by that key."""
        return self.gate._peek_key(key)

    # --- asking -------------------------------------------------------------------------------------------------------

    def decide_now(self, command: Command) -> Any:
        """The reply, or its error, where the store can decide without blocking the event loop; else None."""
        gate = self.gate
        store = gate._store
        if gate._can.instant:
            return store.decide(command)
        if gate._outage.away or not gate._can.decides_at_once:
            return None
        try:
            at_once: AtOnce = store  # type: ignore[assignment]
            return at_once.at_once(command)
        except StoreUnavailable as error:
            gate._outage.began(error)
            return error

    def resolve_ask(self, stand: Stand, reply: Any) -> Grant | Wait:
        """The grant, or the `Wait` of an ask that cannot go now. Raises Denied."""
        if reply.__class__ is Grant or reply.__class__ is Wait:
            return reply
        if isinstance(reply, StoreUnavailable):
            self.gate._cancel_unanswered(reply, self._undoing(stand))
            return self._without_store(stand, reply)
        return granted(stand.plan, reply)

    async def ask(self, stand: Stand) -> Grant | Wait:
        """The grant, or a `Wait`; then its ticket stands in line if the ask waits. Raises Denied."""
        gate = self.gate
        try:
            try:
                reply = await gate._outage.guard_async(gate._store, stand)
            except BaseException as error:
                gate._cancel_unanswered(error, self._undoing(stand))
                raise
        except StoreUnavailable as error:
            return self._without_store(stand, error)
        return reply if reply.__class__ is Wait else granted(stand.plan, reply)

    async def wait(self, stand: Stand, seconds: float, reply: Wait) -> Grant:
        """The grant of a ticket that stands in line. Raises Denied after `seconds`.

        Cancelling it takes the ticket out of the line.
        """
        gate = self.gate
        terms = Terms(True, stand.lease, stand.holder, stand.attempt)
        # In other stores the ticket may have been called before this process listens for it, so the flow asks again.
        known = reply if gate._can.instant or gate._can.remote else None
        try:
            flow = gate._waiting(stand.plan, stand.id, terms, round(seconds * SECOND), known)
            grant: Grant
            grant, _ = await gate._drive(flow, self._undoing(stand))
        except StoreUnavailable as error:
            return self._without_store(stand, error)
        return grant

    def refusal(self, stand: Stand, reply: Wait, waited: float | None = None) -> Denied:
        """The error of an ask that cannot go now; `waited` is the seconds that its ticket has stood in line."""
        return denied(stand.plan, reply, None if waited is None else round(waited * SECOND))

    def _without_store(self, stand: Stand, error: StoreUnavailable) -> Grant:
        """What `on_store_error` makes of an ask while the store is away. A fence of 0: nothing is on record."""
        plan = stand.plan
        terms = Terms(True, stand.lease, stand.holder, stand.attempt)
        reply, _, _ = self.gate._decided_here(plan, stand.id, terms, error, stand.latest)
        if isinstance(reply, Wait | Refusal):
            raise denied(plan, reply) from error
        grant: Grant = reply
        return grant

    # --- leaving the line -----------------------------------------------------------------------------------------------

    def detach(self, id: str) -> bool:
        """End the wait for a ticket in this process. The ticket stays in line, for a later request under its id."""
        return self.gate._keeper.send_away(self.name, id)

    def _undoing(self, stand: Stand) -> Cancel:
        return undoing(stand.plan, stand.id, stand.attempt, True)

    async def cancel(self, stand: Stand) -> None:
        """Undo an answered ask: its ticket leaves the line, or its grant ends as `unsent`. In the background where the
        store cannot be reached.

        The client may send the same attempt again, and is served then.
        """
        gate, command = self.gate, self._undoing(stand)
        command.answered = True
        try:
            await gate._run(command)
        except BaseException as error:
            gate._keeper.later(command)
            if not isinstance(error, StoreUnavailable):
                raise

    # --- ending and renewing --------------------------------------------------------------------------------------------

    async def release(self, command: Release) -> bool:
        """Whether there was a permit to end."""
        if (reply := self.decide_now(command)) is None:
            try:
                reply = await self.gate._run(command)
            except StoreUnavailable as error:
                reply = error
        return self.resolve_release(command, reply)

    def resolve_release(self, command: Release, reply: Any) -> bool:
        """Whether there was a permit to end; True where the store is away and the release is sent later."""
        if not isinstance(reply, StoreUnavailable):
            # A permit of the local share is not in the store, also when that is back.
            tell_adapted(self.name, checked(reply), command.outcome)
            return not reply.lost or self.gate._in_share(command) is not None
        # The lease would expire by itself; sending the release later is better than failing work that is done.
        if self.gate._in_share(command) is None:
            self.gate._keeper.later(command)
        return True

    async def give_back(self, stand: Stand) -> None:
        """End a grant as `unsent` that could not be delivered to its client."""
        if self.gate._in_share(Release(self.policy, stand.id, "unsent")) is None:
            await self.cancel(stand)

    def give_back_later(self, stand: Stand) -> None:
        """End an undelivered grant as `unsent`, in the background."""
        self.gate._keeper.later(self._undoing(stand))

    async def stamp(self, command: Stamp) -> Ended | Wait:
        """When the request may be written. Raises LeaseLost where the permit has ended."""
        try:
            reply = await self.gate._run(command)
        except StoreUnavailable as error:
            reply = error
        return self.resolve_stamp(command, reply)

    def resolve_stamp(self, command: Stamp, reply: Any) -> Ended | Wait:
        """When the request may be written. Raises LeaseLost where the permit has ended.

        While the store is away a permit of the local share is stamped there; any other goes as it is with `open`.
        """
        if isinstance(reply, StoreUnavailable) or (isinstance(reply, Ended) and reply.lost):
            if (local := self.gate._in_share(command)) is not None:
                return local  # type: ignore[no-any-return]
            if isinstance(reply, StoreUnavailable) and self.gate._on_error.mode == "open":
                emit("passed_open", self.name, error=str(reply))
                return Ended()
            checked(reply)
            raise LeaseLost(
                f"gate {self.name!r}: permit {command.id!r} had already ended, so its call must not be sent"
            )
        stamped: Ended | Wait = checked(reply)
        return stamped

    async def stamp_before(self, release: Release, sent_for: float) -> None:
        """A release tells how long ago its request was written: that comes first, and never keeps a permit from ending."""
        if not OUTCOMES[release.outcome].refunds:
            with suppress(StoreUnavailable, LeaseLost):
                await self.stamp(self.stamp_command(release.id, sent_for))

    async def renew(self, command: Extend) -> tuple[int, int]:
        """The store's time and the new expiry, in microseconds. Raises LeaseLost."""
        try:
            reply = await self.gate._run(command)
        except StoreUnavailable as error:
            reply = error
        return self.resolve_renewal(command, reply)

    def resolve_renewal(self, command: Extend, reply: Any) -> tuple[int, int]:
        """The store's time and the new expiry, in microseconds. Raises LeaseLost."""
        expires = 0 if isinstance(reply, StoreUnavailable) else checked(reply).expires[command.id]
        if not expires:
            if (pulse := self.gate._in_share(command)) is not None:
                return pulse.now, pulse.expires[command.id]
            checked(reply)
            raise LeaseLost(f"gate {self.name!r}: the lease of permit {command.id!r} had already ended")
        return reply.now, expires

    # --- what a look shows ----------------------------------------------------------------------------------------------

    def usage_of(self, snapshot: Snapshot) -> Usage:
        return self.gate._usage_of(snapshot)

    def why_of(self, snapshot: Snapshot) -> str:
        return self.gate._why_of(snapshot)

    def holders_of(self, snapshot: Snapshot) -> list[Holder]:
        return self.gate._holders_of(snapshot)

    def waiters_of(self, snapshot: Snapshot) -> list[Waiter]:
        return self.gate._waiters_of(snapshot)


async def decide_all(asked: Sequence[tuple[ServedGate, Command]]) -> list[Any]:
    """Decide commands on many gates, one round trip per store. An error takes the place of a reply."""
    if len({id(served.gate._store) for served in {served for served, _ in asked}}) == 1:
        return await _decide(asked)
    replies: list[Any] = [None] * len(asked)
    by_store: dict[int, list[int]] = {}
    for place, (served, _) in enumerate(asked):
        by_store.setdefault(id(served.gate._store), []).append(place)
    for places in by_store.values():
        for place, reply in zip(places, await _decide([asked[place] for place in places]), strict=True):
            replies[place] = reply
    return replies


async def _decide(asked: Sequence[tuple[ServedGate, Command]]) -> list[Any]:
    """Decide commands on gates of one store; what could not be sent is decided as each gate's `on_store_error` says."""
    served = asked[0][0]
    try:
        return await execute_on(served.store, served, [command for _, command in asked])
    except StoreUnavailable as error:
        return [_without_store(*one, error) for one in asked]


async def execute_on(store: Store, served: ServedGate | None, commands: Sequence[Command]) -> list[Any]:
    """Decide commands in one round trip to their store. Raises StoreUnavailable.

    `served` is one of the gates on that store, whose outage stands for all of them: while it is away, one batch in half a
    second tries the store and the others fail immediately. None: always try.
    """
    if served is None:
        return await store.aexecute(commands)
    outage = served.gate._outage
    outage.check()
    try:
        replies = store.execute(commands) if store.capabilities.instant else await store.aexecute(commands)
    except StoreUnavailable as error:
        outage.failed(error)
        raise
    outage.ended()
    return replies


def _without_store(served: ServedGate, command: Command, error: StoreUnavailable) -> Any:
    """What takes the place of a reply that the store could not give."""
    if isinstance(command, Stand):
        try:
            return served._without_store(command, error)
        except Exception as refused:
            return refused
    if isinstance(command, Release | Extend | Stamp) and (reply := served.gate._in_share(command)) is not None:
        return reply
    if isinstance(command, Release):
        served.gate._keeper.later(command)
    return error

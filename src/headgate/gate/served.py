"""A gate that is asked on behalf of others, by a guard: what any of them holds is on record under an id.

An answer can be lost on its way out of the process, and whoever holds a permit may come back to another process than the
one that gave it. So every ask is remembered by its id, and renewing, settling and ending take the id alone.
"""

from __future__ import annotations

from ..errors import Denied, LeaseLost, StoreUnavailable
from ..kernel.commands import Extend, Release, Stand
from ..kernel.flows import denied, granted
from ..kernel.model import NEVER, SECOND, Refusal, Wait
from ..stores.base import DIGITS, checked
from .base import checked_holder
from .permit import UNTRACKED
from .prepared import numbers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..kernel.commands import Command, Granted
    from ..kernel.plan import Policy
    from ..stores.base import AtOnce, Store
    from .aio import AsyncGate
    from .base import Cost, Key


class Desk:
    """Where others ask one gate. Durations are in seconds."""

    def __init__(self, gate: AsyncGate) -> None:
        self.gate = gate
        self.name = gate.name

    @property
    def store(self) -> Store:
        return self.gate._store

    @property
    def policy(self) -> Policy:
        """What the gate asks for now; a source of values may change it."""
        return self.gate._policy

    @property
    def away(self) -> bool:
        """Whether the store could not be reached a moment ago."""
        return self.gate._outage.away

    # --- commands -----------------------------------------------------------------------------------------------------

    def asking(
        self,
        cost: Cost = 1,
        key: Key | None = None,
        priority: str | None = None,
        holder: str | None = None,
        lease: float | None = None,
        id: str | None = None,
        wait: float = 0.0,
    ) -> Stand:
        """The command of an ask that waits for at most so many seconds. Raises InvalidInput where it makes no sense."""
        gate = self.gate
        plan = gate._plan_for(cost, key, priority)
        if holder is not None:
            checked_holder(holder)
        length = plan.lease if lease is None else gate._lease_for(plan, lease)
        stand = Stand(plan, self._called(id), holder, length, session=gate._store.session, remembered=True)
        stand.fresh = id is None and not gate._can.remote
        if plan.policy.waiting == "promise":
            stand.latest = min(round(wait * SECOND), NEVER if gate._max_delay is None else gate._max_delay)
        else:
            stand.waits = wait > 0
        return stand

    def alike(self, stand: Stand) -> Stand:
        """The same ask as one that had no id, by somebody else."""
        other = Stand(stand.plan, self._called(None), stand.holder, stand.lease, session=stand.session, remembered=True)
        other.fresh, other.waits, other.latest = stand.fresh, stand.waits, stand.latest
        return other

    def reserving(
        self, cost: Cost = 1, key: Key | None = None, priority: str | None = None, id: str | None = None
    ) -> Stand:
        """The command of an ask for a promised time. Raises InvalidInput on a gate that has a line."""
        gate = self.gate
        plan, _ = gate._reservable(cost, key, priority, id)
        latest = NEVER if gate._max_delay is None else gate._max_delay
        return Stand(plan, self._called(id), remembered=True, latest=latest)

    def _called(self, id: str | None) -> str:
        """Ids made here do not tell their key, as a gate's own do: all are on record."""
        if id is None:
            return f"{self.gate._store.session}-{str(next(numbers)).zfill(DIGITS)}"
        self.gate._keeper.withdraw(id)
        return id

    def ending(
        self, id: str, outcome: str = "ok", retry_after: float | None = None, cost: Cost | None = None
    ) -> Release:
        """The command that ends a permit. `cost` is what it really cost."""
        return self.gate._release_of(id, outcome, retry_after, cost)

    def renewing(self, id: str, lease: float | None = None) -> Extend:
        """The command that renews a lease; its length is the gate's own where none is given."""
        return self.gate._extension_of(id, lease)

    # --- deciding -----------------------------------------------------------------------------------------------------

    def now(self, command: Command) -> Any:
        """The reply of a store that need not be waited for, or its error; None where it has to be waited for."""
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

    def answered(self, stand: Stand, reply: Any) -> Granted | Wait:
        """What the reply to an ask comes to, whether the store was there or not. Raises Denied."""
        if reply.__class__ is tuple or reply.__class__ is Wait:
            return reply
        if isinstance(reply, StoreUnavailable):
            self.gate._cancel_unanswered(reply, stand.id)
            return self._without_store(stand, reply)
        return granted(stand.plan, reply)

    async def ask(self, stand: Stand) -> Granted | Wait:
        """The grant, or how long it would take: then a ticket stands in line, if the ask waits. Raises Denied."""
        gate = self.gate
        try:
            try:
                reply = await gate._outage.guard_async(gate._store, stand)
            except BaseException as error:
                gate._cancel_unanswered(error, stand.id)
                raise
        except StoreUnavailable as error:
            return self._without_store(stand, error)
        return reply if reply.__class__ is Wait else granted(stand.plan, reply)

    async def wait(self, stand: Stand, seconds: float, reply: Wait) -> Granted:
        """The grant of one who stands in line. Raises Denied when the time is over. Cancelling it leaves nothing behind."""
        gate = self.gate
        told = (True, stand.lease, stand.holder)
        # Where another task may have decided meanwhile, a call may have been missed: such a one asks again.
        known = reply if gate._can.instant or gate._can.remote else None
        try:
            grant: Granted = await gate._drive(
                gate._waiting(stand.plan, stand.id, told, round(seconds * SECOND), known)
            )
        except StoreUnavailable as error:
            return self._without_store(stand, error)
        return grant

    def refusal(self, stand: Stand, reply: Wait, waited: float | None = None) -> Denied:
        """What is raised for one who cannot go now; `waited` is the seconds since the reply of one who stood in line."""
        return denied(stand.plan, reply, None if waited is None else round(waited * SECOND))

    def _without_store(self, stand: Stand, error: StoreUnavailable) -> Granted:
        """What the gate was told to do while its store is away; a fence of 0 says that nothing is on record."""
        plan = stand.plan
        permit = self.gate._while_away(plan, stand.id, (True, stand.lease, stand.holder), error, renew=False)
        if isinstance(permit, Wait | Refusal):
            raise denied(plan, permit) from error
        grant: Granted = permit._grant
        return (0, 0, 0, False) if permit._state == UNTRACKED else grant

    async def end(self, command: Release) -> bool:
        """Whether there was something to end."""
        if (reply := self.now(command)) is None:
            try:
                reply = await self.gate._run(command)
            except StoreUnavailable as error:
                reply = error
        return self.ended(command, reply)

    def ended(self, command: Release, reply: Any) -> bool:
        """What the reply to a release comes to."""
        if not isinstance(reply, StoreUnavailable):
            return not checked(reply).lost
        # It would come back by itself; telling it later is better than failing work that is done.
        gate = self.gate
        if (mine := gate._outage._local) is not None:
            store, policy = mine
            ended = store.decide(Release(policy, command.id, command.outcome, command.retry_after, command.actual))
            if not ended.lost:
                return True
        gate._keeper.later(command)
        return True

    async def renew(self, command: Extend) -> tuple[int, int]:
        """The store's time and the new expiry, in microseconds. Raises LeaseLost."""
        return self.renewed(command, await self.gate._run(command))

    def renewed(self, command: Extend, pulse: Any) -> tuple[int, int]:
        checked(pulse)
        expires = pulse.expires[command.id]
        if not expires:
            raise LeaseLost(f"gate {self.name!r}: the lease of permit {command.id!r} had already ended")
        return pulse.now, expires

    def leave(self, id: str) -> bool:
        """Send away the one who waits here under an id; the ticket stays, for whoever comes again with that id."""
        return self.gate._keeper.send_away(self.name, id)

    async def undo(self, id: str) -> None:
        """A grant that never reached anybody is given back."""
        await self.end(Release(self.policy, id, "unsent"))


async def decide_all(asked: Sequence[tuple[Desk, Command]]) -> list[Any]:
    """Decide commands on many gates, one round trip per store. An error takes the place of a reply."""
    if len({id(desk.gate._store) for desk in {desk for desk, _ in asked}}) == 1:
        return await _decide(asked)
    replies: list[Any] = [None] * len(asked)
    by_store: dict[int, list[int]] = {}
    for place, (desk, _) in enumerate(asked):
        by_store.setdefault(id(desk.gate._store), []).append(place)
    for places in by_store.values():
        for place, reply in zip(places, await _decide([asked[place] for place in places]), strict=True):
            replies[place] = reply
    return replies


async def _decide(asked: Sequence[tuple[Desk, Command]]) -> list[Any]:
    """The same for one store."""
    desk = asked[0][0]
    store = desk.gate._store
    commands = [command for _, command in asked]
    try:
        # The first gate of a store finds out for all whether it is there.
        desk.gate._outage.check()
        found = store.execute(commands) if store.capabilities.instant else await store.aexecute(commands)
        desk.gate._outage.ended()
    except StoreUnavailable as error:
        if error.outage and not error.decided:
            desk.gate._outage.began(error)
        found = [_alone(*one, error) for one in asked]
    return found


def _alone(desk: Desk, command: Command, error: StoreUnavailable) -> Any:
    if isinstance(command, Stand):
        try:
            return desk._without_store(command, error)
        except Exception as refused:
            return refused
    if isinstance(command, Release):
        desk.gate._keeper.later(command)
    return error

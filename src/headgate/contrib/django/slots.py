"""Slots: taken before the work, released exactly once, by the block that took them or by whoever completes the run."""

from __future__ import annotations

import logging
import sys

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, transaction

from headgate import AsyncPermit, HeadgateError
from headgate.http.keys import key_value

from . import conf
from .signals import slot_released
from .tenants import Tenants
from .tenants import tenants as from_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

    from headgate import Permit
    from headgate.kernel.model import OutcomeName

log = logging.getLogger("headgate.django")

#: Held by its block; waiting for the commit of what hands it over; held by a run elsewhere; released or never taken.
HELD, HANDING_OVER, HANDED_OVER, ENDED = range(4)


class Slot:
    """One admission. Leaving its block releases it, unless it was handed over to a run that another process finishes."""

    def __init__(
        self, owner: Tenants, organization: object, permit: Permit | AsyncPermit | None, id: str | None
    ) -> None:
        self.tenants = owner
        self.organization = organization
        #: The execution id under which `complete` and `keep` know it; None for a slot of one request.
        self.id = id
        self._permit = permit
        #: Refused, and let pass in shadow mode: there is nothing to release.
        self.shadowed = permit is None
        self._state = ENDED if permit is None else HELD

    @property
    def held(self) -> bool:
        """Whether leaving the block would release it."""
        return self._state == HELD

    def hand_over(self, dispatch: Callable[[], Any] | None = None, using: str = DEFAULT_DB_ALIAS) -> None:
        """From the commit on the slot is that of a run elsewhere, which ends with `complete(id)`.

        `dispatch` is called after the commit (at once outside a transaction) and sends the run on its way. If it fails,
        or if the transaction is rolled back, the slot is released. The slot needs an `id`, so that others can release it.
        """
        if self.id is None:
            raise ValueError("a slot that is handed over needs an id for the other process: slot(organization, id=…)")
        if self._state not in (HELD, ENDED):
            raise RuntimeError(f"slot {self.id} has been handed over already")
        if self._state == HELD:
            self._state = HANDING_OVER
        transaction.on_commit(_HandOver(self, dispatch), using=using)

    def release(self, outcome: OutcomeName = "ok") -> None:
        """Release it now, if it is this block's to release. Twice is harmless."""
        if self._state == HELD:
            if self.id is None and isinstance(self._permit, AsyncPermit):
                raise TypeError("this slot was taken in async code: release it with `await slot.arelease()`")
            self._state = ENDED
            self._end(outcome)

    async def arelease(self, outcome: OutcomeName = "ok") -> None:
        """`release` for asyncio. A slot that sync code took is released beside the event loop."""
        if self._state != HELD:
            return
        self._state = ENDED
        permit = self._permit
        if isinstance(permit, AsyncPermit):
            ended = await permit.release(outcome)
            slot_released.send_robust(sender=Slot, execution_id=self.id, ended=ended)
        else:
            await sync_to_async(self._end, thread_sensitive=False)(outcome)

    def _end(self, outcome: OutcomeName) -> None:
        permit: Any = self._permit
        if self.id is None:
            ended = permit.release(outcome)
            slot_released.send_robust(sender=Slot, execution_id=None, ended=ended)
        else:
            release(self.id, outcome, tenants=self.tenants)

    # --- for _HandOver -------------------------------------------------------------------------------------------

    def committed(self) -> None:
        if self._state == HANDING_OVER:
            self._state = HANDED_OVER

    def given_up(self) -> None:
        if self._state == HANDING_OVER:
            self._state = ENDED
            self._end("error")


class _HandOver:
    """Called by Django after the commit. Django tells nobody of a rollback, but drops what it would have called.

    So this object, which nothing else may refer to, releases the slot where it goes without having been called.
    """

    def __init__(self, slot: Slot, dispatch: Callable[[], Any] | None) -> None:
        self._slot: Slot | None = slot
        self._dispatch = dispatch

    def __call__(self) -> None:
        slot, self._slot = self._slot, None
        if slot is None:
            return
        try:
            if self._dispatch is not None:
                self._dispatch()
        except BaseException:
            slot.given_up()
            raise
        slot.committed()

    def __del__(self) -> None:
        slot = self._slot
        if slot is None or sys.is_finalizing():
            return
        try:
            slot.given_up()
        except Exception:
            log.exception("slot %s: its transaction was rolled back, and it could not be released", slot.id)


class SlotRequest:
    """`with slot(…)` and `async with slot(…)`: asks on entering, releases on leaving."""

    def __init__(
        self, owner: Tenants | None, organization: object, id: str | None, holder: str | None, lease: Any
    ) -> None:
        self._owner, self._organization, self._id, self._holder = owner, organization, id, holder
        self._permit_id = None if id is None else key_value(id)
        self._lease = lease
        self._slot: Slot | None = None

    def _terms(self, owner: Tenants) -> dict[str, Any]:
        if not owner.holds_slots:
            return {"id": self._permit_id, "lease": None, "renew": False, "holder": self._holder}
        own = conf.REQUEST_LEASE if self._id is None else owner.lease
        # Under an id another process may finish it, so nobody here renews it.
        renew = self._id is None
        return {"id": self._permit_id, "lease": self._lease or own, "renew": renew, "holder": self._holder}

    def take(self) -> Slot:
        """Ask now. Raises LimitReached; the caller releases what it gets."""
        owner = self._owner or from_settings()
        permit = owner.ask(self._organization, **self._terms(owner))
        self._slot = Slot(owner, self._organization, permit, self._id)
        return self._slot

    async def atake(self) -> Slot:
        """`take` for asyncio."""
        owner = self._owner or from_settings()
        permit = await owner.aask(self._organization, **self._terms(owner))
        self._slot = Slot(owner, self._organization, permit, self._id)
        return self._slot

    def __enter__(self) -> Slot:
        return self.take()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._slot is not None:
            self._slot.release("ok" if kind is None else "error")

    async def __aenter__(self) -> Slot:
        return await self.atake()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._slot is not None:
            await self._slot.arelease("ok" if kind is None else "error")


def slot(
    organization: object,
    id: object = None,
    *,
    holder: str | None = None,
    lease: str | float | None = None,
    tenants: Tenants | None = None,
) -> SlotRequest:
    """A slot for the time of a block, sync or async: `with slot(organization) as held`. Raises LimitReached at once.

    Without an `id` the slot is this process's: its lease of 30 s is renewed while the block runs. With one (an execution
    id) its lease is the setting's, 10 minutes, for work that another process finishes: see `Slot.hand_over`. `holder` is
    shown to people.
    """
    return SlotRequest(tenants, organization, None if id is None else str(id), holder, lease)


def release(execution_id: object, outcome: OutcomeName = "ok", *, tenants: Tenants | None = None) -> bool:
    """Release a run's slot now, from any process; False where there was none. `complete` does it after commit.

    A store that cannot be reached is told when it is back, by this process; where that has gone, the lease runs out.
    """
    id = str(execution_id)
    ended = (tenants or from_settings()).gate.release(key_value(id), outcome, later=True)
    slot_released.send_robust(sender=Slot, execution_id=id, ended=ended)
    return ended


def complete(
    execution_id: object, outcome: OutcomeName = "ok", *, using: str = DEFAULT_DB_ALIAS, tenants: Tenants | None = None
) -> None:
    """A run has ended: release its slot after commit, or at once outside a transaction. A rollback keeps the slot."""

    def end() -> None:
        try:
            release(execution_id, outcome, tenants=tenants)
        except HeadgateError:
            # The run is over and its result is committed: that must not fail for this. The lease gives the slot back.
            log.exception("run %s has ended, and its slot could not be released", execution_id)

    transaction.on_commit(end, using=using)


async def acomplete(execution_id: object, outcome: OutcomeName = "ok", *, tenants: Tenants | None = None) -> bool:
    """Release a run's slot from async code, at once: Django's transactions are not async, so there is none to wait for."""
    id = str(execution_id)
    ended = await (tenants or from_settings()).async_gate.release(key_value(id), outcome, later=True)
    slot_released.send_robust(sender=Slot, execution_id=id, ended=ended)
    return ended

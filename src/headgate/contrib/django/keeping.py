"""`keep`: a worker that holds a run renews its slot, so that a long run keeps it and a dead worker gives it back."""

from __future__ import annotations

import logging
import os
import threading
from time import monotonic

from headgate import HeadgateError, LeaseLost
from headgate.duration import parse
from headgate.http.keys import key_value

from . import conf
from .signals import slot_lost
from .tenants import tenants as from_settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

    from .tenants import Tenants

log = logging.getLogger("headgate.django")

#: Seconds after which a renewal is tried again that the store did not answer.
RETRY = 1.0


class Kept:
    """A run whose slot this process renews, as a context manager, sync or async. `lost`: its lease had ended before."""

    def __init__(self, execution_id: str, lease: str | float | None, owner: Tenants | None) -> None:
        self.id = execution_id
        self.lost = False
        self._owner = owner or from_settings()
        self.lease = parse(lease or self._owner.conf.lease, what="lease") / 1_000_000
        #: Nothing is kept for longer than this: a worker that hangs must not hold its slot for ever.
        self.until = monotonic() + conf.number(conf.TTL_HOURS) * 3600
        self.due = 0.0

    def renew(self) -> None:
        """Renew it now, for one lease from now on. Called on entering, and then by the thread that keeps it."""
        now = monotonic()
        if now >= self.until:
            log.error("run %s has been kept for %s hours: no longer", self.id, conf.number(conf.TTL_HOURS))
            self.due = float("inf")
            return
        try:
            self._owner.gate.renew(key_value(self.id), self.lease)
            self.due = now + self.lease / 3
        except LeaseLost:
            self.lost, self.due = True, float("inf")
            log.warning("run %s goes on without a slot: its lease had ended, or it was released by hand", self.id)
            slot_lost.send_robust(sender=Kept, execution_id=self.id)
        except HeadgateError:
            self.due = now + min(RETRY, self.lease / 6)

    def __enter__(self) -> Kept:
        self.renew()
        _renewals().add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _renewals().remove(self)

    async def __aenter__(self) -> Kept:
        from asyncio import to_thread

        await to_thread(self.renew)
        _renewals().add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _renewals().remove(self)


class _Renewals:
    """One thread for all that a process keeps. It ends when there is nothing left, and a fork begins with another."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._kept: set[Kept] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, kept: Kept) -> None:
        with self._changed:
            self._kept.add(kept)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="headgate-keep", daemon=True)
                self._thread.start()
            self._changed.notify()

    def remove(self, kept: Kept) -> None:
        with self._changed:
            self._kept.discard(kept)
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._kept:
                    self._thread = None
                    return
                now = monotonic()
                due = [kept for kept in self._kept if kept.due <= now]
                if not due:
                    soonest = min(kept.due for kept in self._kept)
                    self._changed.wait(None if soonest == float("inf") else max(0.0, soonest - now))
                    continue
            for kept in due:
                kept.renew()


_lock = threading.Lock()
_here: _Renewals | None = None


def _renewals() -> _Renewals:
    global _here
    with _lock:
        if _here is None or _here.process != os.getpid():
            _here = _Renewals()
        return _here


def keep(execution_id: object, *, lease: str | float | None = None, tenants: Tenants | None = None) -> Kept:
    """Renew a run's slot while the block runs: `with keep(execution_id): …`, in the worker. It does not release it.

    The first renewal is made on entering, further ones come every third of `lease` (default: the setting's, 10 minutes).
    If the worker dies, the slot is back after one lease. A slot that was lost is not taken again: `kept.lost` (true from
    the beginning where the run has waited in its queue for longer than its lease) and the signal `slot_lost` tell of it.
    """
    return Kept(str(execution_id), lease, tenants)

"""When a permit's call is written: whether its grant is still fresh, and the sent stamp where it is not."""

from __future__ import annotations

from time import monotonic_ns

from ..errors import InvalidInput, LeaseLost
from ..kernel import flows
from ..kernel.commands import Stamp
from ..kernel.model import NEVER, SECOND

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..kernel.flows import Flow
    from ..kernel.plan import Plan
    from ..stores.base import InProcess, Store
    from .permit import Terms

LIVE, ENDED, UNTRACKED = 0, 1, 2


def steady() -> int:
    """A steady clock of this process, in microseconds: for time-outs, never for decisions."""
    return monotonic_ns() // 1000


class Stamping:
    """The part of a permit that knows when it was charged, and tells the store when its call is written."""

    __slots__ = ("__dict__", "__weakref__", "_at", "_plan", "_state", "_store", "id")

    id: str
    lost: bool
    _store: Store
    _plan: Plan
    _at: int
    _fence: int
    _terms: Terms
    _state: int
    _confirmed: int
    #: When it is charged by `steady`, or somewhat before. None: nobody here knows, and the store has to say.
    _due: int | None = None

    @property
    def _is_fresh(self) -> bool:
        """Whether its call can be written without a word to the store. Raises where it must not be written at all."""
        if self._state == ENDED:
            raise InvalidInput(
                f"permit {self.id!r} has ended; say sent() before the call is written and the permit ends"
            )
        if self.lost:
            raise LeaseLost(f"permit {self.id!r} has lost its lease, so its call must not be sent")
        fresh = self._plan.template.fresh
        if self._state == UNTRACKED or self._confirmed or fresh == NEVER:
            return True
        if self._due is None and self._store.capabilities.in_process:
            here: InProcess = self._store  # type: ignore[assignment]
            return 0 <= here.now() - self._at <= fresh
        return self._due is not None and 0 <= steady() - self._due <= fresh

    @property
    def _told_fence(self) -> int:
        """What tells it from a later permit under the same id; an id that was made for it has no other."""
        return self._fence if self._terms.attempt else 0

    def _stamping(self) -> Flow:
        return flows.sent(self._plan, self.id, self._at, steady, self._told_fence)

    def _stamped(self, at: int, due: int | None) -> None:
        if not self._plan.lease:
            self._at = at  # that of a lease is when it was granted; its row knows of the stamp
        self._due = due

    def _stamp_afterwards(self, sent_for: float | None) -> Stamp | None:
        """The command that tells how long ago the call was written, or None where that changes nothing."""
        if sent_for is None:
            return None
        if isinstance(sent_for, bool) or not isinstance(sent_for, int | float) or not 0 <= sent_for < 1e9:
            raise InvalidInput(f"sent_for is how many seconds ago the call was written, not {sent_for!r}")
        if self._state or self._confirmed or self._plan.template.fresh == NEVER:
            return None
        ago = max(1, round(sent_for * SECOND))
        if self._due is not None and steady() - ago - self._due <= self._plan.template.fresh:
            return None
        return Stamp(self._plan.policy, self.id, self._plan, self._at, ago, self._told_fence)

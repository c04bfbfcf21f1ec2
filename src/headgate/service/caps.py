"""Limits of one guard: waiters, wait time and distinct keys. Requests beyond them are refused immediately."""

from __future__ import annotations

from time import monotonic

from ..http.problems import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..config.serve import Serve

#: Seconds for which a key counts after its last ask, at least; at most twice as many.
KEYS_FOR = 600.0


class Caps:
    """What counts towards the limits of one guard at this moment."""

    __slots__ = ("_keys", "_older", "_turn_at", "settings", "waiters")

    def __init__(self, settings: Serve) -> None:
        self.settings = settings
        #: Requests that wait for their turn.
        self.waiters = 0
        # Two generations of keys, so that dropping old ones takes no scan: a key counts for ten to twenty minutes.
        self._keys: set[tuple[str, str]] = set()
        self._older: set[tuple[str, str]] = set()
        self._turn_at = monotonic() + KEYS_FOR

    def full(self) -> Problem | None:
        """The refusal of a further waiter, or None where one more may wait."""
        if self.waiters < self.settings.max_waiters:
            return None
        return Problem(
            429,
            "too-many-waiters",
            f"{self.waiters} wait at this guard already, and it takes no more; come again, or ask with wait 0",
            retry_after=1.0,
        )

    def check_wait(self, seconds: float) -> None:
        """Raises Problem for a wait that is too long."""
        if seconds > self.settings.max_wait:
            raise Problem(
                422,
                "invalid-input",
                f"wait is at most {self.settings.max_wait:g} seconds here; ask again with the same id to wait for longer",
            )

    def check_key(self, gate: str, lane: str) -> None:
        """Count a key. Raises Problem where it is new and there are too many."""
        if (gate, lane) in self._keys:
            return
        if (now := monotonic()) >= self._turn_at:
            self._older, self._keys, self._turn_at = self._keys, set(), now + KEYS_FOR
        if (gate, lane) not in self._older and len(self._keys) + len(self._older) >= self.settings.max_keys:
            raise Problem(
                429,
                "too-many-keys",
                f"more than {self.settings.max_keys} different keys were asked for in the last minutes; "
                f"is something in the key that is different each time?",
                retry_after=max(1.0, self._turn_at - now),
            )
        self._older.discard((gate, lane))
        self._keys.add((gate, lane))

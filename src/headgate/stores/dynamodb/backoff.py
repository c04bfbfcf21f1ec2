"""How long a batch is retried: while other processes write, while the table is throttled, while it does not answer."""

from __future__ import annotations

import time
from random import SystemRandom

from ...errors import StoreUnavailable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...aws import Throttled
    from .table import DynamoTable

#: Not the random module's own generator: the program may seed that, and it is the same in every child of a fork.
CHANCE = SystemRandom()

#: Seconds for which a batch is retried while other processes write, and while the table is throttled.
CONTENDED_FOR, THROTTLED_FOR = 5.0, 2.0


class Contended(StoreUnavailable):
    """Other processes wrote all the time; nothing was charged. The store is there, so this is no outage."""

    outage = False

    def __init__(self, *args: object) -> None:
        super().__init__(*args, decided=False)


class Backoff:
    """The retries of one batch. Each method sleeps before the next attempt, or raises when the time for it is over."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table
        self._began = time.monotonic()
        self._conflicts = 0
        self._throttles = 0
        self._failures = 0

    def after_conflict(self, sure: bool) -> float:
        """Another process wrote first. Returns the seconds slept. `sure`: no earlier attempt can have been written."""
        self._conflicts += 1
        if time.monotonic() - self._began > CONTENDED_FOR:
            told = (
                f"{self._table.place} is contended: others wrote {self._conflicts} times in {CONTENDED_FOR:g} s, and "
                f"it was not this process's turn"
            )
            raise Contended(f"{told}; nothing was charged") if sure else StoreUnavailable(f"{told}; an answer was lost")
        pause = 0.0 if self._conflicts == 1 else CHANCE.uniform(0, min(0.1, 0.004 * 2**self._conflicts))
        time.sleep(pause)
        return pause

    def after_throttling(self, error: Throttled) -> None:
        self._throttles += 1
        if time.monotonic() - self._began > THROTTLED_FOR:
            raise StoreUnavailable(
                f"{error}; raise its capacity, or bill it by request (PAY_PER_REQUEST); nothing was charged"
            ) from error
        time.sleep(CHANCE.uniform(0.5, 1) * min(0.4, 0.025 * 2**self._throttles))

    def after_silence(self, error: Exception) -> None:
        """No connection, or no answer that tells."""
        now = time.monotonic()
        self._failures += 1
        if self._failures > 2 or now - self._began > self._table.timeout / 2:
            if isinstance(error, StoreUnavailable):
                raise error
            raise StoreUnavailable(f"{self._table.place} does not answer: {error}") from error
        time.sleep(CHANCE.uniform(0.01, 0.03))

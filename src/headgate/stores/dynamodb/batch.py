"""What a writer works on: the commands of its callers, a gate as it was read, what a batch came to, and how long to try."""

from __future__ import annotations

import threading
import time
from random import SystemRandom

from ...errors import Denied, HeadgateError, StoreFormatError, StoreUnavailable
from ...kernel.commands import Admit, Renew
from ...kernel.limits import prune
from ...kernel.model import SECOND, Refusal, Wait
from ...kernel.records import busy
from .heartbeat import beats_of
from .records import read_item
from .table import RECENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...kernel.commands import Command
    from .records import DynamoRecords
    from .table import Item, Table, Throttled

#: Not the module's own numbers: those are the program's to seed, and the same in every child of a fork.
CHANCE = SystemRandom()

#: Seconds for which a batch is tried again while others write, and while the table is throttled.
CONTENDED_FOR, THROTTLED_FOR = 5.0, 2.0

#: How many leases a limit has at most: an item is bounded.
MOST_LEASES = 2000

#: Seconds for which the end of a permit is tried in all while others write: work that is done should not fail by it.
STUBBORN_FOR = 30.0


class Contended(StoreUnavailable):
    """Others wrote all the time; nothing was charged."""

    #: For gates: the store is there, so this is no outage.
    unknown = True


class Job:
    """The commands of one caller, and what became of them."""

    __slots__ = ("_left", "_tell", "asks", "done")

    def __init__(self, commands: Sequence[Command], tell: Callable[[], None] | None = None) -> None:
        self.asks = [Ask(command, self) for command in commands]
        self._left = len(self.asks)
        self._tell = tell
        self.done = threading.Event()

    def settled(self) -> None:
        """One more of its commands has its reply."""
        self._left -= 1
        if not self._left:
            self.done.set()
            if self._tell is not None:
                self._tell()


class Ask:
    """One command, and its reply."""

    __slots__ = ("command", "error", "job", "raised", "reply", "since")

    def __init__(self, command: Command, job: Job) -> None:
        self.command = command
        self.job = job
        self.reply: Any = None
        #: The reply is an error that was raised, and not handed back.
        self.raised = False
        #: The store failed it.
        self.error: BaseException | None = None
        self.since = time.monotonic()

    @property
    def open(self) -> bool:
        """Nobody has answered it yet."""
        return self.reply is None and self.error is None

    def fail(self, error: BaseException) -> None:
        # One error each: they are raised in different threads.
        own = type(error)(*error.args) if isinstance(error, StoreUnavailable | StoreFormatError) else error
        own.__cause__ = error.__cause__ if own is not error else own.__cause__
        self.error = own
        self.job.settled()


class Kept:
    """A gate as it was read or left: the bytes, so that it can be had again, and the records made of them."""

    __slots__ = ("beats", "name", "recent", "records", "state", "token", "values")

    def __init__(self, name: str, item: Item | None) -> None:
        self.name = name
        self.token: str | None = None
        self.state: bytes | None = None
        self.recent: dict[str, int] = {}
        #: Processes that were heard of since the state was written.
        self.beats: dict[str, int] = {}
        if item is not None:
            self.token, self.state = read_item(item, name)
            self.beats = beats_of(item)
            for entry in str(item.get(RECENT, {}).get("S", "")).split():
                session, _, number = entry.partition("=")
                self.recent[session] = int(number)
        #: value → (sequence number, state) of those that were read; None where there is no item.
        self.values: dict[str, tuple[int, Any] | None] = {}
        self.records: DynamoRecords | None = None


class Outcome:
    """What a batch has come to, until it is written."""

    __slots__ = ("asks", "others", "records", "refused", "replies", "state", "ttl")

    def __init__(self, records: DynamoRecords, asks: list[Ask]) -> None:
        self.records = records
        self.asks = asks
        #: Each with whether it is an error that was raised.
        self.replies: list[tuple[Any, bool]] = []
        self.state = b""
        self.ttl: int | None = None
        self.others: dict[str, tuple[bytes, int]] = {}
        #: Nothing has changed for anybody, so there is nothing to write.
        self.refused = False

    def all_refused(self, heed: Any) -> bool:
        """Whether nobody got anything, nobody waits, and what there is to heed is as it was: it may stay as it is."""
        _, _, _, tickets, lost = busy(self.records)
        return (
            not tickets
            and not lost
            and self.records.head[2] == heed
            and all(
                isinstance(ask.command, Admit)
                and not ask.command.waits
                and isinstance(reply, Wait | Refusal | HeadgateError)
                for ask, (reply, _) in zip(self.asks, self.replies, strict=True)
            )
        )


class Waits:
    """How a batch waits before it is tried again, and when it gives up."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._began = time.monotonic()
        self._conflicts = 0
        self._throttles = 0
        self._failures = 0

    def conflict(self, sure: bool) -> float:
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

    def throttled(self, error: Throttled) -> None:
        self._throttles += 1
        if time.monotonic() - self._began > THROTTLED_FOR:
            raise StoreUnavailable(
                f"{error}; raise its capacity, or bill it by request (PAY_PER_REQUEST); nothing was charged"
            ) from error
        time.sleep(CHANCE.uniform(0.5, 1) * min(0.4, 0.025 * 2**self._throttles))

    def unreachable(self, error: Exception) -> None:
        now = time.monotonic()
        self._failures += 1
        if self._failures > 2 or now - self._began > self._table.timeout / 2:
            if isinstance(error, StoreUnavailable):
                raise error
            raise StoreUnavailable(f"{self._table.place} does not answer: {error}") from error
        time.sleep(CHANCE.uniform(0.01, 0.03))


def values_of(command: Command) -> set[str]:
    """The values of keys that a command names: they are read before it runs."""
    plans = [row[0] for row in command.leases] if isinstance(command, Renew) else [getattr(command, "plan", None)]
    return {step[1].partition("|")[2] for plan in plans if plan is not None for step in plan.steps if step[7]}


def no_slot_left(command: Admit, now: int, records: DynamoRecords) -> Denied | None:
    """An item is bounded, so the leases in it are: an ask for one more is denied before it is charged for anything."""
    if not command.lease:
        return None
    for step in command.plan.current(records) if busy(records)[2] else command.plan.steps:
        if not step[0].leased or len(leases := records.leases[step[1]]) < MOST_LEASES:
            continue
        prune(leases, now)
        if MOST_LEASES <= len(leases) < step[3] and leases.get(command.id) is None:
            return Denied(
                f"no room for one more lease: on DynamoDB a limit has at most {MOST_LEASES:,}, since an item is bounded",
                gate=records.gate,
                limit=step[4],
                retry_after=max(0, leases.first()[0] - now) / SECOND,
            )
    return None

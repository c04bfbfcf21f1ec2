"""What a gate's writer works on: commands that wait for a reply, the gate as it was read, and what a batch came to."""

from __future__ import annotations

import threading
import time

from ...errors import Denied, HeadgateError, StoreFormatError, StoreUnavailable
from ...kernel.commands import Admit, Renew
from ...kernel.limits import prune
from ...kernel.model import SECOND, Refusal, Wait
from .heartbeat import heartbeats_of
from .records import read_item
from .table import RECENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...kernel.commands import Command
    from .records import DynamoRecords
    from .table import Item

#: How many leases a limit has at most: an item is bounded.
MOST_LEASES = 2000


class Submission:
    """The commands of one caller on one gate. `done` is set, and `tell` called, when all of them have a reply.

    `places` are those of its commands among all that the caller handed in.
    """

    __slots__ = ("_left", "_tell", "done", "gate", "pending", "places")

    def __init__(
        self,
        gate: str,
        commands: Sequence[Command],
        places: Sequence[int] = (0,),
        tell: Callable[[], None] | None = None,
    ) -> None:
        self.gate = gate
        self.places = places
        self.pending = [PendingCommand(command, self) for command in commands]
        self._left = len(self.pending)
        self._tell = tell
        self.done = threading.Event()

    def answered(self) -> None:
        """One more of its commands has its reply."""
        self._left -= 1
        if not self._left:
            self.done.set()
            if self._tell is not None:
                self._tell()


class PendingCommand:
    """One command, and its reply once there is one."""

    __slots__ = ("command", "error", "reply", "since", "submission")

    def __init__(self, command: Command, submission: Submission) -> None:
        self.command = command
        self.submission = submission
        self.reply: Any = None
        #: The store failed it.
        self.error: BaseException | None = None
        self.since = time.monotonic()

    @property
    def open(self) -> bool:
        """It has neither a reply nor an error yet."""
        return self.reply is None and self.error is None

    def answer(self, reply: Any) -> None:
        self.reply = reply
        self.submission.answered()

    def fail(self, error: BaseException) -> None:
        # One error each: they are raised in different threads.
        own = type(error)(*error.args) if isinstance(error, StoreUnavailable | StoreFormatError) else error
        own.__cause__ = error.__cause__ if own is not error else own.__cause__
        self.error = own
        self.submission.answered()


class GateSnapshot:
    """A gate as it was read or written: the bytes, from which it can be built again, and the records built from them."""

    __slots__ = ("heartbeats", "name", "recent", "records", "state", "token", "values")

    def __init__(self, name: str, item: Item | None) -> None:
        self.name = name
        self.token: str | None = None
        self.state: bytes | None = None
        #: session → the number of its last write, of the sessions that wrote most recently.
        self.recent: dict[str, int] = {}
        #: session → until when it lives, of heartbeats since the state was written.
        self.heartbeats: dict[str, int] = {}
        if item is not None:
            self.token, self.state = read_item(item, name)
            self.heartbeats = heartbeats_of(item)
            for entry in str(item.get(RECENT, {}).get("S", "")).split():
                session, _, number = entry.partition("=")
                self.recent[session] = int(number)
        #: value → (sequence number, state) of the values that were read; None where there is no item.
        self.values: dict[str, tuple[int, Any] | None] = {}
        self.records: DynamoRecords | None = None


class BatchResult:
    """What a batch has come to, until it is written."""

    __slots__ = ("batch", "others", "records", "refused", "replies", "state", "ttl")

    def __init__(self, records: DynamoRecords, batch: list[PendingCommand]) -> None:
        self.records = records
        self.batch = batch
        #: In the order of the batch; an error takes the place of a reply.
        self.replies: list[Any] = []
        #: The gate's own item, and when it may go (epoch seconds; None: never).
        self.state = b""
        self.ttl: int | None = None
        #: value → its item's state and when that may go.
        self.others: dict[str, tuple[bytes, int]] = {}
        #: Every command was refused and nothing has changed, so there is nothing to write.
        self.refused = False

    def all_refused(self, heeded: Any) -> bool:
        """Whether all commands were refused, no ticket waits, and what there is to heed is as it was before: `heeded`."""
        head = self.records.head
        return (
            not head.tickets
            and not head.lost
            and head.heeded() == heeded
            and all(
                isinstance(pending.command, Admit)
                and not pending.command.waits
                and isinstance(reply, Wait | Refusal | HeadgateError)
                for pending, reply in zip(self.batch, self.replies, strict=True)
            )
        )


def values_of(command: Command) -> set[str]:
    """The values of keys that a command names: they are read before it runs."""
    plans = [plan for plan, *_ in command.leases] if isinstance(command, Renew) else [getattr(command, "plan", None)]
    return {step.member.partition("|")[2] for plan in plans if plan is not None for step in plan.steps if step.by}


def no_slot_left(command: Admit, now: int, records: DynamoRecords) -> Denied | None:
    """An item is bounded, so the leases in it are: an ask for one more is denied before it is charged for anything."""
    if not command.lease:
        return None
    for step in command.plan.current(records) if records.head.overrides else command.plan.steps:
        if not step.limit.leased or len(leases := records.leases[step.member]) < MOST_LEASES:
            continue
        prune(leases, now)
        if MOST_LEASES <= len(leases) < step.value and leases.get(command.id) is None:
            return Denied(
                f"no room for one more lease: on DynamoDB a limit has at most {MOST_LEASES:,}, since an item is bounded",
                gate=records.gate,
                limit=step.base,
                retry_after=max(0, leases.first()[0] - now) / SECOND,
            )
    return None

"""The port of a queue: what a stage needs of one, and what each kind of queue promises.

A queue holds messages in lanes. A worker *leases* messages for a while; a lease ends when it is settled (the message is
finished, goes back or is buried), or when its time runs out, which the queue counts as a death. Whoever has an older lease
of a message can change nothing any more.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ..message import MessageHistory
from ..outcomes import Bury, Finish, Return

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ..message import DeadLetter, Delivery, NewMessage, QueueStats
    from ..outcomes import Verdict


@dataclass(frozen=True, slots=True)
class Semantics:
    """What a queue promises. Workers and tests go by it."""

    #: Messages survive the end of the process.
    durable: bool
    #: Of one lane, the oldest message is leased first, also after it went back. Otherwise only about so.
    ordered: bool
    #: A message whose id is there, dead, or was done lately is not put a second time.
    deduplicates: bool
    #: `lease` can be asked for one lane, and `lanes` lists them.
    lanes: bool
    #: `wait` is woken by a put. Otherwise it is a long poll that leases what it finds.
    wakes: bool
    #: Bytes of a body at most.
    largest_body: int


class PutResult(NamedTuple):
    """The id of a message that was put, and whether it is new: False where the queue had it before."""

    id: str
    is_new: bool


class HandOff(NamedTuple):
    """Messages for another queue of the same home, put in the same operation that finishes their message."""

    queue: str
    messages: tuple[NewMessage, ...]


class Ending(NamedTuple):
    """How a delivery ends. A hand-off goes with `Finish` alone."""

    delivery: Delivery
    verdict: Verdict
    hand_off: HandOff | None = None


class WaitHandle:
    """One wait for messages, which another thread can end, also before it has begun."""

    def __init__(self) -> None:
        #: Set when it is time to look: by the queue, or by an interrupt.
        self.woken = threading.Event()
        self.interrupted = False

    def interrupt(self) -> None:
        self.interrupted = True
        self.woken.set()


class Arrival(NamedTuple):
    """What a wait has found: whether something is ready, and what a long poll has leased already."""

    is_ready: bool
    deliveries: tuple[Delivery, ...] = ()


class DeadFilter(NamedTuple):
    """Which dead letters are meant. Empty: all."""

    reason: str | None = None
    #: Buried so many seconds ago, or longer.
    older_for: float | None = None
    #: Found in the id, the body or the error.
    text: str | None = None
    ids: tuple[str, ...] = ()


class Queue(Protocol):
    """One named queue. All methods may be called by several threads; each is one atomic operation, or says otherwise.

    Errors: `StoreUnavailable` where the queue cannot be reached, `BadMessage` for what it cannot keep.
    """

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def semantics(self) -> Semantics: ...
    @property
    def home(self) -> object:
        """Queues of equal home hand over in one operation."""

    def now(self) -> int:
        """The queue's time in microseconds."""

    def put(self, messages: Sequence[NewMessage]) -> list[PutResult]: ...

    def lease(self, most: int, for_us: int, lane: str | None = None) -> list[Delivery]:
        """At most so many messages that are ready, the oldest first; none while the queue is paused."""

    def lanes(self, most: int) -> list[str]:
        """At most so many lanes that have a message ready, by turns, so that each is listed sooner or later."""

    def extend(self, deliveries: Sequence[Delivery], for_us: int) -> list[bool]:
        """Lease for so long from now. False for a lease that has ended."""

    def record(self, delivery: Delivery, outputs: tuple[str, ...]) -> bool:
        """Note what its handler returned: the next delivery has it as `recorded`. False where the lease has ended."""

    def settle(self, endings: Sequence[Ending]) -> list[bool]:
        """End deliveries. False for a lease that had ended before: nothing of it was done."""

    def wait(self, handle: WaitHandle, timeout_s: float, for_us: int, beyond: Collection[str] = ()) -> Arrival:
        """Block until a message of another lane than `beyond` is ready, it is interrupted, or the time is over.

        A queue without `wakes` also returns what its long poll leased, for `for_us`.
        """

    def stats(self) -> QueueStats: ...
    def peek(self, most: int) -> list[tuple[str, str, str, MessageHistory]]:
        """The first messages as (id, state, body, history), without leasing them."""

    def pause(self, reason: str) -> None:
        """Lease nothing until `resume`. Puts are taken."""

    def resume(self) -> None: ...
    def purge(self) -> int:
        """Delete every message that no worker has; returns how many."""

    def dead_letters(self, which: DeadFilter, most: int) -> list[DeadLetter]: ...
    def redrive(self, ids: Sequence[str], every_us: int = 0) -> int:
        """Put dead letters back with a new history, one every so often; returns how many there were."""

    def drop(self, ids: Sequence[str]) -> int:
        """Delete dead letters for good; returns how many there were."""

    def close(self) -> None: ...


class QueueBase:
    """The single steps of the port, for callers who do one thing at a time."""

    def ack(self: Queue, delivery: Delivery) -> bool:
        """The message is done."""
        return self.settle([Ending(delivery, Finish())])[0]

    def retry(self: Queue, delivery: Delivery, delay_us: int = 0, history: MessageHistory | None = None) -> bool:
        """The message goes back, and can be leased again after the delay."""
        return self.settle([Ending(delivery, Return(history or delivery.history, delay_us))])[0]

    def bury(self: Queue, delivery: Delivery, reason: str, error: str = "") -> bool:
        """The message goes to the dead letters."""
        return self.settle([Ending(delivery, Bury(reason, error, delivery.history))])[0]


def settle_handing_on(queue: Queue, next_queue: Queue | None, endings: Sequence[Ending]) -> list[bool]:
    """Settle endings whose hand-offs go to `next_queue`, which may live elsewhere.

    Queues of one home do it in one operation. Otherwise the outputs are recorded beside the message, then put, then the
    message is finished: after a crash in between, the next delivery has them as `recorded`, and they are put again under
    the same ids, by which the next queue or its ledger recognises them.
    """
    if next_queue is None or next_queue.home == queue.home:
        return queue.settle(endings)
    settled = []
    for ending in endings:
        if ending.hand_off is not None and isinstance(ending.verdict, Finish):
            outputs = tuple(message.body for message in ending.hand_off.messages)
            if ending.delivery.recorded is None and not queue.record(ending.delivery, outputs):
                settled.append(False)
                continue
            next_queue.put(ending.hand_off.messages)
            ending = ending._replace(hand_off=None)
        settled.extend(queue.settle([ending]))
    return settled

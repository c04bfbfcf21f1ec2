"""How the commands on one gate are decided: by one thread per gate and process, with one write in flight.

What arrives while a write is under way goes into the next. A batch is applied to the state as it was read (or as it was
left, where nobody else writes), and written on the condition that it still is that state; where it is not, the batch runs
again on what is there. An answer that was lost is found again: an item names the last write of each process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import count

from ...errors import Denied, HeadgateError, StoreUnavailable
from ...kernel.commands import Admit, Cancel, Configure, Release, Reset, Settle
from ...kernel.model import SECOND, Wait
from .batch import CHANCE, STUBBORN_FOR, Ask, Contended, Job, Kept, Outcome, Waits, no_slot_left, values_of
from .heartbeat import beat, is_all, is_beat, take_over
from .pack import loads
from .records import VERSION, Missing, gate_records, item_name, read_item
from .table import Conflict, Throttled, Unreachable, Unsure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...kernel.commands import Command
    from .records import DynamoRecords
    from .store import DynamoStore
    from .table import Table

#: How many commands go into one write at most.
LARGEST_BATCH = 256

#: How many processes an item remembers the last write of, so that one whose answer was lost can tell.
WRITERS = 32

#: DynamoDB takes items of up to 400 KB. Asks leave room below that for what ends and renews.
LARGEST, LARGEST_FOR_ASKS = 395_000, 360_000
MOST_WAITERS = 1000

#: How many values of a gate's keys a process keeps in mind.
KEPT = 512

#: Seconds after which who asked while others wrote all the time asks again: at least, and at most.
AGAIN = 0.2, 0.6

#: Seconds after which a thread without work ends.
LINGER = 5.0


class GateWriter:
    """Decides about one gate, for this process."""

    def __init__(self, store: DynamoStore, table: Table, gate: str) -> None:
        self._store = store
        self._table = table
        self._gate = gate
        self._name = item_name(gate)
        self._queue: deque[Ask] = deque()
        self._bell = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        self._kept: Kept | None = None
        self._numbers = count(1)
        #: How often in a row the item was found as this process had left it.
        self._alone = 0
        #: Whether this process may say that it lives without reading; not where UpdateItem is forbidden.
        self._beats = True
        #: The highest sequence number that this process was told, and when the item may have gone by itself.
        self.seen = 0
        self._gone_by: int | None = None
        #: Until when (in the store's time) others believe that this process lives.
        self.heard_until = 0
        #: The tickets of this process, in order of arrival.
        self.waiting: dict[str, None] = {}

    # --- the queue ----------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        with self._bell:
            self._queue.extend(job.asks)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=f"headgate-{self._gate}", daemon=True)
                self._thread.start()
            else:
                self._bell.notify()

    def withdraw(self, job: Job) -> bool:
        """Take a job back; False when it has been decided, or is being."""
        with self._bell:
            if any(ask not in self._queue for ask in job.asks):
                return False
            for ask in job.asks:
                self._queue.remove(ask)
            return True

    def _work(self) -> None:
        while True:
            with self._bell:
                while not self._queue:
                    if not self._bell.wait(LINGER) and not self._queue:
                        self._thread = None
                        return
                batch = self._next_batch()
            try:
                self._decide(batch)
            except Contended as error:
                self._put_off(batch, error)
            except BaseException as error:  # the callers must hear of it, whatever it is
                self._kept = None
                if isinstance(error, StoreUnavailable):
                    with self._bell:  # whoever waits would only find the same
                        batch += self._queue
                        self._queue.clear()
                for ask in batch:
                    if ask.open:
                        ask.fail(error)

    def _put_off(self, batch: list[Ask], error: Contended) -> None:
        """Others wrote all the time. The store is there, so this must not open a gate: asks wait, ends go again."""
        self._kept = None
        left: list[Ask] = []
        for ask in batch:
            if not ask.open:
                continue
            if isinstance(ask.command, Admit):
                now = self._store.rough_time()
                at = now + round(CHANCE.uniform(*AGAIN) * SECOND)
                ask.reply = Wait(at, None, 0, at, now, "contended")
                ask.job.settled()
            elif not isinstance(ask.command, Settle | Release):
                ask.fail(error)
            elif time.monotonic() - ask.since > STUBBORN_FOR:
                ask.fail(StoreUnavailable(*error.args))  # the gate tells it later
            else:
                left.append(ask)
        with self._bell:
            self._queue.extendleft(reversed(left))

    def _next_batch(self) -> list[Ask]:
        batch: list[Ask] = []
        values: set[str] = set()
        while self._queue and len(batch) < LARGEST_BATCH and len(values) <= 64:
            ask = self._queue.popleft()
            values |= values_of(ask.command)
            batch.append(ask)
        return batch

    # --- deciding -----------------------------------------------------------------------------------------------

    def _decide(self, batch: list[Ask]) -> None:
        writes = any(ask.command.writes for ask in batch)
        waits = Waits(self._table)
        unsure: dict[int, Outcome] = {}
        read = not writes or self._alone < 2
        beats = self._beats and len(batch) == 1 and is_beat(batch[0].command, self._store.session)
        while True:
            number = 0  # of the write that is under way: what fails before it says nothing about an earlier one
            try:
                if beats:
                    beats = False
                    if self._beat(batch):
                        return
                    read = self._kept is None
                fresh = read or self._kept is None
                kept = self._read() if fresh else self._kept
                assert kept is not None
                self._kept = None
                if unsure and (found := self._landed(kept, unsure)) is not None:
                    self._settle(found, None)
                    return
                outcome = self._apply(kept, batch, writes)
                if outcome is None:
                    continue
                if not writes or outcome.refused or (outcome.state == kept.state and not outcome.others):
                    if fresh:
                        self._kept = kept
                        self._finish(outcome)
                        return
                    read = True  # a refusal must be of what is there now
                    continue
                if not self._fits(batch, outcome, kept):
                    return
                number = next(self._numbers)
                unsure[number] = outcome
                written = self._write(kept, outcome, number)
                self._settle(outcome, written)
                return
            except Conflict as conflict:
                unsure.pop(number, None)
                self._alone = 0
                waited = waits.conflict(sure=not unsure)
                read = not conflict.known or conflict.item is None or waited > 0.01
                self._kept = None if read else Kept(self._name, conflict.item)
            except Throttled as error:
                unsure.pop(number, None)
                read = True
                waits.throttled(error)
            except (Unsure, Unreachable) as error:
                if isinstance(error, Unreachable):
                    unsure.pop(number, None)
                read = True
                waits.unreachable(error)

    def _read(self) -> Kept:
        kept = Kept(self._name, self._table.get(self._name))
        if kept.token is not None and kept.token.startswith(f"{self._store.session}."):
            self._alone += 1
        else:
            self._alone = 0
        return kept

    def _beat(self, batch: list[Ask]) -> bool:
        """Say that this process lives, and look. False: there is more to do, with what is kept where something is."""
        session, now = self._store.session, self._store.rough_time()
        try:
            item = beat(self._table, self._name, session, next(self._numbers), now)
        except Unreachable:
            raise
        except StoreUnavailable:  # refused, and the store is there: it is said with a read and a write, as all else
            self._beats, self._kept = False, None
            return False
        self._kept = kept = Kept(self._name, item)
        records = kept.records = self._records(kept)
        if not is_all(records, now, session) or (outcome := self._apply(kept, batch, writes=False)) is None:
            return False
        self._finish(outcome)
        return True

    def _landed(self, kept: Kept, unsure: dict[int, Outcome]) -> Outcome | None:
        """The batch whose answer was lost, if it was written after all."""
        last = kept.recent.get(self._store.session)
        if last is None and len(kept.recent) >= WRITERS:
            raise StoreUnavailable(f"{self._table.place}: an answer was lost, and too many have written since to tell")
        return None if last is None else unsure.get(last)

    def _records(self, kept: Kept) -> DynamoRecords:
        records, kept.records = kept.records, None
        if records is not None:
            return records
        records = gate_records(self._gate, kept.state)
        take_over(records, kept.beats, self._store.rough_time())
        for value, found in kept.values.items():
            if value not in records.inline:
                records.add(value, found is not None, *(found or (0, {})))
        return records

    def _apply(self, kept: Kept, batch: list[Ask], writes: bool) -> Outcome | None:
        """Run the batch. None: a bug of one command, which has been told; the others go again."""
        records = self._records(kept)
        now = self._store.time(records, writes)
        seq, _, heed = records.head
        if self._gone_by is not None and kept.token is None and now > self._gone_by * SECOND:
            self.seen = 0  # nobody has used the gate for so long that its item was to go
        if seq < self.seen:
            self._store.lost(self._gate)
        wanted: set[str] = set().union(*(values_of(ask.command) for ask in batch))
        while True:
            records.seen = self.seen
            outcome = Outcome(records, [*batch])
            try:
                if missing := wanted - records.values.keys() - records.inline.keys():
                    raise Missing(sorted(missing))
                for ask in batch:
                    try:
                        outcome.replies.append((self._one(ask.command, now, records), False))
                    except HeadgateError as error:
                        outcome.replies.append((error, True))
                outcome.refused = outcome.all_refused(heed)
                if writes and not outcome.refused:
                    outcome.state, outcome.ttl, outcome.others = records.packed(now)
                return outcome
            except Missing as error:
                self._fetch(kept, error.values)
                records = self._records(kept)
                self._store.time(records, writes)
            except Exception as error:
                at_fault = batch[len(outcome.replies)] if len(outcome.replies) < len(batch) else None
                if at_fault is None or len(batch) == 1:
                    raise
                at_fault.fail(error)
                batch.remove(at_fault)
                return None

    def _fetch(self, kept: Kept, values: list[str]) -> None:
        found = self._table.get_many([item_name(self._gate, value) for value in values])
        for value in values:
            item = found.get(item_name(self._gate, value))
            if item is None:
                kept.values[value] = None
            else:
                token, state = read_item(item, item_name(self._gate, value))
                kept.values[value] = (int(token), loads(state))

    def _one(self, command: Command, now: int, records: DynamoRecords) -> Any:
        if isinstance(command, Admit) and (full := no_slot_left(command, now, records)) is not None:
            return full
        records.resetting = (command.limit,) if isinstance(command, Reset) else None
        reply = command.apply(now, records)
        if isinstance(command, Configure):
            records.configured = records.head[0]
        elif isinstance(reply, Wait) and isinstance(command, Admit) and len(records.space("tickets")) > MOST_WAITERS:
            if not command.waits:
                return reply
            Cancel(command.plan.policy, command.id).apply(now, records)
            return Denied(
                f"the line is full: on DynamoDB at most {MOST_WAITERS:,} wait at a gate, since an item is bounded",
                gate=self._gate,
                limit=reply.limit,
                retry_after=reply.retry_after,
            )
        return reply

    def _fits(self, batch: list[Ask], outcome: Outcome, kept: Kept) -> bool:
        """Whether it can be written. If not, it is decided one by one, and asks for which there is no room are denied."""
        sizes = [len(outcome.state), *(len(state) for state, _ in outcome.others.values())]
        if max(sizes) <= LARGEST_FOR_ASKS:
            return True
        if len(batch) > 1:
            for ask in batch:
                self._decide([ask])
            return False
        if max(sizes) <= LARGEST and (
            not isinstance(batch[0].command, Admit) or len(outcome.state) <= len(kept.state or b"")
        ):
            return True
        batch[0].reply = Denied(
            f"there is no room: the gate's state would take {max(sizes):,} bytes, and on DynamoDB it has at most "
            f"{LARGEST_FOR_ASKS:,}; have fewer wait or hold at once, or use shorter ids and holders",
            gate=self._gate,
        )
        batch[0].job.settled()
        return False

    # --- writing ------------------------------------------------------------------------------------------------

    def _write(self, kept: Kept, outcome: Outcome, number: int) -> Kept:
        session, table = self._store.session, self._table
        recent = {name: last for name, last in kept.recent.items() if name != session}
        while len(recent) >= WRITERS:
            del recent[next(iter(recent))]
        recent[session] = number
        told = " ".join(f"{name}={last}" for name, last in recent.items())
        token = f"{session}.{number}"
        ttl = outcome.ttl if self._store.expires else None
        item = table.item(self._name, token, VERSION, outcome.state, ttl, told)
        seq = str(outcome.records.head[0])
        others = [
            table.item(item_name(self._gate, value), seq, VERSION, state, until if self._store.expires else None)
            for value, (state, until) in outcome.others.items()
        ]
        table.write(item, kept.token, others)
        after = Kept(self._name, None)
        after.token, after.state, after.recent = token, outcome.state, recent
        after.values = {
            value: (int(seq), loads(outcome.others[value][0])) if value in outcome.others else found
            for value, found in kept.values.items()
        }
        if len(after.values) <= KEPT and self._alone >= 2:  # else it is read again before it is used
            after.records = outcome.records
        else:
            after.values = {}
        return after

    def _settle(self, outcome: Outcome, written: Kept | None) -> None:
        """It stands."""
        self._kept = written
        if written is None:
            self._alone = 0
        self.seen = max(self.seen, outcome.records.head[0])
        self._gone_by = outcome.ttl
        self._finish(outcome)

    def _finish(self, outcome: Outcome) -> None:
        records = outcome.records
        wakes, records.wakes = records.wakes, []
        for ask, (reply, _) in zip(outcome.asks, outcome.replies, strict=True):
            if isinstance(ask.command, Admit) and ask.command.waits:
                if isinstance(reply, Wait):
                    self.waiting.setdefault(ask.command.id)
                else:
                    self.waiting.pop(ask.command.id, None)
            elif isinstance(ask.command, Cancel):
                self.waiting.pop(ask.command.id, None)
        for ask, (reply, raised) in zip(outcome.asks, outcome.replies, strict=True):
            ask.reply, ask.raised = reply, raised
            ask.job.settled()
        self._store.tell(wakes)
        self._noted(records)

    def _noted(self, records: DynamoRecords) -> None:
        """What this process should know of the gate's line."""
        self.heard_until = 0
        if not self.waiting:
            return
        sessions = records.space("sessions")
        if sessions.get(self._store.session) == 0:
            self.heard_until = next((until for until, name in sessions.scan() if name == self._store.session), 0)
        self._store.looks.notice(self._gate, records)

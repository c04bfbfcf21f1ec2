"""How the commands on one gate are decided: by one thread per gate and process, with one write in flight.

Commands that arrive during a write are batched into the next one. A batch is applied to the state as it was read (or as
this process left it, where no other process writes), and written on the condition that the item still has that state; where
it does not, the batch runs again on what is there. A lost answer is looked up: an item names the last write of each
process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from itertools import count

from ...aws import ResultUnknown, Throttled, Unreachable
from ...background import at_end, start_daemon
from ...errors import Denied, HeadgateError, StoreUnavailable
from ...kernel.commands import Admit, Cancel, Configure, Release, Reset, Settle, Tighten
from ...kernel.commands.base import compare
from ...kernel.head import is_another, is_epoch
from ...kernel.model import SECOND, Wait
from ..base import Seen
from .backoff import CHANCE, Backoff, Contended
from .batch import BatchResult, GateSnapshot, no_slot_left, values_of
from .heartbeat import is_enough, is_heartbeat, send_heartbeat, take_in
from .pack import loads
from .records import VERSION, Missing, gate_records, item_name, read_item
from .table import Conflict

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...kernel.commands import Command
    from .batch import PendingCommand, Submission
    from .records import DynamoRecords
    from .store import DynamoStore
    from .table import DynamoTable

#: How many commands go into one write at most.
LARGEST_BATCH = 256

#: How many processes an item names the last write of, so that one whose answer was lost can look it up.
WRITERS = 32

#: DynamoDB takes items of up to 400 KB. Asks leave room below that for what ends and renews.
LARGEST, LARGEST_FOR_ASKS = 395_000, 360_000
MOST_WAITERS = 1000

#: How many values of a gate's keys a process caches.
MOST_CACHED = 512

#: Seconds after which an ask is to be retried that other processes' writes kept from being decided: at least, and at most.
RETRY_IN = 0.2, 0.6

#: Seconds for which the end of a permit is retried in all while other processes write: finished work should not fail by it.
STUBBORN_FOR = 30.0

#: The thread ends after so many seconds without a command.
LINGER = 5.0


class GateWriter:
    """Decides about one gate, for this process."""

    def __init__(self, store: DynamoStore, table: DynamoTable, gate: str) -> None:
        self._store = store
        self._table = table
        self._gate = gate
        self._name = item_name(gate)
        self._queue: deque[PendingCommand] = deque()
        self._condition = threading.Condition(threading.Lock())
        self._thread: threading.Thread | None = None
        #: The gate as last read or written; None: it must be read.
        self._cached: GateSnapshot | None = None
        #: Numbers of this process's writes.
        self._numbers = count(1)
        #: How many reads in a row found the item as this process had left it.
        self._uncontended = 0
        #: Whether a heartbeat is one UpdateItem; not where that is forbidden.
        self._may_update = True
        #: The highest sequence number and the epoch that this process was told (before that, its session), the epoch before
        #: which it reported state to be lost, and when (in Unix seconds) the item may have expired.
        self.seen = 0
        self.told = store.session
        self._reported = ""
        self._expires_at_s: int | None = None
        #: Until when (in the store's time) the line takes this process to live.
        self.lives_until = 0
        #: The tickets of this process that wait, in order of arrival.
        self.waiting: dict[str, None] = {}

    def saw(self, number: int, epoch: str) -> Seen:
        """Note what another process was told of the gate: it is compared before the next batch runs."""
        self.seen = max(self.seen, number)
        self.told = epoch or self.told
        return Seen(self.seen, self.told if is_epoch(self.told) else "")

    # --- the queue ----------------------------------------------------------------------------------------------

    def submit(self, submission: Submission) -> None:
        with self._condition:
            self._queue.extend(submission.pending)
            if self._thread is None:
                self._thread = start_daemon(f"headgate-{self._gate}", self._work)
                if self._thread is None:
                    self._queue.clear()  # without a thread, nothing else is in it
                    raise at_end(self._table.place)
            else:
                self._condition.notify()

    def withdraw(self, submission: Submission) -> bool:
        """Take commands back; False when one of them has been decided, or is being."""
        with self._condition:
            if any(pending not in self._queue for pending in submission.pending):
                return False
            for pending in submission.pending:
                self._queue.remove(pending)
            return True

    def _work(self) -> None:
        while True:
            with self._condition:
                while not self._queue:
                    if not self._condition.wait(LINGER) and not self._queue:
                        self._thread = None
                        return
                batch = self._next_batch()
            try:
                self._decide(batch)
            except Contended as error:
                self._postpone(batch, error)
            except BaseException as error:  # whatever it is, the callers must be told
                self._cached = None
                if isinstance(error, StoreUnavailable):
                    with self._condition:  # queued commands would only find the same
                        batch += self._queue
                        self._queue.clear()
                for pending in batch:
                    if pending.open:
                        pending.fail(error)

    def _postpone(self, batch: list[PendingCommand], error: Contended) -> None:
        """Other processes wrote all the time. That is no outage and must not open a gate: asks wait, ends are retried."""
        self._cached = None
        left: list[PendingCommand] = []
        for pending in batch:
            if not pending.open:
                continue
            if isinstance(pending.command, Admit):
                now = self._store.approximate_time()
                at = now + round(CHANCE.uniform(*RETRY_IN) * SECOND)
                pending.answer(Wait(at, None, 0, at, now, "contended"))
            elif not isinstance(pending.command, Settle | Release):
                pending.fail(error)
            elif time.monotonic() - pending.since > STUBBORN_FOR:
                pending.fail(StoreUnavailable(*error.args))  # the gate tells the store later
            else:
                left.append(pending)
        with self._condition:
            self._queue.extendleft(reversed(left))

    def _next_batch(self) -> list[PendingCommand]:
        batch: list[PendingCommand] = []
        values: set[str] = set()
        while self._queue and len(batch) < LARGEST_BATCH and len(values) <= 64:
            pending = self._queue.popleft()
            values |= values_of(pending.command)
            batch.append(pending)
        return batch

    # --- deciding -----------------------------------------------------------------------------------------------

    def _decide(self, batch: list[PendingCommand]) -> None:
        writes = any(pending.command.writes for pending in batch)
        backoff = Backoff(self._table)
        #: Writes of this batch whose answer was lost: any of them may have been done.
        unsure: dict[int, BatchResult] = {}
        read = not writes or self._uncontended < 2
        heartbeat = self._may_update and len(batch) == 1 and is_heartbeat(batch[0].command, self._store.session)
        while True:
            number = 0  # of the write that is under way: what fails before it says nothing about an earlier one
            try:
                if heartbeat:
                    heartbeat = False
                    if self._heartbeat(batch):
                        return
                    read = self._cached is None
                fresh = read or self._cached is None
                snapshot = self._read() if fresh else self._cached
                assert snapshot is not None
                self._cached = None
                if unsure and (found := self._found_written(snapshot, unsure)) is not None:
                    self._committed(found, None)
                    return
                result = self._apply(snapshot, batch, writes)
                if result is None:
                    continue
                if not writes or result.refused or (result.state == snapshot.state and not result.others):
                    if fresh:
                        self._cached = snapshot
                        self._answer(result)
                        return
                    read = True  # a refusal must be of what is there now
                    continue
                if not self._fits(batch, result, snapshot):
                    return
                number = next(self._numbers)
                unsure[number] = result
                written = self._write(snapshot, result, number)
                self._committed(result, written)
                return
            except Conflict as conflict:
                unsure.pop(number, None)
                self._uncontended = 0
                slept_s = backoff.after_conflict(sure=not unsure)
                read = not conflict.known or conflict.item is None or slept_s > 0.01
                self._cached = None if read else GateSnapshot(self._name, conflict.item)
            except Throttled as error:
                unsure.pop(number, None)
                read = True
                backoff.after_throttling(error)
            except (ResultUnknown, Unreachable) as error:
                if isinstance(error, Unreachable):
                    unsure.pop(number, None)
                read = True
                backoff.after_silence(error)

    def _read(self) -> GateSnapshot:
        snapshot = GateSnapshot(self._name, self._table.get(self._name))
        if snapshot.token is not None and snapshot.token.startswith(f"{self._store.session}."):
            self._uncontended += 1
        else:
            self._uncontended = 0
        return snapshot

    def _heartbeat(self, batch: list[PendingCommand]) -> bool:
        """Send a heartbeat, and cache the item that it returns. False: the command must be decided like every other."""
        session, now = self._store.session, self._store.approximate_time()
        try:
            item = send_heartbeat(self._table, self._name, session, next(self._numbers), now)
        except Unreachable:
            raise
        except StoreUnavailable:  # UpdateItem is refused, and the store is there: use a read and a write instead
            self._may_update, self._cached = False, None
            return False
        self._cached = snapshot = GateSnapshot(self._name, item)
        records = snapshot.records = self._records(snapshot)
        if not is_enough(records, now, session) or (result := self._apply(snapshot, batch, writes=False)) is None:
            return False
        self._answer(result)
        return True

    def _found_written(self, snapshot: GateSnapshot, unsure: dict[int, BatchResult]) -> BatchResult | None:
        """The result whose answer was lost, if the item shows that it was written."""
        last = snapshot.recent.get(self._store.session)
        if last is None and len(snapshot.recent) >= WRITERS:
            raise StoreUnavailable(f"{self._table.place}: an answer was lost, and too many have written since to tell")
        return None if last is None else unsure.get(last)

    def _records(self, snapshot: GateSnapshot) -> DynamoRecords:
        records, snapshot.records = snapshot.records, None
        if records is not None:
            return records
        records = gate_records(self._gate, snapshot.state)
        take_in(records, snapshot.heartbeats, self._store.approximate_time())
        for value, found in snapshot.values.items():
            if value not in records.inline:
                records.add(value, found is not None, *(found or (0, {})))
        return records

    def _apply(self, snapshot: GateSnapshot, batch: list[PendingCommand], writes: bool) -> BatchResult | None:
        """Run the batch. None: one command failed by a bug, and was told; run the others again."""
        records = self._records(snapshot)
        now = self._store.time(records, writes)
        heeded = records.head.heeded()
        if self._expires_at_s is not None and snapshot.token is None and now > self._expires_at_s * SECOND:
            # The gate was not used for so long that its item expired.
            self.seen, self.told = 0, self._store.session
        if compare(records, self.seen, self.told):
            self._report_loss(records.head.epoch)
        wanted: set[str] = set().union(*(values_of(pending.command) for pending in batch))
        while True:
            compare(records, self.seen, self.told)
            result = BatchResult(records, [*batch])
            try:
                if missing := wanted - records.values.keys() - records.inline.keys():
                    raise Missing(sorted(missing))
                for pending in batch:
                    try:
                        result.replies.append(self._run(pending.command, now, records))
                    except HeadgateError as error:
                        result.replies.append(error)
                result.refused = result.all_refused(heeded)
                if writes and not result.refused:
                    result.state, result.ttl, result.others = records.packed(now)
                return result
            except Missing as error:
                self._fetch(snapshot, error.values)
                records = self._records(snapshot)
                self._store.time(records, writes)
            except Exception as error:
                at_fault = batch[len(result.replies)] if len(result.replies) < len(batch) else None
                if at_fault is None or len(batch) == 1:
                    raise
                at_fault.fail(error)
                batch.remove(at_fault)
                return None

    def _report_loss(self, epoch: str) -> None:
        """Tell the gate, once for each epoch: until this process has written, its next batch finds the same."""
        another = is_another(epoch, self.told)
        if not another or epoch != self._reported:
            self._store.lost(self._gate)
        if another:
            self._reported = epoch

    def _fetch(self, snapshot: GateSnapshot, values: list[str]) -> None:
        found = self._table.get_many([item_name(self._gate, value) for value in values])
        for value in values:
            item = found.get(item_name(self._gate, value))
            if item is None:
                snapshot.values[value] = None
            else:
                token, state = read_item(item, item_name(self._gate, value))
                snapshot.values[value] = (int(token), loads(state))

    def _run(self, command: Command, now: int, records: DynamoRecords) -> Any:
        if isinstance(command, Admit) and (full := no_slot_left(command, now, records)) is not None:
            return full
        records.resetting = (command.limit,) if isinstance(command, Reset) else None
        ends = records.space("terms").first()
        reply = command.apply(now, records)
        if isinstance(command, Configure | Tighten) or records.space("terms").first() != ends:  # or some have ended
            records.configured = records.head.seq
        elif isinstance(reply, Wait) and isinstance(command, Admit) and len(records.tickets) > MOST_WAITERS:
            if not command.waits:
                return reply
            Cancel(command.plan.policy, command.id, command.attempt, answered=True).apply(now, records)
            return Denied(
                f"the line is full: on DynamoDB at most {MOST_WAITERS:,} wait at a gate, since an item is bounded",
                gate=self._gate,
                limit=reply.limit,
                retry_after=reply.retry_after,
            )
        return reply

    def _fits(self, batch: list[PendingCommand], result: BatchResult, snapshot: GateSnapshot) -> bool:
        """Whether the result can be written. If not, decides the commands one by one, and denies asks without room."""
        sizes = [len(result.state), *(len(state) for state, _ in result.others.values())]
        if max(sizes) <= LARGEST_FOR_ASKS:
            return True
        if len(batch) > 1:
            for pending in batch:
                self._decide([pending])
            return False
        if max(sizes) <= LARGEST and (
            not isinstance(batch[0].command, Admit) or len(result.state) <= len(snapshot.state or b"")
        ):
            return True
        batch[0].answer(
            Denied(
                f"there is no room: the gate's state would take {max(sizes):,} bytes, and on DynamoDB it has at most "
                f"{LARGEST_FOR_ASKS:,}; have fewer wait or hold at once, or use shorter ids and holders",
                gate=self._gate,
            )
        )
        return False

    # --- writing ------------------------------------------------------------------------------------------------

    def _write(self, snapshot: GateSnapshot, result: BatchResult, number: int) -> GateSnapshot:
        session, table = self._store.session, self._table
        recent = {name: last for name, last in snapshot.recent.items() if name != session}
        while len(recent) >= WRITERS:
            del recent[next(iter(recent))]
        recent[session] = number
        last_writes = " ".join(f"{name}={last}" for name, last in recent.items())
        token = f"{session}.{number}"
        ttl = result.ttl if self._store.expires else None
        item = table.new_item(self._name, token, VERSION, result.state, ttl, last_writes)
        seq = str(result.records.head.seq)
        others = [
            table.new_item(item_name(self._gate, value), seq, VERSION, state, until if self._store.expires else None)
            for value, (state, until) in result.others.items()
        ]
        table.write(item, snapshot.token, others)
        after = GateSnapshot(self._name, None)
        after.token, after.state, after.recent = token, result.state, recent
        after.values = {
            value: (int(seq), loads(result.others[value][0])) if value in result.others else found
            for value, found in snapshot.values.items()
        }
        if len(after.values) <= MOST_CACHED and self._uncontended >= 2:  # else it is read again before it is used
            after.records = result.records
        else:
            after.values = {}
        return after

    def _committed(self, result: BatchResult, written: GateSnapshot | None) -> None:
        """The result is written. None: that was found out later, and the item may have changed since."""
        self._cached = written
        if written is None:
            self._uncontended = 0
        self.seen = max(self.seen, result.records.head.seq)
        if self.told == result.records.told:  # else another process's was noted meanwhile, and is to be compared first
            self.told = result.records.head.epoch or self.told
        self._expires_at_s = result.ttl
        self._answer(result)

    def _answer(self, result: BatchResult) -> None:
        """Give each command its reply, then wake and note what concerns this process."""
        records = result.records
        wakes, records.wakes = records.wakes, []
        for pending, reply in zip(result.batch, result.replies, strict=True):
            if isinstance(pending.command, Admit) and pending.command.waits:
                if isinstance(reply, Wait):
                    self.waiting.setdefault(pending.command.id)
                else:
                    self.waiting.pop(pending.command.id, None)
            elif isinstance(pending.command, Cancel):
                self.waiting.pop(pending.command.id, None)
        for pending, reply in zip(result.batch, result.replies, strict=True):
            pending.answer(reply)
        self._store.wake(wakes)
        self._note_line(records)

    def _note_line(self, records: DynamoRecords) -> None:
        """What this process should know of the gate's line: until when it is taken to live, and when to poll."""
        self.lives_until = 0
        if not self.waiting:
            return
        sessions = records.sessions
        if sessions.get(self._store.session) == 0:
            self.lives_until = next((until for until, name in sessions.scan() if name == self._store.session), 0)
        self._store.polling.notice(self._gate, records)

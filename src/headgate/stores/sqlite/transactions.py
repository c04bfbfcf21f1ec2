"""The transactions of a process on a database file, one after the other: all of it under its store's lock.

A transaction decides all jobs that are queued. The records that it has read or written stay cached for the next one. The
cache is valid as long as no other connection has committed. While none does, one command is decided from the cache without
a transaction (`try_optimistic`).
"""

from __future__ import annotations

import gc
import sqlite3
import time
from collections import deque
from contextlib import suppress

from ...errors import HeadgateError, StoreFormatError
from ...kernel.head import is_another
from ...sqlite_file import DECIDE_FOR, BusyRetry, DatabaseFile, Turn, explained, survives
from .jobs import SqliteJob
from .records import SWAP_HEAD, SqliteRecords
from .space import Damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...kernel.commands import Command
    from ...kernel.model import Wake

#: Seconds between two checks that the path still leads to the file that was opened.
CHECK_PATH_EVERY = 0.25

#: About how many records of a gate stay cached from one transaction to the next.
CACHED_RECORDS = 20_000

#: For so many transactions after one that decided several jobs, more concurrent callers are expected.
CONCURRENT_FOR = 64

#: For so many commands after another process was found to have written, it is expected to do it again: each command then
#: begins with a transaction, since a decision that turns out stale costs more.
CONTENDED_FOR = 4096

#: `try_optimistic` could not decide: queue a job.
CONTENDED = object()


class _Stale(Exception):
    """Another connection has committed since the records were read."""


class _Busy(Exception):
    """Another connection has the write lock: a writer, or a checkpoint."""


class Transactions:
    """The transactions of one process. `open` opens the file; `seen` has the highest sequence number seen of each gate, and
    `told` its epoch; `session` stands for that of a gate which is not among them.
    """

    def __init__(
        self, path: str, open: Callable[[], DatabaseFile], seen: dict[str, int], told: dict[str, str], session: str
    ) -> None:
        self._path = path
        self._open = open
        self._seen = seen
        self._told = told
        self._session = session
        #: Gate → the epoch before which its state was lost, as this process has already reported.
        self._reported: dict[str, str] = {}
        self.file: DatabaseFile | None = None
        self._check_path_at = 0.0
        self.queue: deque[SqliteJob] = deque()
        #: For the store, after the commit: the waiters to wake, and the gates whose state was lost.
        self.wakes: deque[Wake] = deque()
        self.lost: set[str] = set()
        #: Above 0 while transactions decide several jobs each.
        self.concurrent_callers = 0
        #: The cache, and the version of the file that it is of.
        self._gates: dict[str, SqliteRecords] = {}
        self._version = -1
        #: Above 0 while other processes write to the file.
        self._contended = 0
        self._turn = Turn()
        #: The waits of jobs that write, and of those that read, while they find the file locked.
        self._waits: dict[bool, BusyRetry] = {}

    # --- deciding ---------------------------------------------------------------------------------------------------

    def attempt(self, job: SqliteJob) -> float:
        """Decide what is queued, the oldest jobs first. Returns the seconds after which to try again where it is not this
        process's turn to write; the caller does so until its job is done.

        An error of the file becomes the error of the jobs.
        """
        try:
            file = self.ready()
            if job.writes:
                if not self._is_first(job) and job not in self.queue:
                    self.queue.append(job)  # the thread that had taken it was interrupted before it began
                if gap_s := self._turn.gap_s():
                    return gap_s
                if file.begin():
                    self._waits.clear()
                    self._take_turn(file)
                    self.wake_first()
                    return 0.0
            elif file.begin_reading():
                self._waits.pop(False, None)
                self._decide(file, [job], writes=False)
                return 0.0
            wait = self._waits.get(job.writes) or self._waits.setdefault(job.writes, BusyRetry(file))
            wait.check()
            return wait.pause_s
        except (sqlite3.Error, OSError, HeadgateError) as error:
            self._waits.clear()
            self._fail([*self.queue] if job.writes else [job], error)
            return 0.0

    def _take_turn(self, file: DatabaseFile) -> None:
        began = time.monotonic()
        # With thousands of tasks waiting, a garbage collection takes a second; it comes when the lock is free again.
        collects = gc.isenabled()
        try:
            gc.disable()
            self._decide(file, self._next_batch())
        finally:
            if collects:
                gc.enable()
        self._turn.ended(began, bool(self.queue), self._contended > 0)

    def is_behind(self, job: SqliteJob) -> bool:
        """Whether this process waits for its turn to write, and the task of another job makes the attempts."""
        return job.writes and bool(self._waits or self._turn.gap_s()) and not self._is_first(job)

    def _is_first(self, job: SqliteJob) -> bool:
        return bool(self.queue) and self.queue[0] is job

    def wake_first(self) -> None:
        """Have the task of the oldest queued job make the next attempt. The others sleep on: it decides theirs too."""
        with suppress(IndexError):
            self.queue[0].wake()

    def try_optimistic(self, command: Command) -> Any:
        """Decide one command from the cached records without a transaction, then commit by swapping the gate's head row
        if it is unchanged. Returns CONTENDED when another writer is likely; queue a job then.

        An error that the command raises is returned in the place of its reply.
        """
        file = self.file
        if file is None or self.queue or time.monotonic() >= self._check_path_at or file.in_transaction:
            return CONTENDED
        records = self._gates.get(command.gate)
        try:
            if records is None or self._contended:
                if not file.begin():
                    return CONTENDED
                self._validate(file)
                records = self._gates.get(command.gate) or self._load(file, command.gate)
            else:
                records.execute = self._read
            try:
                reply = command.apply(file.now(), records)
            except HeadgateError as error:
                reply = error
            self._commit(file, records)
        except _Stale:
            file.roll_back()
            self._forget()
            self._contended = CONTENDED_FOR
            return CONTENDED
        except _Busy:
            # These records hold a decision that was not written. Whether another process commits is seen by `_validate`.
            self._gates.clear()
            return CONTENDED
        except BaseException as error:
            job = SqliteJob((command,))
            try:
                self._undo(file, [job], job, error)
            finally:
                self.withdraw(job)
            return job.result()
        records.execute = file.execute
        self._committed(records)
        return reply

    def _validate(self, file: DatabaseFile) -> None:
        """In a transaction: drop the cache where another connection has committed since."""
        if (version := file.version()) == self._version:
            self._contended -= self._contended > 0
            return
        if self._version != -1:
            self._contended = CONTENDED_FOR
        self._gates.clear()
        self._version = version

    # The transaction of an optimistic decision begins when something has to be read, or at the end. Where another
    # connection has committed by then, the decision is dropped.

    def _begin(self, file: DatabaseFile) -> None:
        if not file.begin():
            raise _Busy
        if file.version() != self._version:
            raise _Stale

    def _read(self, statement: str, parameters: Sequence[Any] = ()) -> Any:
        file = self.file
        assert file is not None
        if not file.in_transaction:
            self._begin(file)
        return file.execute(statement, parameters)

    def _commit(self, file: DatabaseFile, records: SqliteRecords) -> None:
        """Write what was decided. Raises _Stale, and nothing is written, where another connection has committed before.

        Every command that writes records of a gate writes its head as well, which has the number and the time of the last
        command: where the head is still the cached one, all else is. So a decision that has read nothing from the file
        writes the head first, if it is unchanged; most decisions are this one statement.
        """
        if file.in_transaction:
            records.execute = file.execute
            file.commit(records.write() if records.changed else 0)
        elif not records.changed:
            if file.version() != self._version:
                raise _Stale
        elif (heads := records.swap()) is None:
            self._begin(file)
            records.execute = file.execute
            file.commit(records.write())
        else:
            members_changed = records.touched or records.wiped
            if members_changed and not file.begin():
                raise _Busy
            swapped = file.update_one(SWAP_HEAD, heads)
            if swapped is None:
                raise _Busy
            if not swapped:
                raise _Stale
            if members_changed:
                records.execute = file.execute
                file.commit(records.write_members())

    def withdraw(self, job: SqliteJob) -> bool:
        """Take a job back; False when it has already been decided, or is being."""
        try:
            self.queue.remove(job)
        except ValueError:
            return False
        return True

    def _next_batch(self) -> list[SqliteJob]:
        jobs: list[SqliteJob] = []
        count = 0
        while count < self._turn.batch:
            try:
                job = self.queue.popleft()
            except IndexError:
                break
            jobs.append(job)
            count += len(job.commands)
        self.concurrent_callers = CONCURRENT_FOR if len(jobs) > 1 else max(0, self.concurrent_callers - 1)
        return jobs

    def _decide(self, file: DatabaseFile, jobs: list[SqliteJob], writes: bool = True) -> None:
        """Run jobs in the transaction that has begun, and end it. Each of them is done then, or back in the queue."""
        used: dict[str, SqliteRecords] = {}
        job = None
        committing = False
        try:
            now = file.now()
            self._validate(file)
            gate = records = None
            until = time.monotonic() + DECIDE_FOR
            for number, job in enumerate(jobs):
                if number and time.monotonic() > until:
                    # The lock has been kept for long enough.
                    self.queue.extendleft(reversed(jobs[number:]))
                    del jobs[number:]
                    break
                replies = job.replies
                for command in job.commands:
                    if records is None or command.gate != gate:
                        gate = command.gate
                        records = used[gate] = self._gates.get(gate) or self._load(file, gate)
                    try:
                        replies.append(command.apply(now, records))
                    except HeadgateError as error:
                        replies.append(error)
            if writes:
                rows = 0
                for records in used.values():
                    if records.changed:
                        rows += records.write()
                committing = True
                file.commit(rows)
            else:
                file.roll_back()
            for job in jobs:
                job.finish()
        except BaseException as error:
            if committing and not isinstance(error, sqlite3.Error) and not file.in_transaction:
                # Interrupted just after the commit.
                for job in jobs:
                    job.finish()
                self._forget()
                raise
            self._undo(file, jobs, job, error)
            return
        for records in used.values():
            if writes:
                self._committed(records)
            elif records.changed:
                del self._gates[records.gate]  # a command that only reads has tidied up in the cached records

    def _load(self, file: DatabaseFile, gate: str) -> SqliteRecords:
        told = self._told.get(gate, self._session)
        records = SqliteRecords(gate, self._seen.get(gate, 0), told, file.execute, file.execute_many)
        if records.head.seq < records.seen:
            epoch = records.head.epoch
            # Clients of a guard come with an old epoch one after the other.
            if not is_another(epoch, told) or self._reported.get(gate) != epoch:
                self.lost.add(gate)
            if is_another(epoch, told):
                self._reported[gate] = epoch
        self._gates[gate] = records
        return records

    def compare_again(self, gate: str) -> None:
        """Another process was told what this one was not: read the gate anew before its next decision."""
        self._gates.pop(gate, None)

    def _committed(self, records: SqliteRecords) -> None:
        """Take over what a transaction has committed."""
        if self._waits:
            self._waits.clear()
        try:
            if records.changed:
                records.written()
                self._seen[records.gate] = records.seen
                self._told[records.gate] = records.told
            if records.wakes:
                self.wakes.extend(records.wakes)
                records.wakes.clear()
            if records.load > CACHED_RECORDS:
                del self._gates[records.gate]
        except BaseException:
            self._forget()
            raise

    # --- failing ----------------------------------------------------------------------------------------------------

    def _undo(
        self, file: DatabaseFile, jobs: list[SqliteJob], at_fault: SqliteJob | None, error: BaseException
    ) -> None:
        """Roll back a transaction that failed. Jobs that are not at fault go back into the queue."""
        self._forget()
        for job in jobs:
            job.replies.clear()
        with suppress(sqlite3.Error):
            file.roll_back()
        if isinstance(error, sqlite3.Error | Damaged):
            self._fail(jobs, error)
            return
        others = [job for job in jobs if job is not at_fault and job.writes]
        if at_fault is not None and isinstance(error, Exception):
            at_fault.fail(error)  # a bug, and of this caller alone
        elif at_fault is not None and at_fault.writes:
            others.append(at_fault)
        self.queue.extendleft(reversed(others))
        if not isinstance(error, Exception):
            raise error

    def _fail(self, jobs: list[SqliteJob], error: BaseException) -> None:
        """Give the error to all jobs: each would only meet the same one."""
        self._forget()
        if isinstance(error, sqlite3.Error) and not survives(error):
            with suppress(sqlite3.Error):
                self.shut()
        if isinstance(error, Damaged):
            explanation: HeadgateError = StoreFormatError(
                f"{self._path} is damaged: {error}; restore it from a backup, or start anew with another file"
            )
        else:
            explanation = error if isinstance(error, HeadgateError) else explained(error, self._path)
        for job in jobs:
            self.withdraw(job)
            # An error each: they are raised in different threads.
            failure = type(explanation)(*explanation.args)
            failure.__cause__ = error if error is not explanation else error.__cause__
            job.fail(failure)

    def _forget(self) -> None:
        self._gates.clear()
        self._version = -1

    # --- the file ---------------------------------------------------------------------------------------------------

    def ready(self) -> DatabaseFile:
        """The file, opened anew where the path leads to another one now."""
        file, now = self.file, time.monotonic()
        if file is not None and file.in_transaction:
            # A KeyboardInterrupt came at the one moment when no handler was there to end the transaction.
            self._forget()
            file.roll_back()
        if file is not None and now < self._check_path_at:
            return file
        if file is not None and not file.is_current():
            self.abandon()
            file = None
        if file is None:
            self._forget()
            file = self.file = self._open()
        self._check_path_at = now + CHECK_PATH_EVERY
        return file

    def shut(self) -> None:
        """Close the file; `ready` opens it again."""
        file, self.file = self.file, None
        self._forget()
        if file is not None:
            file.close()

    def abandon(self) -> None:
        """Leave the file open for ever, where closing it would do harm: see `DatabaseFile.abandon`."""
        file, self.file = self.file, None
        if file is not None:
            file.abandon()

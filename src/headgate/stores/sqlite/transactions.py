"""What a process does to a database file, one transaction after the other: all of it under its store's lock.

A transaction takes all that is queued. What it has read or written is kept in mind for the next one, and is good for as
long as nobody else has written to the file.
"""

from __future__ import annotations

import sqlite3
import time
from collections import deque
from contextlib import suppress
from operator import attrgetter

from ...errors import HeadgateError, StoreFormatError
from ...sqlite_file import BusyRetry, DatabaseFile, explained, survives
from .records import SWAP_HEAD, SqliteRecords
from .space import Damaged

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...kernel.commands import Command
    from ...kernel.model import Wake

#: Seconds after which it is looked whether the path still leads to the file that was opened.
LOOK_EVERY = 0.25

#: About how many records of a gate are kept in mind from one transaction to the next.
KEPT = 20_000

#: How many commands go into one transaction at most: others want to write as well.
LARGEST_BATCH = 512

#: For so many decisions after two were made together, more company is to be expected.
COMPANY = 64

#: For so many commands after others were found to have written, they are expected to do it again: each begins with a
#: transaction, since deciding in vain takes longer.
WARY = 4096

NOT_ALONE = object()

_writes = attrgetter("writes")


class Raised:
    """An error that a command raised, in the place of its reply."""

    __slots__ = ("error",)

    def __init__(self, error: HeadgateError) -> None:
        self.error = error


class _Stale(Exception):
    """Others have written since."""


class _Busy(Exception):
    """Others are writing, or the log is being written back."""


class Job:
    """The commands of one caller, and what became of them."""

    __slots__ = ("bell", "commands", "done", "error", "raised", "replies", "writes")

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.replies: list[Any] = []
        self.error: BaseException | None = None
        self.done = False
        #: Whether an error among the replies was raised, and not handed back.
        self.raised = False
        self.writes = any(map(_writes, commands))
        #: Called when it is done, where somebody sleeps until then.
        self.bell: Callable[[], object] | None = None

    def finish(self) -> None:
        self.done = True
        if (bell := self.bell) is not None:
            with suppress(RuntimeError):  # its event loop has ended
                bell()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.finish()

    def result(self) -> list[Any]:
        if self.error is not None:
            raise self.error
        return self.replies


class Transactions:
    """The transactions of one process. `open` opens the file; `seen` is how far each gate had come, as it was told."""

    def __init__(self, path: str, open: Callable[[], DatabaseFile], seen: dict[str, int]) -> None:
        self._path = path
        self._open = open
        self._seen = seen
        self.file: DatabaseFile | None = None
        self._look_at = 0.0
        self.queue: deque[Job] = deque()
        #: What is to be told once it stands: whom to wake, and which gates' state was behind what had been seen.
        self.wakes: deque[Wake] = deque()
        self.lost: set[str] = set()
        #: Above 0 while callers come together.
        self.company = 0
        self._gates: dict[str, SqliteRecords] = {}
        self._version = -1
        #: Above 0 while others write to the file.
        self._wary = 0

    # --- deciding ---------------------------------------------------------------------------------------------------

    def attempt(self, job: Job, waiting: BusyRetry | None) -> BusyRetry | None:
        """Decide a job and all that is queued. Where others are writing, say how to wait for them."""
        try:
            file = self.ready()
            if job.writes:
                if job not in self.queue:
                    self.queue.append(job)  # whoever had taken it was interrupted before beginning
                if file.begin():
                    self._decide(file, self._next_batch())
                    return None
            elif file.begin_reading():
                self._decide(file, [job], writes=False)
                return None
            if waiting is None:
                waiting = BusyRetry(file)
            waiting.check()
            return waiting
        except (sqlite3.Error, OSError, HeadgateError) as error:
            self._fail([*self.queue] if job.writes else [job], error)
            return None

    def alone(self, command: Command) -> Any:
        """The same for one command while nobody else is there, in short; NOT_ALONE when it has to go the long way.

        What fails by a mistake of the command is handed back as `Raised`.
        """
        file = self.file
        if file is None or self.queue or time.monotonic() >= self._look_at or file.in_transaction:
            return NOT_ALONE
        records = self._gates.get(command.gate)
        try:
            if records is None or self._wary:
                if not file.begin():
                    return NOT_ALONE
                self._compare(file)
                records = self._gates.get(command.gate) or self._load(file, command.gate)
            else:
                records.execute = self._read
            try:
                reply = command.apply(file.now(), records)
            except HeadgateError as error:
                reply = Raised(error)
            self._stand(file, records)
        except _Stale:
            file.roll_back()
            self._forget()
            self._wary = WARY
            return NOT_ALONE
        except _Busy:
            # Whether anything has changed by that will be seen: `_compare`.
            self._gates.clear()
            return NOT_ALONE
        except BaseException as error:
            job = Job((command,))
            try:
                self._undo(file, [job], job, error)
            finally:
                self.withdraw(job)
            return job.result()
        records.execute = file.execute
        self._settle(records)
        return reply

    def _compare(self, file: DatabaseFile) -> None:
        """In a transaction: what is in mind is forgotten where others have written since."""
        if (version := file.version()) == self._version:
            self._wary -= self._wary > 0
            return
        if self._version != -1:
            self._wary = WARY
        self._gates.clear()
        self._version = version

    # One that is alone decides by what is in mind, unless others wrote of late. Its transaction begins when something has
    # to be read, or at the end; if others have written by then, it has not happened.

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

    def _stand(self, file: DatabaseFile, records: SqliteRecords) -> None:
        """Write what was decided. Raises _Stale, and nothing is written, where others have written before.

        Nobody writes anything of a gate without its head, which has the number and the time of the last command: where the
        head is still the one in mind, all else is. So most decisions are one statement.
        """
        if not file.in_transaction:
            if not records.changed:
                if file.version() != self._version:
                    raise _Stale
                return
            if (heads := records.head_alone()) is not None:
                if (swapped := file.update_one(SWAP_HEAD, heads)) is None:
                    raise _Busy
                if not swapped:
                    raise _Stale
                return
            self._begin(file)
        file.commit(records.write() if records.changed else 0)

    def withdraw(self, job: Job) -> bool:
        """Take a job back; False when it has already been decided, or is being."""
        try:
            self.queue.remove(job)
        except ValueError:
            return False
        return True

    def _next_batch(self) -> list[Job]:
        jobs: list[Job] = []
        count = 0
        while count < LARGEST_BATCH:
            try:
                job = self.queue.popleft()
            except IndexError:
                break
            jobs.append(job)
            count += len(job.commands)
        self.company = COMPANY if len(jobs) > 1 else max(0, self.company - 1)
        return jobs

    def _decide(self, file: DatabaseFile, jobs: list[Job], writes: bool = True) -> None:
        """Run jobs in the transaction that has begun, and end it. Each of them is done then, or back in the queue."""
        used: dict[str, SqliteRecords] = {}
        job = None
        committing = False
        try:
            now = file.now()
            self._compare(file)
            gate = records = None
            for job in jobs:
                replies = job.replies
                for command in job.commands:
                    if records is None or command.gate != gate:
                        gate = command.gate
                        records = used[gate] = self._gates.get(gate) or self._load(file, gate)
                    try:
                        replies.append(command.apply(now, records))
                    except HeadgateError as error:
                        replies.append(error)
                        job.raised = True
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
                self._settle(records)
            elif records.changed:
                del self._gates[records.gate]  # it has tidied up for itself alone

    def _load(self, file: DatabaseFile, gate: str) -> SqliteRecords:
        seen = self._seen.get(gate, 0)
        records = SqliteRecords(gate, seen, file.execute, file.execute_many)
        if records.head[0] < seen:
            self.lost.add(gate)
        self._gates[gate] = records
        return records

    def _settle(self, records: SqliteRecords) -> None:
        """A transaction stands."""
        try:
            if records.changed:
                records.written()
                self._seen[records.gate] = records.seen
            if records.wakes:
                self.wakes.extend(records.wakes)
                records.wakes.clear()
            if records.load > KEPT:
                del self._gates[records.gate]
        except BaseException:
            self._forget()
            raise

    # --- failing ----------------------------------------------------------------------------------------------------

    def _undo(self, file: DatabaseFile, jobs: list[Job], at_fault: Job | None, error: BaseException) -> None:
        """The transaction failed: nothing of it has happened."""
        self._forget()
        for job in jobs:
            job.replies.clear()
            job.raised = False
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

    def _fail(self, jobs: list[Job], error: BaseException) -> None:
        """Tell everybody who waits: they would only find the same."""
        self._forget()
        if isinstance(error, sqlite3.Error) and not survives(error):
            with suppress(sqlite3.Error):
                self.shut()
        if isinstance(error, Damaged):
            told: HeadgateError = StoreFormatError(
                f"{self._path} is damaged: {error}; restore it from a backup, or start anew with another file"
            )
        else:
            told = error if isinstance(error, HeadgateError) else explained(error, self._path)
        for job in jobs:
            self.withdraw(job)
            # One error each: they are raised in different threads.
            failure = type(told)(*told.args)
            failure.__cause__ = error if error is not told else error.__cause__
            job.fail(failure)

    def _forget(self) -> None:
        self._gates.clear()
        self._version = -1

    # --- the file ---------------------------------------------------------------------------------------------------

    def ready(self) -> DatabaseFile:
        """The file, opened anew where the path leads to another one now."""
        file, now = self.file, time.monotonic()
        if file is not None and file.in_transaction:
            # Somebody pressed Ctrl-C at the one moment when nobody was there to end it.
            self._forget()
            file.roll_back()
        if file is not None and now < self._look_at:
            return file
        if file is not None and not file.is_current():
            self.abandon()
            file = None
        if file is None:
            self._forget()
            file = self.file = self._open()
        self._look_at = now + LOOK_EVERY
        return file

    def shut(self) -> None:
        """Close the file; who needs it opens it again."""
        file, self.file = self.file, None
        self._forget()
        if file is not None:
            file.close()

    def abandon(self) -> None:
        """Leave the file open for ever, where closing it would do harm."""
        file, self.file = self.file, None
        if file is not None:
            file.abandon()

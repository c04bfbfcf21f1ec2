"""What is finished, in a SQLite file: a run that was killed goes on where it stopped, and calls for nothing twice.

A result is appended to a small log beside the file (`PATH-log`) by one `write` before anybody is told of it, and results go
into the file together, many in a transaction. What a `write` has handed to the system outlives the process, whatever kills
it; what is left after a machine has lost its power, `synchronous` says. The next run puts the log into the file.

Items are known by their place and by what they are, so that the file of another run is noticed before a wrong result is
taken from it. Both files are locked by the process that uses them.
"""

from __future__ import annotations

import json
import os
import sqlite3
from hashlib import blake2b
from secrets import token_hex

from ..errors import HeadgateError, InvalidInput, StoreFormatError, StoreUnavailable
from ..sqlite_file import explained, is_busy
from ..sqlite_file.explain import no_database
from .result import CallFailed, ItemResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from os import PathLike
    from typing import Any, Literal

    from .result import Status

    #: index, mark, status, attempts, price, value, error, status of the answer
    Row = tuple[int, str, str, int, float, str | None, str | None, int]

#: In the header of the file: "HGBJ".
APPLICATION_ID = 0x4847424A
FORMAT = 1

#: Bytes: no database is smaller, and SQLite would take a smaller file for an empty one.
SMALLEST = 512

#: Results that wait in the log before they go into the file together.
AT_ONCE = 512
#: Rows that are read at a time when a run goes on.
PAGE = 1000

SCHEMA = (
    "CREATE TABLE run (id TEXT NOT NULL, name TEXT NOT NULL)",
    "CREATE TABLE results (place INTEGER PRIMARY KEY, mark TEXT NOT NULL, status TEXT NOT NULL, "
    "attempts INTEGER NOT NULL, price REAL NOT NULL, value TEXT, error TEXT, answer INTEGER NOT NULL)",
)
#: A call that was refused and is to be tried again has this status until its item is finished.
OPEN = "open"


class JournalMismatch(InvalidInput):
    """The journal is of another run: other items, or another name. Nothing was called, and the journal is as it was."""


class Journal:
    """The journal of one run: `run(…, journal="run.db")`, or `journal=Journal("run.db", …)` to say more.

    `name` is whatever tells this run from others (a model, a date); a journal with another name is refused. `values=False`
    keeps no values, for calls that have put theirs elsewhere. `retry_failed` calls for the failed items again.
    With `synchronous="normal"` finished items survive the death of the process, and all but the last of them that of the
    machine; with `"full"` each result waits for the disk.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        name: str = "",
        values: bool = True,
        retry_failed: bool = False,
        synchronous: Literal["normal", "full"] = "normal",
    ) -> None:
        if synchronous not in ("normal", "full"):
            raise InvalidInput(f"synchronous is 'normal' or 'full', not {synchronous!r}")
        self.path = os.path.abspath(os.fspath(path))
        self._name = name
        self._values = values
        self._retry_failed = retry_failed
        self._full = synchronous == "full"
        self._connection: sqlite3.Connection | None = None
        self._log = -1
        self._waiting: list[Row] = []
        #: What an earlier run left, one page at a time; items come in the order of their places.
        self._page: dict[int, Row] = {}
        self._page_ends = 0
        self._known_until = 0
        #: The same in all runs of this journal.
        self.run_id = ""

    # --- opening and closing -----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open it, or make it. Raises JournalMismatch, StoreFormatError or StoreUnavailable, with what would be right."""
        try:
            if os.path.exists(self.path) and 0 < os.path.getsize(self.path) < SMALLEST:
                raise no_database(self.path)
            self._connection = connection = sqlite3.connect(self.path, isolation_level=None, timeout=0)
            self._prepare(connection)
            self._log = os.open(f"{self.path}-log", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._fold_in_log()
            [known] = connection.execute("SELECT coalesce(max(place) + 1, 0) FROM results").fetchone()
            self._known_until = known
        except (sqlite3.Error, OSError) as error:
            self.close()
            if isinstance(error, sqlite3.Error) and is_busy(error):
                raise StoreUnavailable(
                    f"{self.path}: another process uses this journal; a run has a journal of its own"
                ) from error
            raise explained(error, self.path) from error
        except HeadgateError:
            self.close()
            raise

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # One process uses it, so it needs no shared memory and no lock for each transaction.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        [application] = connection.execute("PRAGMA application_id").fetchone()
        [tables] = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application == 0 and tables == 0:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")
            for statement in SCHEMA:
                connection.execute(statement)
            connection.execute("INSERT INTO run VALUES (?, ?)", (token_hex(8), self._name))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {FORMAT}")
            connection.execute("COMMIT")
        elif application != APPLICATION_ID:
            raise StoreFormatError(
                f"{self.path} is a database, but no journal of a batch run, and was left as it is; name another file"
            )
        [number] = connection.execute("PRAGMA user_version").fetchone()
        if number != FORMAT:
            raise StoreFormatError(
                f"{self.path} is a journal of format {number}, and this version knows format {FORMAT}: use a newer Headgate"
            )
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._full else 'NORMAL'}")
        connection.execute("BEGIN IMMEDIATE")  # takes the lock, which stays
        connection.execute("COMMIT")
        self.run_id, name = connection.execute("SELECT id, name FROM run").fetchone()
        if name != self._name:
            raise JournalMismatch(
                f"{self.path} is the journal of another run: it is named {name!r}, and this run {self._name!r}; "
                f"name another file, or delete it with its -log"
            )

    def _fold_in_log(self) -> None:
        """Put into the file what a killed run has left in the log. The last line may be cut: its item is called again."""
        text = b""
        while part := os.pread(self._log, 1 << 20, len(text)):
            text += part
        rows: list[Row] = []
        for line in text.split(b"\n")[:-1]:
            try:
                row = json.loads(line)
            except ValueError:
                break  # what a machine that lost its power has left
            if not isinstance(row, list) or len(row) != 8 or not isinstance(row[0], int):
                break
            rows.append(tuple(row))
        self._store(rows)

    def _store(self, rows: list[Row]) -> None:
        assert self._connection is not None
        if rows:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            self._connection.execute("COMMIT")
        # After the commit: killed in between, the same rows are put into the file once more.
        os.ftruncate(self._log, 0)

    def close(self) -> None:
        """Put everything into the file and let go of it. Harmless when it is closed."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            if self._log >= 0 and self._waiting:
                self._connection = connection
                self._flush()
        finally:
            self._connection = None
            connection.close()
            if self._log >= 0:
                os.close(self._log)
                self._log = -1

    # --- items --------------------------------------------------------------------------------------------------------

    def mark(self, index: int, item: Any) -> str:
        """By what an item is known again. Raises InvalidInput for one that is no JSON value."""
        try:
            text = json.dumps(item, sort_keys=True, ensure_ascii=False)
            return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidInput(
                f"item {index} is a {type(item).__name__}, which the journal cannot know again ({error}): "
                f"items of a run with a journal are JSON values: text, numbers, lists, dicts"
            ) from error

    def find(self, index: int, item: Any, mark: str) -> tuple[ItemResult | None, int]:
        """The result of an item that an earlier run has finished, or None; and how many calls were made for it."""
        if index >= self._known_until:
            return None, 0
        row = self._row(index)
        if row is None:
            return None, 0
        _, known_mark, status, attempts, price, value, error, answer = row
        if known_mark != mark:
            raise JournalMismatch(
                f"{self.path} is the journal of another run: its item {index} is another one than here. Give it the same "
                f"items in the same order (more may follow), name another file, or delete it with its -log"
            )
        if status == OPEN or (status == "failed" and self._retry_failed):
            return None, attempts
        found: Status = status  # type: ignore[assignment]  # it was written from one
        kept = None if value is None else json.loads(value)
        failure = None if error is None else CallFailed(error, answer)
        return ItemResult(index, item, found, kept, failure, attempts, price, replayed=True), attempts

    def _row(self, index: int) -> Row | None:
        if index >= self._page_ends:
            assert self._connection is not None
            self._page_ends = index + PAGE
            rows = self._connection.execute(
                "SELECT * FROM results WHERE place >= ? AND place < ? ORDER BY place", (index, self._page_ends)
            )
            self._page = {row[0]: row for row in rows}
        return self._page.pop(index, None)

    def tried(self, index: int, mark: str, attempts: int) -> None:
        """A call for an item was made and refused; it is to be made again."""
        self._append((index, mark, OPEN, attempts, 0.0, None, None, 0))

    def finished(self, result: ItemResult, mark: str) -> None:
        """Keep a result. What was skipped is not kept: the next run sees for itself.

        Raises InvalidInput for a value that is no JSON value, after it has kept that the item is finished.
        """
        if result.status == "skipped":
            return
        value, wrong = None, None
        if self._values and result.status == "successful":
            try:
                value = json.dumps(result.value, ensure_ascii=False)
                value.encode()
            except (TypeError, ValueError, RecursionError) as error:
                value, wrong = None, error
        failure = None if result.error is None else f"{type(result.error).__name__}: {result.error}"
        answer = getattr(result.error, "status", 0)
        row = (
            result.index,
            mark,
            result.status,
            result.attempts,
            result.price,
            value,
            None if failure is None else failure.encode("utf-8", "backslashreplace").decode(),
            answer if isinstance(answer, int) else 0,
        )
        self._append(row)
        if wrong is not None:
            raise InvalidInput(
                f"the value of item {result.index} is a {type(result.value).__name__}, which the journal cannot keep "
                f"({wrong}): return a JSON value from the call, or use Journal(path, values=False). The item counts as "
                f"finished"
            ) from wrong

    def _append(self, row: Row) -> None:
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        try:
            written = os.write(self._log, line)
            if written != len(line):
                raise OSError(28, "the disk is full")
            if self._full:
                os.fdatasync(self._log)
        except OSError as error:
            raise explained(error, f"{self.path}-log") from error
        self._waiting.append(row)
        if len(self._waiting) >= AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        rows, self._waiting = self._waiting, []
        try:
            self._store(rows)
        except (sqlite3.Error, OSError) as error:
            raise explained(error, self.path) from error

"""What each gate did in the last hours, a row a minute, in a file that a guard reads again when it starts.

The file is beside the guard's SQLite store, or where `[serve] history` says; a guard with neither remembers as long as it
runs. It is lines of JSON, one a minute: `{"at": 1790000040, "gates": {"adobe": [granted, refused, …]}}`. A line that was
cut by a crash is passed over. A file that cannot be written costs the history and nothing else.
"""

from __future__ import annotations

import json
import os
from collections import deque
from contextlib import suppress

from ..log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    #: Time, granted, refused, 429s reported; and the most that waited, the highest utilisation, and the mean seconds that
    #: a granted ask had waited, each None where that is not known.
    Row = tuple[int, int, int, int, int | None, float | None, float | None]

#: Minutes that are kept, and lines after which the file is written anew without those that are older.
KEPT, LONGEST = 6 * 60, 9 * 60
#: The most bytes of a file that are read: another file under that name must not fill the memory.
LARGEST = 64 * 1024 * 1024


class MinuteOfGate:
    """A minute of one gate, as it is summed up from its seconds."""

    __slots__ = ("granted", "limited", "refused", "utilisation", "waited_s", "waiting")

    def __init__(self) -> None:
        self.granted = self.refused = self.limited = 0
        self.waiting: int | None = None
        self.utilisation: float | None = None
        self.waited_s = 0.0

    def add(self, row: Row) -> None:
        _, granted, refused, limited, waiting, utilisation, waited = row
        self.granted += granted
        self.refused += refused
        self.limited += limited
        self.waited_s += (waited or 0.0) * granted
        if waiting is not None:
            self.waiting = max(self.waiting or 0, waiting)
        if utilisation is not None:
            self.utilisation = max(self.utilisation or 0.0, utilisation)

    def row(self, at: int) -> Row:
        waited = self.waited_s / self.granted if self.granted else None
        return at, self.granted, self.refused, self.limited, self.waiting, self.utilisation, waited


class History:
    """The minutes of every gate. `path` None: in memory alone."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self._rows: dict[str, deque[Row]] = {}
        self._minute = 0
        self._open: dict[str, MinuteOfGate] = {}
        self._lines = 0
        self._failed = False
        if path is not None:
            self._read(path)

    def add(self, gate: str, row: Row) -> list[str]:
        """Take in the row of a second. Returns lines to `write` when a minute is over."""
        lines = []
        minute = row[0] - row[0] % 60
        if minute != self._minute:
            lines = self.end_minute()
            self._minute = minute
        self._open.setdefault(gate, MinuteOfGate()).add(row)
        return lines

    def end_minute(self) -> list[str]:
        """Close the minute that is open. Returns the line of it, if anything was counted."""
        minutes, self._open = self._open, {}
        if not minutes:
            return []
        told = {}
        for gate, minute in minutes.items():
            row = minute.row(self._minute)
            self._keep(gate, row)
            told[gate] = row[1:]
        return [json.dumps({"at": self._minute, "gates": told}, separators=(",", ":")) + "\n"]

    def rows(self, gates: Iterable[str]) -> dict[str, list[Row]]:
        """The minutes of these gates, the oldest first."""
        return {gate: list(self._rows.get(gate, ())) for gate in gates}

    def write(self, lines: list[str]) -> None:
        """Append lines to the file. Blocks; call it from a thread."""
        if self.path is None or not lines:
            return
        try:
            if self._lines + len(lines) > LONGEST:
                self._write_anew()
            else:
                with open(_descriptor(self.path, os.O_APPEND), "a", encoding="utf-8") as stream:
                    stream.writelines(lines)
                self._lines += len(lines)
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning("the history cannot be written, and goes on in memory: %s", error)
            self._failed = True

    def _write_anew(self) -> None:
        """The minutes that are kept, in place of the file."""
        assert self.path is not None
        minutes: dict[int, dict[str, Any]] = {}
        for gate, rows in list(self._rows.items()):
            for row in list(rows):
                minutes.setdefault(row[0], {})[gate] = row[1:]
        fresh = f"{self.path}.new"
        with open(_descriptor(fresh, os.O_TRUNC), "w", encoding="utf-8") as stream:
            for at, gates in sorted(minutes.items()):
                stream.write(json.dumps({"at": at, "gates": gates}, separators=(",", ":")) + "\n")
        os.replace(fresh, self.path)
        self._lines = len(minutes)

    def _read(self, path: str) -> None:
        with suppress(OSError):
            if os.path.getsize(path) > LARGEST:
                log.warning("%s is too large to be a history, and is left alone", path)
                self.path = None
                return
            with open(path, encoding="utf-8", errors="replace") as stream:
                for line in stream:
                    self._lines += 1
                    for gate, row in _rows_of(line):
                        self._keep(gate, row)

    def _keep(self, gate: str, row: Row) -> None:
        rows = self._rows.setdefault(gate, deque(maxlen=KEPT))
        if not rows or row[0] > rows[-1][0]:  # a clock that was set back makes no chart that goes backwards
            rows.append(row)


def _rows_of(line: str) -> list[tuple[str, Row]]:
    """The rows of a line of the file; none where it is no such line."""
    try:
        told = json.loads(line)
        at = int(told["at"])
        rows = []
        for gate, (granted, refused, limited, waiting, utilisation, waited) in told["gates"].items():
            row = (
                at,
                int(granted),
                int(refused),
                int(limited),
                _number(waiting),
                _number(utilisation),
                _number(waited),
            )
            rows.append((str(gate), row))
        return rows
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
        return []


def _number(value: Any) -> Any:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise ValueError(f"{value!r} is no number")


def _descriptor(path: str, more: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | more, 0o600)

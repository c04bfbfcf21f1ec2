"""The clock of a database file: the machine's steady clock plus an offset that is kept in the file.

All processes of the machine that have the file open so agree on the time, whatever their wall clocks say.
"""

from __future__ import annotations

import json
import sys
import time
from functools import cache

from ..clock import steady_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..clock import Clock
    from .file import DatabaseFile, Execute

META = "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID"


def anchor(file: DatabaseFile, latest_us: Callable[[Execute], int]) -> int:
    """The offset (µs) to the steady clock that the file keeps for this boot of the machine.

    The first process after a boot sets it by the wall clock, but so that time does not go back behind the latest time in
    the file. From then on no process looks at the wall clock.
    """
    boot = boot_id()
    offset = _stored(file, boot)
    if offset is not None:
        return offset
    file.begin_when_free()
    try:
        offset = _stored(file, boot)
        if offset is None:
            offset = max(time.time_ns() // 1000, latest_us(file.execute)) - steady_ns() // 1000
            text = json.dumps((boot, offset), separators=(",", ":"))
            file.execute("REPLACE INTO meta VALUES ('anchor', ?)", (text,))
        file.execute("COMMIT")
    except BaseException:
        file.roll_back()
        raise
    return offset


def _stored(file: DatabaseFile, boot: str) -> int | None:
    row = file.execute("SELECT value FROM meta WHERE name = 'anchor'").fetchone()
    if row is None:
        return None
    of_boot, offset = json.loads(row[0])
    return int(offset) if of_boot == boot else None


def clock_at(offset_us: int) -> Clock:
    def now() -> int:
        return steady_ns() // 1000 + offset_us

    return now


@cache
def boot_id() -> str:
    """Another text each time the machine is started, the same for all of its processes."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read().decode().strip()
    except OSError:
        pass
    if sys.platform == "darwin":
        import subprocess

        found = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=False)
        if found.stdout.strip():
            return found.stdout.strip()
    # Elsewhere: the hour in which the machine was started, by its wall clock. Two starts within an hour look like one, and
    # a wall clock that is set anew like a start. Then gates may stand still for as long as the clocks differ, but time
    # does not go back, and nothing is granted twice.
    return f"hour {(time.time_ns() - steady_ns()) // 3_600_000_000_000}"

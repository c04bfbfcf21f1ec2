"""The audit log of changes: one JSON object per line, appended to a file, and a record in the guard's log.

The latest are also kept here, for the dashboard; after a restart they are read from the end of the file.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque

from .log import json_line, log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..kernel.model import Override
    from .tokens import Bearer

#: The most changes that are kept, and the bytes of the file that are read for them.
KEPT, TAIL = 500, 256 * 1024


class Audit:
    """The record of changes. `path` None: only in the guard's log, and the latest here."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        #: The latest changes, the oldest first.
        self._latest: deque[dict[str, Any]] = deque(maxlen=KEPT)
        #: Gate, limit and key → the value that was last recorded as tightened, and until when it holds.
        self._lowered: dict[tuple[str, str, str | None], tuple[float, float]] = {}
        #: How many changes this guard has recorded: it tells a dashboard when to ask again.
        self.count = 0
        if path is not None:
            self._append("")  # so that a file that cannot be written is found before the first change
            self._latest.extend(_end_of(path))

    def record(self, action: str, gate: str, bearer: Bearer | None, client: str, **facts: Any) -> None:
        """Record a change that was made."""
        line = {"time": _now(), "action": action, "gate": gate, **_who(bearer, client), **facts}
        self._latest.append(line)
        self.count += 1
        log.info("change: %s of gate %s", action, gate, extra={name: line[name] for name in line if name != "time"})
        if self.path is not None:
            self._append(json_line(line) + "\n")

    def record_refusal(self, bearer: Bearer | None, client: str, **facts: Any) -> None:
        """Record that a token was refused. It is no change of a gate, so it is not among the latest."""
        found = {**_who(bearer, client), **facts}
        log.warning("a token was refused", extra=found)
        if self.path is not None:
            self._append(json_line({"time": _now(), "action": "refuse token", **found}) + "\n")

    def record_tightening(self, gate: str, found: Override, bearer: Bearer | None, client: str) -> None:
        """Record that a limit was lowered by a worker: once for each value, since workers say it again and again."""
        if not found.tightened:
            return
        name, now = (gate, found.limit, found.key), time.monotonic()
        value, until = self._lowered.get(name, (0.0, 0.0))
        if len(self._lowered) >= KEPT:
            self._lowered.clear()
        self._lowered[name] = (found.value, now + (found.expires_in or 0.0))
        if value != found.value or now >= until:
            facts = {"limit": found.limit, "key": found.key, "value": found.value}
            self.record(
                "tighten limit", gate, bearer, client, **facts, reason=found.reason, expires_in=found.expires_in
            )

    def latest(self, gate: str | None = None, most: int = 50) -> list[dict[str, Any]]:
        """The latest changes of a gate, or of all, the newest first."""
        found = [line for line in reversed(self._latest) if gate is None or line["gate"] == gate]
        return found[:most]

    def _append(self, text: str) -> None:
        assert self.path is not None
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "a", encoding="utf-8") as stream:
            stream.write(text)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _who(bearer: Bearer | None, client: str) -> dict[str, Any]:
    return {"by": None if bearer is None else bearer.name, "client": client}


def _end_of(path: str) -> list[dict[str, Any]]:
    """The changes at the end of an audit file. A line that is none, or was cut, is passed over."""
    with open(path, "rb") as stream:
        stream.seek(0, os.SEEK_END)
        begin = max(0, stream.tell() - TAIL)
        stream.seek(begin)
        lines = stream.read().split(b"\n")
    found = []
    for line in lines[1:] if begin else lines:
        try:
            read = json.loads(line)
        except ValueError:
            continue
        if isinstance(read, dict) and {"time", "action", "gate"} <= read.keys():
            found.append(read)
    return found[-KEPT:]

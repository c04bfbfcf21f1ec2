"""The audit log of changes: one JSON object per line, appended to a file, and a record in the guard's log."""

from __future__ import annotations

import json
import os
import time

from .log import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .tokens import Bearer


class Audit:
    """The record of changes. `path` None: only in the guard's log."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        if path is not None:
            self._append("")  # so that a file that cannot be written is found before the first change

    def record(self, action: str, gate: str, bearer: Bearer | None, client: str, **facts: Any) -> None:
        """Record a change that was made."""
        line = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "action": action,
            "gate": gate,
            "by": None if bearer is None else bearer.name,
            "client": client,
            **facts,
        }
        log.info("change: %s of gate %s", action, gate, extra={name: line[name] for name in line if name != "time"})
        if self.path is not None:
            self._append(json.dumps(line, ensure_ascii=False) + "\n")

    def _append(self, text: str) -> None:
        assert self.path is not None
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "a", encoding="utf-8") as stream:
            stream.write(text)

"""The guard's log: one JSON object per line on standard error."""

from __future__ import annotations

import json
import logging
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

log = logging.getLogger("headgate.guard")

#: The attributes of every log record; the others are facts that the caller passed as `extra`.
_PLAIN = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "headgate"}


def json_line(value: Any) -> str:
    """A value as one line of JSON that shows on a terminal as it is: what cannot be printed is escaped."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if text.isprintable() else json.dumps(value, default=str).replace("\x7f", "\\u007f")


class JsonLines(logging.Formatter):
    """A record as one line: time (UTC), level, message, and its facts."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        event = getattr(record, "headgate", None)
        if event is not None:
            line |= {"event": event.kind, "gate": event.gate, **event.facts}
        line |= {name: value for name, value in record.__dict__.items() if name not in _PLAIN}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json_line(line)


def log_as_json(level: str = "info") -> None:
    """Write the log of this process as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Its warnings are about requests that are not HTTP. Any stranger can send as many as the disk has room for.
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.ERROR)

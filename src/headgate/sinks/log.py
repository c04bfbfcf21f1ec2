"""Events as lines of the `headgate` logger. The event itself is on the record, as `record.headgate`."""

from __future__ import annotations

import logging

_LOGGER = logging.getLogger("headgate")
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def log(level: str, text: str, event: object) -> None:
    _LOGGER.log(_LEVELS[level], "%s", text, extra={"headgate": event})

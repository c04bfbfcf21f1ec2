"""Events as lines of the `headgate` logger. The event itself is on the record, as `record.headgate`."""

from __future__ import annotations

import logging

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class LoggedEvent(Protocol):
        """What is logged of an event. `headgate.events` is in a layer above the sinks."""

        @property
        def level(self) -> str: ...


_LOGGER = logging.getLogger("headgate")
_LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class LogSink:
    """Writes each event as one line, at the level that its kind has."""

    def __call__(self, event: LoggedEvent) -> None:
        log(event.level, str(event), event)


def log(level: str, text: str, event: object) -> None:
    _LOGGER.log(_LEVELS[level], "%s", text, extra={"headgate": event})

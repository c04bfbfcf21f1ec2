"""How a process that waits says that it lives: one write that reads nothing, and is a look at the line as well.

Until when it is to be taken for living stands beside the gate's state, under an attribute of its own: a beat. The answer to
such a write is the item as it is then, and costs no read. The item's token changes with it, so that nobody who has read
the item before writes over the beat: whoever writes next takes it over into the state, and it is gone.
"""

from __future__ import annotations

from ...kernel.commands import Renew
from ...kernel.line import SESSION, meta_of
from .clock import FAR_AHEAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...kernel.commands import Command
    from .records import DynamoRecords
    from .table import Item, Table

#: What the names of their attributes begin with; a session follows.
BEAT = "h:"


def is_beat(command: Command, session: str) -> bool:
    """Whether a command has nothing to say but that this process lives."""
    return isinstance(command, Renew) and not command.leases and command.session == session


def beat(table: Table, name: str, session: str, number: int, now: int) -> Item:
    """Say that a process lives, as its write of that number. Returns the gate's item as it is then."""
    return table.beat(name, BEAT + session, now + SESSION, f"{session}.{number}")


def beats_of(item: Item) -> dict[str, int]:
    """Session → until when it is to be taken for living."""
    return {name.removeprefix(BEAT): int(value["N"]) for name, value in item.items() if name.startswith(BEAT)}


def take_over(records: DynamoRecords, beats: dict[str, int], now: int) -> None:
    """Processes that still stand in line live on. One that was put to sleep has to come itself, and finds that out."""
    sessions = records.space("sessions")
    for session, until in beats.items():
        known = sessions.score(session)
        if known is not None and known < until <= now + SESSION + FAR_AHEAD:
            sessions.put(session, sessions.get(session), until)


def is_all(records: DynamoRecords, now: int, session: str) -> bool:
    """Whether a beat was all that a heartbeat had to do: its process is not asleep or buried, and nothing is due."""
    return records.space("sessions").get(session) == 0 and now < meta_of(records).timer_at

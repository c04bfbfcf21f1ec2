"""The heartbeat of a process whose tickets wait: one write without a read, whose answer shows the line as well.

The moment until which the process lives stands beside the gate's state, in an attribute of its own. The answer to such a
write is the item as it is then, and costs no read. The write also changes the item's token, so that a process which had
read the item before cannot write over the heartbeat: the next write of the state takes it in and removes the attribute.
"""

from __future__ import annotations

from ...kernel.commands import Renew
from ...kernel.line import SESSION, line_state
from .clock import FAR_AHEAD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...kernel.commands import Command
    from .records import DynamoRecords
    from .table import DynamoTable, Item

#: What the names of these attributes begin with; a session follows.
HEARTBEAT = "h:"


def is_heartbeat(command: Command, session: str) -> bool:
    """Whether a command says nothing but that this process lives."""
    return isinstance(command, Renew) and not command.leases and command.session == session


def send_heartbeat(table: DynamoTable, name: str, session: str, number: int, now: int) -> Item:
    """Write that a process lives, as its write of that number. Returns the gate's item as it is then."""
    return table.set_number(name, HEARTBEAT + session, now + SESSION, f"{session}.{number}")


def heartbeats_of(item: Item) -> dict[str, int]:
    """Session → the moment until which it lives."""
    return {name.removeprefix(HEARTBEAT): int(value["N"]) for name, value in item.items() if name.startswith(HEARTBEAT)}


def take_in(records: DynamoRecords, heartbeats: dict[str, int], now: int) -> None:
    """Extend the life of sessions that stand in line. One that was put to sleep must renew itself, and is told so then."""
    sessions = records.sessions
    for session, until in heartbeats.items():
        known = sessions.score(session)
        if known is not None and known < until <= now + SESSION + FAR_AHEAD:
            sessions.put(session, sessions.get(session), until)


def is_enough(records: DynamoRecords, now: int, session: str) -> bool:
    """Whether the heartbeat alone does what its command has to do: the session is awake, and the line has nothing due."""
    return records.sessions.get(session) == 0 and now < line_state(records).timer_at

"""Wakes between processes: datagrams that tell a process that a ticket of its own was called, or should look again."""

from __future__ import annotations

from contextlib import suppress

from ...kernel.model import Wake
from ...sqlite_file import WakeSocket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..base import Listeners


class TicketWaker(WakeSocket):
    """Wakes waiters of this process directly, those of another process by a datagram to the socket of their session.

    A wake that does not arrive is no error: a ticket whose call is not taken is given back by itself.
    """

    def __init__(self, path: str, session: str, listeners: Listeners) -> None:
        super().__init__(path, session, self._heard, listeners.__len__)
        self._listeners = listeners

    def tell(self, wake: Wake) -> None:
        """Wake a waiter, here or elsewhere. Never blocks, never fails."""
        if not self._listeners.tell(wake) and wake.session != self._name:
            delay = "" if wake.delay is None else wake.delay
            self.send(wake.session, f"{wake.ticket} {delay} {wake.session}".encode())

    def _heard(self, message: bytes) -> None:
        with suppress(ValueError):  # a datagram of another program
            ticket, delay, session = message.decode().split(" ")
            self._listeners.tell(Wake(session, ticket, int(delay) if delay else None))

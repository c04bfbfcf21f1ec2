"""The routes of the fast path: an acquire that does not wait, and a release. Their handlers are in `routes/asks.py`."""

from __future__ import annotations

from ...errors import Denied
from ..routes.asks import (
    ask_command,
    not_now,
    permit_text,
    refused,
    release_command,
    released,
    seconds_until,
)
from ..schema import shapes
from ..web import decoded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...gate.served import ServedGate
    from ...kernel.commands import Release, Stand
    from ..app import Guard
    from ..web import Response

    #: From the name in the path and the body to the command, and to the gate that decides it. None: not on the fast path.
    CommandOf = Callable[[Guard, str, bytes], tuple[ServedGate, Any] | None]
    #: From the command, the name in the path and the store's reply to the response.
    RespondTo = Callable[[Guard, ServedGate, Any, str, Any], Response]


class FastRoute:
    """A route in two halves, between which the store decides: `command` and `respond`."""

    __slots__ = ("command", "respond")

    def __init__(self, command: CommandOf, respond: RespondTo) -> None:
        self.command = command
        self.respond = respond


def _acquire_command(guard: Guard, gate: str, raw: bytes) -> tuple[ServedGate, Stand] | None:
    body = decoded(raw) if raw else {}
    if body.__class__ is not dict or body.get("wait"):
        return None
    if body:
        shapes.ACQUIRE.check(body)
    served = guard.served(gate)
    stand = ask_command(guard, served, body)
    if (served.name, stand.id) in guard.polls_by_id or guard.remaining.cached(served.name, stand.plan.key) is None:
        return None
    return served, stand


def _acquire_respond(guard: Guard, served: ServedGate, stand: Stand, gate: str, reply: Any) -> Response:
    try:
        grant: Any = served.resolve_ask(stand, reply)
        delay = seconds_until(stand, grant)
        if delay is not None:
            raise not_now(served, stand, grant, delay)
    except Denied as error:
        raise refused(guard, served, stand, error) from None
    guard.count(served.name, "granted", 0.0, stand)
    headers = guard.remaining.with_policy(served.policy, guard.remaining.latest(served.name, stand.plan.key))
    return 200, headers, permit_text(served, stand, grant, 0.0).encode()


def _release_command(guard: Guard, id: str, raw: bytes) -> tuple[ServedGate, Release] | None:
    body = decoded(raw) if raw else {}
    # One that also tells when it was sent is two commands.
    return release_command(guard, id, body) if body.__class__ is dict and "sent_for" not in body else None


def _release_respond(guard: Guard, served: ServedGate, command: Release, id: str, reply: Any) -> Response:
    return released(guard, id, served, command, served.resolve_release(command, reply))


ACQUIRE = FastRoute(_acquire_command, _acquire_respond)
RELEASE = FastRoute(_release_command, _release_respond)

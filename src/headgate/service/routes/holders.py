"""Ending a lease by hand: for whoever may configure, when its holder is stuck. It is in the audit log."""

from __future__ import annotations

from ...http.problems import Problem
from ...kernel.model import OUTCOMES
from ..schema import shapes
from ..web import json_response
from .gates import known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..app import Guard
    from ..web import Request, Response

#: How a permit that somebody else holds may be ended: as if it failed, or as if it was never sent.
UNANSWERED = tuple(name for name, outcome in OUTCOMES.items() if not outcome.answered)
OUTCOME = shapes.choice(
    "How it ended. `unsent` gives back what it counts on the rates too. Default: error.", *UNANSWERED
)


async def end_lease(guard: Guard, request: Request) -> Response:
    """The id is one of `/holders`; unlike a release by its holder it takes the scope configure, whoever holds it."""
    outcome = known(request, "outcome").get("outcome", "error")
    if outcome not in UNANSWERED:
        raise Problem(400, "bad-query", f"outcome must be one of {', '.join(UNANSWERED)}, not {outcome!r:.80}")
    served, id = guard.served(request.params["gate"]), request.params["id"]
    gate, _, name = id.partition(":")
    if gate != served.name or not name:
        raise Problem(404, "not-found", f"{id!r:.120} is no id of a holder of {served.name}; /holders lists them")
    released = await served.gate.release(name, outcome)
    client = request.scope.get("client")
    guard.audit.tell(
        "release", served.name, request.bearer, client[0] if client else "", id=id, outcome=outcome, released=released
    )
    return json_response({"id": id, "released": released})

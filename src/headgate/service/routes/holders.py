"""The route that ends a lease whose holder is stuck. It needs the scope configure, and is in the audit log."""

from __future__ import annotations

from ...http.problems import Problem
from ...kernel.model import OUTCOMES
from ..schema import shapes
from ..web import json_response
from .gates import check_query

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..app import Guard
    from ..web import Request, Response

#: How a permit can be ended for its holder: as if it failed, or as if it was never sent.
UNANSWERED = tuple(name for name, outcome in OUTCOMES.items() if not outcome.answered)
OUTCOME = shapes.choice(
    "How it ended. `unsent` gives back what it counts on the rates too. Default: error.", *UNANSWERED
)


async def end_lease(guard: Guard, request: Request) -> Response:
    """`DELETE /v1/gates/{gate}/holders/{id}`. The id is one of `GET /v1/gates/{gate}/holders`."""
    outcome: Any = check_query(request, "outcome").get("outcome", "error")
    if outcome not in UNANSWERED:
        raise Problem(400, "bad-query", f"outcome must be one of {', '.join(UNANSWERED)}, not {outcome!r:.80}")
    served, id = guard.served(request.params["gate"]), request.params["id"]
    gate, _, name = id.partition(":")
    if gate != served.name or not name:
        raise Problem(404, "not-found", f"{id!r:.120} is no id of a holder of {served.name}; /holders lists them")
    released = await served.gate.release(name, outcome)
    guard.audit.record(
        "release", served.name, request.bearer, request.client, id=id, outcome=outcome, released=released
    )
    return json_response({"id": id, "released": released})

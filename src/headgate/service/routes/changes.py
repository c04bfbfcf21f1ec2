"""The routes that change gates while they run. Every change is in the audit log."""

from __future__ import annotations

from ...http.problems import Problem
from ...kernel.model import Usage, plain
from ..schema import shapes
from ..schema.values import PAUSED, members
from ..web import json_response
from .gates import check_query, key_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...gate import AsyncGate
    from ..app import Guard
    from ..web import Request, Response


#: The query of `clear_limit`.
TIGHTENED = shapes.choice("True: end what was tightened, and leave what was set. Default: false.", "true", "false")


def _record(guard: Guard, request: Request, action: str, gate: str, **facts: Any) -> None:
    guard.audit.record(action, gate, request.bearer, request.client, **facts)


async def set_limit(guard: Guard, request: Request) -> Response:
    key = key_of(check_query(request, "key").get("key"))
    body = await request.json(guard.settings.max_body)
    shapes.LIMIT.check(body)
    gate, limit = guard.served(request.params["gate"]).gate, request.params["limit"]
    was = await _value_before(gate, limit, key)
    value, terms = body["value"], {name: body[name] for name in ("reason", "expires_in") if body.get(name)}
    await gate.set_limit(limit, value, key, **terms)
    _record(guard, request, "set limit", gate.name, limit=limit, key=key, value=value, was=was, **terms)
    return json_response({"gate": gate.name, "limit": limit, "key": key, "value": value, "was": was})


async def clear_limit(guard: Guard, request: Request) -> Response:
    query = check_query(request, "key", "tightened")
    key, tightened = key_of(query.get("key")), query.get("tightened", "false")
    if tightened not in ("true", "false"):
        raise Problem(422, "invalid-input", f"tightened is true or false, not {tightened!r:.80}")
    shapes.NOTHING.check(await request.json(guard.settings.max_body))
    gate, limit = guard.served(request.params["gate"]).gate, request.params["limit"]
    lowered = tightened == "true"
    was = await _value_before(gate, limit, key, lowered)
    await gate.clear_limit(limit, key, tightened=lowered)
    action = "end tightening" if lowered else "clear limit"
    _record(guard, request, action, gate.name, limit=limit, key=key, value=None, was=was)
    return json_response({"gate": gate.name, "limit": limit, "key": key, "value": None, "was": was})


async def _value_before(
    gate: AsyncGate, limit: str, key: dict[str, str] | None, tightened: bool = False
) -> float | None:
    shown = (limit, ",".join((key or {}).values()) or None, tightened)
    found = {(one.limit, one.key, one.tightened): one.value for one in await gate.overrides()}
    return found.get(shown)


async def tighten(guard: Guard, request: Request) -> Response:
    """A worker may say it, since it only lowers, and ends by itself."""
    key = key_of(check_query(request, "key").get("key"))
    body = await request.json(guard.settings.max_body)
    shapes.TIGHTEN.check(body)
    gate, limit = guard.served(request.params["gate"]).gate, request.params["limit"]
    found = await gate.tighten(limit, body["value"], key, expires_in=body["expires_in"], reason=body.get("reason"))
    guard.audit.record_tightening(gate.name, found, request.bearer, request.client)
    return json_response(plain(found))


def _paused(usage: Usage) -> dict[str, Any]:
    shown = members(usage)
    return {name: shown[name] for name in PAUSED}


async def pause(guard: Guard, request: Request) -> Response:
    check_query(request)
    body = await request.json(guard.settings.max_body)
    shapes.PAUSE.check(body)
    gate = guard.served(request.params["gate"]).gate
    reason = body.get("reason") or "paused by hand"
    await gate.pause(body.get("seconds"), reason)
    _record(guard, request, "pause", gate.name, seconds=body.get("seconds"), reason=reason)
    return json_response(_paused(await gate.usage()))


async def resume(guard: Guard, request: Request) -> Response:
    check_query(request)
    shapes.NOTHING.check(await request.json(guard.settings.max_body))
    gate = guard.served(request.params["gate"]).gate
    await gate.resume()
    _record(guard, request, "resume", gate.name)
    return json_response(_paused(Usage(gate.name, (), 0)))


async def reset(guard: Guard, request: Request) -> Response:
    check_query(request)
    body = await request.json(guard.settings.max_body)
    shapes.RESET.check(body)
    gate = guard.served(request.params["gate"]).gate
    await gate.reset(body.get("limit"))
    _record(guard, request, "reset", gate.name, limit=body.get("limit"))
    return json_response({"gate": gate.name, "limit": body.get("limit")})

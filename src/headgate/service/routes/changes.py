"""The routes that change gates while they run. Every change is in the audit log."""

from __future__ import annotations

from ...kernel.model import Usage
from ..schema import shapes
from ..schema.values import PAUSED, members
from ..web import json_response
from .gates import check_query, key_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..app import Guard
    from ..web import Request, Response


def _record(guard: Guard, request: Request, action: str, gate: str, **facts: Any) -> None:
    guard.audit.record(action, gate, request.bearer, request.client, **facts)


async def set_limit(guard: Guard, request: Request) -> Response:
    key = key_of(check_query(request, "key").get("key"))
    body = await request.json(guard.settings.max_body)
    shapes.LIMIT.check(body)
    return await _change(guard, request, key, body["value"])


async def clear_limit(guard: Guard, request: Request) -> Response:
    key = key_of(check_query(request, "key").get("key"))
    shapes.NOTHING.check(await request.json(guard.settings.max_body))
    return await _change(guard, request, key, None)


async def _change(guard: Guard, request: Request, key: dict[str, str] | None, value: float | None) -> Response:
    gate, limit = guard.served(request.params["gate"]).gate, request.params["limit"]
    shown = ",".join((key or {}).values()) or None
    before = {(override.limit, override.key): override.value for override in await gate.overrides()}
    if value is None:
        await gate.clear_limit(limit, key)
    else:
        await gate.set_limit(limit, value, key)
    was = before.get((limit, shown))
    action = "clear limit" if value is None else "set limit"
    _record(guard, request, action, gate.name, limit=limit, key=key, value=value, was=was)
    return json_response({"gate": gate.name, "limit": limit, "key": key, "value": value, "was": was})


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

"""The routes that look at gates: usage, holders, what blocks an ask. They spend nothing."""

from __future__ import annotations

import re
from calendar import timegm
from contextlib import suppress
from time import strptime

from ...http.headers import policy_header, usage_field
from ...http.problems import Problem
from ...kernel.model import plain
from ..schema.shapes import AMOUNT
from ..schema.values import members
from ..web import json_response

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...gate.served import ServedGate
    from ...kernel.model import Holder, Usage
    from ..app import Guard
    from ..web import Request, Response


def check_query(request: Request, *names: str) -> dict[str, str]:
    """The query. Raises Problem for a parameter that is not among these names."""
    found = request.query()
    for name in found:
        if name not in names:
            right = f"there are {', '.join(names)}" if names else "there are none here"
            raise Problem(400, "bad-query", f"there is no parameter {name!r}; {right}")
    return found


def key_of(text: str | None) -> dict[str, str] | None:
    """`org=acme,team=blue` as a key."""
    if text is None:
        return None
    found = {}
    for part in text.split(","):
        by, equals, value = part.partition("=")
        if not equals or not by or by in found:
            raise Problem(422, "invalid-input", f"a key is written like org=acme, or org=acme,team=blue; not {text!r}")
        found[by] = value
    return found


def cost_of(text: str | None) -> Any:
    """`2`, or `pu=3.2,requests=1`, as a cost."""
    if text is None:
        return 1
    parts = [part.rpartition("=") for part in text.split(",")]
    costs = {unit or "requests": float(amount) for unit, _, amount in parts if re.fullmatch(AMOUNT, amount)}
    if len(costs) < len(parts):
        raise Problem(422, "invalid-input", f"a cost is written like 2, or pu=3.2,requests=1; not {text!r}")
    return costs


def usage_of(served: ServedGate, usage: Usage) -> dict[str, Any]:
    """A gate as clients see it. Times are seconds from now."""
    policy, shown = served.policy, members(usage)
    limits = shown.pop("limits")
    return {
        **shown,
        "mode": policy.waiting,
        "keys": list(policy.keys),
        "units": sorted(policy.units),
        "priorities": list(policy.priorities),
        "limits": limits,
    }


def holder_of(served: ServedGate, holder: Holder) -> dict[str, Any]:
    return {**plain(holder), "id": f"{served.name}:{holder.id}"}


async def list_gates(guard: Guard, request: Request) -> Response:
    check_query(request)
    found = []
    for name in guard.gates:
        served = guard.served(name)
        found.append(usage_of(served, guard.note_usage(await served.gate.usage())))
    return json_response({"gates": found})


async def show_gate(guard: Guard, request: Request) -> Response:
    query = check_query(request, "key")
    served = guard.served(request.params["gate"])
    usage = guard.note_usage(await served.gate.usage(key_of(query.get("key"))))
    overrides = plain(await served.gate.overrides())
    headers = [*policy_header(served.policy), (b"ratelimit", usage_field(usage.limits))]
    told = {"why": await served.gate.why(), "overrides": overrides}
    return json_response(usage_of(served, usage) | told, headers=headers)


async def holders(guard: Guard, request: Request) -> Response:
    key = key_of(check_query(request, "key").get("key")) or {}
    served = guard.served(request.params["gate"])
    listed = [holder for holder in await served.gate.holders() if key.items() <= holder.key.items()]
    found = [holder_of(served, holder) for holder in listed]
    return json_response({"gate": served.name, "holders": found})


async def waiters(guard: Guard, request: Request) -> Response:
    key = key_of(check_query(request, "key").get("key")) or {}
    served = guard.served(request.params["gate"])
    listed = [waiter for waiter in await served.gate.waiters() if key.items() <= waiter.key.items()]
    return json_response({"gate": served.name, "why": await served.gate.why(), "waiters": plain(listed)})


async def keys(guard: Guard, request: Request) -> Response:
    query = check_query(request, "limit", "top", "search")
    served, top = guard.served(request.params["gate"]), query.get("top", "10")
    limits = [limit.name for limit in served.policy.limits if limit.by] if "limit" not in query else [query["limit"]]
    if not re.fullmatch(r"[1-9][0-9]{0,2}|1000", top):
        raise Problem(422, "invalid-input", f"top is a whole number from 1 to 1000, not {top!r:.80}")
    search = query.get("search", "")
    if len(search) > 200:
        raise Problem(422, "invalid-input", "search has at most 200 characters, as a key has")
    found = [row for limit in limits for row in await served.gate.keys(limit, int(top), search)]
    return json_response({"gate": served.name, "keys": plain(found)})


async def changes(guard: Guard, request: Request) -> Response:
    query = check_query(request, "gate")
    gate = query.get("gate")
    if gate is not None:
        guard.served(gate)
    return json_response({"changes": [_change_of(line) for line in guard.audit.latest(gate)]})


def _change_of(line: dict[str, Any]) -> dict[str, Any]:
    """A line of the audit log; its time is text there, for people."""
    facts = {name: value for name, value in line.items() if name != "time"}
    with suppress(ValueError):
        facts["changed_at"] = timegm(strptime(str(line["time"]), "%Y-%m-%dT%H:%M:%SZ"))
    return {"changed_at": None, "by": None, "client": None} | facts


async def explain(guard: Guard, request: Request) -> Response:
    query = check_query(request, "cost", "key", "priority")
    served = guard.served(request.params["gate"])
    found = await served.gate.explain(cost_of(query.get("cost")), key_of(query.get("key")), query.get("priority"))
    told = {"why": await served.gate.why(), "holders": [holder_of(served, holder) for holder in found.holders]}
    return json_response(plain(found) | told)

"""The routes that ask for permits, stamp, renew and release them, and the JSON of permits."""

from __future__ import annotations

from ...errors import Denied
from ...gate.served import decide_all
from ...http.headers import JSON, policy_header, with_limit
from ...http.problems import Problem, problem_of
from ...kernel.commands import Peek
from ...kernel.flows import granted
from ...kernel.model import SECOND, Snapshot, Wait
from ..schema import shapes
from ..web import json_response
from .long_poll import LongPoll, undelivered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...gate.served import ServedGate
    from ...kernel.commands import Release, Stand
    from ...kernel.model import Grant
    from ..app import Guard
    from ..web import Request, Response


def permit_id(served: ServedGate, stand: Stand) -> str:
    """The id that clients see: the gate, the lease's milliseconds where the ask named them, and the id in the store."""
    if stand.lease != stand.plan.lease:
        return f"{served.name}!{stand.lease // 1000}:{stand.id}"
    return f"{served.name}:{stand.id}"


def permit_text(served: ServedGate, stand: Stand, grant: Grant, waited: float) -> str:
    """A grant as JSON. `expires_at` is the store's time, so clients should go by `lease`."""
    return "{" + permit_members(served, stand, grant, waited)


def permit_members(served: ServedGate, stand: Stand, grant: Grant, waited: float) -> str:
    """The JSON of a grant without its opening brace.

    Names and ids have no character that JSON escapes, so it is formatted directly, in a tenth of an encoder's time.
    """
    if waited:
        waited = round(waited, 6)
    expires, fence = grant.expires, grant.fence
    if not stand.lease:
        name = served.name
        end = '"lease":null,"expires_at":null}'
        return f'"id":"{name}:{stand.id}","gate":"{name}","fence":{fence},"waited":{waited!r},{end}'
    at, lease = (f"{expires / SECOND!r}", f"{stand.lease / SECOND!r}") if expires else ("null", "null")
    return (
        f'"id":"{permit_id(served, stand)}","gate":"{served.name}","fence":{fence},"waited":{waited!r},'
        f'"lease":{lease},"expires_at":{at}}}'
    )


def find_permit(guard: Guard, id: str) -> tuple[ServedGate, str, float | None]:
    """The gate, the id in its store, and the seconds of the lease where its ask named them."""
    if not shapes.is_permit(id):
        raise Problem(
            404, "not-found", f"{id!r} is not the id of a permit; it is the `id` of a grant, as in adobe:5f3c-12"
        )
    gate, _, name = id.partition(":")
    gate, own, length = gate.partition("!")
    return guard.served(gate), name, int(length) / 1000 if own else None


def ask_command(guard: Guard, served: ServedGate, body: dict[str, Any], wait: float = 0.0) -> Stand:
    """The command of an ask whose body was checked by its shape. Raises Problem where there are too many keys."""
    get = body.get
    _check_attempt(body)
    stand = served.ask_command(
        get("cost", 1), get("key"), get("priority"), get("holder"), get("lease"), get("id"), wait, get("attempt")
    )
    if stand.plan.key:
        guard.caps.check_key(served.name, stand.plan.lane)
    return stand


def _check_attempt(body: dict[str, Any]) -> None:
    if "attempt" in body and "id" not in body:
        raise shapes.wrong(
            "attempt", "beside an id: an ask without an id of your own is named by the guard", body["attempt"]
        )


async def acquire(guard: Guard, request: Request) -> Response | None:
    body = await request.json(guard.settings.max_body)
    if body:
        shapes.ACQUIRE.check(body)
    served = guard.served(request.params["gate"])
    wait = body.get("wait", 0)
    full = None
    if wait:
        guard.caps.check_wait(wait)
        full = guard.caps.full()
    stand = ask_command(guard, served, body, 0 if full else wait)
    waited = 0.0
    if guard.polls_by_id and (earlier := guard.polls_by_id.get((served.name, stand.id))) is not None:
        await earlier.supersede()
    awaited = False
    try:
        reply: Any = served.decide_now(stand)
        if reply is None:
            awaited = True
            reply = await served.ask(stand)
        else:
            reply = served.resolve_ask(stand, reply)
        delay = seconds_until(stand, reply)
        if delay is not None:
            if full is not None:
                raise full
            if delay > wait or not wait:
                raise not_now(served, stand, reply, delay)
            awaited = True
            reply, waited = await LongPoll(guard, served, stand, "id" in body).wait(request, wait, reply, delay)
    except Denied as error:
        raise refused(guard, served, stand, error) from None
    remaining = guard.remaining.cached(served.name, stand.plan.key)
    if remaining is None:
        awaited = True
        remaining = await guard.remaining.fetch(served.gate, stand.plan.key)
    # The server reports a disconnected client only after the event loop has had its turn.
    if awaited and not served.store.capabilities.instant and request.is_gone():
        await undelivered(served, stand, "id" in body)
    guard.count(served.name, "granted", waited, stand)
    return (
        200,
        guard.remaining.with_policy(served.policy, remaining),
        permit_text(served, stand, reply, waited).encode(),
    )


def not_now(served: ServedGate, stand: Stand, reply: Any, delay: float) -> Denied:
    """The error of an ask that does not wait for its turn, or not for so long."""
    if reply.__class__ is Wait:
        return served.refusal(stand, reply)
    return Denied("its time has not come", gate=served.name, retry_after=delay)  # promised before, under this id


def refused(guard: Guard, served: ServedGate, stand: Stand, error: Denied) -> Problem:
    """The answer to an ask that was denied, counted."""
    guard.count(served.name, "refused", 0.0, stand)
    return _with_limit(guard, served, stand, error)


def _with_limit(guard: Guard, served: ServedGate, stand: Stand, error: Denied) -> Problem:
    plan = stand.plan
    return with_limit(problem_of(error), served.policy, error, guard.spread, dict(plan.ref[2]), plan.key)


def seconds_until(stand: Stand, reply: Any) -> float | None:
    """Seconds until a promised time, 0 for a ticket in line; None for a grant that can go now."""
    if reply.__class__ is Wait:
        return 0.0
    if stand.plan.policy.waiting == "promise" and reply.at > reply.now:
        return float(reply.at - reply.now) / SECOND
    return None


async def reserve(guard: Guard, request: Request) -> Response | None:
    body = await request.json(guard.settings.max_body)
    shapes.RESERVE.check(body)
    served = guard.served(request.params["gate"])
    stand = reserve_command(guard, served, body)
    try:
        # The limit that causes the delay is looked up in the same round trip.
        looked, reply = await decide_all(((served, Peek(served.policy, plan=stand.plan)), (served, stand)))
        grant = granted(stand.plan, reply)
    except Denied as error:
        guard.count(served.name, "refused")
        raise _with_limit(guard, served, stand, error) from None
    headers = policy_header(served.policy) + await guard.remaining.fetch(served.gate, stand.plan.key)
    if request.is_gone():
        await undelivered(served, stand, "id" in body)
    guard.count(served.name, "granted")
    behind = looked.decision if isinstance(looked, Snapshot) else None
    place = place_of(served, stand, grant, behind.limit if isinstance(behind, Wait) else None)
    return json_response(place, headers=headers)


def reserve_command(guard: Guard, served: ServedGate, body: dict[str, Any]) -> Stand:
    """The command of a reservation whose body was checked by its shape. Raises Problem where there are too many keys."""
    _check_attempt(body)
    stand = served.reserve_command(
        body.get("cost", 1), body.get("key"), body.get("priority"), body.get("id"), body.get("attempt")
    )
    if stand.plan.key:
        guard.caps.check_key(served.name, stand.plan.lane)
    return stand


def place_of(served: ServedGate, stand: Stand, grant: Grant, limit: str | None) -> dict[str, Any]:
    """A promised time: `delay_ms` is rounded up, so that no client goes too early; `delay` is its older name."""
    delay = -(-max(0, grant.at - grant.now) // 1000)
    limit = limit if delay else None
    return {"id": permit_id(served, stand), "gate": served.name, "delay": delay, "delay_ms": delay, "limit": limit}


async def sent(guard: Guard, request: Request) -> Response | None:
    body = await request.json(guard.settings.max_body)
    if body:
        shapes.SENT.check(body)
    served, name, _ = find_permit(guard, request.params["id"])
    reply = await served.stamp(served.stamp_command(name, body.get("sent_for")))
    return json_response(stamped_of(request.params["id"], reply))


def stamped_of(id: str, reply: Any) -> dict[str, Any]:
    """What a stamp was answered: the seconds to wait before the request is written, and for which limit."""
    if isinstance(reply, Wait):
        return {"id": id, "wait_for": reply.retry_after, "limit": reply.limit}
    return {"id": id, "wait_for": 0.0, "limit": None}


async def renew(guard: Guard, request: Request) -> Response | None:
    body = await request.json(guard.settings.max_body)
    shapes.RENEW.check(body)
    served, name, lease = find_permit(guard, request.params["id"])
    now, expires = await served.renew(served.renew_command(name, body.get("lease", lease)))
    return json_response(renewal_of(request.params["id"], now, expires))


def renewal_of(id: str, now: int, expires: int) -> dict[str, Any]:
    """A renewed lease; `now` and `expires` are the store's microseconds."""
    return {"id": id, "lease": (expires - now) / SECOND, "expires_at": expires / SECOND}


async def release(guard: Guard, request: Request) -> Response | None:
    id = request.params["id"]
    body = await request.json(guard.settings.max_body)
    served, command = release_command(guard, id, body)
    if "sent_for" in body:
        await served.stamp_before(command, body["sent_for"])
    return released(guard, id, served, command, await served.release(command))


def release_command(guard: Guard, id: str, body: dict[str, Any]) -> tuple[ServedGate, Release]:
    """The gate and the command of a release. Raises Problem where the body or the id is not well formed."""
    if body:
        shapes.RELEASE.check(body)
    served, name, _ = find_permit(guard, id)
    return served, served.release_command(name, body.get("outcome", "ok"), body.get("retry_after"), body.get("cost"))


def released(guard: Guard, id: str, served: ServedGate, command: Release, ended: bool) -> Response:
    """The answer to a release, counted."""
    guard.count(served.name, command.outcome, 0.0, command)
    return 200, JSON, b'{"id":"%b","released":%b}' % (id.encode(), b"true" if ended else b"false")

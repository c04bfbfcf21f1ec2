"""`POST /v1/batch`: many commands in one request, decided in one round trip to the store."""

from __future__ import annotations

from ...errors import HeadgateError
from ...gate.served import decide_all
from ...http.headers import JSON
from ...http.problems import Problem, problem_of
from ...kernel.commands import Extend, Release, Stamp, Stand
from ...kernel.flows import granted
from ...kernel.model import Grant, Wait
from ..schema import shapes
from ..web import encode
from .asks import ask_command, find_permit, permit_members, place_of, renewal_of, reserve_command, stamped_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ...gate.served import ServedGate
    from ..app import Guard
    from ..web import Request, Response


def _shape(does: str, about: str, fields: Mapping[str, shapes.Field], **needed: shapes.Field) -> shapes.Shape:
    """The shape of a command: its `do`, the members that it needs, and its optional ones."""
    does_field = shapes.choice("What to do.", does)
    return shapes.Shape(does, about, {"do": does_field, **needed, **fields}, ("do", *needed))


#: `do` → the shape of that command.
DOES: dict[str, shapes.Shape] = {
    "acquire": _shape("acquire", "Ask; nobody waits in a batch.", shapes.ASK_FIELDS, gate=shapes.GATE),
    "reserve": _shape("reserve", "A time at once, on a promise gate.", shapes.RESERVE.fields, gate=shapes.GATE),
    "sent": _shape("sent", "The request is about to be written.", shapes.SENT.fields, id=shapes.PERMIT),
    "renew": _shape("renew", "Renew a lease.", shapes.RENEW.fields, id=shapes.PERMIT),
    "release": _shape("release", "End a permit.", shapes.RELEASE_FIELDS, id=shapes.PERMIT),
}


async def batch(guard: Guard, request: Request) -> Response:
    """`POST /v1/batch`. Each command has a reply in its place, with the status that it would have had alone."""
    body = await request.json(guard.settings.max_body)
    shapes.BATCH.check(body)
    commands = body["commands"]
    if len(commands) > guard.settings.max_batch:
        raise Problem(413, "body-too-large", f"a batch has at most {guard.settings.max_batch} commands here")
    # Most batches repeat one command, so repeats are not checked again; but with more members than `do` and `gate` an equal
    # command may still be wrong: true == 1.
    before: Any = ()
    for place, entry in enumerate(commands):
        if entry != before or len(entry) > 2:
            _check(place, entry)
            before = entry
    replies = [""] * len(commands)
    sent: list[tuple[ServedGate, Any]] = []
    places: list[int] = []
    before, repeatable = (), None
    for place, entry in enumerate(commands):
        if repeatable is not None and entry == before:
            served, command = repeatable
            sent.append((served, served.ask_like(command)))
            places.append(place)
            continue
        try:
            made = _command(guard, entry)
        except (Problem, HeadgateError) as error:
            replies[place] = _problem(error)
            continue
        sent.append(made)
        places.append(place)
        before, repeatable = entry, made if len(entry) == 2 and entry["do"] == "acquire" else None
    granted: dict[str, list[Stand]] = {}
    for place, (served, command), reply in zip(places, sent, await decide_all(sent), strict=True):
        if reply.__class__ is Grant and commands[place]["do"] == "acquire":
            replies[place] = f'{{"status":200,{permit_members(served, command, reply, 0.0)}'
            granted.setdefault(served.name, []).append(command)
            continue
        try:
            replies[place] = _reply_of(guard, served, command, commands[place], reply)
        except (Problem, HeadgateError) as error:
            if command.__class__ is Stand:
                guard.count(served.name, "refused", 0.0, command)
            replies[place] = _problem(error)
    for gate, stands in granted.items():
        guard.count_granted(gate, stands)
    return 200, JSON, f'{{"replies":[{",".join(replies)}]}}'.encode()


def _check(place: int, entry: Any) -> None:
    """Raises Problem for a command that is not well formed; none of the batch is decided then."""
    try:
        if entry.__class__ is not dict:
            raise Problem(
                422, "invalid-input", 'a command is an object like {"do": "acquire", "gate": "adobe"}', pointer=""
            )
        does = entry.get("do")
        shape = DOES.get(does) if does.__class__ is str else None
        if shape is None:
            raise Problem(422, "invalid-input", f"do must be one of {', '.join(DOES)}, not {does!r:.80}", pointer="/do")
        shape.check(entry)
    except Problem as problem:
        problem.detail = f"command {place}: {problem.detail}; nothing of this batch was decided"
        problem.facts["pointer"] = f"/commands/{place}{problem.facts['pointer']}"
        raise


def _command(guard: Guard, entry: dict[str, Any]) -> tuple[ServedGate, Any]:
    does = entry["do"]
    if does == "acquire":
        served = guard.served(entry["gate"])
        return served, ask_command(guard, served, entry)
    if does == "reserve":
        served = guard.served(entry["gate"])
        return served, reserve_command(guard, served, entry)
    served, name, lease = find_permit(guard, entry["id"])
    if does == "sent":
        return served, served.stamp_command(name, entry.get("sent_for"))
    if does == "renew":
        return served, served.renew_command(name, entry.get("lease", lease))
    return served, served.release_command(name, entry.get("outcome", "ok"), entry.get("retry_after"), entry.get("cost"))


def _reply_of(guard: Guard, served: ServedGate, command: Any, entry: dict[str, Any], reply: Any) -> str:
    """The reply to one command as JSON. The batch itself writes the grants of `acquire`."""
    if isinstance(reply, BaseException):
        raise reply
    if command.__class__ is Stand:
        if reply.__class__ is Wait:
            raise served.refusal(command, reply)
        place = place_of(served, command, granted(command.plan, reply), None)
        guard.count(served.name, "granted", 0.0, command)
        return encode({"status": 200, **place})
    if command.__class__ is Extend:
        return encode({"status": 200, **renewal_of(entry["id"], *served.resolve_renewal(command, reply))})
    if command.__class__ is Stamp:
        return encode({"status": 200, **stamped_of(entry["id"], served.resolve_stamp(command, reply))})
    assert command.__class__ is Release
    guard.count(served.name, command.outcome, 0.0, command)
    return encode({"status": 200, "id": entry["id"], "released": served.resolve_release(command, reply)})


def _problem(error: Problem | HeadgateError) -> str:
    return encode((error if isinstance(error, Problem) else problem_of(error)).value())

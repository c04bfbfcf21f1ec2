"""Asking, renewing, releasing."""

from __future__ import annotations

import asyncio

from ...errors import Denied, StoreUnavailable
from ...gate.served import decide_all
from ...http.headers import JSON, policy_header, with_limit
from ...http.problems import Problem, problem_of
from ...kernel.commands import Cancel, Peek
from ...kernel.flows import granted
from ...kernel.model import SECOND, Snapshot, Wait
from ..schema import shapes
from ..web import Gone, decoded, json_response

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...gate.served import Desk
    from ...kernel.commands import Granted, Release, Stand
    from ..app import Guard
    from ..web import Request, Response


#: Seconds for which the place of one whose time is over is kept, if it gave an id.
LINGER = 5.0


def permit_id(desk: Desk, stand: Stand) -> str:
    """What clients know a permit by: its gate, the length of its lease where that is its own, and its id."""
    if stand.lease != stand.plan.lease:
        return f"{desk.name}!{stand.lease // 1000}:{stand.id}"
    return f"{desk.name}:{stand.id}"


def permit_text(desk: Desk, stand: Stand, grant: Granted, waited: float) -> str:
    """A grant as clients see it, as JSON. `expires` is the store's time, so `lease` is what to go by.

    Names and ids have no sign that would have to be escaped, so it is written out: that takes a tenth of the time.
    """
    return "{" + permit_members(desk, stand, grant, waited)


def permit_members(desk: Desk, stand: Stand, grant: Granted, waited: float) -> str:
    """The same without the brace at its beginning."""
    if waited:
        waited = round(waited, 6)
    _, expires, fence, _ = grant
    if not stand.lease:
        name = desk.name
        return f'"id":"{name}:{stand.id}","gate":"{name}","fence":{fence},"waited":{waited!r},"lease":null,"expires":null}}'
    at, lease = (f"{expires / SECOND!r}", f"{stand.lease / SECOND!r}") if expires else ("null", "null")
    return (
        f'"id":"{permit_id(desk, stand)}","gate":"{desk.name}","fence":{fence},"waited":{waited!r},'
        f'"lease":{lease},"expires":{at}}}'
    )


def find_permit(guard: Guard, id: str) -> tuple[Desk, str, float | None]:
    """The gate, the id in its store, and the seconds of the lease where they are the permit's own."""
    if not shapes.is_permit(id):
        raise Problem(
            404, "not-found", f"{id!r} is not the id of a permit; it is the `id` of a grant, as in adobe:5f3c-12"
        )
    gate, _, name = id.partition(":")
    gate, own, length = gate.partition("!")
    return guard.desk(gate), name, int(length) / 1000 if own else None


def asked(guard: Guard, desk: Desk, body: dict[str, Any], wait: float = 0.0) -> Stand:
    """The command of an ask whose shape is right."""
    get = body.get
    stand = desk.asking(get("cost", 1), get("key"), get("priority"), get("holder"), get("lease"), get("id"), wait)
    if stand.plan.key:
        guard.caps.key(desk.name, stand.plan.lane)
    return stand


async def acquire(guard: Guard, request: Request) -> Response | None:
    body = await request.json(guard.settings.max_body)
    if body:
        shapes.ACQUIRE.check(body)
    desk = guard.desk(request.params["gate"])
    wait = body.get("wait", 0)
    crowded = None
    if wait:
        guard.caps.wait(wait)
        crowded = guard.caps.crowded()
    stand = asked(guard, desk, body, 0 if crowded else wait)
    waited = 0.0
    if guard.own and (earlier := guard.own.get((desk.name, stand.id))) is not None:
        await earlier.make_room()
    slept = False
    try:
        reply: Any = desk.now(stand)
        if reply is None:
            slept = True
            reply = await desk.ask(stand)
        else:
            reply = desk.answered(stand, reply)
        delay = ahead(stand, reply)
        if delay is not None:
            if crowded is not None:
                raise crowded
            if delay > wait or not wait:
                raise _not_now(desk, stand, reply, delay)
            slept = True
            reply, waited = await Waiter(guard, desk, stand, "id" in body).wait(request, wait, reply, delay)
    except Denied as error:
        raise _refused(guard, desk, stand, error) from None
    left = guard.left.known(desk.name, stand.plan.key)
    if left is None:
        slept = True
        left = await guard.left.headers(desk.gate, stand.plan.key)
    # That somebody has hung up is known only after the event loop has had its turn.
    if slept and not desk.store.capabilities.instant and request.is_gone():
        await unheard(desk, stand, "id" in body)
    guard.count(desk.name, "granted", waited, stand)
    return 200, guard.left.whole(desk.policy, left), permit_text(desk, stand, reply, waited).encode()


# `acquire` and `release` in two halves, for those that nobody has to wait for: what is sent to the store (None: it is not
# one of those), and what the reply comes to. See `quick`.


def asking(guard: Guard, gate: str, raw: bytes) -> tuple[Desk, Stand] | None:
    body = decoded(raw) if raw else {}
    if body.__class__ is not dict or body.get("wait"):
        return None
    if body:
        shapes.ACQUIRE.check(body)
    desk = guard.desk(gate)
    stand = asked(guard, desk, body)
    if (desk.name, stand.id) in guard.own or guard.left.known(desk.name, stand.plan.key) is None:
        return None
    return desk, stand


def told(guard: Guard, desk: Desk, stand: Stand, id: str, reply: Any) -> Response:
    try:
        grant: Any = desk.answered(stand, reply)
        delay = ahead(stand, grant)
        if delay is not None:
            raise _not_now(desk, stand, grant, delay)
    except Denied as error:
        raise _refused(guard, desk, stand, error) from None
    guard.count(desk.name, "granted", 0.0, stand)
    headers = guard.left.whole(desk.policy, guard.left.last(desk.name, stand.plan.key))
    return 200, headers, permit_text(desk, stand, grant, 0.0).encode()


def _not_now(desk: Desk, stand: Stand, reply: Any, delay: float) -> Denied:
    """What is told to one who does not wait for its turn, or not for so long."""
    if reply.__class__ is Wait:
        return desk.refusal(stand, reply)
    return Denied("its time has not come", gate=desk.name, retry_after=delay)  # promised before, under this id


def _refused(guard: Guard, desk: Desk, stand: Stand, error: Denied) -> Problem:
    guard.count(desk.name, "refused", 0.0, stand)
    return with_limit(problem_of(error), desk.policy, error)


def ahead(stand: Stand, reply: Any) -> float | None:
    """Seconds until a promised time, 0 for one who stands in line; None for one that can go."""
    if reply.__class__ is Wait:
        return 0.0
    if stand.plan.policy.waiting == "promise" and reply[0] > reply[1]:
        return float(reply[0] - reply[1]) / SECOND
    return None


async def unheard(desk: Desk, stand: Stand, own: bool) -> None:
    """Nobody is there to take the grant: it is given back, unless its asker can come again for it by an id."""
    if not own:
        await desk.undo(stand.id)
    raise Gone


class Waiter:
    """A client that waits for its turn, for as long as it stays connected and the guard stays up.

    One that gave an id may ask again when its time is over: its place is kept for `LINGER` seconds more.
    """

    __slots__ = ("_here", "_made_room", "_parked", "_sent_away", "_waiting", "desk", "guard", "own", "stand")

    def __init__(self, guard: Guard, desk: Desk, stand: Stand, own: bool) -> None:
        self.guard = guard
        self.desk = desk
        self.stand = stand
        #: Whether the id is the client's own, by which it can come again.
        self.own = own
        self._sent_away = self._made_room = self._parked = False
        self._here = True

    async def wait(self, request: Request, seconds: float, reply: Any, delay: float) -> tuple[Granted, float]:
        """The grant and the seconds it took. Raises Denied, Gone, or Problem when the guard shuts down."""
        guard, desk, stand = self.guard, self.desk, self.stand
        loop = asyncio.get_running_loop()
        begun = loop.time()
        lingers = self.own and not delay
        self._waiting = loop.create_task(
            _slept(reply, delay) if delay else desk.wait(stand, seconds + LINGER if lingers else seconds, reply)
        )
        gone: asyncio.Task[Any] = loop.create_task(request.receive())  # type: ignore[arg-type]
        guard.waiting.add(self)
        guard.caps.waiters += 1
        if self.own:
            guard.own[desk.name, stand.id] = self
        if guard.closing:
            self.send_away()
        left = False
        try:
            both = (self._waiting, gone)
            await asyncio.wait(both, timeout=seconds if lingers else None, return_when=asyncio.FIRST_COMPLETED)
            if not self._waiting.done():
                if not gone.done():
                    self._park(loop)
                    raise desk.refusal(stand, reply, loop.time() - begun)
                left = desk.leave(stand.id)
                if not left:
                    self._waiting.cancel()
                await asyncio.wait((self._waiting,))
            if self._made_room:
                raise Problem(409, "conflict", f"another request waits under the id {stand.id!r} now")
            if self._waiting.cancelled():
                if delay and not (self._sent_away and self.own):
                    await desk.undo(stand.id)
                raise shutting_down() if self._sent_away else Gone()
            if (left or self._sent_away) and isinstance(self._waiting.exception(), Denied):
                if not (self._sent_away and self.own):
                    await self._quit()
                raise shutting_down() if self._sent_away else Gone
            if gone.done() and self._waiting.exception() is None:
                await unheard(desk, stand, self.own)  # it was granted at that very moment
            return self._waiting.result(), loop.time() - begun
        finally:
            gone.cancel()
            if not self._parked:
                self._waiting.cancel()
                self._leave()

    async def _quit(self) -> None:
        """Leave the line with all who leave at this moment: a transaction for each would keep the others waiting."""
        gate, command = self.desk.gate, Cancel(self.desk.policy, self.stand.id)
        try:
            await gate._run(command)
        except BaseException as error:
            gate._keeper.undo(command)
            if not isinstance(error, StoreUnavailable):
                raise

    def _park(self, loop: asyncio.AbstractEventLoop) -> None:
        """Its time is over, and it may come again. What is granted meanwhile waits for it, and is then given back."""
        self._parked = True

        def over(waiting: asyncio.Task[Granted]) -> None:
            if waiting.cancelled() or waiting.exception() is not None:
                self._leave()
            else:
                loop.call_later(LINGER, self._give_back)

        self._waiting.add_done_callback(over)

    def _give_back(self) -> None:
        if self._here:
            self._leave()
            undoing = asyncio.ensure_future(self.desk.undo(self.stand.id))
            self.guard.state.setdefault("undoing", set()).add(undoing)  # or it may be collected while it runs
            undoing.add_done_callback(self.guard.state["undoing"].discard)

    def _leave(self) -> None:
        guard, key = self.guard, (self.desk.name, self.stand.id)
        if self._here:
            self._here = False
            guard.waiting.discard(self)
            guard.caps.waiters -= 1
            if guard.own.get(key) is self:
                del guard.own[key]

    async def make_room(self) -> None:
        """Its client has come again: the ticket, or what was granted for it, is for the new request."""
        self._made_room = True
        if not self._waiting.done():
            if not self.desk.leave(self.stand.id):
                self._waiting.cancel()
            await asyncio.wait((self._waiting,))
        self._leave()

    def send_away(self) -> None:
        """The guard goes down. Who can come again by its id keeps its place; any other leaves the line."""
        self._sent_away = True
        if not self.desk.leave(self.stand.id):
            self._waiting.cancel()


async def _slept(grant: Granted, delay: float) -> Granted:
    await asyncio.sleep(delay)
    return grant


def shutting_down() -> Problem:
    return Problem(
        503,
        "shutting-down",
        "this guard is shutting down; come again with the same id to keep your place",
        retry_after=1.0,
    )


async def reserve(guard: Guard, request: Request) -> Response | None:
    body = await request.json(guard.settings.max_body)
    shapes.RESERVE.check(body)
    desk = guard.desk(request.params["gate"])
    stand = reserved(guard, desk, body)
    try:
        # What is behind the delay is looked up in the same round trip.
        looked, reply = await decide_all(((desk, Peek(desk.policy, plan=stand.plan)), (desk, stand)))
        grant = granted(stand.plan, reply)
    except Denied as error:
        guard.count(desk.name, "refused")
        raise with_limit(problem_of(error), desk.policy, error) from None
    headers = policy_header(desk.policy) + await guard.left.headers(desk.gate, stand.plan.key)
    if request.is_gone():
        await unheard(desk, stand, "id" in body)
    guard.count(desk.name, "granted")
    behind = looked.decision if isinstance(looked, Snapshot) else None
    place = place_of(desk, stand, grant, behind.limit if isinstance(behind, Wait) else None)
    return json_response(place, headers=headers)


def reserved(guard: Guard, desk: Desk, body: dict[str, Any]) -> Stand:
    """The command of a reservation whose shape is right."""
    stand = desk.reserving(body.get("cost", 1), body.get("key"), body.get("priority"), body.get("id"))
    if stand.plan.key:
        guard.caps.key(desk.name, stand.plan.lane)
    return stand


def place_of(desk: Desk, stand: Stand, grant: Granted, limit: str | None) -> dict[str, Any]:
    """A promised time: `delay` in whole milliseconds, rounded up, so that nobody goes too early."""
    delay = -(-max(0, grant[0] - grant[1]) // 1000)
    return {"id": permit_id(desk, stand), "gate": desk.name, "delay": delay, "limit": limit if delay else None}


async def renew(guard: Guard, request: Request) -> Response | None:
    body = await request.json(guard.settings.max_body)
    shapes.RENEW.check(body)
    desk, name, lease = find_permit(guard, request.params["id"])
    now, expires = await desk.renew(desk.renewing(name, body.get("lease", lease)))
    return json_response(renewed_of(request.params["id"], now, expires))


def renewed_of(id: str, now: int, expires: int) -> dict[str, Any]:
    return {"id": id, "lease": (expires - now) / SECOND, "expires": expires / SECOND}


async def release(guard: Guard, request: Request) -> Response | None:
    id = request.params["id"]
    desk, command = _ending(guard, id, await request.json(guard.settings.max_body))
    return _released(guard, id, desk, command, await desk.end(command))


def ending(guard: Guard, id: str, raw: bytes) -> tuple[Desk, Release] | None:
    body = decoded(raw) if raw else {}
    return _ending(guard, id, body) if body.__class__ is dict else None


def ended(guard: Guard, desk: Desk, command: Release, id: str, reply: Any) -> Response:
    return _released(guard, id, desk, command, desk.ended(command, reply))


def _ending(guard: Guard, id: str, body: dict[str, Any]) -> tuple[Desk, Release]:
    if body:
        shapes.RELEASE.check(body)
    desk, name, _ = find_permit(guard, id)
    return desk, desk.ending(name, body.get("outcome", "ok"), body.get("retry_after"), body.get("cost"))


def _released(guard: Guard, id: str, desk: Desk, command: Release, ended: bool) -> Response:
    guard.count(desk.name, command.outcome, 0.0, command)
    return 200, JSON, b'{"id":"%b","released":%b}' % (id.encode(), b"true" if ended else b"false")

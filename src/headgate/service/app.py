"""The guard as an ASGI application: finds the route, checks who asks, and answers every error as problem details.

Pure ASGI 3 and nothing between: a framework would take longer for its own work than the decision takes.
"""

from __future__ import annotations

from functools import lru_cache

from ..errors import HeadgateError
from ..gate.served import Desk
from ..http.headers import Left
from ..http.problems import Problem, problem_of
from .caps import Caps
from .log import log
from .observe.stream import sampler_of
from .routes.table import ROUTES
from .web import Gone, Request, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..config.serve import Serve
    from ..gate.gates import Gates
    from ..kernel.model import Usage
    from .audit import Audit
    from .routes.table import Route
    from .tokens import Bearer, Tokens
    from .web import Receive, Response, Scope, Send

#: Where the parts of a path lead: a part, or "*" for any; "" at its end has the routes by method.
Tree = dict[str, "Any"]


#: Where the tally of a gate has what.
PLACES = {"granted": 0, "refused": 1, "rate_limited": 2}


def _planted(routes: tuple[Route, ...]) -> Tree:
    tree: Tree = {}
    for route in routes:
        node = tree
        for part in route.pattern.split("/")[1:]:
            node = node.setdefault("*" if part.startswith("{") else part, {})
        node.setdefault("\0", {})[route.method] = route
    return tree


class Guard:
    """Gates as a service. `tokens` None: whoever can connect may do everything, which is for loopback only."""

    def __init__(
        self, gates: Gates, tokens: Tokens | None, settings: Serve, audit: Audit, any_gate: bool = False
    ) -> None:
        self.gates = gates
        self.tokens = tokens
        self.settings = settings
        self.audit = audit
        self.any_gate = any_gate
        self.caps = Caps(settings)
        self.left = Left(self.looked)
        self.closing = False
        #: Whoever is to be told when the guard goes down: each has a `send_away`.
        self.waiting: set[Any] = set()
        #: Those who wait, or may come again for their place, by gate and the id that they gave.
        self.own: dict[tuple[str, str], Any] = {}
        #: Told of every answer: the gate, what became of it (granted, refused, or the outcome of a release), and the
        #: seconds that it waited, and the command that it was.
        self.listeners: list[Callable[[str, str, float, Any], None]] = []
        #: Told what every look at a gate found, whatever it was for.
        self.lookers: list[Callable[[Usage], None]] = []
        self._desks: dict[str, Desk] = {}
        self._tree = _planted(ROUTES)
        #: For what other parts keep for as long as the guard runs: `guard.state["metrics"]`.
        self.state: dict[str, Any] = {}
        #: Gate → granted, refused, and reported as refused by the upstream, since the guard began.
        self._tally: dict[str, list[int]] = self.state.setdefault("tally", {})

    def desk(self, name: str) -> Desk:
        """A gate by name. Raises UnknownGate."""
        desk = self._desks.get(name)
        if desk is None:
            desk = self._desks[name] = Desk(self.gates.async_gate(name))
        return desk

    def count(self, gate: str, what: str, waited: float = 0.0, command: Any = None) -> None:
        """One more was granted, refused, or released with an outcome."""
        place = PLACES.get(what)
        if place is not None:
            tally = self._tally.get(gate)
            if tally is None:
                tally = self._tally[gate] = [0, 0, 0]
            tally[place] += 1
        for listener in self.listeners:
            listener(gate, what, waited, command)

    def granted(self, gate: str, commands: list[Any]) -> None:
        """So many were granted at once."""
        if self.listeners:
            for command in commands:
                self.count(gate, "granted", 0.0, command)
        else:
            self._tally.setdefault(gate, [0, 0, 0])[PLACES["granted"]] += len(commands)

    def looked(self, usage: Usage) -> Usage:
        """Somebody looked at a gate."""
        for looker in self.lookers:
            looker(usage)
        return usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        try:
            route, params = self._route(scope)
            request = Request(scope, receive, send, params, self.bearer(scope, route.scope))
            answer = await route.handler(self, request)
        except Gone:
            return
        except Exception as error:
            answer = self.failure(error, scope["path"])
        if answer is not None:
            status, headers, body = answer
            headers = [*headers, (b"content-length", b"%d" % len(body))]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})

    def failure(self, error: Exception, path: str) -> Response:
        """The answer to a request that failed."""
        if isinstance(error, Problem):
            return response_of(error)
        if isinstance(error, HeadgateError):
            return response_of(problem_of(error))
        log.error("a request failed by a mistake of the guard", exc_info=error, extra={"path": path})
        return response_of(Problem(500, "internal", f"{type(error).__name__}; see the guard's log"))

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                sampler_of(self).start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _route(self, scope: Scope) -> tuple[Route, dict[str, str]]:
        path: str = scope["path"]
        node: Tree | None = self._tree
        values = []
        for part in path.split("/")[1:] if b"%" not in scope["raw_path"] else _split(scope["raw_path"]):
            found = node.get(part)  # type: ignore[union-attr]
            if found is None and part:
                found = node.get("*")  # type: ignore[union-attr]
                values.append(part)
            node = found
            if node is None:
                break
        methods = None if node is None else node.get("\0")
        if methods is None:
            raise Problem(404, "not-found", f"there is nothing at {path}; /docs lists what there is")
        method = scope["method"]
        route = methods.get("GET" if method == "HEAD" else method)
        if route is None:
            problem = Problem(405, "method-not-allowed", f"{method} is not for {path}; {', '.join(methods)} is")
            problem.headers.append((b"allow", ", ".join(methods).encode()))
            raise problem
        return route, dict(zip(route.names, values, strict=True)) if values else {}

    def bearer(self, scope: Scope, needed: str | None) -> Bearer | None:
        """Who asks. Raises Problem where that is nobody we know, or one who may not."""
        tokens = self.tokens
        if tokens is None:
            self._check_origin(scope)
            return None
        if needed is None:
            return None
        for name, value in scope["headers"]:
            if name == b"authorization":
                kind, _, token = str(value, "latin-1").partition(" ")
                if kind.lower() == "bearer" and (bearer := tokens.bearer_of(token.strip())) is not None:
                    if needed not in bearer.scopes:
                        raise Problem(
                            403,
                            "forbidden",
                            f"the token {bearer.name!r} has the scope {', '.join(sorted(bearer.scopes))}; "
                            f"this needs {needed}",
                        )
                    return bearer
                break
        problem = Problem(401, "unauthorized", "send a token of this guard: `Authorization: Bearer hg_…`")
        problem.headers.append((b"www-authenticate", b'Bearer realm="headgate"'))
        raise problem

    def _check_origin(self, scope: Scope) -> None:
        """Without tokens only this machine may ask, and that means its programs, not every page in its browser."""
        for name, value in scope["headers"]:
            if name == b"host" and not is_own(value):
                detail = f"this guard has no tokens and answers to localhost only, not to {str(value, 'latin-1')!r}"
                raise Problem(403, "forbidden", detail)
            if name == b"origin" and not is_own(value.partition(b"://")[2]):
                raise Problem(403, "forbidden", "a page of another origin may not ask a guard that has no tokens")

    def close(self) -> None:
        """Send away those who wait: they are told to come again, and keep their place where they gave an id."""
        self.closing = True
        for waiter in list(self.waiting):
            waiter.send_away()


def response_of(problem: Problem) -> Response:
    return problem.status, problem.all_headers(), encode(problem.value()).encode()


@lru_cache(64)
def is_own(authority: bytes) -> bool:
    """Whether a host with a port or without one is this machine, for itself alone."""
    text = str(authority, "latin-1")
    host, _, port = text.rpartition(":")
    return is_loopback(host if port.isdecimal() and host else text)


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's own, for itself alone."""
    from ipaddress import ip_address

    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _split(raw: bytes) -> list[str]:
    """The parts of a path in which a part may hold an escaped slash."""
    from urllib.parse import unquote_to_bytes

    try:
        return [unquote_to_bytes(part).decode() for part in raw.partition(b"?")[0].split(b"/")[1:]]
    except UnicodeDecodeError:
        raise Problem(400, "bad-path", "the path is not UTF-8") from None

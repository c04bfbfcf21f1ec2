"""The guard as an ASGI application: finds the route, checks the token, and answers every error as problem details.

Pure ASGI 3: a framework would take longer for its own work than a decision takes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ..errors import HeadgateError
from ..gate.served import ServedGate
from ..http.headers import RemainingHeaders
from ..http.problems import Problem, problem_of
from ..http.spread import Spread
from .caps import Caps
from .log import log
from .observe.stream import sampler_of
from .proxies import Proxies
from .refusals import Refusals
from .routes.table import ROUTES
from .web import Disconnected, Request, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..config.serve import Serve
    from ..gate.gates import Gates
    from ..kernel.model import Usage
    from .audit import Audit
    from .routes.long_poll import LongPoll
    from .routes.table import Route
    from .tokens import Bearer, Tokens
    from .web import Receive, Response, Scope, Send

#: The parts of paths as nested dicts: a part, or ANY; END has the routes of a path by method. Neither is text, so that no
#: part of a request's path can be one of them.
RouteTree = dict[Any, Any]
ANY, END = 0, 1

#: The index of each count in the tally of a gate.
TALLY_INDEX = {"granted": 0, "refused": 1, "rate_limited": 2}
#: The index of the seconds that all of them have waited together.
WAITED = 3


def _tree_of(routes: tuple[Route, ...]) -> RouteTree:
    tree: RouteTree = {}
    for route in routes:
        node = tree
        for part in route.pattern.split("/")[1:]:
            node = node.setdefault(ANY if part.startswith("{") else part, {})
        node.setdefault(END, {})[route.method] = route
    return tree


class Guard:
    """Gates as a service. `tokens` None: every client that can connect may do everything; for loopback only."""

    def __init__(
        self,
        gates: Gates,
        tokens: Tokens | None,
        settings: Serve,
        audit: Audit,
        any_gate: bool = False,
        history: str | None = None,
    ) -> None:
        self.gates = gates
        #: The file of the dashboard's history, if there is one.
        self.history = history
        self.tokens = tokens
        self.settings = settings
        self.audit = audit
        self.any_gate = any_gate
        self.caps = Caps(settings)
        self.proxies = Proxies(settings.proxies)
        self.refusals = Refusals(audit, self.proxies)
        self.remaining = RemainingHeaders(self.note_usage)
        self.spread = Spread()
        self.closing = False
        #: Open requests that wait (long polls, streams of wakes): each has a `send_away` for when the guard shuts down.
        self.waiting: set[Any] = set()
        #: Long polls under an id of the client's own, by gate and id; one that timed out stays while its ticket does.
        self.polls_by_id: dict[tuple[str, str], LongPoll] = {}
        #: Called for every answer: the gate, the result (granted, refused, or the outcome of a release), the seconds that
        #: it waited, and its command.
        self.answer_listeners: list[Callable[[str, str, float, Any], None]] = []
        #: Called with every usage of a gate that a request or the sampler reads.
        self.usage_listeners: list[Callable[[Usage], None]] = []
        self._served: dict[str, ServedGate] = {}
        self._tree = _tree_of(ROUTES)
        #: What other modules keep for as long as the guard runs, as in `guard.state["metrics"]`.
        self.state: dict[str, Any] = {}
        #: Gate → counts since the guard began: see TALLY_INDEX.
        self._tally: dict[str, list[Any]] = self.state.setdefault("tally", {})

    def served(self, name: str) -> ServedGate:
        """A gate by name. Raises UnknownGate."""
        served = self._served.get(name)
        if served is None:
            served = self._served[name] = ServedGate(self.gates.async_gate(name))
        return served

    def count(self, gate: str, result: str, waited: float = 0.0, command: Any = None) -> None:
        """Count an answer: granted, refused, or a release with its outcome."""
        index = TALLY_INDEX.get(result)
        if index is not None:
            tally = self._tally.get(gate)
            if tally is None:
                tally = self._tally[gate] = [0, 0, 0, 0.0]
            tally[index] += 1
            tally[WAITED] += waited
        for listener in self.answer_listeners:
            listener(gate, result, waited, command)

    def count_granted(self, gate: str, commands: list[Any]) -> None:
        """Count the asks of one gate that a batch granted."""
        if self.answer_listeners:
            for command in commands:
                self.count(gate, "granted", 0.0, command)
        else:
            self._tally.setdefault(gate, [0, 0, 0, 0.0])[TALLY_INDEX["granted"]] += len(commands)

    def note_usage(self, usage: Usage) -> Usage:
        """Pass a usage that was read to the listeners, and return it."""
        for listener in self.usage_listeners:
            listener(usage)
        return usage

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._other(scope, receive, send)
            return
        try:
            route, params = self._route(scope)
            request = Request(scope, receive, send, params, self.bearer(scope, route.scope), self.proxies)
            answer = await route.handler(self, request)
        except Disconnected:
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
                sampler_of(self).close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _route(self, scope: Scope) -> tuple[Route, dict[str, str]]:
        path: str = scope["path"]
        node: RouteTree | None = self._tree
        values = []
        for part in path.split("/")[1:] if b"%" not in scope["raw_path"] else _split(scope["raw_path"]):
            found = node.get(part)  # type: ignore[union-attr]
            if found is None and part:
                found = node.get(ANY)  # type: ignore[union-attr]
                values.append(part)
            node = found
            if node is None:
                break
        methods = None if node is None else node.get(END)
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
        """The holder of the request's token. Raises Problem for a token that is unknown or lacks the scope `needed`."""
        tokens = self.tokens
        if tokens is None:
            self._check_origin(scope)
            return None
        if needed is None:
            return None
        given = None
        for name, value in scope["headers"]:
            if name == b"authorization":
                if given is not None:
                    # A proxy may have checked one of them, and the guard would go by the other.
                    raise Problem(400, "malformed-request", "there are two Authorization headers; send one")
                given = value
        if given is not None:
            kind, _, token = str(given, "latin-1").partition(" ")
            if kind.lower() == "bearer" and (bearer := tokens.bearer_of(token.strip())) is not None:
                if needed in bearer.scopes:
                    return bearer
                self.refusals.note(scope, bearer, f"it lacks the scope {needed}")
                raise Problem(
                    403,
                    "forbidden",
                    f"the token {bearer.name!r} has the scope {', '.join(sorted(bearer.scopes))}; this needs {needed}",
                )
            self.refusals.note(scope, None, "it is not a token of this guard")
        problem = Problem(401, "unauthorized", "send a token of this guard: `Authorization: Bearer hg_…`")
        problem.headers.append((b"www-authenticate", b'Bearer realm="headgate"'))
        raise problem

    def _check_origin(self, scope: Scope) -> None:
        """Without tokens only programs on this machine may ask, and the dashboard.

        A page of another server on this machine is of another origin too: its port is another.
        """
        host = origin = None
        for name, value in scope["headers"]:
            if name == b"host":
                if not is_own(value):
                    detail = f"this guard has no tokens and answers to localhost only, not to {str(value, 'latin-1')!r}"
                    raise Problem(403, "forbidden", detail)
                if host is not None:
                    raise Problem(400, "malformed-request", "there are two Host headers; send one")
                host = value
            elif name == b"origin":
                if origin is not None:
                    raise Problem(400, "malformed-request", "there are two Origin headers; send one")
                origin = value
        if origin is not None and (host is None or origin.lower() != b"http://" + host.lower()):
            raise Problem(403, "forbidden", "a page of another origin may not ask a guard that has no tokens")

    def close(self) -> None:
        """End every open request that waits. Clients retry, and those that gave an id keep their place in the line."""
        self.closing = True
        for request in list(self.waiting):
            request.send_away()


def response_of(problem: Problem) -> Response:
    return problem.status, problem.all_headers(), encode(problem.value()).encode()


@lru_cache(64)
def is_own(authority: bytes) -> bool:
    """Whether an authority, with a port or without, is a loopback address or name."""
    text = str(authority, "latin-1")
    host, _, port = text.rpartition(":")
    return is_loopback(host if port.isdecimal() and host else text)


def is_loopback(host: str) -> bool:
    """Whether an address or name is loopback."""
    from ipaddress import ip_address

    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _split(raw: bytes) -> list[str]:
    """The unescaped parts of a path; an escaped slash does not end a part."""
    from urllib.parse import unquote_to_bytes

    try:
        return [unquote_to_bytes(part).decode() for part in raw.partition(b"?")[0].split(b"/")[1:]]
    except UnicodeDecodeError:
        raise Problem(400, "bad-path", "the path is not UTF-8") from None

"""WSGI middleware that protects a service of your own with a gate: for Flask, Django, Bottle, or anything that is WSGI.

    app = WsgiGateMiddleware(app, gate=Gate("api", [Window(100, per="1m", by="client")]), key="x-client-id")

A request without a permit is answered with 429, problem details, `Retry-After` and `RateLimit` headers. One with a permit
holds it until the server has closed the response.
"""

from __future__ import annotations

from ..errors import HeadgateError, InvalidInput
from ..gate import Gate
from ..http.boundary import OUTCOMES_OF_STATUS, Boundary, text_headers
from ..http.keys import key_value
from .middleware import ANONYMOUS, SECRET
from .web import encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from typing import Any

    from ..gate import Permit
    from ..gate.base import Cost, Duration

    Environ = dict[str, Any]
    WsgiApp = Callable[[Environ, Callable[..., Any]], Iterable[bytes]]


def environ_header(name: str) -> Callable[[Environ], str]:
    """The key is the value of a header; ANONYMOUS for requests without it."""
    variable, secret = "HTTP_" + name.upper().replace("-", "_"), name.lower() in SECRET

    def key(environ: Environ) -> str:
        value = environ.get(variable)
        return key_value(value, secret) if value else ANONYMOUS

    return key


def remote_address(environ: Environ) -> str:
    """The key is the client's address. Behind a proxy that is the proxy's, unless the server trusts its headers."""
    return key_value(environ.get("REMOTE_ADDR") or ANONYMOUS)


class WsgiGateMiddleware:
    """Asks a `Gate` for a permit before every request. The arguments are those of `GateMiddleware`, with functions of the
    WSGI environ. `wait` holds one of the server's threads; waiters should be fewer than threads.
    """

    def __init__(
        self,
        app: WsgiApp,
        gate: Gate,
        *,
        key: str | Callable[[Environ], str | Mapping[str, str] | None] | None = None,
        cost: Cost | Callable[[Environ], Cost] = 1,
        priority: str | Callable[[Environ], str | None] | None = None,
        wait: Duration = 0,
        exempt: Collection[str] = (),
        holder: Callable[[Environ], str | None] | None = None,
        remaining: bool = False,
    ) -> None:
        if not isinstance(gate, Gate):
            raise InvalidInput(f"WSGI runs in threads, so the middleware needs a Gate, not {gate!r}")
        source = environ_header(key) if isinstance(key, str) else key
        self._boundary = Boundary(gate, key=source, cost=cost, priority=priority, holder=holder, remaining=remaining)
        if isinstance(key, str):
            self._boundary.one_header()
        self._app, self._wait, self._exempt = app, wait, frozenset(exempt)

    def __call__(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        boundary = self._boundary
        if environ.get("PATH_INFO", "") in self._exempt:
            return self._app(environ, start_response)
        key = boundary.key_of(environ)
        if boundary.passes(key):
            return self._app(environ, start_response)
        try:
            permit = boundary.gate.acquire(timeout=self._wait, **boundary.ask(environ, key))
        except HeadgateError as error:
            problem = boundary.problem(error, key)
            body = encode(problem.value()).encode()
            headers = [*text_headers(problem.all_headers()), ("content-length", str(len(body)))]
            start_response(f"{problem.status} {REASONS.get(problem.status, 'Refused')}", headers)
            return [body]
        gated = _GatedAnswer(permit)
        try:
            left = boundary.remaining.fetch_now(boundary.gate, boundary.mapped(key), boundary.fresh_s)
            gated.headers = text_headers([boundary.policy, *left])
            return gated.over(self._app(environ, gated.starting(start_response)))
        except BaseException:
            permit.release("error")
            raise


REASONS = {422: "Unprocessable Content", 429: "Too Many Requests", 503: "Service Unavailable"}


class _GatedAnswer:
    """The body of an answer: it ends the permit when the server closes it."""

    def __init__(self, permit: Permit) -> None:
        self._permit = permit
        self._outcome: Any = "ok"
        self._parts: Iterable[bytes] = ()
        self.headers: list[tuple[str, str]] = []

    def starting(self, start_response: Callable[..., Any]) -> Callable[..., Any]:
        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            self._outcome = OUTCOMES_OF_STATUS.get(int(status[:3]), "ok")
            return start_response(status, [*headers, *self.headers], *more)

        return start

    def over(self, parts: Iterable[bytes]) -> _GatedAnswer:
        self._parts = parts
        return self

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._parts
        except BaseException:
            self._outcome = "error"
            raise

    def close(self) -> None:
        try:
            if hasattr(self._parts, "close"):
                self._parts.close()
        finally:
            self._permit.release(self._outcome)

    def __del__(self) -> None:
        self._permit.release_soon("error")  # a server that forgot to close it

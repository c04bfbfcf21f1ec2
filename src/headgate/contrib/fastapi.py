"""FastAPI routes that take a permit: `@app.get("/", dependencies=[Depends(TakePermit(gate, key="x-org"))])`.

A request without a permit is answered with 429, `Retry-After` and `RateLimit` headers, and problem details under `detail`.
Starlette has middleware per route instead: `Route(…, middleware=[Middleware(GateMiddleware, gate=gate)])`.
"""

# No `annotations` of `__future__` here: FastAPI reads those of the dependency, and of an instance it cannot resolve texts.

from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ..errors import HeadgateError, InvalidInput
from ..gate import AsyncGate, AsyncPermit
from ..http.boundary import Boundary, text_headers
from ..service.middleware import from_header

if TYPE_CHECKING:
    from ..gate.base import Cost, Duration


class TakePermit:
    """A dependency: the request takes a permit of an `AsyncGate`, and holds it until FastAPI has ended the request.

    As a parameter of the route (`permit: Annotated[AsyncPermit, Depends(…)]`) it is the permit itself, to settle or report.
    `key` is the name of a header, or a function of the `Request`; None lets the request pass. `cost`, `priority` and
    `holder` are values or functions of the `Request`; `wait` is the seconds that it may wait for its turn.
    """

    def __init__(
        self,
        gate: AsyncGate,
        *,
        key: str | Callable[[Any], str | Mapping[str, str] | None] | None = None,
        cost: "Cost | Callable[[Any], Cost]" = 1,
        priority: str | Callable[[Any], str | None] | None = None,
        wait: "Duration" = 0,
        holder: Callable[[Any], str | None] | None = None,
        remaining: bool = False,
    ) -> None:
        if not isinstance(gate, AsyncGate):
            raise InvalidInput(f"FastAPI runs on an event loop, so the dependency needs an AsyncGate, not {gate!r}")
        source: Any = key
        if isinstance(key, str):
            of_scope = from_header(key)
            source = lambda request: of_scope(request.scope)  # noqa: E731  two lines of it say no more
        self._boundary = Boundary(gate, key=source, cost=cost, priority=priority, holder=holder, remaining=remaining)
        if isinstance(key, str):
            self._boundary.one_header()
        self._wait = wait

    async def __call__(self, request: Request, response: Response) -> AsyncIterator[AsyncPermit | None]:
        boundary = self._boundary
        key = boundary.key_of(request)
        if boundary.passes(key):
            yield None
            return
        try:
            permit = await boundary.gate.acquire(timeout=self._wait, **boundary.ask(request, key))
        except HeadgateError as error:
            problem = boundary.problem(error, key)
            headers = {name: value for name, value in text_headers(problem.all_headers()) if name != "content-type"}
            raise HTTPException(problem.status, problem.value(), headers) from None  # type: ignore[arg-type]
        async with permit:
            left = await boundary.remaining.fetch(boundary.gate, boundary.mapped(key), boundary.fresh_s)
            for name, value in text_headers([boundary.policy, *left]):
                response.headers[name] = value
            yield permit

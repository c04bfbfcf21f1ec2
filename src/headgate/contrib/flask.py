"""Flask views that take a permit: `@limited(gate, key=lambda: request.headers["x-org"])`.

A request without a permit is answered with 429, problem details, `Retry-After` and `RateLimit` headers. One with a permit
holds it until the response was sent.
"""

from __future__ import annotations

import json
from functools import wraps

import flask

from ..errors import HeadgateError, InvalidInput
from ..gate import Gate
from ..http.boundary import OUTCOMES_OF_STATUS, Boundary, text_headers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    from ..gate.base import Cost, Duration

    View = TypeVar("View", bound=Callable[..., Any])


def limited(
    gate: Gate,
    *,
    key: Callable[[], str | Mapping[str, str] | None] | None = None,
    cost: Cost | Callable[[], Cost] = 1,
    priority: str | Callable[[], str | None] | None = None,
    wait: Duration = 0,
    holder: Callable[[], str | None] | None = None,
    remaining: bool = False,
) -> Callable[[View], View]:
    """A decorator for a view: every request takes a permit of a `Gate` first.

    `key`, `cost`, `priority` and `holder` are values, or functions without arguments, called in the request's context. A
    key of None lets the request pass. `wait` is the seconds that a request may wait for its turn.
    """
    if not isinstance(gate, Gate):
        raise InvalidInput(f"Flask runs in threads, so the decorator needs a Gate, not {gate!r}")
    functions: dict[str, Any] = {
        name: _without_argument(given)
        for name, given in {"key": key, "cost": cost, "priority": priority, "holder": holder}.items()
    }
    boundary = Boundary(gate, remaining=remaining, **functions)

    def decorate(view: View) -> View:
        @wraps(view)
        def gated(*args: Any, **kwargs: Any) -> Any:
            value = boundary.key_of(None)
            if boundary.passes(value):
                return flask.current_app.ensure_sync(view)(*args, **kwargs)
            try:
                permit = boundary.gate.acquire(timeout=wait, **boundary.ask(None, value))
            except HeadgateError as error:
                problem = boundary.problem(error, value)
                refusal = flask.Response(json.dumps(problem.value()), problem.status)
                refusal.headers.update(dict(text_headers(problem.all_headers())))
                return refusal
            try:
                left = boundary.remaining.fetch_now(boundary.gate, boundary.mapped(value), boundary.fresh_s)
                response = flask.make_response(flask.current_app.ensure_sync(view)(*args, **kwargs))
            except BaseException:
                permit.release("error")
                raise
            for name, text in text_headers([boundary.policy, *left]):
                response.headers[name] = text
            outcome: Any = OUTCOMES_OF_STATUS.get(response.status_code, "ok")
            response.call_on_close(lambda: permit.release(outcome))
            return response

        return gated  # type: ignore[return-value]

    return decorate


def _without_argument(given: Any) -> Any:
    return (lambda _: given()) if callable(given) else given

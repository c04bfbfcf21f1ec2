"""Makes the page docs/reference/http.md from ROUTES and the kinds of problems.

`python -m headgate.service.reference > docs/reference/http.md` writes it. A test fails when the page is out of date.
"""

from __future__ import annotations

import sys

from ..http.problems import KINDS, TYPE_PREFIX
from .routes.batch import DOES
from .routes.table import ROUTES
from .schema.document import ANSWERS, WORDS
from .tokens import SCOPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

_HEAD = """\
# The guard over HTTP

Made from the table of routes by `python -m headgate.service.reference > docs/reference/http.md`; do not edit. How to
call it is in [how-to/call-from-other-languages.md](../how-to/call-from-other-languages.md), how to run it in
[how-to/run-a-guard.md](../how-to/run-a-guard.md). A guard has the same as `/openapi.json` (OpenAPI 3.1) and as
`/docs`.

Bodies are JSON objects (`content-type: application/json`); no body is an empty object. An unknown member or parameter
is refused: nothing is accepted and then ignored. [Times](times.md) are seconds, and their
names say what they count from; `delay_ms` and `delay`, which is the same, are milliseconds. Ids of permits are opaque:
they hold their gate, so that they are all it takes to renew and release.

- **Waiting.** `wait` on an acquire is a long poll: the answer comes with the turn, or as 429 when the time is over.
  Hang up, and you leave the line. A grant that nobody is there to take is given back, unless you gave it an `id`.
- **Ids.** With an `id` of your own you can ask again after any failure: while its permit lives, the same ask gets the
  same permit, or its old place in the line. A place is kept for 5 s after `wait` is over, and for 10 s where a guard
  went down. After the end of its permit an `id` is a new ask ([all cases](gate.md#ids)).
- **Attempts.** Where a request may arrive twice, or after you have given up (a client or a proxy that sends it again),
  name the ask with an `attempt` beside its `id`, the same in each of its requests: it is admitted at most once. A request
  that comes after its permit has ended is answered with 409 `attempt-over` for 60 s, and so is one of an ask that was
  cancelled before it was answered. To ask again, use another `attempt`.
- **Leases.** A permit of a gate with a concurrency limit has a `lease` (seconds): renew it every third of that, or it
  ends by itself.
- **Headers.** `RateLimit-Policy` and `RateLimit` on every answer to an acquire or a reserve and on `GET /v1/gates/{gate}`
  (draft-ietf-httpapi-ratelimit-headers): `"rpm";r=12;t=3` is what is left of a limit, and in how many seconds there is
  more. On a grant it is at most 100 ms old, and has limits by a key where it was looked up for that key: there is one look
  at a gate in 100 ms. `Retry-After` in whole seconds on every 429 and 503.
"""


def page() -> str:
    parts = [_HEAD, "## Scopes\n\n| scope | allows to |\n|---|---|\n" + _rows(SCOPES.items())]
    for route in ROUTES:
        lines = [f"## `{route.method} {route.pattern}`\n", _about(route.about, route.scope)]
        if route.query:
            lines.append("| parameter | |\n|---|---|\n" + _fields(route.query))
        if route.body is not None and route.body.fields:
            lines.append("| member | |\n|---|---|\n" + _fields(route.body.fields, route.body.required))
        if route.pattern == "/v1/batch":
            lines.append(_commands())
        lines.append(_answers(route.answers))
        parts.append("\n".join(lines))
    rows = ((kind, f"{status} | {title}") for kind, (status, title) in KINDS.items())
    parts.append(
        f"## Problems\n\nErrors are problem details (RFC 9457), `application/problem+json`: `type` is `{TYPE_PREFIX}` and "
        "the kind, `detail` says what was wrong and what would be right; `limit`, `gate`, `position`, `retry_after` and "
        "`pointer` (the member that is meant) where they are known.\n\n"
        "| kind | status | title |\n|---|---|---|\n" + _rows(rows)
    )
    return "\n".join(parts)


def _about(about: str, scope: str | None) -> str:
    return f"{about} {f'Scope: `{scope}`.' if scope else 'Open to everybody.'}\n"


def _rows(pairs: Iterable[tuple[str, Any]]) -> str:
    return "".join(f"| `{name}` | {text} |\n" for name, text in pairs)


def _fields(fields: Mapping[str, Any], required: tuple[str, ...] = ()) -> str:
    return _rows(
        (name, field.schema["description"] + (" Required." if name in required else ""))
        for name, field in fields.items()
    )


def _commands() -> str:
    rows = []
    for does, shape in DOES.items():
        members = ", ".join(f"`{name}`" for name in shape.fields if name != "do")
        rows.append((does, f"{shape.about} | {members}"))
    return (
        f"| `do` | | members |\n|---|---|---|\n{_rows(rows)}\n"
        "Each has a reply in its place, with the `status` that it would have alone. A command that is not well formed "
        "spoils the whole batch: then nothing is decided, and the answer is 422.\n"
    )


def _answers(answers: Mapping[int, Any]) -> str:
    lines = []
    for status, answer in answers.items():
        members = ANSWERS.get(answer, {}).get("properties", {}) if isinstance(answer, str) else {}
        if answer == "Problem":
            text = WORDS[status]
        elif members:
            text = ", ".join(f"`{name}`" for name in members)
        else:
            text = f"`{answer}`"
        lines.append(f"- {status}: {text}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())

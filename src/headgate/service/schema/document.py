"""The guard's interface as a document: OpenAPI 3.1 for machines, one plain page for people. Both come from ROUTES."""

from __future__ import annotations

import re
from html import escape

from ... import __version__
from ...http.problems import KINDS, TYPE_PREFIX
from ...kernel.limits import KINDS as LIMIT_KINDS
from ...kernel.model import EARLIEST, ESTIMATE, EXACT, LimitUsage, Usage
from ..routes.batch import DOES
from ..routes.table import ROUTES
from ..tokens import SCOPES
from . import shapes
from .values import NUMBER, PAUSED, SECONDS, TEXT, WHOLE, YES, or_null, schemas

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...config.serve import Serve
    from ..routes.table import Route

    Schema = dict[str, Any]

#: Statuses that any route can answer, beside its own; 401 and 403 only where a token is needed.
COMMON = (400, 404, 413, 415, 422, 500, 503)

WORDS = {
    200: "Done.",
    400: "The request is not well formed.",
    401: "A token is needed.",
    403: "The token does not allow it.",
    404: "There is no such gate or thing.",
    409: "It contradicts what is there.",
    410: "The lease has ended.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The input makes no sense, or the cost can never fit.",
    429: "Not now. `Retry-After` says when.",
    500: "A mistake of the guard.",
    503: "The store cannot be reached, or the guard is shutting down. `Retry-After` says when to try again.",
}


def _object(about: str, **members: Schema) -> Schema:
    return {
        "type": "object",
        "description": about,
        "properties": members,
        "required": list(members),
        "additionalProperties": False,
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(of: str) -> Schema:
    return {"type": "array", "items": _ref(of)}


TIMING: Schema = {
    "type": "string",
    "enum": [EXACT, ESTIMATE, EARLIEST],
    "description": "How sure the time is: `exact`; `estimate`, by what those ahead cost; `earliest`, of slots.",
}
WHY: Schema = {
    **TEXT,
    "description": "What keeps the gate's asks from going, in one sentence; `free now` where nothing does.",
}
PERMIT_ID: Schema = {"type": "string", "description": "Opaque; for sent, renew and release."}
NAMED: Schema = {"type": "object", "additionalProperties": TEXT}

_GATE = schemas(Usage, limits=_list("LimitUsage"))


def _limit_usage() -> Schema:
    """The usage of a limit; its kinds are those that the process has now, with any of its own."""
    kinds = {"type": "string", "enum": list(LIMIT_KINDS)}
    return _object("How full one limit is. Times are seconds from now.", **schemas(LimitUsage, kind=kinds))


def _override(about: str) -> Schema:
    ends = {**SECONDS, "description": "Seconds until it ends by itself; null: it stays until it is cleared."}
    lowers = {**YES, "description": "It was tightened: it only lowers what else would be in force."}
    return _object(
        about, limit=TEXT, key=or_null(TEXT), value=NUMBER, reason=TEXT, expires_in=or_null(ends), tightened=lowers
    )


#: Schemas of answers.
ANSWERS: dict[str, Schema] = {
    "Permit": _object(
        "A grant. It ends by release, or with its lease.",
        id=PERMIT_ID,
        gate=TEXT,
        fence={
            **WHOLE,
            "description": "Grows with every grant of the gate. 0: let pass uncounted, the store was away.",
        },
        waited=SECONDS,
        lease=or_null({**SECONDS, "description": "Seconds that the lease lasts; null where nothing is leased."}),
        expires_at=or_null(
            {**NUMBER, "description": "When it ends unless renewed, by the store's clock: epoch seconds."}
        ),
    ),
    "Place": _object(
        "A promised time.",
        id=PERMIT_ID,
        gate=TEXT,
        delay={**WHOLE, "description": "Milliseconds to wait before going: `delay_ms` under its old name."},
        delay_ms={**WHOLE, "description": "Milliseconds to wait before going."},
        limit=or_null({**TEXT, "description": "The limit that is waited for; null where it can go at once."}),
    ),
    "Stamped": _object(
        "When the request may be written.",
        id=PERMIT_ID,
        wait_for={**SECONDS, "description": "0: now. Else wait for so many seconds, and say `sent` again."},
        limit=or_null({**TEXT, "description": "The limit that is waited for; null where it can go at once."}),
    ),
    "Renewed": _object("A lease that lives on.", id=PERMIT_ID, lease=SECONDS, expires_at=NUMBER),
    "Released": _object(
        "The end.",
        id=PERMIT_ID,
        released={**YES, "description": "False: it had already ended, and nothing was changed."},
    ),
    "LimitUsage": _limit_usage(),
    "OverrideInForce": _override("A limit's value while running."),
    "Tightened": _override("What is in force then: this, something lower, or the configured value."),
    "Holder": _object(
        "A live lease. Its times are seconds.",
        id=PERMIT_ID,
        holder=or_null(TEXT),
        key=NAMED,
        held_for=SECONDS,
        expires_in=SECONDS,
        priority=or_null(TEXT),
    ),
    "Explanation": _object(
        "What would become of an ask.",
        gate=TEXT,
        granted=YES,
        goes_in=or_null({**SECONDS, "description": "Seconds until it would go; null: never."}),
        limit=or_null(TEXT),
        reason=TEXT,
        why=WHY,
        waiting=WHOLE,
        position={**WHOLE, "description": "Its place in the line, if it came now."},
        timing=TIMING,
        limits=_list("LimitUsage"),
        holders=_list("Holder"),
        overrides=_list("OverrideInForce"),
    ),
    "Override": _object(
        "An override, and what was there before.",
        gate=TEXT,
        limit=TEXT,
        key=or_null(NAMED),
        value=or_null(NUMBER),
        was=or_null(NUMBER),
    ),
    "Paused": _object(
        "Whether the gate is paused, for how many seconds more, and why.",
        **{name: _GATE[name] for name in PAUSED},
    ),
    "Reset": _object("What was reset; null: the whole gate.", gate=TEXT, limit=or_null(TEXT)),
    "Health": _object("All is well.", status={"type": "string", "const": "ok"}),
    "Gates": _object("Every gate.", gates={"type": "array", "items": _ref("GateUsage")}),
    "Holders": _object("Live leases, the oldest first.", gate=TEXT, holders=_list("Holder")),
    "Waiter": _object(
        "An ask that stands in line. Its times are seconds.",
        id=TEXT,
        holder=or_null(TEXT),
        key=NAMED,
        waiting_for=SECONDS,
        priority=or_null(TEXT),
        cost={"type": "object", "additionalProperties": NUMBER},
        state={"type": "string", "enum": ["waits", "called", "skipped"]},
        limit=or_null({**TEXT, "description": "The limit that it waits for."}),
        goes_in={**SECONDS, "description": "When it would go, at the rate of the limits in the long run."},
    ),
    "Waiters": _object("Waiting asks, the oldest first: the first 50.", gate=TEXT, why=WHY, waiters=_list("Waiter")),
    "Keys": _object("Of each limit by a key its fullest keys, the fullest first.", gate=TEXT, keys=_list("LimitUsage")),
    "Replies": _object(
        "One reply per command, in its place: what it would have been alone, with its `status`.",
        replies={"type": "array", "items": {"type": "object", "properties": {"status": WHOLE}, "required": ["status"]}},
    ),
    "Executed": _object(
        "One reply per command, in its place, and how far each gate has come, in which epoch.",
        v=WHOLE,
        seen={"type": "object", "additionalProperties": WHOLE},
        epochs={"type": "object", "additionalProperties": TEXT},
        replies={"type": "array", "items": {"type": "array"}},
    ),
    "Policies": _object(
        "Every gate's limits, classes and timings, in the form of `stores/http/wire.py`.",
        v=WHOLE,
        policies={"type": "object", "additionalProperties": {"type": "array"}},
    ),
    "Changes": _object(
        "Changes of gates, as the audit log has them: at most 50, the newest first.",
        changes={
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "changed_at": or_null({**NUMBER, "description": "When: epoch seconds."}),
                    "action": {**TEXT, "description": "What was done, such as `set limit` or `pause`."},
                    "gate": TEXT,
                    "by": or_null({**TEXT, "description": "The name of the token; null without tokens."}),
                    "client": or_null(TEXT),
                },
                "required": ["changed_at", "action", "gate", "by", "client"],
            },
        },
    ),
    "Problem": {
        "type": "object",
        "description": "Problem details (RFC 9457).",
        "properties": {
            "type": {"type": "string", "enum": [TYPE_PREFIX + kind for kind in KINDS]},
            "title": TEXT,
            "status": WHOLE,
            "detail": TEXT,
            "retry_after": {**SECONDS, "description": "Seconds until it could go; `Retry-After` is that or later."},
            "timing": TIMING,
            "limit": or_null(TEXT),
            "gate": or_null(TEXT),
            "position": or_null(WHOLE),
            "pointer": {**TEXT, "description": "The member that is meant."},
        },
        "required": ["type", "title", "status", "detail"],
    },
}

_USAGE = _object(
    "A gate. Times are seconds from now.",
    **{name: schema for name, schema in _GATE.items() if name != "limits"},
    mode={"type": "string", "enum": ["line", "promise"]},
    keys={"type": "array", "items": TEXT},
    units={"type": "array", "items": TEXT},
    priorities={"type": "array", "items": TEXT},
    limits=_GATE["limits"],
)
ANSWERS["GateUsage"] = _USAGE
ANSWERS["Gate"] = {
    **_USAGE,
    "properties": {**_USAGE["properties"], "why": WHY, "overrides": _list("OverrideInForce")},
    "required": [*_USAGE["required"], "why", "overrides"],
}

PARAMETERS: dict[str, Schema] = {
    "gate": {"type": "string", "pattern": shapes.GATE_PATTERN, "description": "The gate's name."},
    "limit": {"type": "string", "pattern": shapes.GATE_PATTERN, "description": "The limit's name."},
    "id": {"type": "string", "pattern": shapes.PERMIT_PATTERN, "description": "The `id` of a grant."},
}

RETRY = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}, "description": "Whole seconds."}}


def document(settings: Serve, tokens: bool, gates: list[str]) -> Schema:
    """The OpenAPI 3.1 document of a guard with these settings. It names the gates where no token is needed to read them."""
    paths: dict[str, Any] = {}
    for route in ROUTES:
        made = paths.setdefault(route.pattern, {})[route.method.lower()] = _operation(route, settings)
        for parameter in made.get("parameters", ()) if not tokens else ():
            if parameter["name"] == "gate":
                parameter["schema"] = {
                    "type": "string",
                    "enum": gates,
                    "description": PARAMETERS["gate"]["description"],
                }
    components: Schema = {"schemas": {**ANSWERS, "LimitUsage": _limit_usage(), "Command": _command_schema()}}
    if tokens:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Headgate guard",
            "version": __version__,
            "summary": "Permits for rate-limited services, over HTTP.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": components,
        **({"security": [{"token": []}]} if tokens else {}),
    }


def _operation(route: Route, settings: Serve) -> Schema:
    where = re.sub(r"\W+", " ", route.pattern.replace("/v1", "")).strip()
    made: Schema = {
        "operationId": f"{route.method} {where}".lower().replace(" ", "_"),
        "summary": route.about,
        "responses": {str(status): _response(status, answer) for status, answer in _answers(route).items()},
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": PARAMETERS.get(name, TEXT)} for name in route.names
    ]
    for name, field in route.query.items():
        parameters.append({"name": name, "in": "query", "required": False, "schema": field.schema})
    if parameters:
        made["parameters"] = parameters
    if route.body is not None:
        schema = route.body.schema()
        if "wait" in schema["properties"]:
            schema["properties"]["wait"] = {**schema["properties"]["wait"], "maximum": settings.max_wait}
        made["requestBody"] = {
            "required": bool(route.body.required),
            "content": {"application/json": {"schema": schema}},
        }
    if route.scope is None:
        made["security"] = []
    else:
        made["description"] = f"Needs the scope `{route.scope}`: {SCOPES[route.scope]}."
    return made


def _answers(route: Route) -> dict[int, Any]:
    """A route's own statuses, and the common ones."""
    common = [status for status in COMMON if route.pattern.startswith("/v1") or status in (400, 500, 503)]
    common += [401, 403] if route.scope is not None else [403]
    if route.names:
        common.append(404)
    return dict(sorted((dict.fromkeys(common, "Problem") | route.answers).items()))


def _response(status: int, answer: str | None) -> Schema:
    made: Schema = {"description": WORDS.get(status, "An answer.")}
    if status in (429, 503):
        made["headers"] = RETRY
    if answer is None:
        return made
    if "/" in answer:
        made["content"] = {answer: {}}
    elif answer == "Problem":
        made["content"] = {"application/problem+json": {"schema": _ref(answer)}}
    else:
        made["content"] = {"application/json": {"schema": _ref(answer)}}
    return made


def _command_schema() -> Schema:
    return {"description": "One command of a batch.", "anyOf": [shape.schema() for shape in DOES.values()]}


# --- for people -------------------------------------------------------------------------------------------------------

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "code,pre,textarea{font-family:ui-monospace,monospace;font-size:.92em}h2{margin:0;font-size:1.05rem}"
    "section{border:1px solid #8886;border-radius:7px;padding:.8rem 1rem;margin:.8rem 0}p{margin:.3rem 0}"
    "table{border-collapse:collapse;margin:.4rem 0}td{text-align:left;vertical-align:top;padding:.15rem .8rem .15rem 0}"
    "nav{columns:2;margin:1rem 0}nav a{display:block;text-decoration:none}label{display:grid;gap:.15rem;margin:.4rem 0}"
    "input,textarea,button{font:inherit;padding:.3rem .5rem}textarea{width:100%;box-sizing:border-box}"
    "summary{cursor:pointer;margin-top:.4rem}"
    "pre{overflow:auto;max-height:24rem;border-left:3px solid #8888;padding-left:.8rem}"
)

#: Bodies to begin with, by pattern: what a person would try first.
_EXAMPLES = {
    "/v1/gates/{gate}/acquire": '{"holder": "me, trying it", "wait": 0}',
    "/v1/gates/{gate}/reserve": '{"cost": 1}',
    "/v1/permits/{id}/release": '{"outcome": "ok"}',
    "/v1/gates/{gate}/limits/{limit}": '{"value": 100}',
    "/v1/gates/{gate}/pause": '{"seconds": 60, "reason": "trying it"}',
}


def page() -> tuple[bytes, bytes]:
    """The reference as one HTML page, and its content security policy. Its one script is the guard's own."""
    import base64
    import hashlib

    parts = [f"<h1>Headgate guard {escape(__version__)}</h1>"]
    parts.append(
        '<p>For machines: <a href="/openapi.json">/openapi.json</a>. Errors are problem details (RFC 9457). '
        "What is tried here is done: a permit is taken, a limit is set.</p>"
        '<label><span>Token, where this guard has tokens; kept in this tab</span><input id="token" type="password" '
        'autocomplete="off"></label>'
    )
    anchors = {route: f"r{number}" for number, route in enumerate(ROUTES)}
    links = "".join(
        f'<a href="#{anchors[route]}"><code>{route.method} {escape(route.pattern)}</code></a>' for route in ROUTES
    )
    parts.append(f"<nav>{links}</nav>")
    for route in ROUTES:
        traits = [f'id="{anchors[route]}"', f'data-method="{route.method}"', f'data-path="{escape(route.pattern)}"']
        if route.pattern.startswith("/v1/") and "text/event-stream" not in route.answers.values():
            traits.append('data-try="1"')
        if route.query:
            traits.append(f'data-query="{escape(" ".join(route.query))}"')
        if route.body is not None:
            traits.append(f"data-body=\"1\" data-example='{escape(_EXAMPLES.get(route.pattern, '{}'), quote=False)}'")
        parts.append(f"<section {' '.join(traits)}><h2><code>{route.method} {escape(route.pattern)}</code></h2>")
        parts.append(f"<p>{_html(route.about)}{f' Scope: <code>{route.scope}</code>.' if route.scope else ''}</p>")
        fields = {**route.query, **(route.body.fields if route.body else {})}
        if fields:
            rows = "".join(
                f"<tr><td><code>{escape(name)}</code></td><td>{_html(field.schema['description'])}</td></tr>"
                for name, field in fields.items()
            )
            parts.append(f"<table>{rows}</table>")
        parts.append("</section>")
    hashed = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    text = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Headgate guard: HTTP</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style>'
        f'<script src="/dashboard/docs.js" type="module"></script></head><body>{"".join(parts)}</body></html>'
    )
    policy = (
        f"default-src 'none'; style-src 'sha256-{hashed}'; script-src 'self'; connect-src 'self'; base-uri 'none'; "
        f"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
    return text.encode(), policy.encode()


def _html(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))

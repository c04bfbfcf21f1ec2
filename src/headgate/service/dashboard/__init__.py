"""The dashboard at `/`: static files of the package. Its content security policy forbids everything from outside."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from importlib.resources import files

from ...http.problems import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..web import Request, Response

SCRIPT, STYLE = b"text/javascript; charset=utf-8", b"text/css; charset=utf-8"

#: Every file that is served, and its type. uPlot draws the chart; its licence is beside it.
FILES: dict[str, bytes] = {
    "index.html": b"text/html; charset=utf-8",
    "app.js": SCRIPT,
    "chart.js": SCRIPT,
    "docs.js": SCRIPT,
    "changes.js": SCRIPT,
    "overview.js": SCRIPT,
    "people.js": SCRIPT,
    "stream.js": SCRIPT,
    "theme.js": SCRIPT,
    "view.js": SCRIPT,
    "words.js": SCRIPT,
    "uplot.js": SCRIPT,
    "uplot.css": STYLE,
    "uplot.LICENSE": b"text/plain; charset=utf-8",
    "style.css": STYLE,
    "icon.svg": b"image/svg+xml",
}

#: Scripts, styles and requests only from and to this guard; nothing inline, no frames, and no text becomes markup.
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)

SAFETY = [
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


@lru_cache(len(FILES))
def _read(name: str) -> tuple[bytes, bytes]:
    body = files(__package__).joinpath(name).read_bytes()
    return body, b'"%s"' % sha256(body).hexdigest()[:32].encode()


async def page(guard: Any, request: Request) -> Response:
    """`GET /`."""
    return _served("index.html", request)


async def asset(guard: Any, request: Request) -> Response:
    """`GET /dashboard/{file}`."""
    name = request.params["file"]
    if name not in FILES:
        raise Problem(404, "not-found", "the dashboard has no such file")
    return _served(name, request)


def _served(name: str, request: Request) -> Response:
    body, tag = _read(name)
    headers = [*SAFETY, (b"etag", tag), (b"cache-control", b"no-cache")]
    if (request.header(b"if-none-match") or "").encode("latin-1") == tag:
        return 304, headers, b""
    return 200, [(b"content-type", FILES[name]), *headers], body

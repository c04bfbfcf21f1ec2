"""What a handler is given and gives back: one request, one response, and nothing of any framework."""

from __future__ import annotations

import json

from ..http.headers import JSON
from ..http.problems import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from ..http.headers import Header
    from .tokens import Bearer

    Scope = dict[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]
    #: Status, headers without the length, body.
    Response = tuple[int, list[Header], bytes]

#: `json.dumps` makes an encoder on every call that names separators.
encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_decoder = json.JSONDecoder(parse_constant=lambda word: _refuse(word))
_scan: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once  # type: ignore[attr-defined]


def decoded(body: bytes) -> Any:
    """What a body says. Raises Problem 400 where it is not JSON."""
    try:
        text = str(body, "utf-8")
        try:
            # Most bodies are one object and nothing else, for which the decoder's own way around takes as long again.
            found, end = _scan(text, 0)
            if end == len(text):
                return found
        except StopIteration:
            pass
        return _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise Problem(400, "malformed-json", f"the body is not JSON: {error}") from None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def is_json(kind: str | None) -> bool:
    """Whether a content-type is that of JSON."""
    return kind == "application/json" or (kind or "").partition(";")[0].strip().lower() == "application/json"


class Request:
    """One request. `params` are the parts of the path that the route's pattern names."""

    __slots__ = ("bearer", "params", "receive", "scope", "send")

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, params: dict[str, str], bearer: Bearer | None
    ) -> None:
        self.scope = scope
        self.receive = receive
        #: For handlers that answer by themselves, bit by bit; they return None.
        self.send = send
        self.params = params
        #: Who asks, where tokens are used.
        self.bearer = bearer

    def header(self, name: bytes) -> str | None:
        """A header by its name in lower case; the first, where there are several."""
        for key, value in self.scope["headers"]:
            if key == name:
                return str(value, "latin-1")
        return None

    def query(self) -> dict[str, str]:
        """The query's parameters; one that is given twice is a mistake, not a choice."""
        text = self.scope["query_string"]
        if not text:
            return {}
        from urllib.parse import parse_qsl

        try:
            pairs = parse_qsl(str(text, "ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
        except ValueError as error:
            raise Problem(400, "bad-query", f"the query is not made of NAME=VALUE: {error}") from None
        found = dict(pairs)
        if len(found) != len(pairs):
            raise Problem(400, "bad-query", "a parameter of the query is given twice")
        return found

    async def body(self, most: int, message: dict[str, Any] | None = None) -> bytes:
        """The whole body. Raises Problem 413 beyond `most` bytes, as soon as that is known."""
        if message is None:
            message = await self.receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body: bytes = message.get("body", b"")
        if len(body) > most:
            raise _too_large(most)
        if not message.get("more_body"):
            return body
        parts, size = [body], len(body)
        while message.get("more_body"):
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise _too_large(most)
        return b"".join(parts)

    async def json(self, most: int) -> dict[str, Any]:
        """The body as an object; no body at all is an empty one."""
        message = await self.receive()
        if message["type"] != "http.request" or message.get("more_body") or len(message["body"]) > most:
            body = await self.body(most, message)
        else:
            body = message["body"]
        if not body:
            return {}
        kind = self.header(b"content-type")
        if not is_json(kind):
            # Also what keeps a page in somebody's browser from asking in that person's name: it may not send JSON unasked.
            raise Problem(
                415,
                "unsupported-media-type",
                f"the body is {kind or 'of no type'}; send content-type: application/json",
            )
        found = decoded(body)
        if found.__class__ is not dict:
            raise Problem(422, "invalid-input", "the body must be a JSON object")
        return found

    def is_gone(self) -> bool:
        """Whether the client has hung up, as far as is known here; does not wait."""
        asking: Any = self.receive()
        try:
            asking.send(None)
        except StopIteration as told:
            return bool(told.value["type"] == "http.disconnect")
        asking.close()
        return False


class Disconnected(Exception):
    """The client closed the connection, so no answer can be delivered."""


def _too_large(most: int) -> Problem:
    return Problem(413, "body-too-large", f"the body is larger than {most} bytes, the most that this guard takes")


def json_response(value: Any, status: int = 200, headers: list[Header] = JSON) -> Response:
    return status, headers, encode(value).encode()

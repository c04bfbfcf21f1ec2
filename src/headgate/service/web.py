"""Request and response as handlers see them, over plain ASGI."""

from __future__ import annotations

import json
import re

from ..http.headers import JSON
from ..http.problems import NOSNIFF, Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from ..http.headers import Header
    from .proxies import Proxies
    from .tokens import Bearer

    Scope = dict[str, Any]
    Receive = Callable[[], Awaitable[dict[str, Any]]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]
    #: Status, headers without the length, body.
    Response = tuple[int, list[Header], bytes]

#: The headers of a stream of server-sent events. Some proxies would collect the whole stream before they pass it on.
EVENT_STREAM: list[Header] = [
    (b"content-type", b"text/event-stream"),
    NOSNIFF,
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]

#: `json.dumps` would make a new encoder on every call, because separators are named.
encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_HALVES = re.compile("[\ud800-\udfff]")
_decoder = json.JSONDecoder(parse_constant=lambda word: _refuse(word))
_scan: Callable[[str, int], tuple[Any, int]] = _decoder.scan_once  # type: ignore[attr-defined]


def decoded(body: bytes) -> Any:
    """The JSON value of a body. Raises Problem 400 where it is not JSON."""
    try:
        text = str(body, "utf-8")
        if b"\\u" in body:
            return _whole_text(_decoder.decode(text))
        try:
            # Most bodies are one object and nothing else; `decode` takes twice as long, for the white space around it.
            found, end = _scan(text, 0)
            if end == len(text):
                return found
        except StopIteration:
            pass
        return _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise Problem(400, "malformed-json", f"the body is not JSON: {error}") from None


def _whole_text(found: Any) -> Any:
    """A value in which half of a surrogate pair is written as its escape.

    JSON can say it (some languages do, where they cut a text in two), but it is no text: it cannot be stored, logged or
    sent back.
    """
    text = encode(found)
    try:
        text.encode()
    except UnicodeEncodeError:
        return _decoder.decode(_HALVES.sub(lambda half: f"\\\\u{ord(half[0]):04x}", text))
    return found


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def is_json(kind: str | None) -> bool:
    """Whether a content-type is JSON."""
    return kind == "application/json" or (kind or "").partition(";")[0].strip().lower() == "application/json"


class Request:
    """One request. `params` are the parts of the path that the route's pattern names."""

    __slots__ = ("_proxies", "bearer", "params", "receive", "scope", "send")

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        params: dict[str, str],
        bearer: Bearer | None,
        proxies: Proxies,
    ) -> None:
        self.scope = scope
        self.receive = receive
        #: For handlers that stream their answer; they return None.
        self.send = send
        self.params = params
        #: The holder of the token; None where the guard has no tokens or the route needs none.
        self.bearer = bearer
        self._proxies = proxies

    @property
    def client(self) -> str:
        """The address of the client: of the connection, or what a proxy that is configured says of it."""
        return self._proxies.client_of(self.scope)

    def header(self, name: bytes) -> str | None:
        """The first header of a name in lower case, or None."""
        for key, value in self.scope["headers"]:
            if key == name:
                return str(value, "latin-1")
        return None

    def query(self) -> dict[str, str]:
        """The query's parameters. Raises Problem where one is given twice."""
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
        """The whole body. Raises Problem 413 as soon as more than `most` bytes have come.

        `message` is the first message of the request, where it was received already.
        """
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
        """The body as a JSON object; an empty body is an empty object."""
        message = await self.receive()
        if message["type"] != "http.request" or message.get("more_body") or len(message["body"]) > most:
            body = await self.body(most, message)
        else:
            body = message["body"]
        if not body:
            return {}
        kind = self.header(b"content-type")
        if not is_json(kind):
            # This also keeps pages in a browser from asking in its user's name: to another origin they may not send JSON.
            raise Problem(
                415,
                "unsupported-media-type",
                f"the body is {kind or 'of no type'}; send content-type: application/json",
            )
        found = decoded(body)
        if found.__class__ is not dict:
            raise Problem(422, "invalid-input", "the body must be a JSON object")
        return found

    async def until_disconnected(self) -> None:
        """Wait until the client disconnects; for handlers that stream their answer."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def is_gone(self) -> bool:
        """Whether the client is known to have disconnected; does not wait."""
        receiving: Any = self.receive()
        try:
            receiving.send(None)
        except StopIteration as done:
            return bool(done.value["type"] == "http.disconnect")
        receiving.close()
        return False


class Disconnected(Exception):
    """The client closed the connection, so no answer can be delivered."""


def _too_large(most: int) -> Problem:
    return Problem(413, "body-too-large", f"the body is larger than {most} bytes, the most that this guard takes")


def json_response(value: Any, status: int = 200, headers: list[Header] = JSON) -> Response:
    return status, headers, encode(value).encode()

"""Calls over HTTP for batches that need no Python: one request per item, on connections that are kept.

It stands on the standard library, so it needs no extra. A connection is made before the permit is told that the request is
sent, and a body is read up to a size and a time, so that an answer that never ends holds nothing up.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
from time import monotonic
from urllib.parse import quote, urlsplit

from ..errors import InvalidInput
from .result import CallFailed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from .attempt import Attempt

#: Bytes of an answer that are kept; a longer one is an error.
MOST_BYTES = 64 * 2**20

#: Methods whose requests have no body.
BODYLESS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})

_FIELD = re.compile(r"\{([^{}]*)\}")


class HttpAnswer:
    """An answer as a report reads it."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self._body = body

    @property
    def body(self) -> Any:
        """The JSON value, or the text where it is none."""
        try:
            return json.loads(self._body)
        except ValueError:
            return self._body.decode("utf-8", "replace")


class HttpCall:
    """Sends an item to a URL: `{field}` in it stands for a field of the item, and the item itself is the JSON body.

    Each request carries the attempt's id as `Idempotency-Key`. Redirects are not followed. `timeout_s` is for the whole
    answer. Returns `{"status": …, "body": …}`; an answer from 300 on is an error, `CallFailed` with what it says.
    """

    def __init__(
        self, url: str, method: str = "POST", headers: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> None:
        self._url = url
        self._method = method.upper()
        self._headers = dict(headers or {})
        self._timeout = timeout_s
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidInput(f"{url!r} is not a URL: {error}") from None
        if parts.scheme not in ("http", "https") or not self._host or _FIELD.search(parts.netloc):
            raise InvalidInput(f"{url!r} is not a URL to call: it begins with http://HOST or https://HOST")
        if parts.username is not None:
            raise InvalidInput("a URL with a password in it would be shown and logged; use a header: Authorization")
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        #: A list takes from and adds to its end in one step, so that threads may share it.
        self._idle: list[http.client.HTTPConnection] = []

    def __call__(self, item: Any, attempt: Attempt) -> dict[str, Any]:
        path = self._path_for(item)
        headers = {"Accept": "application/json", "Idempotency-Key": attempt.id, **self._headers}
        body = None
        if self._method not in BODYLESS:
            body = json.dumps(item, ensure_ascii=False).encode()
            headers.setdefault("Content-Type", "application/json")
        ends_at = monotonic() + self._timeout
        connection = self._take_connection()
        try:
            if connection.sock is None:
                connection.connect()
            attempt.sent()
            try:
                connection.request(self._method, path, body, headers)
                response = connection.getresponse()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                raise ConnectionError("the upstream closed the connection before it answered") from error
            names = {name.lower(): value for name, value in response.getheaders()}
            answer = HttpAnswer(response.status, names, _read(response, ends_at))
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)  # which is closed already where the answer said so
        attempt.report(answer)
        if answer.status >= 300:
            where = answer.headers.get("location")
            moved = f": it redirects to {where}, and redirects are not followed" if where else ""
            raise CallFailed(f"answered {answer.status}{moved or _said(answer.body)}", answer.status)
        return {"status": answer.status, "body": answer.body}

    def _take_connection(self) -> http.client.HTTPConnection:
        """One that no other call uses."""
        try:
            return self._idle.pop()
        except IndexError:
            assert self._host is not None
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)

    def close(self) -> None:
        """Close the connections that no call uses."""
        while self._idle:
            self._idle.pop().close()

    def _path_for(self, item: Any) -> str:
        def field(found: re.Match[str]) -> str:
            name = found[1]
            if not isinstance(item, dict) or name not in item:
                raise InvalidInput(f"the URL has {{{name}}}, and this item has no field {name!r}")
            value = item[name]
            if not isinstance(value, str | int | float) or isinstance(value, bool):
                raise InvalidInput(f"the URL has {{{name}}}, and the item's is no text or number: {value!r}")
            return quote(str(value), safe="")

        return _FIELD.sub(field, self._path)


def _read(response: http.client.HTTPResponse, ends_at: float) -> bytes:
    parts, size = [], 0
    # Closed in any case: `read1` does not, and a connection that ends with its answer is held open by the answer alone.
    with response:
        while part := response.read1(65_536):
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                raise OSError(f"the answer is longer than {MOST_BYTES // 2**20} MiB")
            if monotonic() > ends_at:
                raise TimeoutError("the answer did not end in time")
        if response.length:  # a body that a proxy has cut
            raise ConnectionError(f"the answer was cut: {response.length} bytes of it are missing")
    return b"".join(parts)


def _said(body: Any) -> str:
    text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
    text = " ".join(text.split())
    return "" if not text else f": {text[:300]}{'…' if len(text) > 300 else ''}"

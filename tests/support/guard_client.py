"""A client of a guard in the standard library alone: what a worker in any language would do."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from tests.support.waiting import until

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Answer:
    """What a guard answered."""

    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def kind(self) -> str:
        """The kind of problem that it is, after all that every problem must have was looked at."""
        problem = self.json
        assert self.headers["content-type"] == "application/problem+json"
        assert problem["status"] == self.status
        assert problem["title"]
        assert problem["detail"]
        if self.status in (429, 503):
            assert int(self.headers["retry-after"]) >= 1
        prefix, _, kind = problem["type"].rpartition(":")
        assert prefix == "urn:headgate:problem"
        return str(kind)


class Client:
    """Requests to one guard, each over a connection of its own unless one is kept."""

    def __init__(self, port: int, token: str | None = None, timeout: float = 30.0) -> None:
        self.port = port
        self.token = token
        self.timeout = timeout

    def __call__(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, raw: bytes | None = None
    ) -> Answer:
        connection = HTTPConnection(LOOPBACK, self.port, timeout=self.timeout)
        try:
            sent = dict(headers or {})
            if self.token is not None:
                sent.setdefault("Authorization", f"Bearer {self.token}")
            if body is not None:
                raw = json.dumps(body).encode()
            if raw is not None:
                sent.setdefault("Content-Type", "application/json")
            connection.request(method, path, raw, sent)
            response = connection.getresponse()
            told = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, told, response.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Answer:
        return self("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        return self("POST", path, body, **more)

    def acquire(self, gate: str, **ask: Any) -> Answer:
        return self.post(f"/v1/gates/{gate}/acquire", ask)

    def release(self, id: str, **end: Any) -> Answer:
        return self.post(f"/v1/permits/{id}/release", end)

    def begin(self, path: str, body: Any) -> socket.socket:
        """Send a request and do not wait for its answer: close the socket to hang up."""
        sent = json.dumps(body).encode()
        connection = socket.create_connection((LOOPBACK, self.port), timeout=self.timeout)
        auth = f"authorization: Bearer {self.token}\r\n" if self.token else ""
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{auth}"
        connection.sendall(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
        return connection

    def waiting(self, gate: str) -> int:
        return int(self.get(f"/v1/gates/{gate}").json["waiting"])

    def used(self, gate: str, limit: str) -> float:
        limits = self.get(f"/v1/gates/{gate}").json["limits"]
        return next(float(one["used"]) for one in limits if one["name"] == limit)

    until = staticmethod(until)


def answer_of(connection: socket.socket) -> Answer:
    """The answer to a request that was begun."""
    from http.client import HTTPResponse

    response = HTTPResponse(connection)
    response.begin()
    told = {name.lower(): value for name, value in response.getheaders()}
    return Answer(response.status, told, response.read())

"""An HTTP server that answers as its paths say: whole, in pieces, cut off, without an end, or not at all."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

#: Google's answer to a call that came too soon.
RETRY_INFO = {
    "error": {
        "code": 429,
        "status": "RESOURCE_EXHAUSTED",
        "message": "You exceeded your current quota",
        "details": [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": "PerMinute"}]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "28s"},
        ],
    }
}


class Answering(ThreadingHTTPServer):
    """The server. `script` is answered first, one status (or status, headers and body) per request of any path."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        #: (moment, method, path) of every request that arrived.
        self.arrivals: list[tuple[float, str, str]] = []
        self.bodies: list[bytes] = []
        self.script: list[int | tuple[int, dict[str, str], Any]] = []
        self.go = threading.Event()  # what `/held` waits for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients hang up on purpose


class _Handler(BaseHTTPRequestHandler):
    server: Answering
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.arrivals.append((time.monotonic(), self.command, self.path))
        self.server.bodies.append(body)
        if self.server.script:
            said = self.server.script.pop(0)
            status, headers, answer = said if isinstance(said, tuple) else (said, {}, {"status": said})
            return self._whole(status, headers, answer)
        return getattr(self, "_" + parts.path.strip("/").replace("/", "_").replace("-", "_"))(query)

    do_POST = do_PUT = do_GET

    def _whole(self, status: int, headers: dict[str, str], answer: Any) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        headers = {"content-type": "application/json", "content-length": str(len(data)), **headers}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _ok(self, query: dict[str, str]) -> None:
        self._whole(200, {}, {"status": "ok", "usage": {"total_tokens": 7}})

    def _redirect(self, query: dict[str, str]) -> None:
        self._whole(302, {"location": "/ok"}, {})

    def _held(self, query: dict[str, str]) -> None:
        self.server.go.wait(60)
        self._ok(query)

    def _retry_info(self, query: dict[str, str]) -> None:
        self._whole(429, {}, RETRY_INFO)

    def _hang_up(self, query: dict[str, str]) -> None:
        """Read the request, and close the connection without a word."""
        self.close_connection = True

    def _cut(self, query: dict[str, str]) -> None:
        """Promise more than comes, as a proxy does that is restarted."""
        self.send_response(int(query.get("status", 200)))
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "1000")
        self.end_headers()
        self.wfile.write(b'{"half": ')
        self.close_connection = True

    def _endless(self, query: dict[str, str]) -> None:
        """A body that never ends: as fast as it is read, until the client hangs up."""
        self.send_response(int(query.get("status", 200)))
        self.send_header("content-type", query.get("type", "application/octet-stream"))
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        piece = b"x" * 4096
        while True:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))

    def _events(self, query: dict[str, str]) -> None:
        """Server-sent events, the last with the usage."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        said = [{"delta": "a"}, {"delta": "b"}, {"usage": {"total_tokens": 11}}]
        for event in [*(json.dumps(one) for one in said), "[DONE]"]:
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def answering() -> Iterator[Answering]:
    """A server on a free port, gone afterwards."""
    server = Answering()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.go.set()
        server.shutdown()
        with suppress(OSError):
            server.server_close()
        thread.join()

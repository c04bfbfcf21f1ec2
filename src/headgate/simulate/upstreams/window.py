"""An HTTP service that allows so many requests in any window of time, on its own books and its own clock.

    python -m headgate.simulate.upstreams.window --limit 200 --per 10

It prints the port it listens on (loopback). Any request is work: 200 when it fits, 429 when it does not. `GET /books` is
free and returns what was counted. It ends with its standard input, so it does not outlive the process that started it. It
imports nothing of Headgate, so that its books are evidence about Headgate.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Books:
    """What was accepted and refused. A refusal does not count against the limit."""

    def __init__(self, limit: int, per: float) -> None:
        self.limit = limit
        self.per_ns = round(per * 1e9)
        self._lock = threading.Lock()
        self._recent: deque[int] = deque()
        self._accepted: list[int] = []
        self._refused: list[int] = []

    def judge(self) -> float | None:
        """Count one request. None: it is accepted; else the seconds until there is room."""
        with self._lock:
            now = time.monotonic_ns()
            recent = self._recent
            while recent and recent[0] + self.per_ns <= now:
                recent.popleft()
            if len(recent) >= self.limit:
                self._refused.append(now)
                return (recent[0] + self.per_ns - now) / 1e9
            recent.append(now)
            self._accepted.append(now)
            return None

    def page(self) -> dict[str, Any]:
        """Counts, the moments of acceptance and refusal in seconds after the first arrival, and the share that was used.

        Of n accepted requests the first window's worth may come at once, and the last not before n/limit − 1 windows
        later: that over the time from the first to the last acceptance is the utilisation.
        """
        with self._lock:
            accepted, refused = list(self._accepted), list(self._refused)
        first = min([*accepted[:1], *refused[:1]], default=0)
        took = (accepted[-1] - accepted[0]) / 1e9 if accepted else 0.0
        least = max(0.0, len(accepted) / self.limit - 1) * self.per_ns / 1e9
        return {
            "limit": self.limit,
            "per": self.per_ns / 1e9,
            "accepted": len(accepted),
            "refused": len(refused),
            "seconds": took,
            "utilisation": least / took if took and least else 0.0,
            "accepted_at": [round((at - first) / 1e9, 4) for at in accepted],
            "refused_at": [round((at - first) / 1e9, 4) for at in refused],
        }


class WindowServer(ThreadingHTTPServer):
    """The server. A thread per connection, since clients keep theirs open."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, limit: int, per: float) -> None:
        super().__init__(("127.0.0.1", 0), WindowRequestHandler)
        self.books = Books(limit, per)


class WindowRequestHandler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    server: WindowServer
    protocol_version = "HTTP/1.1"
    # An answer is small and the client waits for it: send it at once, not when there is more to send.
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        if self.path == "/books":
            self._send(200, json.dumps(self.server.books.page()))
            return
        wait = self.server.books.judge()
        self._send(200, '{"status": "done"}') if wait is None else self._send(429, '{"status": "too many requests"}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.do_GET()

    def _send(self, status: int, body: str) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        pass


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="An HTTP service that allows so many requests in any window of time.")
    parser.add_argument("--limit", type=int, default=200, help="requests in any window (200)")
    parser.add_argument("--per", type=float, default=60.0, help="seconds (60)")
    options = parser.parse_args(arguments)
    server = WindowServer(options.limit, options.per)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    main()

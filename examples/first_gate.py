"""The first example: eight workers, one upstream that allows 20 requests in any 2 seconds, without Headgate and with it.

The upstream is a small HTTP server in a process of its own. It keeps its own books on its own clock, knows nothing of
Headgate, and answers 429 to whatever is too much. The workers are processes too: first each is on its own and backs off
when it is refused; then they share one gate, whose state is in a SQLite file. `python examples/first_gate.py` takes
about a quarter of a minute, and the table at the end is the upstream's own count.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import random
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from headgate import Concurrency, Gate, Window

LIMIT, PER = 20, 2.0
WORKERS, CALLS = 8, 60
#: Each round is another customer of the upstream, so that the first leaves nothing behind for the second.
ACCOUNTS = ("uncoordinated", "headgate")
#: The first 20 go at once, the next 20 one window later, and so on: no fleet can be faster.
IDEAL = (CALLS / LIMIT - 1) * PER


# --- the upstream -----------------------------------------------------------------------------------------------


class Account:
    """The books of one customer: 20 requests in any 2 seconds are accepted."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.accepted: list[float] = []
        self.refused = 0

    def admit(self) -> bool:
        with self.lock:
            now = time.monotonic()
            if len([then for then in self.accepted if now - then < PER]) < LIMIT:
                self.accepted.append(now)
                return True
            self.refused += 1
            return False

    def books(self) -> dict[str, Any]:
        with self.lock:
            seconds = self.accepted[-1] - self.accepted[0] if self.accepted else 0.0
            return {"done": len(self.accepted), "refused": self.refused, "seconds": seconds}


class Upstream(ThreadingHTTPServer):
    """`GET /ACCOUNT` is a call, `GET /ACCOUNT/books` tells what was counted for that account."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.accounts = {name: Account() for name in ACCOUNTS}


class Answer(BaseHTTPRequestHandler):
    server: Upstream

    def do_GET(self) -> None:
        _, name, *rest = self.path.split("/")
        account = self.server.accounts[name]
        if rest == ["books"]:
            self._send(200, json.dumps(account.books()).encode())
        elif account.admit():
            time.sleep(0.02)  # the work
            self._send(200, b"done")
        else:
            self._send(429, b"too many requests")

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(port: Any) -> None:
    server = Upstream()
    port.put(server.server_address[1])
    server.serve_forever()


def get(port: int, path: str) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


# --- the workers ------------------------------------------------------------------------------------------------


def uncoordinated(port: int) -> None:
    """Try; when refused, back off and try again. What most programs do."""
    for attempt in range(100):
        response, _ = get(port, "/uncoordinated")
        if response.status != 429:
            return
        time.sleep(min(2.0, 0.1 * 2**attempt) * random.uniform(0.5, 1.0))


def with_headgate(gate: Gate, port: int) -> None:
    """Take a permit, call, report the answer."""
    with gate.acquire(timeout=30) as permit:
        response, _ = get(port, "/headgate")
        permit.report(response)


def work(port: int, store: str, rounds: dict[str, Any], start: Any) -> None:
    # Slack is how much the delays of calls, from grant to upstream, may differ. The answer confirms a call, so a generous
    # slack costs a round trip, not a second.
    gate = Gate("demo", [Window(LIMIT, per=PER, slack="1s", name="rate"), Concurrency(WORKERS)], store=store)
    for name, left in rounds.items():
        start.wait()
        while take_one(left):
            if name == "headgate":
                with_headgate(gate, port)
            else:
                uncoordinated(port)
        start.wait()


def take_one(left: Any) -> bool:
    with left.get_lock():
        left.value -= 1
        return bool(left.value >= 0)


# --- the demonstration ------------------------------------------------------------------------------------------


def main() -> None:
    context = multiprocessing.get_context("forkserver")
    print(f"An upstream that allows {LIMIT} requests in any {PER:g} s; {WORKERS} processes with {CALLS} calls to make.")
    with tempfile.TemporaryDirectory() as directory:
        store = f"sqlite:///{Path(directory, 'demo.db')}"
        ports: Any = context.Queue()
        upstream = context.Process(target=serve, args=(ports,), daemon=True)
        upstream.start()
        port = ports.get()
        start = context.Barrier(WORKERS + 1)
        rounds = {name: context.Value("i", CALLS) for name in ACCOUNTS}
        workers = [context.Process(target=work, args=(port, store, rounds, start), daemon=True) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        rows = []
        for name in ACCOUNTS:
            start.wait(timeout=30)
            print(f"  {name} ...", flush=True)
            start.wait(timeout=60)
            rows.append((name, json.loads(get(port, f"/{name}/books")[1])))
        for worker in workers:
            worker.join()
        upstream.terminate()
        upstream.join()
    print(f"\n{'':16}{'done':>6}{'refused (429)':>16}{'seconds':>10}{'utilisation':>14}")
    for name, books in rows:
        used = IDEAL / max(books["seconds"], IDEAL)
        print(f"  {name:14}{books['done']:6}{books['refused']:16}{books['seconds']:10.1f}{used:14.0%}")
    print(f"\nThe upstream counted this. No fleet can be faster than {IDEAL:g} s: that would be a utilisation of 100%.")


if __name__ == "__main__":
    main()

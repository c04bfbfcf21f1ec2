"""The guard: against a bare ASGI application on the same server in the same run, one request at a time and under load.

Servers are processes of their own; the client takes turns among them, so that a slow moment of the machine hits all alike.
Requests a second "on one core" are one second over the CPU time that the server took for a request: neither other programs
nor the client count.
"""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from statistics import median, quantiles

from benchmarks.measure import Table

#: What the floor, the guard on memory and the guard on SQLite are called in the tables.
FLOOR, MEMORY, SQLITE = "bare ASGI", "guard on memory", "guard on SQLite"
CONNECTIONS = 64
BATCH = 64
ASK = {"holder": "worker-7"}

CONFIG = """\
store = "{store}"
[gates.bench]
limits = [{{ bucket = 1000000000, per = "1s", name = "rate" }}]
"""


class ServerProcess:
    """A server process, and the requests for it."""

    def __init__(self, name: str, process: subprocess.Popen[str], address: str, path: str) -> None:
        self.name = name
        self.pid = process.pid
        host, port = address.removeprefix("http://").split(":")
        self.address = (host, int(port))
        self.path = path

    def request(self, body: object, path: str | None = None) -> bytes:
        sent = json.dumps(body).encode()
        head = f"POST {path or self.path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent

    def connect(self) -> socket.socket:
        connection = socket.create_connection(self.address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def cpu(self) -> float:
        """Seconds on a processor, of all its threads."""
        tasks = Path(f"/proc/{self.pid}/task")
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks.iterdir()) / 1e9


def answer(connection: socket.socket) -> bytes:
    """One answer with a content-length: its body. Anything but 200 is an error."""
    data = connection.recv(262_144)
    while b"\r\n\r\n" not in data:
        data += _more(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise AssertionError(data)
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None
    while len(body) < int(length[1]):
        body += _more(connection)
    return body


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(262_144)
    if not data:
        raise AssertionError("the server hung up")
    return data


@contextmanager
def serving() -> Iterator[list[ServerProcess]]:
    """The floor and the guards, each a process of its own on a free port."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        found = []
        for name, store in ((FLOOR, None), (MEMORY, "memory://"), (SQLITE, f"sqlite:///{folder}/gates.db")):
            command = ["-m", "benchmarks.guard_floor"]
            if store is not None:
                file = Path(folder, f"{name.split()[-1]}.toml")
                file.write_text(CONFIG.format(store=store), encoding="utf-8")
                command = ["-m", "headgate", "--config", str(file), "serve", "--port", "0", "--log-level", "error"]
            process = subprocess.Popen(
                [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
            stack.callback(_end, process)
            assert process.stdout is not None
            told = process.stdout.readline()
            address = re.search(r"http://\S+", told)
            assert address is not None, f"{name} did not start: {told}"
            found.append(ServerProcess(name, process, address[0], "/v1/gates/bench/acquire"))
        yield found


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate(timeout=30)


# --- one at a time ----------------------------------------------------------------------------------------------------


def latencies(served: list[ServerProcess], quick: bool) -> Table:
    """Microseconds for one request in an empty system: the median of rounds, and the ratio to the floor within a round."""
    rounds, requests = (5, 200) if quick else (15, 600)
    found: dict[str, list[tuple[float, float]]] = {server.name: [] for server in served}
    connections = {server.name: server.connect() for server in served}
    for _ in range(rounds):
        for server in served:
            connection, request = connections[server.name], server.request(ASK)
            taken = []
            for _ in range(requests):
                begun = time.perf_counter_ns()
                connection.sendall(request)
                answer(connection)
                taken.append((time.perf_counter_ns() - begun) / 1000)
            cuts = quantiles(taken, n=100)
            found[server.name].append((cuts[49], cuts[98]))
    for connection in connections.values():
        connection.close()
    rows = []
    for server in served:
        row = [server.name]
        for index in (0, 1):
            of_floor = median(
                mine[index] / floor[index] for mine, floor in zip(found[server.name], found[FLOOR], strict=True)
            )
            row += [f"{median(pair[index] for pair in found[server.name]):.0f}", f"{of_floor:.2f}"]
        rows.append(tuple(row))
    return Table(
        "The guard, empty: one acquire at a time",
        ("server", "p50 µs", "of bare", "p99 µs", "of bare"),
        rows,
        note="Bare ASGI reads a JSON body and answers with one. At most 1.5 of it is the aim, at p50 and at p99.",
    )


# --- under load -------------------------------------------------------------------------------------------------------


def load(server: ServerProcess, request: bytes, seconds: float) -> tuple[float, float]:
    """Requests a second as measured, and on one core: 64 connections, each of which sends again when it is answered."""
    selector = DefaultSelector()
    connections = [server.connect() for _ in range(CONNECTIONS)]
    for connection in connections:
        selector.register(connection, EVENT_READ)
        connection.sendall(request)
    done = 0
    cpu, begun = server.cpu(), time.perf_counter()
    end = begun + seconds
    while (now := time.perf_counter()) < end:
        for key, _ in selector.select(1.0):
            connection = key.fileobj  # type: ignore[assignment]
            answer(connection)
            connection.sendall(request)
            done += 1
    used = server.cpu() - cpu
    for connection in connections:
        answer(connection)
        selector.unregister(connection)
        connection.close()
    return done / (now - begun), done / used


def throughput(served: list[ServerProcess], quick: bool) -> Table:
    rounds, seconds = (3, 1.0) if quick else (7, 3.0)
    found: dict[str, list[tuple[float, float]]] = {server.name: [] for server in served}
    for _ in range(rounds):
        for server in served:
            found[server.name].append(load(server, server.request(ASK), seconds))
    rows = []
    for server in served:
        ratio = median(mine[1] / floor[1] for mine, floor in zip(found[server.name], found[FLOOR], strict=True))
        came, core = (median(pair[index] for pair in found[server.name]) for index in (0, 1))
        rows.append((server.name, f"{came:,.0f}", f"{core:,.0f}", f"{1e6 / core:.0f}", f"{ratio:.2f}"))
    return Table(
        f"The guard, loaded: {CONNECTIONS} connections, single acquires",
        ("server", "requests/s", "on one core", "CPU µs each", "of bare"),
        rows,
        note="The aim is 0.6 of bare ASGI on memory and 0.4 on SQLite, on one core.",
    )


def batches(served: list[ServerProcess], quick: bool) -> Table:
    rounds, seconds = (3, 1.0) if quick else (5, 3.0)
    rows = []
    body = {"commands": [{"do": "acquire", "gate": "bench"}] * BATCH}
    for server in served[1:]:
        found = []
        for _ in range(rounds):
            found.append(load(server, server.request(body, "/v1/batch"), seconds))
        came, core = (median(pair[index] for pair in found) * BATCH for index in (0, 1))
        rows.append((server.name, f"{came:,.0f}", f"{core:,.0f}", f"{1e6 / core:.1f}"))
    return Table(
        f"The guard, loaded: /v1/batch of {BATCH} acquires",
        ("server", "decisions/s", "on one core", "CPU µs each"),
        rows,
        note="The aim is 50,000 decisions a second.",
    )


def run(quick: bool) -> list[Table]:
    with serving() as served:
        return [latencies(served, quick), throughput(served, quick), batches(served, quick)]

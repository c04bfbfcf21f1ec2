"""A stranger without a token wants the guard to run out of memory, connections or disk."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.guard_client import LOOPBACK, Answer, Client, answer_of
from tests.support.guards import GuardProcess
from tests.support.waiting import until

CONFIG = """\
store = "memory://"

[serve]
request_timeout = "1s"

[gates.g]
limits = [{ window = 100000, per = "1m", name = "rpm" }]

[gates.one]
limits = [{ concurrency = 1, name = "slots", lease = "10m" }]
"""

#: Files that the guard with few of them may open. It keeps 128 to itself.
FILES = 512


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardProcess]:
    guard = GuardProcess(tmp_path_factory.mktemp("guard"), CONFIG)
    yield guard
    assert guard.stop() == 0


def connect(guard: GuardProcess) -> socket.socket:
    return socket.create_connection((LOOPBACK, guard.port), timeout=60)


def memory_of(guard: GuardProcess) -> int:
    """The most bytes of memory that the guard has had."""
    assert guard.process is not None
    for line in Path(f"/proc/{guard.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def send_until_refused(connection: socket.socket, head: bytes, more: bytes, times: int) -> Answer:
    """Send, and go on until the guard answers or closes."""
    with suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(head)
        for _ in range(times):
            connection.sendall(more)
    return answer_of(connection)


HEADS = {
    "one long header": (b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx: ", b"x" * 65_536),
    "many short headers": (b"GET /livez HTTP/1.1\r\nhost: localhost\r\n", b"x: y\r\n" * 10_000),
    "a long path": (b"GET /", b"x" * 65_536),
    "empty lines before the request": (b"", b"\r\n" * 32_768),
    "a header of a known request": (
        b"POST /v1/gates/g/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nx: ",
        b"x" * 65_536,
    ),
    "trailers": (
        b"POST /livez HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ",
        b"x" * 65_536,
    ),
}


@pytest.mark.parametrize("head", HEADS)
def test_a_head_that_never_ends_is_refused_after_64_kb(guard: GuardProcess, head: str) -> None:
    before = memory_of(guard)
    with connect(guard) as connection:
        begin, more = HEADS[head]
        if head == "trailers":  # there is nothing to post to, which is answered before they come
            connection.sendall(begin)
            assert answer_of(connection).status == 405
            begin = b""
        answer = send_until_refused(connection, begin, more, 1000)
        assert answer.status == 431
        assert answer.kind == "head-too-large"
        assert answer.headers["connection"] == "close"
    assert memory_of(guard) - before < 16_000_000
    assert Client(guard.port).acquire("g").status == 200


def test_a_whole_head_above_64_kb_is_refused_and_one_below_is_not(guard: GuardProcess) -> None:
    for size, status in ((60_000, 200), (70_000, 431)):
        with connect(guard) as connection:
            connection.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nx: %b\r\n\r\n" % (b"x" * size))
            assert answer_of(connection).status == status


SLOW = {
    "nothing": (b"", None),
    "half a head": (b"GET /livez HTTP/1.1\r\nhost: local", 408),
    "a head without its body": (
        b"POST /v1/gates/g/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"content-length: 9\r\n\r\n{",
        408,
    ),
}


@pytest.mark.parametrize("what", SLOW)
def test_a_connection_that_does_not_send_a_request_is_closed(guard: GuardProcess, what: str) -> None:
    sent, status = SLOW[what]
    with connect(guard) as connection:
        connection.sendall(sent)
        if status is None:
            assert connection.recv(1) == b""
        else:
            assert answer_of(connection).status == status


def test_a_second_request_that_stops_half_way_is_closed_too(guard: GuardProcess) -> None:
    body = b'{"cost": 1}'
    head = b"POST /v1/gates/g/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += b"content-length: %d\r\n\r\n" % len(body)
    with connect(guard) as connection:
        for _ in range(3):  # the guard knows the headers now
            connection.sendall(head + body)
            assert answer_of(connection).status == 200
        connection.sendall(head)
        connection.settimeout(60)
        assert connection.recv(65_536)[:12] in (b"", b"HTTP/1.1 408")


def test_a_body_that_never_ends_ends_with_its_time(guard: GuardProcess) -> None:
    head = b"POST /v1/gates/g/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with connect(guard) as connection, suppress(ConnectionResetError, BrokenPipeError):
        connection.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
        while True:
            connection.sendall(b"1000\r\n" + b" " * 0x1000 + b"\r\n")
    assert Client(guard.port).acquire("g").status == 200


def test_a_client_that_waits_for_longer_than_a_request_may_take_is_served(guard: GuardProcess) -> None:
    client = Client(guard.port)
    assert client.acquire("one").status == 200
    answer = client.acquire("one", wait=3)
    assert answer.status == 429, "it was answered when its own wait was over, and not cut off before"


def limited(folder: Path, files: int) -> GuardProcess:
    """A guard that is started with so many files."""
    was = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, was[1]))
    try:
        return GuardProcess(folder, CONFIG.replace("1s", "10m"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, was)


def test_silent_connections_keep_nobody_out_and_fill_no_log(tmp_path: Path) -> None:
    guard = limited(tmp_path, FILES)
    silent: list[socket.socket] = []
    try:
        for number in range(2 * FILES):
            silent.append(connect(guard))
            if number % 16 == 0:
                assert Client(guard.port).acquire("g").status == 200
        assert Client(guard.port).acquire("g").status == 200
        log = guard.log()
        assert len(log) < 20_000
        assert log.count("too many connections") == 1
        assert "out of system resource" not in log
    finally:
        for connection in silent:
            connection.close()
        assert guard.stop() == 0


def test_where_all_connections_are_in_use_a_further_one_is_refused_at_once(tmp_path: Path) -> None:
    guard = GuardProcess(tmp_path, CONFIG.replace("1s", "10m").replace("[gates", "max_connections = 3\n\n[gates", 1))
    client = Client(guard.port)
    waiting = []
    try:
        for _ in range(3):
            waiting.append(connect(guard))
            waiting[-1].sendall(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert waiting[-1].recv(15) == b"HTTP/1.1 200 OK"
        answer = _refused(client)
        assert answer is not None
        assert answer.kind == "too-many-connections"
        waiting.pop().close()
        until(lambda: _refused(client) is None)
        assert guard.log().count("too many connections") == 1
    finally:
        for connection in waiting:
            connection.close()
        assert guard.stop() == 0


def _refused(client: Client) -> Answer | None:
    answer = client.get("/livez")
    return None if answer.status == 200 else answer


def test_garbage_fills_no_log_and_leaves_the_guard_as_it_was(guard: GuardProcess) -> None:
    before = len(guard.log())
    for _ in range(200):
        with connect(guard) as connection:
            connection.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
            assert answer_of(connection).kind == "malformed-request"
    assert len(guard.log()) - before < 10_000


def test_long_paths_are_not_kept(guard: GuardProcess) -> None:
    before = memory_of(guard)
    name = "g" * 60_000
    with connect(guard) as connection:
        for number in range(1200):
            body = b"{}"
            line = f"POST /v1/gates/{name}{number}/acquire HTTP/1.1\r\n".encode()
            head = line + b"host: localhost\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n"
            connection.sendall(head + body)
            assert answer_of(connection).status in (404, 422)
    assert memory_of(guard) - before < 16_000_000

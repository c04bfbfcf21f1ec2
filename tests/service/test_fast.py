"""Requests whose headers a guard has seen before: they are answered at once, and as all others are."""

from __future__ import annotations

import json
import os
import random
import re
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from headgate.stores.memory import MemoryStore
from tests.support.guard_client import LOOPBACK, Answer, Client
from tests.support.guards import GuardProcess, GuardThread

Connect = Callable[[int], "Line"]

CONFIG = """\
store = "sqlite:///gates.db"

[gates.wide]
limits = [{ window = 100000, per = "1m", name = "rpm" }]

[gates.narrow]
limits = [{ window = 1, per = "1h", name = "rph" }]

[gates.slots]
limits = [{ concurrency = 100, name = "in_flight", lease = "10m" }]
"""


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardProcess]:
    guard = GuardProcess(tmp_path_factory.mktemp("guard"), CONFIG)
    yield guard
    guard.stop()


@pytest.fixture
def client(guard: GuardProcess) -> Client:
    return Client(guard.port)


def request(path: str, body: Any, *headers: str, raw: bytes | None = None) -> bytes:
    sent = json.dumps(body).encode() if raw is None else raw
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json", *headers]
    return "\r\n".join([*lines, f"content-length: {len(sent)}", "", ""]).encode() + sent


class Line:
    """One connection, over which requests are sent in pieces and answers are read one after the other."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((LOOPBACK, port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._socket.sendall(piece)
            if len(pieces) > 1:
                time.sleep(0.005)  # so that they arrive one by one

    def answer(self) -> Answer:
        status = int(self._answers.readline().split()[1])
        headers = {}
        while line := self._answers.readline().strip().decode():
            name, _, value = line.partition(": ")
            headers[name] = value
        return Answer(status, headers, self._answers.read(int(headers["content-length"])))

    def ask(self, *pieces: bytes) -> Answer:
        self.send(*pieces)
        return self.answer()

    def is_closed_by_guard(self) -> bool:
        return self._answers.read(1) == b""

    def close(self) -> None:
        self._answers.close()
        self._socket.close()


@pytest.fixture
def connect() -> Iterator[Callable[[int], Line]]:
    lines: list[Line] = []

    def connect(port: int) -> Line:
        lines.append(Line(port))
        return lines[-1]

    yield connect
    for line in lines:
        line.close()


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/gates/wide/acquire", {"holder": "a"}, 200),
        ("/v1/gates/slots/acquire", {"lease": 60}, 200),
        ("/v1/gates/wide/acquire", {"cost": 2, "wait": 1}, 200),
        ("/v1/gates/narrow/acquire", {"cost": 1}, 429),
        ("/v1/gates/narrow/acquire", {"cost": 2}, 422),
        ("/v1/gates/wide/acquire", {"cots": 2}, 422),
        ("/v1/gates/wide/acquire", [], 422),
        ("/v1/gates/none/acquire", {}, 404),
        ("/v1/permits/wide:nobody-1/release", {}, 200),
        ("/v1/permits/wide/release", {}, 404),
    ],
)
def test_headers_that_were_seen_before_get_the_answer_that_new_ones_get(
    client: Client, connect: Connect, path: str, body: Any, status: int
) -> None:
    client.acquire("narrow")  # it is full from now on
    connection = connect(client.port)
    client.acquire("wide")  # what is left is known for a moment
    first, *others = [connection.ask(request(path, body, f"x-of: {path}{body}")) for _ in range(4)]
    for answer in (first, *others):
        assert answer.status == status
        assert answer.headers.keys() == first.headers.keys()
        assert answer.json.keys() == first.json.keys()


def test_a_body_that_is_not_json_is_refused_the_second_time_too(client: Client, connect: Connect) -> None:
    connection = connect(client.port)
    for _ in range(3):
        assert connection.ask(request("/v1/gates/wide/acquire", None, raw=b'{"cost":')).kind == "malformed-json"


def test_a_request_may_come_in_any_pieces_and_several_at_once(client: Client, connect: Connect) -> None:
    connection = connect(client.port)
    for cost in range(100, 104):
        whole = request("/v1/gates/wide/acquire", {"cost": cost})
        head, body = whole[: whole.index(b"{")], whole[whole.index(b"{") :]
        before = client.used("wide", "rpm")
        assert connection.ask(whole).status == 200
        assert connection.ask(head, body).status == 200
        assert connection.ask(head, body[:4], body[4:]).status == 200
        assert connection.ask(whole[:9], whole[9:40], whole[40:]).status == 200
        connection.send(whole + head)
        answers = [connection.answer(), connection.ask(body + whole + whole[:60])]
        answers += [connection.answer(), connection.ask(whole[60:])]
        assert [answer.status for answer in answers] == [200] * 4
        assert client.used("wide", "rpm") == before + 8 * cost


def test_headers_that_come_with_others_in_one_piece_are_not_taken_for_them(client: Client, connect: Connect) -> None:
    right = request("/v1/gates/wide/acquire", {}, "x-of: somebody")
    wrong = right.replace(b"host: localhost", b"host: elsewhere")
    for both in (wrong + right, right + wrong, wrong + right[:-4], wrong + b"POST"):
        connect(client.port).send(both)
        time.sleep(0.02)
        assert connect(client.port).ask(wrong).status == 403
        assert connect(client.port).ask(wrong.replace(b"{}", b"[]")).status == 403
        assert connect(client.port).ask(right).status == 200


def test_many_who_ask_together_get_a_permit_each_and_give_it_back(client: Client, connect: Connect) -> None:
    connections = [connect(client.port) for _ in range(32)]
    ids = set()
    for _ in range(20):
        for connection in connections:
            connection.send(request("/v1/gates/slots/acquire", {}))
        granted = [connection.answer().json["id"] for connection in connections]
        ids.update(granted)
        assert client.used("slots", "in_flight") >= 32
        for connection, id in zip(connections, granted, strict=True):
            connection.send(request(f"/v1/permits/{id}/release", {}))
        assert all(
            connection.answer().json == {"id": id, "released": True}
            for connection, id in zip(connections, granted, strict=True)
        )
    assert len(ids) == 20 * 32


def test_whoever_hangs_up_while_the_file_is_locked_holds_no_slot(tmp_path: Path, connect: Connect) -> None:
    guard = GuardProcess(tmp_path, CONFIG)
    try:
        client = Client(guard.port)
        ask = request("/v1/gates/slots/acquire", {})
        connections = [connect(guard.port) for _ in range(8)]
        for connection in connections:
            connection.ask(ask)
        assert client.used("slots", "in_flight") == 8
        # Somebody else writes, for less than the guard's patience; meanwhile four of them ask again and hang up.
        other = sqlite3.connect(tmp_path / "gates.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        for connection in connections:
            connection.send(ask)
        for connection in connections[:4]:
            connection.close()
        time.sleep(0.05)
        for connection in connections[4:]:  # those who stay ask once more, before they are answered
            connection.send(ask)
        time.sleep(0.02)
        other.execute("ROLLBACK")
        other.close()
        assert [connection.answer().status for connection in connections[4:] * 2] == [200] * 8
        client.until(lambda: client.used("slots", "in_flight") == 16)
    finally:
        guard.stop()


def test_a_token_that_is_revoked_is_refused_on_a_connection_that_used_it(tmp_path: Path, connect: Connect) -> None:
    from headgate.service.tokens import CHECK_EVERY, add_token, revoke_token

    path = str(tmp_path / "tokens.toml")
    tokens = [add_token(path, name, frozenset(["acquire"])) for name in ("one", "two")]
    guard = GuardProcess(tmp_path, f'{CONFIG}\n[serve]\ntokens = "tokens.toml"\n')
    try:
        connection = connect(guard.port)
        one, two = (request("/v1/gates/wide/acquire", {}, f"authorization: Bearer {token}") for token in tokens)
        assert [connection.ask(sent).status for sent in (one, two, one, two)] == [200] * 4
        assert revoke_token(path, "one")
        os.utime(path)
        time.sleep(CHECK_EVERY)
        assert connection.ask(two).status == 200
        assert connection.ask(one).kind == "unauthorized"
    finally:
        guard.stop()


@pytest.mark.timing("the guard closes a connection that is idle for a second, and the test must ask within it")
def test_a_connection_is_kept_while_it_is_used_and_closed_when_it_is_not(connect: Connect) -> None:
    guard = GuardThread(
        MemoryStore(), "[gates.wide]\nlimits = [{ bucket = 1000, per = '1s' }]", any_gate=False, timeout_keep_alive=1
    )
    try:
        connection = connect(guard.port)
        end = time.monotonic() + 1.6
        while time.monotonic() < end:
            assert connection.ask(request("/v1/gates/wide/acquire", {})).status == 200
            time.sleep(0.2)
        began = time.monotonic()
        assert connection.is_closed_by_guard()
        assert time.monotonic() - began > 0.5
    finally:
        guard.stop()


def headers_of(*more: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    return [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"2"), *more]


def test_only_headers_that_say_all_there_is_to_know_are_known_by_their_bytes() -> None:
    from headgate.service.fast.answers import FastAnswers

    guard = GuardThread(MemoryStore())
    fast = FastAnswers(guard.guard)

    def is_known(headers: list[tuple[bytes, bytes]], end: bytes = b"\r\n") -> bool:
        fields = end + b"".join([b"%b: %b%b" % (*header, end) for header in headers]) + b"\r\n"
        fast.learn(fields, headers)
        return fast.known(fields) is not None

    try:
        assert is_known(headers_of((b"connection", b"keep-alive")))
        assert is_known([(b"host", b"localhost")])
        assert not is_known(headers_of((b"host", b"example.com")))
        assert not is_known(headers_of((b"origin", b"https://example.com")))
        assert not is_known(headers_of((b"content-length", b"3")))
        assert not is_known(headers_of((b"transfer-encoding", b"chunked")))
        assert not is_known(headers_of((b"expect", b"100-continue")))
        assert not is_known(headers_of((b"upgrade", b"h2c")))
        assert not is_known(headers_of((b"x-long", b"x" * 4096)))
        assert not is_known([(b"host", b"localhost"), (b"content-type", b"text/plain"), (b"content-length", b"2")])
        assert not is_known(headers_of(), end=b"\n")
        for number in range(3000):  # who sends others each time costs no memory
            assert is_known(headers_of((b"x-request-id", b"%d" % number)))
        assert not is_known(headers_of((b"host", b"example.com")))
        assert len(fast._fields) <= 512
    finally:
        guard.stop()


def test_while_the_file_is_out_of_reach_all_are_told_so_and_served_again_afterwards(
    tmp_path: Path, connect: Connect
) -> None:
    guard = GuardProcess(tmp_path, CONFIG)
    try:
        ask = request("/v1/gates/wide/acquire", {})
        connections = [connect(guard.port) for _ in range(8)]
        assert [connection.ask(ask).status for connection in connections * 2] == [200] * 16
        other = sqlite3.connect(tmp_path / "gates.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")  # and nothing more, for longer than the guard's patience
        for connection in connections:
            connection.send(ask)
        assert [connection.answer().kind for connection in connections] == ["store-unavailable"] * 8
        other.execute("ROLLBACK")
        other.close()
        Client.until(lambda: connections[0].ask(ask).status == 200)
        assert [connection.ask(ask).status for connection in connections] == [200] * 8
    finally:
        guard.stop()


# --- against uvicorn's own protocol -----------------------------------------------------------------------------------

HEADERS = ("x-a: 1", "x-a: 2", "connection: keep-alive", "connection: close", "expect: 100-continue", "x b: 1", "x-a : 1",
           "content-length: 2", "transfer-encoding: chunked", "content-type: text/plain", " folded")  # fmt: skip
BODIES = (b"", b"{}", b'{"cost": 2}', b'{"cost": 0}', b"[]", b'{"co', b'{"holder": "a\r\n\r\nb"}')
PATHS = ("/v1/gates/wide/acquire", "/v1/gates/wide/acquire?x=1", "/v1/gates/none/acquire", "/v1/permits/wide:x/release")


def stream(chance: random.Random) -> list[bytes]:
    """Requests of a client that may be broken, in pieces."""
    usual = request("/v1/gates/wide/acquire", None, "x-a: 1", raw=b"{}")
    whole = b""
    for _ in range(chance.randrange(1, 6)):
        if chance.random() < 0.6:
            whole += usual
            continue
        extra = chance.sample(HEADERS, chance.randrange(0, 2))
        one = request(chance.choice(PATHS), None, *extra, raw=chance.choice(BODIES))
        if chance.random() < 0.3:
            at = chance.randrange(len(one))
            one = one[:at] + chance.choice((b"", b"\r", b"\n", b"\r\n", b" ", b"\0", one[at : at + 9])) + one[at + 1 :]
        whole += one
    cuts = sorted(chance.randrange(len(whole) + 1) for _ in range(chance.choice((0, 0, 1, 3))))
    return [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True) if start < end]


def statuses(port: int, pieces: list[bytes], patience: float) -> list[str]:
    """What is answered to a whole stream, until the guard closes the connection or says nothing more for so long."""
    with socket.create_connection((LOOPBACK, port), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        said = b""
        with suppress(ConnectionError, TimeoutError):
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(0.001)
            connection.settimeout(patience)
            while more := connection.recv(65536):
                said += more
    return [line.decode() for line in re.findall(rb"HTTP/1\.1 (\d+)", said)]


def test_whatever_a_client_sends_is_answered_as_uvicorn_alone_would() -> None:
    gates = "[gates.wide]\nlimits = [{ window = 1000000, per = '1m', name = 'rpm' }]"
    fast = GuardThread(MemoryStore(), gates, any_gate=False)
    plain = GuardThread(MemoryStore(), gates, any_gate=False, http="httptools")
    try:
        chance = random.Random(int(os.environ.get("SEED", "1")))
        for _ in range(int(os.environ.get("STREAMS", "40"))):
            pieces = stream(chance)
            for patience in (0.1, 3.0):
                expected = statuses(plain.port, pieces, patience)
                # The second time, what is in it has been seen before.
                answered = [statuses(fast.port, pieces, patience) for _ in range(2)]
                if answered == [expected, expected]:
                    break  # else one of them may only have been slow
            else:
                pytest.fail(f"{pieces}: {answered}, not {expected}")
    finally:
        fast.stop()
        plain.stop()

"""A stranger wants to be taken for somebody else, to learn what is inside, or to leave no trace."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncGate, Window
from headgate.service.middleware import GateMiddleware
from tests.service.test_tokens import headgate, new_token
from tests.support.guard_client import LOOPBACK, Answer, Client, answer_of
from tests.support.guards import GuardProcess

CONFIG = """\
store = "sqlite:///gates.db"

[serve]
tokens = "tokens.toml"
audit = "audit.jsonl"

[gates.g]
limits = [{ window = 100000, per = "1m", name = "rpm" }]
"""

OPEN = """\
store = "memory://"

[gates.g]
limits = [{ window = 100000, per = "1m", name = "rpm" }]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("guarded")
    (made / "headgate.toml").write_text(CONFIG, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def token(folder: Path) -> str:
    return new_token(folder, "all", "acquire", "observe", "configure")


@pytest.fixture(scope="module")
def weak(folder: Path) -> str:
    return new_token(folder, "weak", "observe")


@pytest.fixture(scope="module")
def guard(folder: Path, token: str, weak: str) -> Iterator[GuardProcess]:
    guard = GuardProcess(folder, CONFIG)
    yield guard
    assert guard.stop() == 0


@pytest.fixture(scope="module")
def open_guard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardProcess]:
    guard = GuardProcess(tmp_path_factory.mktemp("open"), OPEN)
    yield guard
    assert guard.stop() == 0


def ask(port: int, line: str, *headers: str, body: bytes = b"") -> Answer:
    with socket.create_connection((LOOPBACK, port), timeout=60) as connection:
        lines = [f"{line} HTTP/1.1", "connection: close", *headers, f"content-length: {len(body)}", "", ""]
        connection.sendall("\r\n".join(lines).encode() + body)
        return answer_of(connection)


def audited(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("path", ["//%00/GET", "/%00/GET", "/%00", "/dashboard/*", "/v1/gates/*", "/*", "//", "/v1//x"])
def test_no_path_makes_the_guard_fail(open_guard: GuardProcess, path: str) -> None:
    answer = ask(open_guard.port, f"GET {path}", "host: localhost")
    assert answer.status in (404, 422), answer
    assert answer.kind in ("not-found", "unknown-gate", "invalid-input")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (rb'{"\ud800": 1}', 422),
        (rb'{"cost": {"\udfff": 1}}', 422),
        (rb'{"holder": "\ud83d"}', 200),
        (rb'{"key": {"\ud800": "x"}}', 422),
        (rb'{"id": "\udc00"}', 422),
        (rb'{"holder": "\ud83d\ude00"}', 200),
    ],
)
def test_half_a_surrogate_pair_makes_no_guard_fail(open_guard: GuardProcess, body: bytes, status: int) -> None:
    headers = ("host: localhost", "content-type: application/json")
    with socket.create_connection((LOOPBACK, open_guard.port), timeout=60) as connection:
        lines = ["POST /v1/gates/g/acquire HTTP/1.1", *headers, f"content-length: {len(body)}", "", ""]
        for _ in range(3):  # the second one takes the fast path
            connection.sendall("\r\n".join(lines).encode() + body)
            assert answer_of(connection).status == status
    for path in ("/v1/gates/g/pause", "/v1/batch", "/v1/execute"):
        assert ask(open_guard.port, f"POST {path}", *headers, body=body).status == 422


def test_two_tokens_in_one_request_are_refused(guard: GuardProcess, token: str) -> None:
    good, bad = f"authorization: Bearer {token}", "authorization: Bearer hg_wrong"
    for headers in ((good, bad), (bad, good), (good, good)):
        answer = ask(guard.port, "GET /v1/gates", "host: localhost", *headers)
        assert (answer.status, answer.kind) == (400, "malformed-request")
    assert ask(guard.port, "GET /v1/gates", "host: localhost", good).status == 200


def test_whoever_guesses_tokens_is_in_the_log_and_in_the_audit_and_cannot_fill_them(
    guard: GuardProcess, folder: Path, token: str, weak: str
) -> None:
    client = Client(guard.port, weak)
    assert client.post("/v1/gates/g/reset", {}).status == 403
    for number in range(300):
        assert Client(guard.port, f"hg_guess{number}").acquire("g").status == 401
    lines = [line for line in audited(folder) if line["action"] == "refuse token"]
    assert 2 <= len(lines) <= 30
    assert any(line["by"] == "weak" and line["path"] == "/v1/gates/g/reset" for line in lines)
    assert any(line["by"] is None and line["client"] == LOOPBACK for line in lines)
    assert "a token was refused" in guard.log()
    assert "hg_guess" not in guard.log() + (folder / "audit.jsonl").read_text()
    assert Client(guard.port, token).get("/v1/changes").json["changes"] == [], "it is no change"


def test_every_answer_says_that_it_is_what_its_type_says(guard: GuardProcess, token: str) -> None:
    client = Client(guard.port, token)
    answers = [client.acquire("g") for _ in range(2)]
    answers += [
        client.get(path) for path in ("/v1/gates", "/metrics", "/livez", "/docs", "/openapi.json", "/", "/nothing")
    ]
    answers.append(Client(guard.port).get("/v1/gates"))
    assert {answer.headers.get("x-content-type-options") for answer in answers} == {"nosniff"}


@pytest.mark.parametrize(
    ("proxies", "sent", "recorded"),
    [
        ("", ["6.6.6.6"], LOOPBACK),
        ('proxies = ["10.0.0.0/8"]', ["6.6.6.6"], LOOPBACK),
        ('proxies = ["127.0.0.1"]', ["6.6.6.6, 9.9.9.9"], "9.9.9.9"),
        ('proxies = ["127.0.0.1", "10.0.0.0/8"]', ["6.6.6.6, 9.9.9.9", "10.1.1.1"], "9.9.9.9"),
        ('proxies = ["127.0.0.1"]', ["6.6.6.6, \x1b[2Jadmin"], LOOPBACK),
        ('proxies = ["127.0.0.1"]', [], LOOPBACK),
    ],
)
def test_an_address_is_believed_of_configured_proxies_only(
    tmp_path: Path, proxies: str, sent: list[str], recorded: str
) -> None:
    config = CONFIG.replace('tokens = "tokens.toml"', proxies)
    guard = GuardProcess(tmp_path, config)
    try:
        client = Client(guard.port)
        with socket.create_connection((LOOPBACK, guard.port), timeout=60) as connection:
            lines = [
                "POST /v1/gates/g/resume HTTP/1.1",
                "host: localhost",
                *(f"x-forwarded-for: {one}" for one in sent),
            ]
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            status = answer_of(connection).status
        if "\x1b" in "".join(sent):
            assert status == 400
            return
        assert status == 200
        assert client.get("/v1/changes").json["changes"][0]["client"] == recorded
    finally:
        guard.stop()


def test_a_network_that_is_none_is_refused_when_the_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text(CONFIG.replace('tokens = "tokens.toml"', 'proxies = ["my-proxy"]'))
    told = headgate(tmp_path, "status")
    assert told.returncode != 0
    assert "'my-proxy' is not an address or a network" in told.stderr


def test_a_page_of_another_local_server_may_not_ask_a_guard_without_tokens(open_guard: GuardProcess) -> None:
    port = open_guard.port
    own = f"host: 127.0.0.1:{port}"
    for origin in (
        f"http://127.0.0.1:{port + 1}",
        "http://127.0.0.1",
        f"https://127.0.0.1:{port}",
        f"http://localhost:{port}",
        "null",
        "http://evil.example",
    ):
        answer = ask(port, "POST /v1/gates/g/reset", own, f"origin: {origin}")
        assert (answer.status, answer.kind) == (403, "forbidden"), origin
    assert ask(port, "POST /v1/gates/g/reset", own, f"origin: http://127.0.0.1:{port}").status == 200
    assert ask(port, "POST /v1/gates/g/reset", own).status == 200, "a program of this machine sends no origin"
    twice = ask(port, "POST /v1/gates/g/reset", own, f"origin: http://127.0.0.1:{port}", "origin: http://evil.example")
    assert twice.status == 400


def test_readiness_tells_strangers_nothing_of_the_store(tmp_path: Path) -> None:
    free = socket.create_server((LOOPBACK, 0))
    port = free.getsockname()[1]
    free.close()
    config = CONFIG.replace("sqlite:///gates.db", f"redis://admin:s3cret@127.0.0.1:{port}/7")
    config = config.replace('tokens = "tokens.toml"\n', "")
    guard = GuardProcess(tmp_path, config)
    try:
        client = Client(guard.port)
        for _ in range(5):
            answer = client.get("/readyz")
            assert (answer.status, answer.kind) == (503, "store-unavailable")
            told = answer.raw.decode()
            assert not [word for word in (str(port), "admin", "s3cret", "redis", "127.0.0.1", "'g'") if word in told]
        log = guard.log()
        assert log.count("not ready") == 1
        assert f"127.0.0.1:{port}" in log
        assert "s3cret" not in log
    finally:
        guard.stop()


def test_a_service_behind_a_gate_tells_its_clients_nothing_of_the_store(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("it was admitted")

    async def ask_once(front: GateMiddleware) -> str:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await front({"type": "http", "path": "/", "method": "GET", "headers": []}, receive, send)
        assert sent[0]["status"] == 503
        return str(sent[1]["body"], "utf-8")

    async def main() -> list[str]:
        gate = AsyncGate("g", [Window(10, per="1m")], store="redis://admin:s3cret@127.0.0.1:1/7")
        front = GateMiddleware(app, gate)
        try:
            return [await ask_once(front) for _ in range(3)]
        finally:
            await gate.aclose()

    for told in asyncio.run(main()):
        assert not [word for word in ("admin", "s3cret", "redis", "127.0.0.1") if word in told], told
    assert caplog.text.count("admits no request") == 1
    assert "127.0.0.1:1" in caplog.text


def test_a_mistyped_scheme_prints_no_password(tmp_path: Path) -> None:
    for url in ("redsi://admin:s3cret@db.example/0", "redis:/admin:s3cret@db.example", "admin:s3cret@db.example"):
        (tmp_path / "headgate.toml").write_text(CONFIG.replace("sqlite:///gates.db", url))
        for words in (("status",), ("serve",), ("doctor",), ("explain", "g"), ("--store", url, "status")):
            told = headgate(tmp_path, *words)
            assert told.returncode != 0
            assert "s3cret" not in told.stdout + told.stderr, words
            assert "db.example" not in told.stdout + told.stderr, words

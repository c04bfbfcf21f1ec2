"""`headgate batch`: HTTP calls for the lines of a file, under a gate, against a server that keeps its own books."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.simulate.upstreams import start
from tests.support.command_line import done, run
from tests.support.waiting import until

CONFIG = """
store = "sqlite:///state.db"

[gates.api]
limits = [{ window = 40, per = "2s", name = "rpm" }, { concurrency = 8, name = "in_flight" }]

[gates.free]
limits = [{ concurrency = 8, name = "in_flight" }]
"""


class Server(ThreadingHTTPServer):
    """Remembers each request that it was sent, and answers as its path says."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[tuple[str, str, Any, dict[str, str]]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        item = json.loads(body) if body else None
        self.server.seen.append((self.command, self.path, item, dict(self.headers)))
        if self.path == "/cut":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"only this")
            self.close_connection = True
            return
        if self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"x" * 65_536)
            except OSError:
                return
        if self.path == "/hang-up":
            self.close_connection = True
            return
        status = 302 if self.path == "/moved" else 422 if item == {"n": 13} else 200
        answer = json.dumps({"echo": item}).encode() if status == 200 else b"no such luck"
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "headgate.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def items(folder: Path, number: int) -> str:
    (folder / "in.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(number)) + "\n")
    return "in.jsonl"


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]


def batch(url: str, *more: str, gate: str = "free") -> list[str]:
    return ["batch", "in.jsonl", "--url", url, "--gate", gate, "-o", "out.jsonl", *more]


def test_every_line_is_sent_and_every_answer_is_written(folder: Path, server: Server) -> None:
    items(folder, 12)
    text = done(*batch(f"{server.url}/work", "--in-order", "--header", "X-Team: images", "--price", "0.25"))
    assert text.startswith("out.jsonl: 12/12 successful in ")
    assert text.strip().endswith("cost 3")
    assert [line["index"] for line in lines(folder)] == list(range(12))
    assert lines(folder)[7] == {
        "index": 7,
        "item": {"n": 7},
        "status": "successful",
        "http_status": 200,
        "body": {"echo": {"n": 7}},
        "attempts": 1,
    }
    assert {(method, path, headers["X-Team"]) for method, path, _, headers in server.seen} == {
        ("POST", "/work", "images")
    }
    assert len({headers["Idempotency-Key"] for *_, headers in server.seen}) == 12


def test_fields_of_the_item_stand_in_the_url_and_a_get_has_no_body(folder: Path, server: Server) -> None:
    (folder / "in.jsonl").write_text('{"id": "a/b c?"}\n{"id": 7}\n{"other": 1}\n{"id": [1]}\n')
    result = run(*batch(f"{server.url}/things/{{id}}?full=1", "--method", "get", "--in-order", "--workers", "1"))
    assert result.exit_code == 1
    assert [(method, path, item) for method, path, item, _ in server.seen] == [
        ("GET", "/things/a%2Fb%20c%3F?full=1", None),
        ("GET", "/things/7?full=1", None),
    ]
    assert "this item has no field 'id'" in lines(folder)[2]["error"]
    assert "no text or number" in lines(folder)[3]["error"]


def test_a_secret_in_a_header_comes_from_the_environment(
    folder: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "geheim")
    items(folder, 1)
    done(*batch(f"{server.url}/work", "--header", "Authorization: Bearer $API_TOKEN"))
    assert server.seen[0][3]["Authorization"] == "Bearer geheim"


def test_an_item_that_fails_is_written_with_what_was_said_and_the_command_ends_with_1(
    folder: Path, server: Server
) -> None:
    items(folder, 15)
    result = run(*batch(f"{server.url}/work", "--in-order"))
    assert result.exit_code == 1
    assert lines(folder)[13] == {
        "index": 13,
        "item": {"n": 13},
        "status": "failed",
        "http_status": 422,
        "error": "answered 422: no such luck",
        "attempts": 1,
    }
    again = run(*batch(f"{server.url}/work", "--in-order", "--retry-failed", "--json"))
    assert again.exit_code == 1
    facts = json.loads(again.stdout)
    assert (facts["calls"], facts["replayed"], facts["failed"]) == (1, 14, 1)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("moved", "redirects are not followed"),
        ("cut", "the answer was cut: 91 bytes"),
        ("hang-up", "closed the connection before it answered"),
        ("endless", "longer than 64 MiB"),
    ],
)
def test_an_answer_that_is_none_is_an_error_that_says_so(folder: Path, server: Server, path: str, says: str) -> None:
    items(folder, 1)
    assert run(*batch(f"{server.url}/{path}")).exit_code == 1
    assert says in lines(folder)[0]["error"]
    assert headgate.load()["free"].usage()["in_flight"].used == 0


def test_nobody_there_is_an_error_that_charges_nothing(folder: Path) -> None:
    items(folder, 2)
    assert run(*batch("http://127.0.0.1:9/x", gate="api")).exit_code == 1
    assert "refused" in lines(folder)[0]["error"]
    assert [limit.used for limit in headgate.load()["api"].usage().limits] == [0, 0]


def test_the_upstream_refuses_none_and_counts_each_item_once(folder: Path) -> None:
    items(folder, 100)
    with start("window", policies=["requests=40/2s"]) as upstream:
        done(*batch(f"{upstream.url}/work", gate="api"))
        books = upstream.books()
    assert (books["accepted"], books["refused"]) == (100, 0)
    assert sorted(line["index"] for line in lines(folder)) == list(range(100))


@pytest.mark.soak  # the slots of the killed process are back after one lease, half a minute; tests/batch kills in seconds
def test_a_run_that_is_killed_goes_on_and_sends_no_finished_item_again(folder: Path, server: Server) -> None:
    items(folder, 150)
    command = [sys.executable, "-m", "headgate", *batch(f"{server.url}/work", "--quiet")]
    process = subprocess.Popen(command)
    until(lambda: len(server.seen) >= 50 or process.poll() is not None)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    assert not (folder / "out.jsonl").exists()
    subprocess.run(command, timeout=240, check=False)
    assert sorted(line["index"] for line in lines(folder)) == list(range(150))
    sent = Counter(item["n"] for _, _, item, _ in server.seen)
    assert len(sent) == 150
    again = [number for number, count in sent.items() if count > 1]
    assert len(again) <= 8, "those whose answers were under way"
    ids: dict[int, set[str]] = {}
    for _, _, item, headers in server.seen:
        ids.setdefault(item["n"], set()).add(headers["Idempotency-Key"])
    assert all(len(found) == 1 for found in ids.values()), "and they carry the same idempotency key"


def test_ctrl_c_finishes_what_is_under_way_and_the_same_command_goes_on(folder: Path, server: Server) -> None:
    items(folder, 120)
    command = [sys.executable, "-m", "headgate", *batch(f"{server.url}/work", "--quiet", "--workers", "2")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: len(server.seen) >= 20 or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "the same command goes on where this one stopped" in said
    assert len(lines(folder)) == len(server.seen) < 120
    subprocess.run(command, timeout=240, check=False)
    assert len(server.seen) == 120
    assert sorted(line["index"] for line in lines(folder)) == list(range(120))


@pytest.mark.parametrize(
    ("wrong", "code", "says"),
    [
        (["--url", "ftp://x/y"], 2, "http://HOST"),
        (["--url", "http://me:pw@x/"], 2, "use a header"),
        (["--url", "http://[x/"], 2, "is not a URL"),
        (["--header", "nonsense"], 2, "is not a header"),
        (["--gate", "nope"], 2, "nope"),
        (["--cost", "pu=3"], 2, "pu"),
        (["--journal", "nowhere/j"], 69, "does not exist"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_sent(
    folder: Path, server: Server, wrong: list[str], code: int, says: str
) -> None:
    items(folder, 2)
    result = run(*batch(f"{server.url}/work"), *wrong)
    assert (result.exit_code, server.seen) == (code, [])
    assert says in result.stderr
    assert not os.path.exists("out.jsonl")
    assert not os.path.exists("out.jsonl.part")


def test_a_line_that_is_no_json_is_named_before_anything_is_sent(folder: Path, server: Server) -> None:
    (folder / "in.jsonl").write_text('{"n": 1}\n{"n": \n')
    result = run(*batch(f"{server.url}/work"))
    assert (result.exit_code, server.seen) == (1, [])
    assert "in.jsonl:2: this line is no JSON value" in result.stderr


def test_results_of_somebody_else_and_journals_of_another_run_are_left_alone(folder: Path, server: Server) -> None:
    items(folder, 3)
    (folder / "out.jsonl").write_text("mine")
    result = run(*batch(f"{server.url}/work"))
    assert (result.exit_code, (folder / "out.jsonl").read_text(), server.seen) == (1, "mine", [])
    assert "no journal of it" in result.stderr
    (folder / "out.jsonl").unlink()
    done(*batch(f"{server.url}/work"))
    before = (folder / "out.jsonl").read_text()
    for changed in (batch(f"{server.url}/other"), batch(f"{server.url}/work", "--method", "PUT")):
        result = run(*changed)
        assert result.exit_code == 2
        assert "is the journal of another run" in result.stderr
    items(folder, 2)
    (folder / "in.jsonl").write_text('{"n": 5}\n')
    assert "its item 0 is another one" in run(*batch(f"{server.url}/work")).stderr
    assert (folder / "out.jsonl").read_text() == before
    assert len(server.seen) == 3

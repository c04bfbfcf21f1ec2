"""`headgate demo`: shortened, with real processes, judged by the upstream's own books."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import deque
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

UPSTREAM = Path(__file__).parent.parent / "src" / "headgate" / "simulate" / "upstreams" / "window.py"
SHORT = ["--limit", "40", "--window", "2s", "--calls", "120", "--seconds", "6s", "--workers", "2", "--threads", "6"]


def demo(*options: str) -> str:
    command = [sys.executable, "-m", "headgate", "demo", *SHORT, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
def test_uncoordinated_workers_are_refused_and_those_under_a_gate_never() -> None:
    rows = {row["run"]: row for row in json.loads(demo("--json"))["rows"]}
    assert list(rows) == ["uncoordinated", "headgate"]
    assert rows["uncoordinated"]["refused"] > 0
    ours = rows["headgate"]
    assert (ours["accepted"], ours["refused"]) == (120, 0)
    # Two windows between the first and the last, at best. A short window makes every wake-up weigh more.
    assert 0.75 < ours["utilisation"] <= 1.0
    recent: deque[float] = deque()
    for at in ours["accepted_at"]:
        recent.append(at)
        while recent[0] <= at - 2.0:
            recent.popleft()
        assert len(recent) <= 40


@pytest.mark.slow
def test_it_ends_with_a_table_where_there_is_no_terminal() -> None:
    text = demo()
    assert "\x1b" not in text
    assert re.search(r"^ +done +refused \(429\) +utilisation +seconds$", text, flags=re.MULTILINE)
    assert re.search(r"^headgate +120 +0 +\d+\.\d% +\d\.\d$", text, flags=re.MULTILINE)
    assert re.search(r"^uncoordinated +\d+", text, flags=re.MULTILINE)


def test_the_upstream_keeps_its_own_books_and_imports_nothing_of_headgate() -> None:
    assert not re.search(r"^\s*(from|import) +(headgate|\.)", UPSTREAM.read_text(encoding="utf-8"), flags=re.MULTILINE)
    command = [sys.executable, str(UPSTREAM), "--limit", "3", "--per", "3600"]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        connection = HTTPConnection("127.0.0.1", int(server.stdout.readline()), timeout=10)

        def get(path: str, method: str = "GET") -> tuple[int, Any]:
            connection.request(method, path, body=b"work" if method == "POST" else None)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

        assert [get("/work", method)[0] for method in ("GET", "POST", "GET", "GET")] == [200, 200, 200, 429]
        status, books = get("/books")
        assert status == 200
        assert (books["accepted"], books["refused"], books["limit"], books["per"]) == (3, 1, 3, 3600)
        assert len(books["accepted_at"]) == 3
        connection.close()
    finally:
        server.communicate(timeout=10)
    assert server.returncode == 0

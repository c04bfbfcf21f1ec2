"""Chaos: workers that are killed, an upstream that refuses and fails, and books that are not ours."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headgate.stages import DeadFilter, Pipeline
from tests.support.waiting import until

#: What the upstream allows, in any so many seconds.
LIMIT, PER = 300, 1.0

PROGRAM = """
import json, os, sys, urllib.error, urllib.request
from headgate import Concurrency, Gate, Window
from headgate.stages import Pipeline, Poison, RetryPolicy

gate = Gate("upstream", [Window({limit}, per="{per}s", slack="500ms"), Concurrency(24, lease="2s")], store="sqlite:///gates.db")
pipeline = Pipeline("p", queues="sqlite:///queues.db")

def book(name, text):
    file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (text + chr(10)).encode())
    os.close(file)

@pipeline.stage(gate=gate, visibility=2.0, retry=RetryPolicy(attempts=4, first=0.02, longest=0.1))
def call(job):
    if job["n"] % 97 == 13:
        raise Poison("bad input")
    request = urllib.request.Request("http://127.0.0.1:{port}/", data=json.dumps([job.id, os.getpid(), job["n"]]).encode())
    job.sent()
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        with error:
            job.check({{"status": error.code, "headers": dict(error.headers)}})
    return {{"n": job["n"]}}

@pipeline.stage(visibility=2.0)
def collect(job):
    book("results", str(job["n"]))
"""


class Books:
    """An upstream that counts for itself. Some answers are refusals and failures; message 29 of each 97 always fails."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        #: (arrival in seconds, message, process, status)
        self.calls: list[tuple[float, str, int, int]] = []

    def answer(self, id: str, pid: int, number: int) -> int:
        with self._lock:
            chance = self._chance.random()
            status = 500 if number % 97 == 29 or chance < 0.03 else 429 if chance < 0.035 else 200
            self.calls.append((time.monotonic(), id, pid, status))
            return status

    def most_in_any_window(self) -> int:
        times = sorted(at for at, *_ in self.calls)
        most, first = 0, 0
        for last, at in enumerate(times):
            while times[first] <= at - PER:
                first += 1
            most = max(most, last - first + 1)
        return most


@contextmanager
def serving(books: Books) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = books.answer(*json.loads(body))
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", "0.1")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def worker() -> subprocess.Popen[bytes]:
    words = ["-m", "headgate", "worker", "program:pipeline", "--concurrency", "4", "--stop-within", "5"]
    return subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("messages", "workers", "kills"),
    [
        pytest.param(250, 2, 3, id="small", marks=pytest.mark.slow),
        pytest.param(5000, 6, 12, id="whole", marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
    ],
)
def test_every_message_ends_once_and_no_call_is_over_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, messages: int, workers: int, kills: int
) -> None:
    monkeypatch.chdir(tmp_path)
    books = Books(seed=7)
    with serving(books) as port:
        program = PROGRAM.format(limit=LIMIT, per=PER, port=port)
        (tmp_path / "program.py").write_text(program, encoding="utf-8")
        pipeline = Pipeline("p", queues=f"sqlite:///{tmp_path}/queues.db")
        for name in ("call", "collect"):
            pipeline.stage(name)(print)
        pipeline["call"].put_messages(
            [pipeline["call"].message({"n": number}, f"job-{number}") for number in range(messages)]
        )
        running, killed = [worker() for _ in range(workers)], set()
        for round_ in range(kills):
            least = (round_ + 1) * messages // (kills + 2)
            until(lambda least=least: len(books.calls) >= least, seconds=600)
            victim = running.pop(0)
            victim.kill()
            victim.wait()
            killed.add(victim.pid)
            if round_ == kills // 2:  # the whole thing is stopped and started in the middle
                for process in running:
                    process.terminate()
                for process in running:
                    assert process.wait() in (0, -signal.SIGTERM), "by itself, or before it had begun to work"
                running = [worker() for _ in range(workers - 1)]
            running.append(worker())
        until(lambda: not any(stats.waiting for stats in pipeline.stats().values()), seconds=900)
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
        results = Counter(map(int, (tmp_path / "results").read_text(encoding="utf-8").split()))
        letters = {
            json.loads(letter.body)["n"]: letter.reason
            for letter in pipeline["call"].queue.dead_letters(DeadFilter(), messages)
        }
        poison = {number for number in range(messages) if number % 97 == 13}
        assert set(results) | set(letters) == set(range(messages)), "every message ends"
        assert not set(results) & set(letters), "as a result or as a dead letter"
        assert {number for number, reason in letters.items() if reason == "poison"} == poison
        assert {number for number in range(messages) if number % 97 == 29} <= letters.keys()
        assert set(letters.values()) <= {"poison", "failed"}, "no kill, limit or refusal buries a message"
        # A result is written twice only where its writer was killed between the writing and the commit.
        assert sum(results.values()) - len(results) <= kills * 4
        assert books.most_in_any_window() <= LIMIT
        paid: dict[str, list[int]] = defaultdict(list)
        for _, id, pid, status in books.calls:
            if status == 200:
                paid[id].append(pid)
        assert all(set(pids[:-1]) <= killed for pids in paid.values()), "paid twice only where its worker was killed"
        pipeline.close()

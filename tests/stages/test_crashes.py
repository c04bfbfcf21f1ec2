"""The crash table of docs/how-to/stages.md, a test per row: a worker is killed at that very point, and another goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from headgate import Concurrency, Gate
from headgate.stages import Pipeline
from tests.support.waiting import until

#: Two stages; `CRASH=method:before` (or `after`) kills the process at that call of a queue of theirs.
PROGRAM = """
import os, signal
from headgate import Concurrency, Gate
from headgate.stages import Pipeline
from headgate.stages.queues.database import SqlQueue

def book(name, text):
    file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (text + chr(10)).encode())
    os.close(file)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def crash_at(method, when, only):
    original = getattr(SqlQueue, method)
    def crashing(self, *args, **more):
        if self.name != only:
            return original(self, *args, **more)
        if when == "before":
            die()
        found = original(self, *args, **more)
        if found:
            die()
        return found
    setattr(SqlQueue, method, crashing)

crash = os.environ.get("CRASH", "")
if crash and crash != "call":
    crash_at(*crash.split(":"))

gate = Gate("upstream", [Concurrency(2, lease="2s")], store="sqlite:///gates.db")
pipeline = Pipeline("p", queues="sqlite:///one.db")

@pipeline.stage(gate=gate, visibility=1.0)
def call(job):
    book("calls", job.id)
    if crash == "call":
        die()
    return {"n": job["n"]}

@pipeline.stage(visibility=1.0, queues=os.environ.get("SECOND", "sqlite:///one.db"))
def collect(job):
    book("results", str(job["n"]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").split() if file.exists() else []


def start(*options: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "headgate", "worker", "program:pipeline", *options],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
    )


def first_queue(folder: Path) -> Pipeline:
    pipeline = Pipeline("p", queues=f"sqlite:///{folder}/one.db")
    pipeline.stage("call")(print)
    return pipeline


@pytest.mark.parametrize(
    ("crash", "second", "calls"),
    [
        pytest.param("lease:before:p.call", "one", 1, id="with a permit, before it has leased"),
        pytest.param("lease:after:p.call", "one", 1, id="with a message, before the call"),
        pytest.param("call", "one", 2, id="during the call"),
        pytest.param("settle:before:p.call", "one", 2, id="after the call, before the commit"),
        pytest.param("settle:after:p.call", "one", 1, id="after the commit"),
        pytest.param("record:after:p.call", "two", 1, id="two files: recorded, not put"),
        pytest.param("put:after:p.collect", "two", 1, id="two files: put, not finished"),
        pytest.param("settle:before:p.call", "two", 1, id="two files: put, not finished, by its own queue"),
    ],
)
def test_a_worker_that_is_killed_at_this_point_loses_nothing(folder: Path, crash: str, second: str, calls: int) -> None:
    pipeline = first_queue(folder)
    pipeline.put({"n": 7}, id="job")
    where = {"SECOND": f"sqlite:///{second}.db"}
    victim = start(CRASH=crash, **where)
    assert victim.wait() == -signal.SIGKILL
    assert lines(folder / "results") == []
    assert start("--until-empty", **where).wait() == 0
    assert lines(folder / "results") == ["7"]
    assert Counter(lines(folder / "calls")) == {"job": calls}
    assert pipeline.stats()["call"].dead == 0
    pipeline.close()


def test_a_worker_that_is_killed_while_it_waits_for_a_permit_holds_no_message_and_leaves_the_line(
    folder: Path,
) -> None:
    gate = Gate("upstream", [Concurrency(2, lease="2s")], store=f"sqlite:///{folder}/gates.db")
    held = [gate.acquire(), gate.acquire()]
    pipeline = first_queue(folder)
    pipeline.put({"n": 7})
    victim = start()
    until(lambda: gate.usage().waiting == 1)
    victim.kill()
    victim.wait()
    [(_, state, _, history)] = pipeline["call"].queue.peek(1)
    assert (state, history.receives) == ("ready", 0)
    until(lambda: gate.usage().waiting == 0)
    for permit in held:
        permit.release()
    assert start("--until-empty").wait() == 0
    assert (lines(folder / "results"), len(lines(folder / "calls"))) == (["7"], 1)
    gate.close()
    pipeline.close()

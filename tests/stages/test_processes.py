"""Real processes: killed, stopped and suspended workers, and what becomes of their messages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from headgate import StoreUnavailable
from headgate.stages import DeadFilter, Pipeline, Worker
from tests.support.waiting import stop, until

#: A pipeline of two stages whose handlers write each call and each result into files: the books of the upstream.
PROGRAM = """
import os, signal, time
from headgate import Concurrency, Gate, Window
from headgate.stages import Pipeline, Poison, RetryPolicy

def book(name, text):
    # One write to a file that is open for appending is in one piece.
    file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (text + chr(10)).encode())
    os.close(file)

def wait_for(name):
    while not os.path.exists(name):
        time.sleep(0.005)

gate = Gate("upstream", [Concurrency(4, lease="1s")], store="sqlite:///gates.db")
pipeline = Pipeline("p", queues="sqlite:///queues.db")

@pipeline.stage(gate=gate, visibility=1.0, retry=RetryPolicy(first=0.01, longest=0.02))
def call(job):
    book("calls", f"{os.getpid()} {job.id}")
    what = job.body.get("what")
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hold" and job.delivery.history.receives == 1:
        book("held", job.id)
        wait_for("go")
    if what == "poison":
        raise Poison("bad input")
    return {"n": job["n"]}

@pipeline.stage(visibility=1.0)
def collect(job):
    book("results", str(job["n"]))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def worker(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "headgate", "worker", "program:pipeline", "--concurrency", "2", *options],
        stdout=subprocess.PIPE,
        text=True,
    )


def queues(folder: Path) -> Pipeline:
    """The queues of the program, without its handlers."""
    pipeline = Pipeline("p", queues=f"sqlite:///{folder}/queues.db")
    for name in ("call", "collect"):
        pipeline.stage(name)(print)
    return pipeline


def stop_outside_a_transaction(process: subprocess.Popen[str], pipeline: Pipeline) -> None:
    """SIGSTOP, but not while it has the file locked: then nobody could work, which is another case."""
    while True:
        stop(process)
        try:
            pipeline["call"].queue.lanes(1)
            return
        except StoreUnavailable:
            process.send_signal(signal.SIGCONT)
            time.sleep(0.01)


def test_the_command_works_until_all_is_done_and_says_how_it_ended(folder: Path) -> None:
    pipeline = queues(folder)
    pipeline.put(*({"n": number} for number in range(20)), {"n": 20, "what": "poison"})
    process = worker("--until-empty", "--json")
    told, _ = process.communicate()
    assert process.returncode == 0
    assert json.loads(told) == {"call": {"done": 20, "poison": 1, "dead": 1}, "collect": {"done": 20}}
    assert sorted(map(int, lines(folder / "results"))) == list(range(20))
    pipeline.close()


def test_a_message_whose_worker_is_killed_in_the_call_is_done_by_another_and_only_it_is_called_twice(
    folder: Path,
) -> None:
    pipeline = queues(folder)
    pipeline.put({"n": 0, "what": "hold"})
    first = worker()
    until(lambda: lines(folder / "held"))
    first.kill()
    first.communicate()
    pipeline.put(*({"n": number} for number in range(1, 10)))
    process = worker("--until-empty")
    process.communicate()
    assert sorted(map(int, lines(folder / "results"))) == list(range(10))
    calls = Counter(line.split()[1] for line in lines(folder / "calls"))
    assert sorted(calls.values()) == [1] * 9 + [2]
    pipeline.close()


def test_a_message_that_kills_its_worker_three_times_is_buried_and_holds_nobody_up(folder: Path) -> None:
    pipeline = queues(folder)
    pipeline.put({"n": 0, "what": "kill"})
    for _ in range(3):
        process = worker("--until-empty")
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    pipeline.put({"n": 1})
    process = worker("--until-empty")
    process.communicate()
    assert process.returncode == 0
    assert lines(folder / "results") == ["1"]
    [letter] = pipeline["call"].queue.dead_letters(DeadFilter(), 10)
    assert (letter.reason, letter.history.deaths) == ("killed", 3)
    assert json.loads(letter.body)["what"] == "kill"
    pipeline.close()


def test_sigterm_finishes_what_is_in_work_and_takes_nothing_new(folder: Path) -> None:
    pipeline = queues(folder)
    pipeline.put({"n": 0, "what": "hold"})
    process = worker("--json")
    until(lambda: lines(folder / "held"))
    process.terminate()
    pipeline.put(*({"n": number} for number in range(1, 5)))
    (folder / "go").touch()
    told, _ = process.communicate()
    assert process.returncode == 0
    assert json.loads(told)["call"]["done"] >= 1
    assert len(lines(folder / "calls")) == json.loads(told)["call"]["done"]
    assert pipeline.stats()["call"].in_work == 0
    pipeline.close()


def test_sigterm_hands_back_what_is_not_done_in_time_without_an_attempt(folder: Path) -> None:
    pipeline = queues(folder)
    pipeline.put({"n": 0, "what": "hold"})
    process = worker("--stop-within", "0")
    until(lambda: lines(folder / "held"))
    process.terminate()
    process.communicate()
    assert process.returncode == 0
    [(_, state, _, history)] = pipeline["call"].queue.peek(5)
    assert (state, history.attempts, history.deaths) == ("ready", 0, 0)
    pipeline.close()


def test_the_outcome_of_a_worker_that_was_suspended_for_longer_than_its_lease_does_not_count(folder: Path) -> None:
    pipeline = queues(folder)
    pipeline.put({"n": 0, "what": "hold"})
    first = worker("--json")
    until(lambda: lines(folder / "held"))
    stop_outside_a_transaction(first, pipeline)
    second = worker("--until-empty", "--json")
    told, _ = second.communicate()
    assert json.loads(told)["call"] == {"done": 1}
    (folder / "go").touch()
    first.send_signal(signal.SIGCONT)
    until(lambda: len(lines(folder / "calls")) == 2)
    first.terminate()
    told, _ = first.communicate()
    assert json.loads(told)["call"] in ({"lost": 1}, {})
    assert lines(folder / "results") == ["0"]
    pipeline.close()


def test_a_waiting_process_is_woken_by_a_put_of_another(folder: Path) -> None:
    pipeline = queues(folder)
    process = worker()
    pipeline.put({"n": 0})
    until(lambda: lines(folder / "results") == ["0"])
    waiters = "SELECT count(*) FROM waiters"
    database: Any = pipeline["call"].queue.home
    until(lambda: database.write(lambda execute, now: execute(waiters).fetchone()[0]) == 2)
    pipeline.put({"n": 1})
    # Woken, not polled: an idle process would look again after 30 s.
    until(lambda: lines(folder / "results") == ["0", "1"], seconds=20)
    process.terminate()
    process.communicate()
    pipeline.close()


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("program", "write MODULE:PIPELINE"),
        ("nothing_there:x", "no module 'nothing_there'"),
        ("program:nothing", "has no 'nothing'"),
        ("program:gate", "is a Gate, not a Pipeline"),
    ],
)
def test_a_reference_that_leads_to_no_pipeline_is_said(folder: Path, reference: str, says: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "headgate", "worker", reference], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert says in done.stderr


def test_a_small_chaos_of_workers_that_are_killed_loses_nothing(folder: Path) -> None:
    """Every message ends as one result; what was called twice was in the hands of a killed worker."""
    count = 60
    pipeline = queues(folder)
    pipeline.put(*({"n": number} for number in range(count)))
    killed: set[int] = set()
    workers = [worker() for _ in range(2)]
    for round_ in range(3):
        until(lambda least=10 * (round_ + 1): len(lines(folder / "calls")) >= least)
        victim = workers.pop(0)
        victim.kill()
        victim.communicate()
        killed.add(victim.pid)
        workers.append(worker())
    until(lambda: all(stats.waiting == 0 for stats in pipeline.stats().values()))
    for process in workers:
        process.terminate()
        process.communicate()
    results = Counter(map(int, lines(folder / "results")))
    assert set(results) == set(range(count))
    callers: dict[str, list[int]] = {}
    for line in lines(folder / "calls"):
        pid, id = line.split()
        callers.setdefault(id, []).append(int(pid))
    assert all(set(pids[:-1]) <= killed for pids in callers.values())
    assert all(stats.dead == 0 for stats in pipeline.stats().values())
    pipeline.close()


def test_a_fork_of_a_program_with_a_worker_class_has_queues_of_its_own(folder: Path) -> None:
    pipeline = queues(folder)
    pipeline.put({"n": 1})
    child = os.fork()
    if child == 0:
        try:
            Worker(pipeline["call"]).run(until_empty=True)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert pipeline.stats()["call"].done == 1
    pipeline.close()

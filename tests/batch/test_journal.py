"""The journal: a run that was killed goes on where it stopped, delivers every result once, and calls for nothing twice."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Concurrency, Gate, InvalidInput, StoreFormatError, StoreUnavailable
from headgate.batch import CallFailed, ItemResult, Journal, JournalMismatch, Retry, run
from headgate.stores.memory import MemoryStore
from tests.support.gates import nothing_left


def slots(number: int = 8) -> Gate:
    return Gate("g", [Concurrency(number, name="slots")], store=MemoryStore())


def double(item: int) -> int:
    return 2 * item


#: Appends each item that it was called for to a file, as the last thing that a call does; killed in the middle of it all.
SCRIPT = """
import asyncio, os, sys
from headgate import AsyncGate, Concurrency
from headgate.batch import arun
from headgate.stores.memory import MemoryStore

journal, called, number, kind = sys.argv[1:]
log = os.open(called, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def say(item):
    os.write(log, b"%d\\n" % item)
    return {"double": 2 * item}

async def say_async(item):
    if item % 7 == 0:
        await asyncio.sleep(0)
    return say(item)

delivered = []

async def main():
    gate = AsyncGate("g", [Concurrency(16)], store=MemoryStore())
    call = say_async if kind == "loop" else say
    statistics = await arun(iter(range(int(number))), call, gate=gate, journal=journal,
                            on_result=lambda result: delivered.append((result.index, result.value["double"])))
    print(statistics.replayed, len(delivered), len(set(delivered)), sum(value for _, value in delivered))

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["loop", "threads"])
def test_a_run_that_is_killed_again_and_again_calls_for_nothing_twice_and_delivers_everything_once(
    tmp_path: Path, kind: str
) -> None:
    number = 12_000 if kind == "loop" else 4_000
    script, called = tmp_path / "run.py", tmp_path / "called"
    script.write_text(SCRIPT)
    called.touch()
    arguments = [sys.executable, str(script), str(tmp_path / "run.db"), str(called), str(number), kind]
    finished_before = 0
    for killed in (1, 2):
        process = subprocess.Popen(arguments)
        while called.stat().st_size <= finished_before + 3_000:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        assert called.stat().st_size > finished_before, f"run {killed} got on"
        finished_before = called.stat().st_size
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=240, check=True)
    replayed, delivered, distinct, total = map(int, done.stdout.split())
    assert delivered == distinct == number
    assert total == number * (number - 1)
    assert replayed > 800
    calls = Counter(called.read_text().split())
    assert len(calls) == number
    # A kill may hit the very call that has said so and has not returned yet, of each that is under way at that moment.
    again = sum(count - 1 for count in calls.values())
    assert again <= 2 * (1 if kind == "loop" else 16)


def test_a_finished_run_calls_for_nothing_and_delivers_all_results_again(tmp_path: Path) -> None:
    journal = tmp_path / "run.db"
    first = run(range(50), double, gate=slots(), journal=journal, keep=True)
    called: list[int] = []
    again = run(range(50), called.append, gate=slots(), journal=journal, keep=True, in_order=True)
    assert called == []
    assert (first.replayed, again.replayed, again.successful, again.calls) == (0, 50, 50, 0)
    assert [result.value for result in again.results] == [2 * n for n in range(50)]
    assert all(result.replayed and result.attempts == 1 for result in again.results)


def test_more_items_may_follow(tmp_path: Path) -> None:
    run(range(10), double, gate=slots(), journal=tmp_path / "run.db")
    called: list[int] = []

    def call(item: int) -> int:
        called.append(item)
        return 2 * item

    statistics = run(range(15), call, gate=slots(), journal=tmp_path / "run.db")
    assert sorted(called) == list(range(10, 15))
    assert (statistics.successful, statistics.replayed) == (15, 10)


def test_failed_items_stay_failed_unless_they_are_to_be_tried_again(tmp_path: Path) -> None:
    class Odd(Exception):
        status = 422

    def call(item: int) -> int:
        if item % 2:
            raise Odd("no odd ones")
        return item

    journal = tmp_path / "run.db"
    run(range(6), call, gate=slots(), journal=journal, price=lambda item, value: 1.5)
    again = run(range(6), double, gate=slots(), journal=journal, keep=True, in_order=True)
    assert (again.successful, again.failed, again.calls, again.cost) == (3, 3, 0, 4.5)
    assert isinstance(again.results[1].error, CallFailed)
    assert str(again.results[1].error) == "Odd: no odd ones"
    assert again.results[1].error.status == 422
    third = run(range(6), double, gate=slots(), journal=Journal(journal, retry_failed=True), keep=True, in_order=True)
    assert (third.successful, third.calls, third.replayed) == (6, 3, 3)
    assert [result.attempts for result in third.results] == [1, 2, 1, 2, 1, 2]


def test_attempts_at_an_item_are_counted_over_all_runs_and_have_one_id(tmp_path: Path) -> None:
    ids, journal = [], tmp_path / "run.db"

    def call(item: str, attempt: Any) -> dict[str, Any]:
        ids.append(attempt.id)
        if len(ids) == 2:
            raise SystemExit("the second attempt ends the process")
        return {"status": 503 if len(ids) < 3 else 200, "headers": {}}

    with pytest.raises(SystemExit):
        run(["a"], call, gate=slots(), journal=journal, retry=Retry(5, base="1ms"))
    statistics = run(["a"], call, gate=slots(), journal=journal, retry=Retry(5, base="1ms"), keep=True)
    assert len(set(ids)) == 1
    assert statistics.results[0].attempts == 2, "the one that the journal has, and this one"


def test_what_is_skipped_is_looked_at_again(tmp_path: Path) -> None:
    run([1, 2], double, gate=slots(), journal=tmp_path / "run.db", skip_existing=lambda item: item == 1)
    called: list[int] = []
    run([1, 2], called.append, gate=slots(), journal=tmp_path / "run.db")
    assert called == [1]


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [[1, 3, 2], ["1", "2", "3"], [{"a": 1}, 2, 3]])
def test_a_journal_of_other_items_is_refused_and_left_as_it_was(tmp_path: Path, items: list[Any]) -> None:
    journal = tmp_path / "run.db"
    run([1, 2, 3], double, gate=slots(1), journal=journal)
    called: list[Any] = []
    gate = slots(1)
    with pytest.raises(JournalMismatch, match=r"run\.db is the journal of another run: its item \d is another one"):
        run(items, called.append, gate=gate, journal=journal)
    assert called == []
    nothing_left(gate)
    assert run([1, 2, 3], called.append, gate=slots(), journal=journal).replayed == 3


def test_a_journal_of_another_name_is_refused(tmp_path: Path) -> None:
    run([1], double, gate=slots(), journal=Journal(tmp_path / "run.db", name="model-a"))
    with pytest.raises(JournalMismatch, match="'model-a', and this run 'model-b'"):
        run([1], double, gate=slots(), journal=Journal(tmp_path / "run.db", name="model-b"))


def test_a_journal_that_another_process_uses_is_refused(tmp_path: Path) -> None:
    journal = tmp_path / "run.db"
    script = """
import sys
from headgate.batch import Journal
journal = Journal(sys.argv[1])
journal.open()
print(1, flush=True)
input()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(journal)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "1\n"
        with pytest.raises(StoreUnavailable, match="another process uses this journal"):
            run([1], double, gate=slots(), journal=journal)
    finally:
        other.communicate("\n", timeout=60)
    assert run([1], double, gate=slots(), journal=journal).successful == 1


@pytest.mark.parametrize("item", [object(), {1, 2}, b"bytes", {"a": object()}, {1: 1, "a": 2}])
def test_an_item_that_cannot_be_known_again_stops_the_run_before_it_is_called_for(tmp_path: Path, item: Any) -> None:
    gate, called = slots(1), []
    with pytest.raises(InvalidInput, match=f"item 2 is a {type(item).__name__}.*JSON values"):
        run([1, 2, item, 4], called.append, gate=gate, journal=tmp_path / "run.db")
    assert called in ([1], [1, 2])
    nothing_left(gate)


def test_a_value_that_cannot_be_kept_stops_the_run_and_its_item_is_not_paid_for_again(tmp_path: Path) -> None:
    gate, journal = slots(1), tmp_path / "run.db"
    delivered: list[ItemResult] = []
    with pytest.raises(InvalidInput, match=r"the value of item 0 is a object.*values=False"):
        run([1, 2, 3], lambda item: object(), gate=gate, journal=journal, on_result=delivered.append)
    assert [type(result.value) for result in delivered] == [object]
    nothing_left(gate)
    called: list[int] = []
    statistics = run([1, 2, 3], called.append, gate=gate, journal=Journal(journal, values=False))
    assert called == [2, 3]
    assert statistics.replayed == 1


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be looked at" * 20, b"x"])
def test_a_file_that_is_no_database_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.db"
    path.write_bytes(content)
    with pytest.raises(StoreFormatError, match="not a SQLite database"):
        run([1], double, gate=slots(), journal=path)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "mine.db") as connection:
        connection.execute("CREATE TABLE mine (a)")
    connection.close()
    with pytest.raises(StoreFormatError, match="no journal of a batch run"):
        run([1], double, gate=slots(), journal=tmp_path / "mine.db")
    with sqlite3.connect(tmp_path / "run.db") as connection:
        connection.executescript(f"PRAGMA application_id = {0x4847424A}; PRAGMA user_version = 9; CREATE TABLE run (a)")
    connection.close()
    with pytest.raises(StoreFormatError, match="format 9"):
        run([1], double, gate=slots(), journal=tmp_path / "run.db")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"the directory .*nowhere does not exist"):
        run([1], double, gate=slots(), journal=tmp_path / "nowhere" / "run.db")
    with pytest.raises(InvalidInput, match="journal is the path"):
        run([1], double, gate=slots(), journal=5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="'normal' or 'full'"):
        Journal("x", synchronous="maybe")  # type: ignore[arg-type]


@settings(max_examples=25)
@given(st.data())
def test_whatever_is_left_of_the_log_a_whole_line_counts_and_a_cut_one_does_not(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder, "run.db")
        journal = Journal(path)
        journal.open()
        for index in range(5):
            journal.finished(ItemResult(index, index, "successful", 2 * index, attempts=1), journal.mark(index, index))
        log = Path(f"{path}-log").read_bytes()
        cut = data.draw(st.integers(0, len(log)))
        rubbish = data.draw(st.sampled_from([b"", b"\0\0\0\0\n", b"[1]\n", b"null\n"]))
        # As a process leaves it that was killed: what was not written is not there, and the file has nothing yet.
        copy = Path(folder, "killed.db")
        fresh = Journal(copy)
        fresh.open()
        fresh.close()
        Path(f"{copy}-log").write_bytes(log[:cut] + rubbish)
        called: list[int] = []
        statistics = run(range(5), called.append, gate=slots(1), journal=copy)
        whole = log[:cut].count(b"\n")
        assert statistics.replayed == whole
        assert called == list(range(whole, 5))
        journal.close()


def test_with_full_synchronisation_and_many_results_all_are_in_the_file_at_the_end(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.db", synchronous="full")
    run(range(40), double, gate=slots(), journal=journal)
    assert Path(f"{journal.path}-log").read_bytes() == b""
    with sqlite3.connect(journal.path) as connection:
        rows = connection.execute("SELECT place, value FROM results ORDER BY place").fetchall()
    connection.close()
    assert [(place, json.loads(value)) for place, value in rows] == [(n, 2 * n) for n in range(40)]

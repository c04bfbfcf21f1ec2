"""Database files without a store: a toy format, real files, real processes."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import InvalidInput, StoreFormatError, StoreUnavailable
from headgate.sqlite_file import BusyRetry, DatabaseFile, FileFormat, WakeSocket, wake_folder
from headgate.stores.sqlite import SqliteStore
from tests.support.waiting import until


def latest_us(execute: Callable[..., Any]) -> int:
    return execute("SELECT coalesce(max(at), 0) FROM notes").fetchone()[0]  # type: ignore[no-any-return]


def add_colour(execute: Callable[..., Any]) -> None:
    execute("ALTER TABLE notes ADD COLUMN colour")


NOTES_1 = FileFormat(
    application_id=0x6E6F7465,
    number=1,
    schema=("CREATE TABLE notes (id INTEGER PRIMARY KEY, at, text)",),
    upgrades={},
    latest_us=latest_us,
    noun="a book of notes",
    example="notes.db",
)
NOTES_2 = NOTES_1._replace(
    number=2, schema=("CREATE TABLE notes (id INTEGER PRIMARY KEY, at, text, colour)",), upgrades={1: add_colour}
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "notes.db")


@pytest.fixture
def file(path: str) -> Iterator[DatabaseFile]:
    file = DatabaseFile(path, NOTES_1)
    yield file
    file.close()


def write(file: DatabaseFile, text: str) -> None:
    file.begin_when_free()
    file.execute("INSERT INTO notes (at, text) VALUES (?, ?)", (file.now(), text))
    file.commit(1)


def texts(file: DatabaseFile) -> list[str]:
    return [text for (text,) in file.execute("SELECT text FROM notes ORDER BY id")]


# --- opening ------------------------------------------------------------------------------------------------------------


def test_what_was_written_is_there_when_it_is_opened_again(path: str) -> None:
    for number in range(3):
        file = DatabaseFile(path, NOTES_1)
        write(file, f"note {number}")
        file.close()
    file = DatabaseFile(path, NOTES_1)
    assert texts(file) == ["note 0", "note 1", "note 2"]
    assert file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert file.execute("PRAGMA application_id").fetchone() == (NOTES_1.application_id,)
    file.close()


def of_another_application(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE customers (name)")
    connection.commit()
    connection.close()


def of_a_newer_format(path: str) -> None:
    DatabaseFile(path, NOTES_2).close()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: Path(path).write_text("buy milk\n" * 100), "not a SQLite database"),
        (of_another_application, "another application.*customers"),
        (lambda path: SqliteStore(path).close(), "another application.*heads"),
        (of_a_newer_format, "format 2.*up to 1.*upgrade Headgate"),
    ],
    ids=["text", "other tables", "a store", "newer"],
)
def test_a_file_of_another_kind_is_refused_in_words_and_left_as_it_is(
    path: str, make: Callable[[str], object], says: str
) -> None:
    make(path)
    before = Path(path).read_bytes()
    with pytest.raises(StoreFormatError, match=says) as caught:
        DatabaseFile(path, NOTES_1)
    assert path in str(caught.value)
    assert Path(path).read_bytes() == before
    assert os.listdir(os.path.dirname(path)) == [os.path.basename(path)]


def test_a_store_refuses_the_file_of_another_application_of_ours(path: str, file: DatabaseFile) -> None:
    file.close()
    with pytest.raises(StoreFormatError, match=r"another application.*meta, notes"):
        SqliteStore(path)


def test_a_directory_is_refused_with_what_would_be_right(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"is a directory; a book of notes is a file, such as .*/notes\.db"):
        DatabaseFile(str(tmp_path), NOTES_1)


def test_a_file_of_an_older_format_is_upgraded_and_loses_nothing(path: str, file: DatabaseFile) -> None:
    write(file, "old")
    file.close()
    newer = DatabaseFile(path, NOTES_2)
    assert newer.execute("SELECT text, colour FROM notes").fetchall() == [("old", None)]
    assert newer.execute("PRAGMA user_version").fetchone() == (2,)
    newer.close()


# --- writing ------------------------------------------------------------------------------------------------------------

WRITER = """
import sys
from headgate.errors import StoreUnavailable
from headgate.sqlite_file import DatabaseFile
from tests.sqlite_file.test_file import NOTES_1, write
file = DatabaseFile(sys.argv[1], NOTES_1)
number = 0
while number < int(sys.argv[3]):
    try:
        write(file, f"{sys.argv[2]} {number}")
        number += 1
    except StoreUnavailable:
        pass  # on a busy machine the other one may have had no processor while it held the lock
file.close()
"""


def test_two_processes_write_in_turns(path: str) -> None:
    count = 300
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, path, name, str(count)]) for name in "ab"]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    file = DatabaseFile(path, NOTES_1)
    for name in "ab":
        own = [text for text in texts(file) if text.startswith(name)]
        assert own == [f"{name} {number}" for number in range(count)]
    times = [at for (at,) in file.execute("SELECT at FROM notes ORDER BY id")]
    assert times == sorted(times)
    file.close()


def test_an_update_of_one_row_tells_whether_it_was_there_and_whether_another_process_writes(
    path: str, file: DatabaseFile
) -> None:
    write(file, "before")
    swap = "UPDATE notes SET text = ? WHERE text = ?"
    assert file.update_one(swap, ("after", "before")) is True
    assert file.update_one(swap, ("after", "before")) is False
    other = DatabaseFile(path, NOTES_1)
    assert other.begin()
    assert file.update_one(swap, ("later", "after")) is None
    assert not file.begin()
    other.roll_back()
    assert file.update_one(swap, ("later", "after")) is True
    other.close()


def test_a_process_that_holds_the_lock_and_writes_nothing_is_not_waited_for(path: str, file: DatabaseFile) -> None:
    other = DatabaseFile(path, NOTES_1)
    assert other.begin()
    with pytest.raises(StoreUnavailable, match=r"held the write lock for 200 ms") as caught:
        file.begin_when_free()
    assert path in str(caught.value)
    other.roll_back()
    file.begin_when_free()
    file.roll_back()
    other.close()


MAKES = """
import sqlite3, sys, time
file = sqlite3.connect(sys.argv[1], isolation_level=None)
file.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
while time.process_time() < float(sys.argv[2]):
    pass
file.execute("ROLLBACK")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whether the holder of a lock lives")
def test_a_process_that_is_slow_to_make_the_file_is_waited_for(path: str) -> None:
    command = [sys.executable, "-c", MAKES, path, "0.9"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == "locked\n"
        DatabaseFile(path, NOTES_1).close()
    assert maker.returncode == 0


def test_a_caller_retries_as_long_as_another_one_commits(path: str, file: DatabaseFile) -> None:
    other = DatabaseFile(path, NOTES_1)
    retry = BusyRetry(file)
    began = time.monotonic()
    while time.monotonic() - began < 0.5:  # more than twice as long as it would wait for one that hangs
        write(other, "progress")
        retry.check()
        assert 0 <= retry.pause_s < 0.001
        time.sleep(0.01)
    other.close()


def test_the_version_tells_of_commits_of_other_connections_alone(path: str, file: DatabaseFile) -> None:
    before = file.version()
    write(file, "mine")
    assert file.version() == before
    other = DatabaseFile(path, NOTES_1)
    write(other, "theirs")
    other.close()
    assert file.version() != before


def test_the_log_is_checkpointed_in_the_background(path: str, file: DatabaseFile) -> None:
    size = Path(path).stat().st_size
    for _ in range(30):
        file.begin_when_free()
        file.execute_many("INSERT INTO notes (text) VALUES (?)", [("x" * 100,)] * 100)
        file.commit(100)
    until(lambda: Path(path).stat().st_size > size)


# --- the clock ----------------------------------------------------------------------------------------------------------


def anchor_of(path: str) -> list[Any]:
    connection = sqlite3.connect(path)
    [text] = connection.execute("SELECT value FROM meta WHERE name = 'anchor'").fetchone()
    connection.close()
    return json.loads(text)  # type: ignore[no-any-return]


def test_the_clock_goes_on_when_the_file_is_opened_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = DatabaseFile(path, NOTES_1)
    assert abs(file.now() - time.time_ns() // 1000) < 1_000_000
    before, anchor = file.now(), anchor_of(path)
    file.close()
    wall = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: wall() - 5 * 3600 * 10**9)  # the wall clock was set back
    file = DatabaseFile(path, NOTES_1)
    assert before <= file.now() < before + 30_000_000
    assert anchor_of(path) == anchor
    file.close()


def test_after_a_restart_of_the_machine_the_clock_does_not_go_back_behind_the_latest_time_in_the_file(
    path: str,
) -> None:
    ahead = time.time_ns() // 1000 + 7 * 3600 * 10**6
    file = DatabaseFile(path, NOTES_1, clock=lambda: ahead)
    write(file, "from the future")
    file.close()
    file = DatabaseFile(path, NOTES_1)  # has no anchor of this boot
    assert ahead <= file.now() < ahead + 30_000_000
    file.close()


def test_two_that_have_it_open_have_the_same_time(path: str, file: DatabaseFile) -> None:
    other = DatabaseFile(path, NOTES_1)
    times = [clock() for _ in range(100) for clock in (file.now, other.now)]
    assert times == sorted(times)
    other.close()


# --- a file that goes away ----------------------------------------------------------------------------------------------


def test_a_file_that_was_replaced_is_no_longer_current(path: str, file: DatabaseFile) -> None:
    assert file.is_current()
    os.rename(path, f"{path}.old")
    assert not file.is_current()
    Path(path).touch()
    assert not file.is_current()
    os.unlink(path)
    os.rename(f"{path}.old", path)
    assert file.is_current()


# --- waking -------------------------------------------------------------------------------------------------------------

WAITER = """
import sys, threading
from headgate.sqlite_file import WakeSocket
heard = threading.Event()
def hear(message):
    print(message.decode(), flush=True)
    heard.set()
socket = WakeSocket(sys.argv[1], "waiter", hear, lambda: 1)
socket.open()
print("ready", flush=True)
heard.wait(40)
socket.close()
"""


def test_a_waiter_in_another_process_is_woken(path: str) -> None:
    waiter = subprocess.Popen([sys.executable, "-c", WAITER, path], stdout=subprocess.PIPE, text=True)
    assert waiter.stdout is not None
    assert waiter.stdout.readline() == "ready\n"
    sender = WakeSocket(path, "sender", print, lambda: 0)
    sender.send("nobody", b"is not there")
    sender.send("waiter", b"your turn")
    assert waiter.communicate(timeout=120) == ("your turn\n", None)
    assert waiter.returncode == 0
    sender.close()
    assert not os.path.exists(wake_folder(path))


def test_one_socket_can_have_several_names(path: str) -> None:
    heard: list[bytes] = []
    one, two = WakeSocket(path, "one", heard.append, lambda: 1), WakeSocket(path, "two", print, lambda: 0)
    one.open()
    one.add_name("other")
    two.send("other", b"a")
    until(lambda: heard == [b"a"])
    one.remove_name("other")
    two.send("other", b"b")
    two.send("one", b"c")
    until(lambda: heard == [b"a", b"c"])
    one.close()
    two.close()
    until(lambda: not any(thread.name == "headgate-wake" for thread in threading.enumerate()))

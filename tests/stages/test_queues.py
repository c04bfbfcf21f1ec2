"""Queues in this process and in a file: the suite, and what only they have."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate import InvalidInput, StoreFormatError, StoreUnavailable
from headgate.stages import BadMessage, open_queue
from headgate.stages.message import NewMessage
from headgate.stages.outcomes import Finish
from headgate.stages.queues.base import Ending, Queue
from headgate.stages.queues.memory import MemoryQueues
from headgate.stages.queues.sqlite import SqliteQueues
from headgate.testing import FakeClock, QueueSuite

SECOND = 1_000_000


class TestMemoryQueue(QueueSuite):
    def setup_method(self, method: Any = None) -> None:
        self.queues: MemoryQueues | None = None
        super().setup_method(method)

    def make_queue(self, name: str, clock: Any) -> Queue:
        if self.queues is None:
            self.queues = MemoryQueues("memory:", clock)
        return self.queues.queue(name)


class TestSqliteQueue(QueueSuite):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = str(tmp_path / "queues.db")
        self.queues = SqliteQueues(self.path, clock=self.clock)
        self.queue = self.queues.queue("first")

    def setup_method(self, method: Any = None) -> None:
        self.clock = FakeClock()

    def make_queue(self, name: str, clock: Any) -> Queue:
        return self.queues.queue(name)

    def again(self, queue: Queue, clock: Any) -> Queue:
        return SqliteQueues(self.path, clock=clock).queue(queue.name)


class TestSqliteQueueHandingOnToAnotherFile(TestSqliteQueue):
    """Nothing but the atomic hand-off is lost where the next queue lives elsewhere."""

    def make_queue(self, name: str, clock: Any) -> Queue:
        return SqliteQueues(f"{self.path}-{name}", clock=clock).queue(name)


def put(queue: Queue, *numbers: int) -> None:
    queue.put([NewMessage(json.dumps({"n": number})) for number in numbers])


def test_messages_and_dead_letters_survive_the_process(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from headgate.stages import open_queue\n"
        "from headgate.stages.message import NewMessage\n"
        "queue = open_queue('sqlite:///queues.db', 'first')\n"
        "queue.put([NewMessage('{}', id='a'), NewMessage('{}', id='b')])\n"
        "queue.bury(queue.lease(1, 10**6)[0], 'poison', 'bad')\n"
        "os._exit(1)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False)
    queue = open_queue(f"sqlite:///{tmp_path}/queues.db", "first")
    assert [delivery.id for delivery in queue.lease(5, SECOND)] == ["b"]
    assert queue.stats().dead == 1
    queue.close()


def test_two_processes_never_lease_the_same_message(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queues.db"
    queue = open_queue(url, "first")
    put(queue, *range(600))
    code = (
        "import json, sys\n"
        "from headgate.stages import open_queue\n"
        f"queue = open_queue({url!r}, 'first')\n"
        "while found := queue.lease(7, 60_000_000):\n"
        "    for delivery in found: print(json.loads(delivery.body)['n'])\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    leased = [int(line) for process in processes for line in process.communicate()[0].split()]
    assert sorted(leased) == list(range(600))
    queue.close()


def test_a_look_into_a_long_queue_and_a_lease_touch_few_rows(tmp_path: Path) -> None:
    """What a lease does is the same at 100 and at 20,000 messages: SQLite counts its steps."""
    steps = {}
    for count in (100, 20_000):
        queues = SqliteQueues(str(tmp_path / f"{count}.db"))
        queue = queues.queue("first")
        other = queues.queue("other")
        put(other, *range(count))
        put(queue, *range(count))
        counted = [0]
        connection: Any = queues._database._connection  # only SQLite itself can count

        def count_step(counted: list[int] = counted) -> int:
            counted[0] += 1
            return 0

        connection.set_progress_handler(count_step, 10)
        [delivery] = queue.lease(1, SECOND)
        queue.settle([Ending(delivery, Finish())])
        queue.peek(5)
        connection.set_progress_handler(None, 0)
        steps[count] = counted[0]
        queue.close()
    assert steps[20_000] <= 2 * steps[100]


def test_a_child_of_a_fork_has_its_own_connection(tmp_path: Path) -> None:
    queue = open_queue(f"sqlite:///{tmp_path}/queues.db", "first")
    put(queue, 1, 2)
    child = os.fork()
    if child == 0:
        ok = len(queue.lease(1, SECOND * 60)) == 1
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(queue.lease(5, SECOND)) == 1
    queue.close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///x.db?fsync=1", "synchronous="),
        ("memory://a/b", "memory://NAME"),
        ("kafka://x", "begins with one of"),
        (7, "at a URL"),
    ],
)
def test_a_url_that_is_none_is_refused_in_words(url: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        open_queue(url, "first")


@pytest.mark.parametrize("name", ["", "a b", "x" * 71, "ä", "a/b", None])
def test_a_name_that_not_every_queue_can_have_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match="letters, digits"):
        open_queue("memory:", name)


def test_a_file_of_another_application_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(StoreFormatError, match="another application"):
        open_queue(f"sqlite:///{path}", "first").stats()
    assert path.read_bytes() == before


def test_a_directory_that_does_not_exist_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="does not exist"):
        open_queue(f"sqlite:///{tmp_path}/none/queues.db", "first").stats()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    queue = open_queue(f"sqlite:///{tmp_path}/queues.db", "first")
    put(queue, 1)
    queue.close()
    (tmp_path / "queues.db").chmod(stat.S_IRUSR)
    with pytest.raises(StoreUnavailable, match="cannot be"):
        put(open_queue(f"sqlite:///{tmp_path}/queues.db", "first"), 2)


def test_a_full_disk_loses_nothing_and_is_said(tmp_path: Path) -> None:
    queues = SqliteQueues(str(tmp_path / "queues.db"))
    queue = queues.queue("first")
    put(queue, 1)
    queues.write(lambda execute, now: execute("PRAGMA max_page_count = 1").fetchone())
    with pytest.raises(StoreUnavailable, match="full"):
        put(queue, *range(1000))
    queues.write(lambda execute, now: execute("PRAGMA max_page_count = 1000000").fetchone())
    delivery, *_ = queue.lease(1, SECOND)
    assert json.loads(delivery.body) == {"n": 1}
    queue.close()


def test_bytes_that_are_no_text_cannot_be_put() -> None:
    queue = open_queue("memory://surrogates", "first")
    with pytest.raises((BadMessage, ValueError, StoreUnavailable, sqlite3.Error, UnicodeError)):
        queue.put([NewMessage('{"text":"\ud800"}')])
    assert queue.lease(1, SECOND) == []

"""Contention on a SQLite file is no outage: a process that asks much, or has no processor, opens no gate of another.

One that is stopped with the lock in its hand is an outage, and is found in time.
"""

from __future__ import annotations

import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import Concurrency, Gate, StoreUnavailable, Window
from tests.support.timing import DECIDES_IN_TIME
from tests.support.waiting import DECIDED, says_so_in_time, stop, timed, until
from tests.support.workers import Child, children

#: All that are asked for fit: what is measured is the store.
ROOM: dict[str, Any] = {"window": {"limit": 10**9, "per": "1m"}, "slots": {"limit": 10**6, "lease": "1h"}}

AT_ONCE = 10_000


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    with children() as starter:
        yield starter


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/gates.db"


def room(url: str, mode: str) -> Gate:
    limits = [Window(10**9, per="1m", name="window"), Concurrency(10**6, lease="1h", name="slots")]
    return Gate("shared", limits, store=url, on_store_error=mode)


def stop_with_the_lock(child: Child, url: str) -> None:
    """SIGSTOP at a moment when the child has the file's write lock."""

    def stopped_with_the_lock() -> bool:
        stop(child.process)
        file = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0, isolation_level=None)
        try:
            file.execute("BEGIN IMMEDIATE")
            file.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return True
        finally:
            file.close()
        child.signal(signal.SIGCONT)
        return False

    until(stopped_with_the_lock)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whether the holder of a lock lives")
@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_crowd_in_a_process_that_hardly_gets_a_processor_is_no_outage(
    start: Callable[..., Child], url: str, mode: str
) -> None:
    gate = {"on_store_error": mode}
    # Each transaction takes it a hundred times as long as it should: it has the write lock for half a second and more.
    crowd = start("crowd", store=url, limits=ROOM, gate=gate, at_once=AT_ONCE, starved=True)
    assert crowd.read() == {"ready": True}
    other = start("one_by_one", store=url, limits=ROOM, gate=gate, slow=3, seconds=60)
    assert other.read() == {"ready": True}
    told = other.read()
    assert told["asks"] > 0
    assert (told["passed_open"], told["refused"]) == (0, 0)
    assert crowd.process.stdin is not None
    crowd.process.stdin.write("feed\n")
    told = crowd.finish()
    assert told["rounds"] > 0
    assert (told["passed_open"], told["refused"]) == (0, 0)


@DECIDES_IN_TIME
def test_a_process_that_is_stopped_with_the_lock_is_found_in_time(start: Callable[..., Child], url: str) -> None:
    closed, opened = (room(url, mode) for mode in ("closed", "open"))
    closed.acquire().release()
    crowd = start("crowd", store=url, limits=ROOM, at_once=AT_ONCE)
    assert crowd.read() == {"ready": True}
    stop_with_the_lock(crowd, url)
    took, answer = timed(closed.acquire)
    assert isinstance(answer, StoreUnavailable)
    assert "has held the write lock for 200 ms or longer" in str(answer)
    if sys.platform == "linux":
        assert f"process {crowd.pid} (stopped)" in str(answer)
    assert took < DECIDED
    says_so_in_time(closed)
    took, permit = timed(opened.acquire)
    assert "untracked" in repr(permit)
    assert took < DECIDED
    crowd.signal(signal.SIGCONT)

    def is_back() -> bool:
        with opened.acquire() as permit:
            return "untracked" not in repr(permit)

    until(is_back)
    assert crowd.finish()["refused"] == 0


HANGS = """
import sqlite3, sys
file = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
file.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
while True:
    pass
"""


def test_a_process_that_computes_for_ever_with_the_lock_is_found(url: str) -> None:
    import subprocess

    gate = room(url, "closed")
    gate.acquire().release()
    with subprocess.Popen(
        [sys.executable, "-c", HANGS, url.removeprefix("sqlite:///")], stdout=subprocess.PIPE, text=True
    ) as hanging:
        try:
            assert hanging.stdout is not None
            assert hanging.stdout.readline() == "locked\n"
            with pytest.raises(StoreUnavailable, match="has held the write lock"):
                gate.acquire()
        finally:
            hanging.kill()
    until(lambda: isinstance(timed(gate.acquire)[1], object) and not gate.store.keeper.outages.of("shared").away)


# --- figures ------------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_minute_of_six_processes_one_of_which_is_a_crowd(start: Callable[..., Child], url: str, mode: str) -> None:
    gate = {"on_store_error": mode}
    crowd = start("crowd", store=url, limits=ROOM, gate=gate, at_once=AT_ONCE)
    assert crowd.read() == {"ready": True}
    others = [start("one_by_one", store=url, limits=ROOM, gate=gate, seconds=60) for _ in range(5)]
    told = [other.read() for other in others] and [other.read() for other in others]
    told.append(crowd.finish())
    sys.stdout.write("".join(f"{each}\n" for each in told))
    assert [(each["passed_open"], each["refused"]) for each in told] == [(0, 0)] * 6
    assert max(each["p99"] for each in told[:-1]) < 0.25

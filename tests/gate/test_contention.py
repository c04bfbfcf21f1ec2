"""Contention on a SQLite file is no outage: a process that asks much, or has no processor, opens no gate of another.

One that is stopped with the lock in its hand is an outage, and is found in time.
"""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import Concurrency, Gate, Permit, StoreUnavailable, Window
from tests.support.timing import DECIDES_IN_TIME
from tests.support.waiting import DECIDED, says_so_in_time, stop, timed, until
from tests.support.workers import Child, children

#: All that are asked for fit: what is measured is the store.
ROOM: dict[str, Any] = {
    "window": {"limit": 10**9, "per": "1m", "by": "org"},
    "slots": {"limit": 10**6, "lease": "1h", "by": "org"},
}

AT_ONCE = 10_000


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    with children() as starter:
        yield starter


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/gates.db"


def room(url: str, mode: str) -> Gate:
    """Another gate in the same file."""
    return Gate("room", [Window(10**9, per="1m"), Concurrency(10**6, lease="1h")], store=url, on_store_error=mode)


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


def ask_beside_a_crowd(
    start: Callable[..., Child], url: str, mode: str, seconds: float, askers: int, **of: Any
) -> list[Any]:
    """What processes tell that ask one by one while another is a crowd; the last is what that tells."""
    gate = {"on_store_error": mode}
    crowd = start("crowd", store=url, limits=ROOM, gate=gate, **of)
    assert crowd.read() == {"ready": True}
    others = [start("one_by_one", store=url, limits=ROOM, gate=gate, seconds=seconds) for _ in range(askers)]
    for other in others:
        assert other.read() == {"ready": True}
    told = [other.read() for other in others]
    if of.get("starved"):
        assert crowd.process.stdin is not None
        crowd.process.stdin.write("feed\n")
    return [*told, crowd.finish()]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells whether the holder of a lock lives")
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_crowd_in_a_process_that_hardly_gets_a_processor_is_no_outage(
    start: Callable[..., Child], url: str, mode: str
) -> None:
    # A transaction takes it a hundred times as long as it should: it has the write lock for half a second and more.
    one, crowd = ask_beside_a_crowd(start, url, mode, 15, 1, at_once=1000, starved=True)
    assert one["asks"] > 0
    assert (one["passed_open"], one["refused"]) == (0, 0)
    assert (crowd["passed_open"], crowd["refused"]) == (0, 0)


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_ten_thousand_asks_at_once_are_no_outage(start: Callable[..., Child], url: str, mode: str) -> None:
    one, crowd = ask_beside_a_crowd(start, url, mode, 5, 1, at_once=AT_ONCE)
    assert crowd["rounds"] > 0
    assert (one["passed_open"], one["refused"]) == (0, 0)
    assert (crowd["passed_open"], crowd["refused"]) == (0, 0)


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
    until(lambda: isinstance(timed(gate.acquire)[1], Permit))


# --- figures ------------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["open", "closed"])
def test_a_minute_of_six_processes_one_of_which_is_a_crowd(start: Callable[..., Child], url: str, mode: str) -> None:
    told = ask_beside_a_crowd(start, url, mode, 60, 5, at_once=AT_ONCE)
    sys.stdout.write("".join(f"{each}\n" for each in told))
    assert [(each["passed_open"], each["refused"]) for each in told] == [(0, 0)] * 6
    assert max(each["p99"] for each in told[:-1]) < 0.25

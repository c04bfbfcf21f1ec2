"""The end of a process that uses gates, and forks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from headgate import Gate
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.support.gates import slots
from tests.support.waiting import until
from tests.support.workers import run_script


@pytest.mark.parametrize("how", ["holding", "waiting"])
def test_the_background_does_not_keep_a_process_alive(how: str, tmp_path: Path) -> None:
    script = f"""
        import threading, time
        from headgate import Gate, Concurrency
        for url in ("memory://", "sqlite:///{tmp_path}/gates.db"):
            gate = Gate("g", [Concurrency(1, name="slots", lease="1h")], store=url)
            permit = gate.acquire()
            if {how!r} == "waiting":
                threading.Thread(target=gate.acquire, daemon=True).start()
                while not gate.usage().waiting:
                    time.sleep(0.01)
    """
    run_script(script)  # it ends: the lease lasts for an hour, and so would what keeps it


def test_a_forked_child_has_a_session_and_a_background_of_its_own(store: str) -> None:
    script = f"""
        import os, time
        from headgate import Gate, Concurrency
        gate = Gate("g", [Concurrency(2, name="slots", lease="2s")], store={store!r})
        mine = gate.acquire(holder="parent")
        child = os.fork()
        if child == 0:
            permit = gate.acquire(holder="child", timeout=60)
            assert permit.id.partition("-")[0] != mine.id.partition("-")[0]
            time.sleep(2.5)
            assert "child" in [holder.holder for holder in gate.holders()]
            assert permit.release() is True
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert [holder.holder for holder in gate.holders()] == ["parent"]
        assert mine.release() is True
    """
    run_script(script)


def test_a_child_that_leaves_the_parents_block_does_not_release_the_parents_slot(tmp_path: Path) -> None:
    script = f"""
        import os, sys
        from headgate import Gate, Concurrency
        gate = Gate("g", [Concurrency(1, name="slots", lease="30s")], store="sqlite:///{tmp_path}/gates.db")
        with gate.acquire(holder="parent") as permit:
            child = os.fork()
            if child == 0:
                sys.exit(0)
            os.waitpid(child, 0)
            assert [holder.holder for holder in gate.holders()] == ["parent"]
        assert not permit.lost
        assert gate.holders() == []
    """
    run_script(script)


def test_a_child_does_not_renew_the_leases_of_its_dead_parent(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/gates.db"
    script = f"""
        import os, signal
        from headgate import Gate, Concurrency
        gate = Gate("g", [Concurrency(1, name="slots", lease="500ms")], store={url!r})
        end, until = os.pipe()
        middle = os.fork()
        if middle == 0:
            os.close(until)
            permit = gate.acquire(holder="parent")
            if os.fork() == 0:
                os.read(end, 1)  # lives on with a copy of the permit, as long as the first process
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(middle, 0)
        assert [holder.holder for holder in gate.holders()] == ["parent"]
        gate.acquire(timeout=60).release()
    """
    run_script(script, wait_for_output=False)


def test_a_fork_while_other_threads_use_the_gate_does_not_deadlock_the_child(store: str) -> None:
    script = f"""
        import os, threading
        from headgate import Gate, Concurrency
        gate = Gate("g", [Concurrency(50, name="slots")], store={store!r})
        stop = False
        def busy():
            while not stop:
                gate.acquire().release()
        threads = [threading.Thread(target=busy) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                for _ in range(5):
                    gate.acquire(timeout=60).release()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        stop = True
        for thread in threads:
            thread.join()
        assert gate.holders() == []
    """
    run_script(script)


def test_all_who_wait_in_memory_come_again_after_their_process_was_taken_for_dead() -> None:
    """Their keeper names one of them in its heartbeats, which stands for all."""
    clock = FakeClock()
    gate = Gate("g", [slots(1, lease="10h")], store=MemoryStore(clock=clock))
    held = gate.acquire()
    went: list[int] = []

    def wait(number: int) -> None:
        with gate.acquire():
            went.append(number)

    waiters = [threading.Thread(target=wait, args=(number,), daemon=True) for number in range(3)]
    for waiter in waiters:
        waiter.start()
    until(lambda: gate.usage().waiting == 3)

    def buried() -> bool:
        clock.advance(60)  # the machine slept, and nobody was heard of
        gate.try_acquire()
        return gate.usage().waiting == 0

    until(buried)
    until(lambda: gate.usage().waiting == 3)
    held.release()
    for waiter in waiters:
        waiter.join(60)
    assert sorted(went) == [0, 1, 2]

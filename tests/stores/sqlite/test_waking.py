"""How a waiter in another process is woken through the socket beside the file."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headgate import Concurrency, Gate
from headgate.kernel.model import Wake
from headgate.sqlite_file import wake, wake_folder
from headgate.stores.sqlite import SqliteStore
from tests.support.sqlite import line_of, python
from tests.support.waiting import until

WAITER = """
    import sys
    from headgate import Gate, Concurrency
    from headgate.gate import keeper
    keeper.BEAT_LEAST = keeper.BEAT_MOST = 3600.0  # no heartbeat tells it of its turn
    gate = Gate("g", [Concurrency(1, lease="1h")], store=f"sqlite:///{sys.argv[1]}", claim="1h")
    print("ready", flush=True)
    for _ in range(int(sys.argv[2])):
        with gate.acquire(timeout=60):
            print("granted", flush=True)
            sys.stdin.readline()
        print("released", flush=True)
        sys.stdin.readline()
    """


def test_a_waiter_in_another_process_is_woken_by_a_release(path: str) -> None:
    store = SqliteStore(path)
    gate = Gate("g", [Concurrency(1, lease="1h")], store=store, claim="1h")
    permit = gate.acquire()
    waiter = python(WAITER, path, 5)
    assert line_of(waiter) == "ready"
    assert waiter.stdin is not None
    for _ in range(5):
        until(lambda: gate.usage().waiting == 1)
        time.sleep(0.02)
        permit.release()
        assert line_of(waiter) == "granted"
        waiter.stdin.write("on\n")
        waiter.stdin.flush()
        assert line_of(waiter) == "released"
        permit = gate.acquire(timeout=60)
        waiter.stdin.write("on\n")
        waiter.stdin.flush()
    permit.release()
    waiter.wait(timeout=120)
    waiter.communicate()
    store.close()


def test_the_sockets_go_with_those_who_wait(path: str) -> None:
    store = SqliteStore(path)
    store.listen("ticket", lambda delay: None)
    assert os.listdir(wake_folder(path)) == [f"{store.session}.sock"]
    store.close()
    assert not os.path.exists(wake_folder(path))


def test_the_socket_of_a_process_that_was_killed_is_cleared_away(path: str) -> None:
    script = """
        import sys, time
        from headgate.stores.sqlite import SqliteStore
        store = SqliteStore(sys.argv[1])
        store.listen("ticket", lambda delay: None)
        print(store.session, flush=True)
        time.sleep(60)
        """
    store = SqliteStore(path)
    for tell in (True, False):
        waiter = python(script, path)
        session = line_of(waiter)
        assert f"{session}.sock" in os.listdir(wake_folder(path))
        waiter.kill()
        waiter.communicate()
        if tell:
            store._waker.tell(Wake(session, "ticket"))
        else:
            store.listen("mine", lambda delay: None)
        assert f"{session}.sock" not in os.listdir(wake_folder(path))
    store.close()


def test_nobody_minds_wakes_for_those_who_are_not_there_or_do_not_read(path: str) -> None:
    store = SqliteStore(path)
    store._waker.tell(Wake("nobody", "ticket"))
    script = """
        import os, signal, sys
        from headgate.stores.sqlite import SqliteStore
        store = SqliteStore(sys.argv[1])
        store.listen("ticket", lambda delay: None)
        print(store.session, flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        """
    waiter = python(script, path)
    session = line_of(waiter)
    for _ in range(2000):
        store._waker.tell(Wake(session, "ticket", 5))  # more than its socket takes: that it ends is the test
    waiter.kill()
    waiter.communicate()
    store.close()


def test_a_path_that_is_too_long_for_a_socket_has_its_sockets_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    path = str(folder / "gates.db")
    assert not wake_folder(path).startswith(str(tmp_path))
    first, second = SqliteStore(path), SqliteStore(path)
    heard: list[Any] = []
    first.listen("ticket", heard.append)
    second._waker.tell(Wake(first.session, "ticket", 77))
    second._waker.tell(Wake(first.session, "ticket"))
    until(lambda: len(heard) == 2)
    assert heard == [77, None]
    first.close()
    second.close()


def test_the_listening_thread_ends_when_nobody_waits(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake, "IDLE", 0.05)
    store = SqliteStore(path)

    def listening() -> bool:
        return any(thread.name == "headgate-wake" for thread in threading.enumerate())

    store.listen("ticket", lambda delay: None)
    time.sleep(0.2)
    assert listening(), "somebody waits"
    store.unlisten("ticket")
    until(lambda: not listening())
    assert f"{store.session}.sock" not in os.listdir(wake_folder(path))
    store.listen("ticket", lambda delay: None)
    assert f"{store.session}.sock" in os.listdir(wake_folder(path))
    store.close()

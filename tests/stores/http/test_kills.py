"""Guards that are killed or stopped under load: nothing is forgotten, nobody is admitted twice."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headgate import Concurrency, Gate, StoreUnavailable, Window
from headgate.events import Event, subscribe
from headgate.stores.http import HttpStore
from tests.support.guards import GuardProcess, gate_of, one_of
from tests.support.waiting import timed, until


def test_a_killed_guard_forgets_no_lease_and_no_window_and_its_clients_come_back(guard: GuardProcess) -> None:
    gate = gate_of(f"{guard.url}?timeout=5s")
    held = [gate.acquire(holder=f"worker-{number}") for number in range(5)]
    guard.kill()
    guard.start()
    until(lambda: not isinstance(timed(gate.usage)[1], Exception))
    usage = gate.usage()
    assert (usage["w"].used, usage["slots"].used) == (5, 5)
    assert [permit.release() for permit in held] == [True] * 5
    assert gate.usage()["slots"].used == 0


def test_a_guard_that_is_started_on_another_file_tells_its_clients_that_state_was_lost(
    guard: GuardProcess, tmp_path: Path
) -> None:
    stores = [HttpStore(f"{guard.url}?timeout=5s") for _ in range(2)]
    gate, fresh = map(gate_of, stores)
    held = gate.acquire(holder="me")
    guard.kill()
    for file in tmp_path.glob("guard.db*"):
        file.unlink()
    guard.start()
    until(lambda: not isinstance(timed(fresh.usage)[1], Exception))
    for _ in range(40):  # far more than the process that holds a slot has seen
        fresh.acquire().release()
    told: list[Event] = []
    stop = subscribe(told.append)
    held.renew()
    stop()
    assert "state_lost" in [event.kind for event in told], "the client says so"
    assert "has lost state" in guard.log(), "and so does the guard"
    assert [holder.holder for holder in fresh.holders()] == ["me"]
    assert held.release() is True
    for store in stores:
        store.close()


@pytest.mark.timing(
    "a waiter that was told of the outage keeps its place if it asks again before the store hears that it gave up"
)
def test_those_who_wait_keep_their_place_through_a_kill_and_nobody_is_admitted_twice(guard: GuardProcess) -> None:
    # A waiter on a busy machine may take its call late, and must not lose its place for that: this gate's claim is long.
    first = Gate("slow", store=f"{guard.url}?timeout=30s")
    held = first.acquire()
    clients = [HttpStore(f"{guard.url}?timeout=30s") for number in range(3)]
    order: list[int] = []
    inside = most = 0
    lock = threading.Lock()

    def work(number: int) -> None:
        nonlocal inside, most
        gate = Gate("slow", store=clients[number])
        while True:  # what a worker does: the same ask again, by its id
            try:
                permit = gate.acquire(id=f"job-{number}", timeout=60)
                break
            except StoreUnavailable:
                time.sleep(0.02)
        with lock:
            inside += 1
            most = max(most, inside)
            order.append(number)
        time.sleep(0.02)
        with lock:
            inside -= 1
        permit.release()

    threads = []
    for number in range(3):
        threads.append(threading.Thread(target=work, args=(number,), daemon=True))
        threads[-1].start()
        until(lambda number=number: first.usage().waiting == number + 1)  # type: ignore[misc]
    guard.kill()
    guard.start()
    until(lambda: not isinstance(timed(first.usage)[1], Exception))
    until(lambda: first.usage().waiting == 3)
    assert held.release() is True
    for thread in threads:
        thread.join(60)
    assert order == [0, 1, 2]
    assert most == 1
    until(lambda: first.usage()["slots"].used == 0)
    for store in clients:
        store.close()


@pytest.mark.slow
def test_a_guard_that_is_killed_again_and_again_under_load_admits_nobody_twice_and_loses_nothing(
    guard: GuardProcess,
) -> None:
    limits = [Concurrency(3, name="slots", lease="1h"), Window(100_000, per="1h", name="w")]
    clients = [HttpStore(f"{guard.url}?timeout=2s") for _ in range(8)]
    inside = most = done = 0
    lock = threading.Lock()
    over = threading.Event()

    def work(number: int) -> None:
        nonlocal inside, most, done
        gate = Gate("three", limits, store=clients[number])
        turn = 0
        while not over.is_set():
            turn += 1
            while True:
                try:
                    permit = gate.acquire(id=f"job-{number}-{turn}", timeout=60)
                    break
                except StoreUnavailable:
                    time.sleep(0.02)
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0.002)
            with lock:
                inside -= 1
                done += 1
            permit.release()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        before = done
        until(lambda before=before: done > before + 50, 30)  # type: ignore[misc]
        guard.kill()
        guard.start()
    before = done
    until(lambda: done > before + 50)
    over.set()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive()
    assert most == 3
    look = Gate("three", limits, store=clients[0])
    until(lambda: look.usage()["slots"].used == 0 and look.usage().waiting == 0)
    assert look.usage()["w"].used == done, "each admission is counted once, through every kill"
    for store in clients:
        store.close()


def test_a_guard_that_is_stopped_ends_well_and_its_waiters_go_on_with_the_next(guard: GuardProcess) -> None:
    gate = one_of(f"{guard.url}?timeout=5s")
    held = gate.acquire()
    granted: list[Any] = []

    def work() -> None:
        while True:
            try:
                granted.append(gate.acquire(id="waiter", timeout=60))
                return
            except StoreUnavailable:
                time.sleep(0.02)

    waiter = threading.Thread(target=work, daemon=True)
    waiter.start()
    until(lambda: gate.usage().waiting == 1)
    assert guard.stop() in (0, -15), "it ends when it is asked to, in good time"
    guard.start()
    until(lambda: not isinstance(timed(gate.usage)[1], Exception))
    until(lambda: held.release() is True and gate.usage()["slots"].used <= 1)
    waiter.join(60)
    assert len(granted) == 1
    granted[0].release()

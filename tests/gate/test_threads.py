"""Gates under threads: crowds and time-outs."""

from __future__ import annotations

import random
import threading
import time

import pytest

from headgate import Denied, Gate, Window
from headgate.stores.memory import MemoryStore
from tests.support.gates import Crowd, nothing_left, slots
from tests.support.waiting import until

# --- crowds -----------------------------------------------------------------------------------------------------------


def test_fifty_threads_never_exceed_the_slots_and_all_are_served(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [slots(5)], store=store)
    lock, inside, most, served = threading.Lock(), 0, 0, 0

    def work() -> None:
        nonlocal inside, most, served
        for _ in range(10):
            with gate.acquire():
                with lock:
                    inside += 1
                    most = max(most, inside)
                time.sleep(random.random() * 0.002)
                with lock:
                    inside -= 1
                    served += 1

    for _ in range(50):
        crowd.start(work)
    crowd.join()
    assert served == 500
    assert most == 5
    nothing_left(gate)


def test_fifty_threads_stay_within_any_window(crowd: Crowd) -> None:
    # A thread that was granted may stand still for up to the slack before it stamps its arrival.
    gate = Gate("g", [Window(20, per="400ms", slack="2s", name="rate")], store=MemoryStore())
    arrivals: list[float] = []
    for _ in range(50):
        crowd.start(lambda: (gate.acquire(), arrivals.append(time.monotonic())))
    crowd.join()
    assert len(arrivals) == 50
    arrivals.sort()
    for first, after in zip(arrivals, arrivals[20:], strict=False):
        assert after - first >= 0.4


def test_waiters_are_served_in_the_order_in_which_they_came(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [slots(1)], store=store)
    held = gate.acquire()
    order: list[int] = []

    def wait(n: int) -> None:
        with gate.acquire(holder=f"waiter-{n}"):
            order.append(n)

    for n in range(10):
        crowd.start(wait, n)
        until(lambda n=n: gate.usage().waiting == n + 1)
    held.release()
    crowd.join()
    assert order == list(range(10))


@pytest.mark.usefixtures("no_heartbeats")
def test_a_release_wakes_a_waiter_at_once(store: str, crowd: Crowd) -> None:
    """Nothing else could: there is no heartbeat, and the lease and the call would outlast the test."""
    gate = Gate("g", [slots(1, lease="1h")], store=store, claim="1h")
    held = gate.acquire()
    crowd.start(lambda: gate.acquire().release())
    until(lambda: gate.usage().waiting == 1)
    held.release()
    crowd.join()


def test_nobody_who_does_not_wait_goes_before_those_who_do(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [slots(2), Window(3, per="1h", name="w")], store=store)
    held = gate.acquire(cost=2)
    crowd.start(lambda: gate.acquire(cost=3, timeout=60))
    until(lambda: gate.usage().waiting == 1)
    assert gate.try_acquire() is None, "a small ask must not starve the large one that waits"
    held.release("unsent")
    crowd.join()


def test_waiting_reports_how_long_it_took(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [slots(1)], store=store)
    held = gate.acquire()
    assert held.waited == 0
    threading.Timer(0.2, held.release).start()
    assert gate.acquire().waited > 0.1


# --- time-outs --------------------------------------------------------------------------------------------------------


def test_running_out_of_time_says_which_limit_how_long_and_at_which_place(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [slots(1, lease="1h")], store=store)
    gate_held = gate.acquire()
    crowd.start(lambda: gate.acquire(timeout=60).release())
    until(lambda: gate.usage().waiting == 1)
    begun = time.monotonic()
    with pytest.raises(Denied) as caught:
        gate.acquire(timeout=0.15)
    assert time.monotonic() - begun >= 0.15
    denied = caught.value
    assert (denied.gate, denied.limit, denied.position) == ("g", "slots", 2)
    assert denied.retry_after is not None
    assert 0 < denied.retry_after <= 3600
    assert "slots" in str(denied)
    assert "position 2" in str(denied)
    assert gate.usage().waiting == 1
    gate_held.release()
    crowd.join()
    nothing_left(gate)


def test_time_outs_that_race_with_releases_lose_nothing(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [slots(3)], store=store)
    lock, inside, most = threading.Lock(), 0, 0

    def work(seed: int) -> None:
        nonlocal inside, most
        chance = random.Random(seed)
        for _ in range(25):
            try:
                permit = gate.acquire(timeout=chance.random() * 0.004)
            except Denied:
                continue
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(chance.random() * 0.002)
            with lock:
                inside -= 1
            permit.release()

    for seed in range(12):
        crowd.start(work, seed)
    crowd.join()
    assert most <= 3
    nothing_left(gate)


def test_a_pause_that_is_lifted_lets_the_waiters_go(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [slots(5)], store=store)
    gate.pause(3600, "maintenance")
    for _ in range(3):
        crowd.start(lambda: gate.acquire(timeout=60).release())
    until(lambda: gate.usage().waiting == 3)
    gate.resume()
    crowd.join()
    nothing_left(gate)


def test_a_raised_limit_lets_the_waiters_go(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [slots(1)], store=store)
    held = gate.acquire()
    for _ in range(3):
        crowd.start(lambda: gate.acquire(timeout=60))
    until(lambda: gate.usage().waiting == 3)
    gate.set_limit("slots", 4)
    crowd.join()
    held.release()


def test_a_limit_lowered_below_a_waiting_cost_ends_the_wait_with_the_reason(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [Window(10, per="1h", name="w")], store=store)
    gate.acquire(cost=10)
    caught: list[Denied] = []

    def wait() -> None:
        with pytest.raises(Denied) as denied:
            gate.acquire(cost=8, timeout=60)
        caught.append(denied.value)

    crowd.start(wait)
    until(lambda: gate.usage().waiting == 1)
    gate.set_limit("w", 5)
    crowd.join()
    assert caught[0].retry_after is None
    assert "never" in caught[0].reason

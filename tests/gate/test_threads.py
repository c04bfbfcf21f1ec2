"""Gates under threads: crowds, time-outs, interrupts, leases that are renewed in the background, and forks."""

from __future__ import annotations

import gc
import itertools
import linecache
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from headgate import Bucket, Concurrency, Denied, Gate, LeaseLost, Permit, Window
from headgate.events import Event, subscribe
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.support.waiting import until
from tests.support.workers import run_script

NAMES = itertools.count()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://thread-tests-{next(NAMES)}"
    return f"sqlite:///{tmp_path}/gates.db"


def slots(n: int, **more: Any) -> Concurrency:
    return Concurrency(n, name="slots", **more)


class Crowd:
    """Threads that are joined, and whose errors are the test's."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []

    def start(self, target: Callable[..., None], *args: Any) -> threading.Thread:
        def run() -> None:
            try:
                target(*args)
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def join(self, seconds: float = 40.0) -> None:
        end = time.monotonic() + seconds
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
            assert not thread.is_alive(), "a thread still waits"
        assert self.errors == []


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def nothing_left(gate: Gate) -> None:
    assert gate.holders() == []
    assert gate.usage().waiting == 0
    permits = [gate.try_acquire() for _ in range(int(gate.usage()["slots"].limit))]
    assert all(permits), "a slot was lost"
    for permit in permits:
        assert permit is not None
        permit.release("unsent")


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
    gate = Gate("g", [Window(20, per="400ms", slack="400ms", name="rate")], store=MemoryStore())
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


def test_a_release_wakes_a_waiter_at_once(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [slots(1, lease="1h")], store=store)
    held = gate.acquire()
    crowd.start(lambda: gate.acquire().release())
    until(lambda: gate.usage().waiting == 1)
    begun = time.monotonic()
    held.release()
    crowd.join(5)
    assert time.monotonic() - begun < 0.5, "it was woken, and did not wait for a heartbeat or a lease"


def test_nobody_who_does_not_wait_goes_before_those_who_do(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [slots(2), Window(3, per="1h", name="w")], store=store)
    held = gate.acquire(cost=2)
    crowd.start(lambda: gate.acquire(cost=3, timeout=5))
    until(lambda: gate.usage().waiting == 1)
    assert gate.try_acquire() is None, "a small ask must not starve the large one that waits"
    held.release("unsent")
    crowd.join()


def test_waiting_reports_how_long_it_took(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [slots(1)], store=store)
    held = gate.acquire()
    assert held.waited == 0
    threading.Timer(0.2, held.release).start()
    assert 0.1 < gate.acquire().waited < 10


# --- time-outs --------------------------------------------------------------------------------------------------------


def test_running_out_of_time_says_which_limit_how_long_and_at_which_place(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [slots(1, lease="30s")], store=store)
    gate_held = gate.acquire()
    crowd.start(lambda: gate.acquire(timeout=10).release())
    until(lambda: gate.usage().waiting == 1)
    begun = time.monotonic()
    with pytest.raises(Denied) as caught:
        gate.acquire(timeout=0.15)
    assert 0.15 <= time.monotonic() - begun < 5
    denied = caught.value
    assert (denied.gate, denied.limit, denied.position) == ("g", "slots", 2)
    assert denied.retry_after is not None
    assert 0 < denied.retry_after <= 30
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
        crowd.start(lambda: gate.acquire(timeout=30).release())
    until(lambda: gate.usage().waiting == 3)
    gate.resume()
    crowd.join(5)
    nothing_left(gate)


def test_a_raised_limit_lets_the_waiters_go(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [slots(1)], store=store)
    held = gate.acquire()
    for _ in range(3):
        crowd.start(lambda: gate.acquire(timeout=30))
    until(lambda: gate.usage().waiting == 3)
    gate.set_limit("slots", 4)
    crowd.join(5)
    held.release()


def test_a_limit_lowered_below_a_waiting_cost_ends_the_wait_with_the_reason(store: str, crowd: Crowd) -> None:
    gate = Gate("g", [Window(10, per="1h", name="w")], store=store)
    gate.acquire(cost=10)
    caught: list[Denied] = []

    def wait() -> None:
        with pytest.raises(Denied) as denied:
            gate.acquire(cost=8, timeout=30)
        caught.append(denied.value)

    crowd.start(wait)
    until(lambda: gate.usage().waiting == 1)
    gate.set_limit("w", 5)
    crowd.join(5)
    assert caught[0].retry_after is None
    assert "never" in caught[0].reason


# --- interrupts -------------------------------------------------------------------------------------------------------


def interrupt_when(true: Callable[[], bool]) -> None:
    """Send this process a Ctrl-C as soon as something is so."""

    def send() -> None:
        until(true)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send, daemon=True).start()


def test_control_c_while_waiting_in_line_leaves_nothing_behind(store: str) -> None:
    gate = Gate("g", [slots(1)], store=store)
    held = gate.acquire()
    interrupt_when(lambda: gate.usage().waiting == 1)
    with pytest.raises(KeyboardInterrupt):
        gate.acquire()
    assert gate.usage().waiting == 0
    held.release()
    nothing_left(gate)


def test_control_c_while_waiting_for_a_promise_gives_it_back(store: str) -> None:
    gate = Gate("p", [Bucket(1, per="1h", burst=1, slack=0, name="b")], store=store, waiting="promise")
    gate.acquire()
    before = gate.explain().after
    interrupt_when(lambda: (gate.explain().after or 0) > 5000)
    with pytest.raises(KeyboardInterrupt):
        gate.acquire()
    assert before is not None
    assert gate.explain().after == pytest.approx(before, abs=30)


def test_control_c_in_the_block_releases(store: str) -> None:
    gate = Gate("g", [slots(1)], store=store)

    def work() -> None:
        with gate.acquire():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)

    with pytest.raises(KeyboardInterrupt):
        work()
    nothing_left(gate)


class InterruptAt:
    """Raises KeyboardInterrupt at the n-th line that this thread runs in some files: an interrupt that comes anywhere."""

    def __init__(self, n: int, *files: str) -> None:
        self.left = n
        self.files = files
        self.fired = False

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        # A bare `try:` is no instruction: no signal is ever delivered there.
        if event == "line" and linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() != "try:":
            if self.left == 0:
                self.fired = True
                sys.settrace(None)
                raise KeyboardInterrupt
            self.left -= 1
        return self


@pytest.mark.parametrize("ending", ["called", "timed out"])
def test_an_interrupt_at_any_line_of_waiting_leaves_no_ticket(ending: str) -> None:
    store = MemoryStore()
    for n in itertools.count():
        gate = Gate(f"g{n}", [slots(1, lease="1h")], store=store)
        held = gate.acquire()
        called = threading.Timer(0.01, held.release)
        if ending == "called":
            called.start()
        interrupt = InterruptAt(n, "gate/sync.py", "flows.py")
        tracing = sys.gettrace()
        sys.settrace(interrupt)
        try:
            permit = gate.acquire(timeout=5 if ending == "called" else 0.01, lease="300ms")
        except (KeyboardInterrupt, Denied):
            pass
        else:
            sys.settrace(tracing)
            assert permit.release()
            del permit
        finally:
            sys.settrace(tracing)
        held.release()
        until(lambda gate=gate: gate.usage().waiting == 0, 5)
        # A grant that was on its way to its caller is nobody's, and comes back with its lease at the latest.
        gate.acquire(timeout=5).release()
        if not interrupt.fired:
            break
    assert n > 20


# --- leases in the background -----------------------------------------------------------------------------------------


def test_a_short_lease_lives_for_as_long_as_its_permit_is_held(store: str) -> None:
    gate = Gate("g", [slots(1, lease="300ms")], store=store)
    permit = gate.acquire(holder="me")
    expires = permit.lease_expires
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        assert [holder.holder for holder in gate.holders()] == ["me"]
        assert gate.try_acquire() is None
        time.sleep(0.02)
    assert not permit.lost
    assert permit.lease_expires is not None
    assert expires is not None
    assert permit.lease_expires > expires + 1
    assert permit.release() is True


def test_fifty_short_leases_are_kept_by_one_thread(store: str) -> None:
    gate = Gate("g", [slots(50, lease="600ms")], store=store)
    permits = [gate.acquire() for _ in range(50)]
    time.sleep(1.5)
    assert len(gate.holders()) == 50
    assert sum(thread.name == "headgate-keeper" and thread.is_alive() for thread in threading.enumerate()) >= 1
    assert all(permit.release() for permit in permits)


def test_a_short_lease_beside_a_long_one_is_renewed_in_time(store: str) -> None:
    gate = Gate("g", [slots(5, lease="1h")], store=store)
    long = gate.acquire()
    time.sleep(0.1)  # the background has settled down to the long one
    short = gate.acquire(lease="300ms")
    time.sleep(1)
    assert {holder.id for holder in gate.holders()} == {long.id, short.id}
    assert short.release()


def test_without_renewal_a_lease_ends_by_itself(store: str) -> None:
    gate = Gate("g", [slots(1, lease="200ms")], store=store)
    permit = gate.acquire(renew=False)
    assert gate.acquire(timeout=5).waited >= 0.1
    assert permit.release() is False
    assert permit.lost


def test_renewal_ends_with_the_permit(store: str, events: list[Event]) -> None:
    gate = Gate("ending", [slots(4, lease="2s")], store=store)
    permits = [gate.acquire() for _ in range(4)]
    kept, *others = permits

    def renewed(*which: Permit) -> None:
        before = {permit: permit.lease_expires or 0.0 for permit in which}
        until(lambda: all((permit.lease_expires or 0.0) > expires for permit, expires in before.items()))

    renewed(*permits)
    for permit, outcome in zip(others, ("ok", "error", "unsent"), strict=True):
        assert permit.release(outcome) is True
    ended = [permit.lease_expires for permit in others]
    renewed(kept)
    renewed(kept)
    assert [permit.lease_expires for permit in others] == ended
    assert [holder.id for holder in gate.holders()] == [kept.id]
    assert kept.release() is True
    assert not any(permit.lost for permit in permits)
    assert [event for event in events if event.gate == "ending"] == []


class Meddling:
    """The lock of a store, with which something else happens the moment it is free."""

    def __init__(self, lock: Any) -> None:
        self.acquire, self._is_owned = lock.acquire, lock._is_owned
        self._release = lock.release
        self.then: Callable[[], None] | None = None

    def release(self) -> None:
        self._release()
        then, self.then = self.then, None
        if then is not None:
            then()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def test_a_heartbeat_at_the_very_moment_of_a_release_takes_nothing_for_lost(events: list[Event]) -> None:
    store: Any = MemoryStore()
    lock = store._lock = Meddling(store._lock)
    gate = Gate("moment", [slots(1, lease="1h")], store=store)
    permit = gate.acquire()
    store.keeper._tick(time.monotonic())  # which has seen it, and renews it in twenty minutes
    lock.then = lambda: store.keeper._tick(time.monotonic() + 1800)
    assert permit.release() is True
    assert lock.then is None
    assert not permit.lost
    assert [event for event in events if event.gate == "moment"] == []


def test_the_holder_is_told_when_its_lease_is_lost(store: str, events: list[Event]) -> None:
    gate, other = Gate("told", [slots(1, lease="300ms")], store=store), Gate("told", [slots(1)], store=store)
    permit = gate.acquire(holder="unlucky")
    assert other.release(permit.id)
    until(lambda: permit.lost)
    until(lambda: any(event.facts.get("id") == permit.id for event in events))
    told = next(event for event in events if event.facts.get("id") == permit.id)
    assert (told.kind, told.gate, told.facts["holder"]) == ("lease_lost", "told", "unlucky")
    with pytest.raises(LeaseLost, match=permit.id):
        permit.renew()
    taken = other.acquire(timeout=1)
    assert permit.release() is False
    assert [holder.id for holder in gate.holders()] == [taken.id]
    assert sum(event.facts.get("id") == permit.id for event in events) == 1, "it is told once"


def test_a_dropped_permit_comes_back_after_its_lease_and_is_told(store: str, events: list[Event]) -> None:
    gate = Gate("careless", [slots(1, lease="300ms")], store=store)
    id = gate.acquire().id  # and nobody keeps it
    gc.collect()
    permit = gate.acquire(timeout=5)
    assert permit.id != id
    until(lambda: any(event.facts.get("id") == id for event in events))
    told = next(event for event in events if event.facts.get("id") == id)
    assert (told.kind, told.gate) == ("permit_dropped", "careless")


def test_an_event_sink_that_fails_stops_nobody(store: str, events: list[Event]) -> None:
    def broken(event: Event) -> None:
        raise ZeroDivisionError

    end = subscribe(broken)
    try:
        gate = Gate("g", [slots(1, lease="200ms")], store=store)
        permit = gate.acquire()
        gate.release(permit.id)
        until(lambda: permit.lost)
        again = gate.acquire(timeout=5)
        time.sleep(0.5)
        assert again.release() is True
    finally:
        end()


def test_new_gates_that_come_while_others_wait_do_not_end_the_background(crowd: Crowd) -> None:
    store = MemoryStore()
    gate = Gate("g", [slots(1, lease="200ms")], store=store)
    permit = gate.acquire()

    def wait(gate: Gate) -> None:
        with pytest.raises(Denied):
            gate.acquire(timeout=0.3)

    for n in range(150):
        other = Gate(f"other-{n}", [slots(1)], store=store)
        other.acquire(renew=False)
        crowd.start(wait, other)
    crowd.join()
    time.sleep(0.3)
    assert not permit.lost
    assert permit.release() is True


# --- the end of a process, and forks ----------------------------------------------------------------------------------


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
        print(time.monotonic())
    """
    ended, printed = run_script(script)
    assert ended - float(printed) < 3


def test_a_forked_child_has_a_session_and_a_background_of_its_own(store: str) -> None:
    script = f"""
        import os, time
        from headgate import Gate, Concurrency
        gate = Gate("g", [Concurrency(2, name="slots", lease="300ms")], store={store!r})
        mine = gate.acquire(holder="parent")
        child = os.fork()
        if child == 0:
            permit = gate.acquire(holder="child", timeout=5)
            assert permit.id.partition("-")[0] != mine.id.partition("-")[0]
            time.sleep(1)
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
        import os, signal, time
        from headgate import Gate, Concurrency
        gate = Gate("g", [Concurrency(1, name="slots", lease="500ms")], store={url!r})
        middle = os.fork()
        if middle == 0:
            permit = gate.acquire(holder="parent")
            if os.fork() == 0:
                time.sleep(20)  # lives on with a copy of the permit
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(middle, 0)
        assert [holder.holder for holder in gate.holders()] == ["parent"]
        assert gate.acquire(timeout=5).waited < 3
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
                    gate.acquire(timeout=5).release()
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
    until(lambda: gate.usage().waiting == 3, 10)

    def buried() -> bool:
        clock.advance(60)  # the machine slept, and nobody was heard of
        gate.try_acquire()
        return gate.usage().waiting == 0

    until(buried, 10)
    until(lambda: gate.usage().waiting == 3, 10)
    held.release()
    for waiter in waiters:
        waiter.join(10)
    assert sorted(went) == [0, 1, 2]

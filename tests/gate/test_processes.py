"""Many processes on one SQLite file: killed, stopped, with wrong clocks, restarted. An upstream keeps its own books."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import Bucket, Concurrency, Denied, Gate, Window
from tests.support.waiting import until
from tests.support.workers import Child, children, run_script


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    with children() as starter:
        yield starter


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/gates.db"


ONE_SLOT = {"slots": {"limit": 1, "lease": "1h"}}


def one_slot(url: str, lease: str = "1h") -> Gate:
    return Gate("shared", [Concurrency(1, name="slots", lease=lease)], store=url)


def stop_between_writes(child: Child, url: str) -> None:
    """SIGSTOP at a moment when the child does not have the file's only write lock, which nobody could take from it."""

    def stopped_without_the_lock() -> bool:
        child.signal(signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)  # until all of its threads have stopped
        file = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0, isolation_level=None)
        try:
            file.execute("BEGIN IMMEDIATE")
            file.execute("ROLLBACK")
        except sqlite3.OperationalError:
            child.signal(signal.SIGCONT)
            return False
        finally:
            file.close()
        return True

    until(stopped_without_the_lock)


def say(measured: str) -> None:
    """What was measured, for whoever runs these with `-s`: no bound, since machines differ."""
    sys.stdout.write(measured + "\n")


# --- the fleet --------------------------------------------------------------------------------------------------------

RATE, PER, SLOTS = 40, 1.0, 12

FLEET: dict[str, Any] = {
    # Workers are stopped for up to 300 ms, between a grant and its call as well, and share their cores with others: that is
    # what slack is for.
    "window": {"limit": RATE, "per": PER, "slack": 2.0},
    "slots": {"limit": SLOTS, "lease": "3s"},
}


def judge(books: Any) -> None:
    """By the upstream's own clock and count: no window too full, no slot taken twice."""
    arrivals = books["arrivals"]
    assert arrivals == sorted(arrivals)
    for first, after in zip(arrivals, arrivals[RATE:], strict=False):
        assert after - first >= PER, f"{RATE + 1} calls within {after - first:.3f} s"
    assert books["most"] <= SLOTS


def fleet_run(start: Callable[..., Child], url: str, seconds: float, threads: int = 3) -> Any:
    """Eight processes on one gate of any store, killed and stopped at random. Returns the upstream's books."""
    chance = random.Random(7)
    upstream = start("upstream")
    port = upstream.read()["port"]
    options = {"store": url, "limits": FLEET, "port": port, "threads": threads}
    workers = [start("worker", **options) for _ in range(8)]
    for worker in workers:
        worker.read()
    stopped: list[tuple[float, Child]] = []
    end = time.monotonic() + seconds
    kills = stops = 0
    while time.monotonic() < end:
        time.sleep(0.1)
        for due, worker in [pair for pair in stopped if pair[0] <= time.monotonic()]:
            stopped.remove((due, worker))
            worker.signal(signal.SIGCONT)
        if chance.random() < 0.5:  # every 200 ms
            victim = chance.choice([worker for worker in workers if worker not in [w for _, w in stopped]])
            victim.kill()
            workers.remove(victim)
            workers.append(start("worker", **options))
            kills += 1
        elif len(stopped) < 2:
            sleeper = chance.choice([worker for worker in workers if worker not in [w for _, w in stopped]])
            sleeper.signal(signal.SIGSTOP)
            stopped.append((time.monotonic() + chance.uniform(0.05, 0.3), sleeper))
            stops += 1
    for _, worker in stopped:
        worker.signal(signal.SIGCONT)
    until(lambda: upstream.order("count")["count"] > RATE)  # those who are left go on, as fast as the machine lets them
    for worker in workers:
        worker.end_orders()
    told = [worker.finish() for worker in workers]
    assert len(told) == 8, "every surviving ask was served"
    books = upstream.finish()
    judge(books)
    say(
        f"\n{kills} killed, {stops} stopped, {len(books['arrivals'])} calls in {seconds:.0f} s "
        f"(at most {seconds / PER * RATE:.0f}), most at once {books['most']} of {SLOTS}"
    )
    gate = Gate(
        "shared", [Window(RATE, per=PER, slack=2.0, name="window"), Concurrency(SLOTS, name="slots")], store=url
    )
    until(lambda: gate.holders() == [])
    return books


@pytest.mark.slow
def test_a_fleet_that_is_killed_and_stopped_at_random_stays_within_its_limits(
    start: Callable[..., Child], url: str
) -> None:
    fleet_run(start, url, 8)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_fleet_that_is_killed_and_stopped_at_random_for_long_stays_within_its_limits(
    start: Callable[..., Child], url: str
) -> None:
    fleet_run(start, url, 30)


@pytest.mark.slow
def test_wall_clocks_that_are_wrong_by_hours_change_nothing(start: Callable[..., Child], url: str) -> None:
    upstream = start("upstream")
    port = upstream.read()["port"]
    options = {"store": url, "limits": FLEET, "port": port, "threads": 3}
    clocks: list[dict[str, float]] = [{"wall_clock": 3600.0}, {"wall_clock": -3600.0}, {"wall_clock": 0.0}, {}]
    workers = [start("worker", **options, **clock) for clock in clocks]
    for worker in workers:
        worker.read()
    time.sleep(4)
    until(lambda: upstream.order("count")["count"] >= RATE * 2)
    for worker in workers:
        worker.end_orders()
    told = [worker.finish() for worker in workers]
    books = upstream.finish()
    judge(books)
    assert [worker["lost"] for worker in told] == [0] * 4
    assert all(worker["served"] > 0 for worker in told), "each of them gets its share"


# --- stopped for longer than a lease ----------------------------------------------------------------------------------

#: The same in virtual time, exactly, is in the store suite.
AFTER_ONE_LEASE = pytest.mark.timing(
    "a real process died or stands still, and the lease that it left ends by the clock alone"
)
AFTER_ONE_CLAIM = pytest.mark.timing(
    "a real process died or stands still, and the call that it was told ends by the clock alone"
)


@AFTER_ONE_LEASE
def test_a_holder_stopped_for_longer_than_its_lease_frees_nobody_elses_slot_and_is_told(
    start: Callable[..., Child], url: str
) -> None:
    gate = one_slot(url, "500ms")
    holder = start("holder", store=url, limits={"slots": {"limit": 1, "lease": "500ms"}}, ask={"holder": "stopped"})
    holder.read()
    stop_between_writes(holder, url)
    mine = gate.acquire(timeout=60, holder="mine")
    assert mine.waited < 3, "its slot is back after one lease"
    holder.signal(signal.SIGCONT)
    until(lambda: holder.order("look") == {"lost": True, "events": ["lease_lost"]})
    assert holder.order("renew") == {"renewed": False}
    assert holder.order("release")["released"] is False
    assert [found.holder for found in gate.holders()] == ["mine"]
    assert gate.try_acquire() is None
    assert mine.release() is True


def test_a_release_right_after_being_stopped_for_too_long_is_told_as_well(
    start: Callable[..., Child], url: str
) -> None:
    gate = one_slot(url)
    holder = start("holder", store=url, limits={"slots": {"limit": 1, "lease": "300ms"}}, ask={"renew": False})
    holder.read()
    stop_between_writes(holder, url)
    mine = gate.acquire(timeout=60)
    holder.signal(signal.SIGCONT)
    told = holder.order("release")
    assert (told["released"], told["lost"]) == (False, True)
    assert mine.release() is True


@AFTER_ONE_LEASE
def test_a_killed_holders_slot_is_back_after_one_lease(start: Callable[..., Child], url: str) -> None:
    gate = one_slot(url, "1s")
    holder = start("holder", store=url, limits={"slots": {"limit": 1, "lease": "1s"}})
    holder.read()
    time.sleep(0.5)
    holder.kill()
    assert gate.try_acquire() is None, "nobody can know yet that it is dead"
    assert gate.acquire(timeout=60).waited < 2


# --- waiters that die -------------------------------------------------------------------------------------------------


def waiting(gate: Gate, n: int) -> Callable[[], bool]:
    return lambda: gate.usage().waiting == n


@AFTER_ONE_CLAIM
def test_a_process_that_was_killed_costs_one_claim_however_many_of_its_threads_waited(
    start: Callable[..., Child], url: str
) -> None:
    gate = one_slot(url)
    held = gate.acquire()
    dying = start("waiter", store=url, limits=ONE_SLOT, threads=5)
    until(waiting(gate, 5))
    patient = start("waiter", store=url, limits=ONE_SLOT)
    until(waiting(gate, 6))
    dying.kill()
    released = time.monotonic()
    held.release()
    took = patient.read()["granted"] - released
    say(f"\nfrom the release to the grant behind five dead waiters: {took:.3f} s")
    assert took < 1.75, "one claim of 1 s, and not five"


@AFTER_ONE_CLAIM
def test_a_waiter_that_is_killed_after_it_was_called_costs_at_most_one_claim(
    start: Callable[..., Child], url: str
) -> None:
    gate = one_slot(url)
    held = gate.acquire()
    dying = start("waiter", store=url, limits=ONE_SLOT)
    until(waiting(gate, 1))
    patient = start("waiter", store=url, limits=ONE_SLOT)
    until(waiting(gate, 2))
    stop_between_writes(dying, url)
    released = time.monotonic()
    held.release()  # it is called now, and cannot take it
    dying.kill()
    assert patient.read()["granted"] - released < 1.75


@AFTER_ONE_CLAIM
def test_a_stopped_waiter_that_comes_back_still_gets_its_turn(start: Callable[..., Child], url: str) -> None:
    gate = one_slot(url)
    held = gate.acquire()
    sleeper = start("waiter", store=url, limits=ONE_SLOT)
    until(waiting(gate, 1))
    stop_between_writes(sleeper, url)
    held.release()
    mine = gate.acquire(timeout=60)
    assert mine.waited < 2
    sleeper.signal(signal.SIGCONT)
    time.sleep(0.2)
    mine.release()
    assert "granted" in sleeper.read()


@pytest.mark.slow
def test_a_killed_waiter_leaves_the_line_by_itself(start: Callable[..., Child], url: str) -> None:
    gate = one_slot(url)
    held = gate.acquire()
    dying = start("waiter", store=url, limits=ONE_SLOT, threads=3)
    until(waiting(gate, 3))
    dying.kill()
    killed = time.monotonic()
    with pytest.raises(Denied):
        gate.acquire(timeout=12)  # somebody who waits keeps the line in order
    assert gate.usage().waiting == 0
    say(f"\nthe dead were gone {time.monotonic() - killed:.1f} s after they were killed at the latest")
    held.release()
    permit = gate.try_acquire()
    assert permit is not None, "nobody stands before it"
    permit.release()


# --- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_a_restart_that_keeps_the_file_forgets_nothing(start: Callable[..., Child], url: str, how: str) -> None:
    limits = {"window": {"limit": 10, "per": "1h"}, "slots": {"limit": 5, "lease": "1h"}}
    spender = start("spender", store=url, limits=limits, costs=[3, 2], promises=3)
    assert spender.read()["delays"] == pytest.approx([0, 3600, 7200], abs=30)
    if how == "ends":
        spender.finish()
    else:
        spender.kill()
    gate = Gate("shared", [Window(10, per="1h", name="window"), Concurrency(5, name="slots", lease="1h")], store=url)
    usage = gate.usage()
    assert usage["window"].used == 5
    assert usage["slots"].used == 2
    assert [holder.holder for holder in gate.holders()] == ["before the restart"] * 2
    assert gate.try_acquire(cost=6) is None
    assert gate.release(gate.holders()[0].id)
    promise = Gate("promised", [Bucket(1, per="1h", burst=1, slack=0, name="bucket")], store=url, waiting="promise")
    assert promise.reserve().delay == pytest.approx(3 * 3600, abs=60)


def test_a_limit_set_or_paused_in_one_process_is_so_in_all(url: str) -> None:
    gate = one_slot(url)
    run_script(f"""
        from headgate import Gate, Concurrency
        gate = Gate("shared", [Concurrency(1, name="slots")], store={url!r})
        gate.set_limit("slots", 2)
        gate.acquire(renew=False, lease="1h")
        gate.pause(3600, "by the other")
    """)
    assert gate.usage().pause_reason == "by the other"
    assert gate.try_acquire() is None
    gate.resume()
    assert gate.try_acquire() is not None
    assert gate.try_acquire() is None
    assert [found.value for found in gate.overrides()] == [2]


def test_a_permit_taken_in_one_process_can_be_released_by_id_in_another(start: Callable[..., Child], url: str) -> None:
    holder = start("holder", store=url, limits=ONE_SLOT)
    gate = one_slot(url)
    assert gate.release(holder.read()["id"]) is True
    assert gate.try_acquire() is not None
    told = holder.order("release")
    assert (told["released"], told["lost"]) == (False, True)


# --- what waiting costs -----------------------------------------------------------------------------------------------


def test_what_a_wait_across_processes_costs(start: Callable[..., Child], url: str) -> None:
    one, two = (start("turns", store=url, limits=ONE_SLOT, turns=60) for _ in range(2))
    one.read(), two.read()
    first, second = one.finish(), two.finish()
    releases = sorted(first["released"] + second["released"])
    delays = []
    for granted in sorted(first["granted"] + second["granted"])[1:]:
        before = [released for released in releases if released <= granted]
        delays.append(granted - before[-1])
    say(
        f"\nfrom a release to the grant in the other process: median {statistics.median(delays) * 1000:.2f} ms, "
        f"95 % {statistics.quantiles(delays, n=20)[-1] * 1000:.2f} ms ({len(delays)} turns)"
    )
    assert len(delays) == 119


def test_what_an_idle_waiter_costs(start: Callable[..., Child], url: str) -> None:
    gate = one_slot(url)
    held = gate.acquire()
    idle = start("waiter", store=url, limits=ONE_SLOT)
    until(waiting(gate, 1))
    before = idle.order("look")["cpu"]
    time.sleep(3)
    spent = idle.order("look")["cpu"] - before
    say(f"\nan idle waiter spends {spent / 3 * 100:.3f} % of a core")
    held.release()
    assert "granted" in idle.read()

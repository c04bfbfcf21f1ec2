"""Many processes on one gate in Redis, on one server and on a cluster: killed and stopped. An upstream keeps its own books.

How utilisation is measured: 200 workers want more than the limit, so what is lost is what is free. An observer looks at the
gate some forty times a second, from when it was first full; what is free is the share of the scarcer limit that nobody has,
whether somebody waits for it or not, and utilisation is 1 less the mean of that.

What a killed worker has taken with it is not free: what it did not confirm counts for `per + slack`, its slots for one
lease, and a call that it was told and did not take is held for one `claim` (1 s), or until the server finds that nobody
listens there any more. That is the price of not knowing that it is dead, five times in every second. It is told beside the
utilisation: what arrived at the upstream, of all that the limit allows. Where nobody is killed, what arrives has to be 98 %
as well.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from headgate import Concurrency, Gate, Window
from headgate.stores.redis import RedisStore
from tests.support.servers import Cluster, Server, new
from tests.support.waiting import until
from tests.support.workers import Child, children

PROCESSES, WORKERS = 8, 25

#: 100 calls a second; 200 workers that pause for 1.2 s after a call want half as much again.
LIMIT, PER, SLACK, SLOTS, PAUSE = 100, 1.0, 1.0, 64, 1.2

# Workers are stopped for up to 300 ms, between a grant and its call as well, and all share the cores of one machine.
LIMITS: dict[str, Any] = {
    "window": {"limit": LIMIT, "per": PER, "slack": SLACK},
    "slots": {"limit": SLOTS, "lease": "3s"},
}

#: Utilisation, at least.
WANTED = 0.98


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    with children() as starter:
        yield starter


@pytest.fixture(params=["server", "cluster"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with new(of=Server if request.param == "server" else Cluster) as made:
        yield f"{made.url}?timeout=10s"  # what is busy here is this machine: that is no failure of the store


class Observer:
    """Looks at the gate again and again: what was free while somebody waited, and whether it was ever too full."""

    def __init__(self, url: str) -> None:
        self.store = RedisStore(url)
        self.gate = Gate(
            "shared",
            [Window(LIMIT, per=PER, slack=SLACK, name="window"), Concurrency(SLOTS, name="slots", lease="3s")],
            store=self.store,
        )
        self.free: list[float] = []
        self.fullest: dict[str, float] = {"window": 0, "slots": 0}
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(0.02):
                usage = self.gate.usage()
                for name in self.fullest:
                    self.fullest[name] = max(self.fullest[name], usage[name].used)
                free = min(1 - usage["window"].used / LIMIT, 1 - usage["slots"].used / SLOTS)
                if self.free or free == 0:  # from when it was first full
                    self.free.append(free)
        except BaseException as error:
            self.failure = error

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join(60)
        assert self.failure is None, self.failure

    @property
    def utilisation(self) -> float:
        assert len(self.free) > 100, "it was never full"
        return 1 - sum(self.free) / len(self.free)


class Fleet:
    """Processes of workers, each of which can be killed, stopped and replaced at once."""

    def __init__(self, start: Callable[..., Child], **options: Any) -> None:
        self.nursery = start("nursery", **options)
        self.nursery.read()
        self.living: list[int] = []
        for _ in range(PROCESSES):
            self.add()

    def add(self) -> None:
        told = self.nursery.order("{}")
        while "pid" not in told:  # one of them tells that it is ready
            told = self.nursery.read()
        self.living.append(told["pid"])

    def replace(self, victim: int) -> None:
        os.kill(victim, signal.SIGKILL)
        self.living.remove(victim)
        self.add()

    def finish(self) -> list[Any]:
        """Have each finish what it is at; what they tell."""
        told = [self.nursery.order("end")]
        while sum("served" in one for one in told) < PROCESSES:
            told.append(self.nursery.read())
        return [one for one in told if "served" in one]


def harass(fleet: Fleet, seconds: float) -> tuple[int, int]:
    """Kill one at random every 200 ms and start another for it; meanwhile stop others for up to 300 ms."""
    chance = random.Random(7)
    stopped: list[tuple[float, int]] = []
    kills = stops = 0
    end = time.monotonic() + seconds
    kill_at = time.monotonic()
    while (now := time.monotonic()) < end:
        for due, worker in [pair for pair in stopped if pair[0] <= now]:
            stopped.remove((due, worker))
            os.kill(worker, signal.SIGCONT)
        standing = [worker for worker in fleet.living if worker not in [sleeper for _, sleeper in stopped]]
        if now >= kill_at:
            kill_at += 0.2
            fleet.replace(chance.choice(standing))
            kills += 1
        elif len(stopped) < 2 and chance.random() < 0.15:
            sleeper = chance.choice(standing)
            os.kill(sleeper, signal.SIGSTOP)
            stopped.append((now + chance.uniform(0.05, 0.3), sleeper))
            stops += 1
        time.sleep(0.02)
    for _, worker in stopped:
        os.kill(worker, signal.SIGCONT)
    return kills, stops


def judge(arrivals: list[float], limit: int, per: float) -> None:
    """By the upstream's own clock and count: no window too full."""
    assert arrivals == sorted(arrivals)
    for first, after in zip(arrivals, arrivals[limit:], strict=False):
        assert after - first >= per, f"{limit + 1} calls within {after - first:.3f} s"


def harassed_run(start: Callable[..., Child], url: str, seconds: float, wanted: float | None = None) -> None:
    """What must hold on any machine; and, where it is wanted, the utilisation, which is a figure of the machine as well."""
    upstream = start("upstream")
    fleet = Fleet(start, store=url, limits=LIMITS, port=upstream.read()["port"], threads=WORKERS, pause=PAUSE)
    with Observer(url) as observer:
        begun = time.monotonic()
        kills, stops = harass(fleet, seconds)
        took = time.monotonic() - begun
        until(lambda: upstream.order("count")["count"] > LIMIT)  # those who are left go on, however slow the machine
    assert len(fleet.finish()) == PROCESSES, "every surviving ask was served"
    books = upstream.finish()
    arrivals = books["arrivals"]
    judge(arrivals, LIMIT, PER)
    assert max(books["most"], observer.fullest["slots"]) <= SLOTS
    assert observer.fullest["window"] <= LIMIT
    if wanted is not None:
        arrived = sum(begun <= at < begun + took for at in arrivals)
        sys.stdout.write(
            f"\n{kills} killed, {stops} stopped in {took:.1f} s; utilisation {observer.utilisation:.2%} "
            f"({len(observer.free)} looks); {arrived} calls arrived, {arrived / (LIMIT / PER * took):.1%} of what the "
            f"limit allows, the rest went with the dead; most slots {observer.fullest['slots']:g} of {SLOTS}\n"
        )
        assert observer.utilisation >= wanted
    end = time.monotonic() + 60
    while observer.gate.holders():
        assert time.monotonic() < end, "the slots of the dead are back after one lease"
        time.sleep(0.05)
    observer.store.close()


WAITING = """
import sys, threading
from headgate import Concurrency, Gate

gate = Gate("shared", [Concurrency(2, name="slots", lease="1h")], store=sys.argv[1], claim="1h")
for _ in range(6):
    threading.Thread(target=lambda: (gate.acquire(), print("granted", flush=True))).start()
"""


def listening(url: str) -> int:
    """How many processes the servers know to listen for their turns."""
    place = urlsplit(url)
    assert place.hostname is not None
    assert place.port is not None
    ports = {place.port}
    if "cluster" in place.scheme:
        with redis.RedisCluster(place.hostname, place.port) as cluster:
            ports = {node.port for node in cluster.get_primaries()}
    heard = set()
    for port in ports:
        with redis.Redis(place.hostname, port) as server:
            heard.update(server.pubsub_channels())
    return len(heard)


def test_the_turns_of_a_process_that_was_killed_go_to_others_at_once(url: str) -> None:
    """Nobody takes its calls: the server sees that nobody listens there any more, and does not hold them for a claim."""
    store = RedisStore(url)
    gate = Gate("shared", [Concurrency(2, name="slots", lease="1h")], store=store, claim="1h")
    held = [gate.acquire() for _ in range(2)]
    dying = subprocess.Popen([sys.executable, "-c", WAITING, url], stdout=subprocess.PIPE)
    until(lambda: gate.usage().waiting == 6)
    waited: list[float] = []
    waiter = threading.Thread(target=lambda: waited.append(gate.acquire().waited))
    waiter.start()
    until(lambda: gate.usage().waiting == 7 and listening(url) == 2)
    held.pop().release()
    assert dying.stdout is not None
    assert dying.stdout.readline() == b"granted\n"
    dying.kill()
    dying.communicate()
    until(lambda: listening(url) == 1)
    held.pop().release()
    waiter.join(60)
    assert waited, "it waits for a claim"
    store.close()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_200_workers_that_are_killed_and_stopped_at_random_stay_within_their_limits_and_use_them(
    start: Callable[..., Child], url: str
) -> None:
    harassed_run(start, url, 10)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_200_workers_that_are_killed_and_stopped_for_long_stay_within_their_limits_and_use_them(
    start: Callable[..., Child], url: str
) -> None:
    harassed_run(start, url, 30, WANTED)


@pytest.mark.soak  # a figure: two files of tests at a time on two cores are too noisy for it
@pytest.mark.timeout(1200)
def test_200_workers_that_nobody_kills_bring_what_the_limit_allows_to_the_upstream(
    start: Callable[..., Child], url: str
) -> None:
    """Measured by the upstream alone: how long after a call the one that could follow it in the next window came.

    Answers take 5 to 50 ms, and a call counts for `per` from its answer on. The first window is not counted: while less
    than a quarter of a limit is in use, answers are not told to the store, and those calls count for `per + slack`.
    """
    limit, per = 300, 3.0
    upstream = start("upstream")
    limits = {"window": {"limit": limit, "per": per, "slack": SLACK}, "slots": {"limit": SLOTS, "lease": "3s"}}
    fleet = Fleet(start, store=url, limits=limits, port=upstream.read()["port"], threads=WORKERS, pause=PAUSE)
    time.sleep(3.6 * per)
    assert len(fleet.finish()) == PROCESSES
    arrivals = upstream.finish()["arrivals"]
    judge(arrivals, limit, per)
    waits = [after - first for first, after in zip(arrivals[limit:], arrivals[2 * limit :], strict=False)]
    assert len(waits) >= limit // 2
    utilisation = per / (sum(waits) / len(waits))
    sys.stdout.write(f"\nutilisation at the upstream {utilisation:.2%} ({len(arrivals)} calls)\n")
    assert utilisation >= WANTED

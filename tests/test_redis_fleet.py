"""Many processes on one gate in Redis, on one server and on a cluster: killed and stopped. An upstream keeps its own books.

How utilisation is measured: somebody always waits (200 workers for a few slots), so all that can be lost is capacity that is
free meanwhile. A process of its own looks at the gate some fifty times a second; what it finds free is the share of the
scarcer limit that nobody has, and utilisation is 1 less the mean of that. A unit that a killed worker has taken with it is not
free: a call that it did not take is held for one `claim`, what it did not confirm counts for `per + slack`, its slots for one
lease, as designed. How much that was is told beside it: what arrived at the upstream, of all that the limit allows in that time.
Without kills that second figure has to be 98 % as well.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers import Cluster, NoServer, Server, in_ci
from workers import Child, children

from headgate import Concurrency, Gate, Window
from headgate.stores.redis import RedisStore

PROCESSES, WORKERS = 8, 25

#: 40 calls a second, and many more workers than slots.
LIMIT, PER, SLACK, SLOTS = 160, 4.0, 1.0, 24

LIMITS: dict[str, Any] = {
    # Workers are stopped for up to 300 ms, between a grant and its call as well, and all share the cores of one machine.
    "window": {"limit": LIMIT, "per": PER, "slack": SLACK},
    "slots": {"limit": SLOTS, "lease": "3s"},
}

#: Of what could be used while somebody waited.
WANTED = 0.98


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    with children() as starter:
        yield starter


@pytest.fixture(params=["server", "cluster"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    try:
        made: Any = Server() if request.param == "server" else Cluster()
    except NoServer as missing:
        (pytest.fail if in_ci() else pytest.skip)(str(missing))
    with made:
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
        self.idlers = 0
        self.failure: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(0.02):
                usage = self.gate.usage()
                for name in self.fullest:
                    self.fullest[name] = max(self.fullest[name], usage[name].used)
                if usage.waiting:
                    self.free.append(min(1 - usage["window"].used / LIMIT, 1 - usage["slots"].used / SLOTS))
                else:
                    self.idlers += 1
        except BaseException as error:
            self.failure = error

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping.set()
        self._thread.join(20)
        assert self.failure is None, self.failure

    @property
    def utilisation(self) -> float:
        assert len(self.free) > 10 * self.idlers, "somebody waits nearly all of the time"
        return 1 - sum(self.free) / len(self.free)


def harass(start: Callable[..., Child], workers: list[Child], options: Any, seconds: float) -> tuple[int, int]:
    """Kill one at random every 200 ms and start another for it; meanwhile stop others for up to 300 ms."""
    chance = random.Random(7)
    stopped: list[tuple[float, Child]] = []
    kills = stops = 0
    end = time.monotonic() + seconds
    kill_at = time.monotonic()
    while (now := time.monotonic()) < end:
        for due, worker in [pair for pair in stopped if pair[0] <= now]:
            stopped.remove((due, worker))
            worker.signal(signal.SIGCONT)
        standing = [worker for worker in workers if worker not in [sleeper for _, sleeper in stopped]]
        if now >= kill_at:
            kill_at += 0.2
            victim = chance.choice(standing)
            victim.kill()
            workers[workers.index(victim)] = start("worker", **options)
            kills += 1
        elif len(stopped) < 2 and chance.random() < 0.3:
            sleeper = chance.choice(standing)
            sleeper.signal(signal.SIGSTOP)
            stopped.append((now + chance.uniform(0.05, 0.3), sleeper))
            stops += 1
        time.sleep(0.03)
    for _, worker in stopped:
        worker.signal(signal.SIGCONT)
    return kills, stops


def judge(books: Any) -> None:
    """By the upstream's own clock and count: no window too full, no slot taken twice."""
    arrivals = books["arrivals"]
    assert arrivals == sorted(arrivals)
    for first, after in zip(arrivals, arrivals[LIMIT:], strict=False):
        assert after - first >= PER, f"{LIMIT + 1} calls within {after - first:.3f} s"
    assert books["most"] <= SLOTS


def run(start: Callable[..., Child], url: str, seconds: float, harassed: bool = True) -> tuple[float, float]:
    """One run; the share of the capacity that was in use, and the share of it that arrived at the upstream."""
    upstream = start("upstream")
    options = {"store": url, "limits": LIMITS, "port": upstream.read()["port"], "threads": WORKERS}
    workers = [start("worker", **options) for _ in range(PROCESSES)]
    for worker in workers:
        worker.read()
    with Observer(url) as observer:
        begun = time.monotonic()
        kills = stops = 0
        if harassed:
            kills, stops = harass(start, workers, options, seconds)
        else:
            time.sleep(seconds)
        ended = time.monotonic()
    for worker in workers:
        worker.end_orders()
    told = [worker.finish(60) for worker in workers]
    assert len(told) == PROCESSES, "every surviving ask was served"
    books = upstream.finish()
    judge(books)
    assert observer.fullest["window"] <= LIMIT
    assert observer.fullest["slots"] <= SLOTS
    arrived = sum(begun <= at < ended for at in books["arrivals"])
    share = arrived / (LIMIT / PER * (ended - begun))
    sys.stdout.write(
        f"\n{kills} killed, {stops} stopped, {arrived} calls in {ended - begun:.1f} s, {share:.1%} of what the limit allows; "
        f"in use while somebody waited: {observer.utilisation:.2%} ({len(observer.free)} looks); "
        f"most at once {books['most']} of {SLOTS}\n"
    )
    end = time.monotonic() + 15
    while observer.gate.holders():
        assert time.monotonic() < end, "the slots of the dead are back after one lease"
        time.sleep(0.05)
    observer.store.close()
    return observer.utilisation, share


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_200_workers_that_are_killed_and_stopped_at_random_stay_within_their_limits_and_use_them(
    start: Callable[..., Child], url: str
) -> None:
    used, _ = run(start, url, 10)
    assert used >= WANTED


@pytest.mark.soak
@pytest.mark.timeout(240)
def test_200_workers_that_are_killed_and_stopped_for_long_stay_within_their_limits_and_use_them(
    start: Callable[..., Child], url: str
) -> None:
    used, _ = run(start, url, 30)
    assert used >= WANTED


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_200_workers_that_nobody_kills_bring_what_the_limit_allows_to_the_upstream(
    start: Callable[..., Child], url: str
) -> None:
    used, arrived = run(start, url, 2 * PER, harassed=False)
    assert used >= WANTED
    assert arrived >= WANTED

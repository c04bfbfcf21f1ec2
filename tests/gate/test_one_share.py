"""One local share per process, store and gate name: by books of the tests' own, whatever becomes of asks and replies.

The bound: what the store has granted is never more than the limit, what the share has granted never more than the share, so
both together are at most limit + share, at any moment and in any `per`.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Denied, Gate, StoreUnavailable, Window
from headgate.gate.keeper import keeper_of
from headgate.gate.share import LocalShare
from headgate.kernel.commands import Admit, Renew
from headgate.kernel.model import Wait
from headgate.kernel.plan import Policy
from headgate.stores.http import HttpStore
from headgate.testing import FakeClock
from tests.support.guards import GuardProcess
from tests.support.servers import Proxy, Server
from tests.support.waiting import timed, until

#: A gate as the tests of slots have it, and its share: a tenth of 100.
SLOTS, SHARE = 100, 10


class Caller:
    """A gate object, asked from a thread of its own: an event loop's where the gate is an AsyncGate."""

    def __init__(self, kind: type[Gate | AsyncGate], limits: list[Any], store: Any, **more: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.gate: Any = kind("g", limits, store=store, **more)

    def _call(self, name: str, *arguments: Any, **ask: Any) -> Any:
        async def call() -> Any:
            answer = getattr(self.gate, name)(*arguments, **ask)
            return await answer if isinstance(self.gate, AsyncGate) else answer

        done: Future[Any] = asyncio.run_coroutine_threadsafe(call(), self._loop)
        return done.result(30)

    def ask(self, **ask: Any) -> Any:
        """A permit, or None."""
        with suppress(Denied, StoreUnavailable):
            return self._call("try_acquire", **ask)
        return None

    def release(self, permit: Any) -> None:
        async def end() -> None:
            ended = permit.release()
            if isinstance(self.gate, AsyncGate):
                await ended

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(30)

    def close(self) -> None:
        async def end() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def callers(*kinds: type[Gate | AsyncGate], **how: Any) -> Iterator[list[Caller]]:
    made = [Caller(kind, **how) for kind in kinds]
    try:
        yield made
    finally:
        for caller in made:
            caller.close()


def away(caller: Caller) -> bool:
    return bool(caller.gate._outage.away)


def notices(caller: Caller) -> None:
    """Have one caller find out that the store is back."""

    def asked() -> bool:
        if (permit := caller.ask()) is not None:
            caller.release(permit)
        return not away(caller)

    until(asked)


PAIRS = pytest.mark.parametrize(
    "kinds",
    [(Gate, Gate), (Gate, AsyncGate), (AsyncGate, AsyncGate)],
    ids=["threads", "threads and asyncio", "two event loops"],
)


@PAIRS
def test_gates_of_one_name_have_one_share_also_where_only_one_sees_that_the_store_was_back(
    server: Server, stores: Any, kinds: Any
) -> None:
    limits = [Concurrency(SLOTS, name="slots", lease="1h")]
    with (
        Proxy(server.address) as proxy,
        callers(*kinds, limits=limits, store=stores(proxy.url), on_store_error="local:0.1") as (one, other),
    ):
        for caller in (one, other):
            caller.release(caller.ask())
        proxy.refuse()
        held = [caller.ask() for _ in range(SHARE) for caller in (one, other)]
        assert sum(permit is not None for permit in held) == SHARE
        proxy.accept_again()
        notices(one)
        proxy.refuse()
        more = [caller.ask() for _ in range(SHARE) for caller in (one, other)]
        assert not any(more), "what the share admitted before the store was back is still held"
        for caller, permit in zip((one, other) * SHARE, held, strict=True):
            if permit is not None:
                caller.release(permit)
        again = [caller.ask() for _ in range(SHARE) for caller in (other, one)]
        assert sum(permit is not None for permit in again) == SHARE, "and comes back with its release"


def test_two_stores_of_one_url_are_one_store_with_one_share(server: Server, stores: Any) -> None:
    with Proxy(server.address) as proxy:
        one, other = (
            Gate("g", [Concurrency(10, name="slots", lease="1h")], store=stores(proxy.url), on_store_error="local:0.2")
            for _ in range(2)
        )
        one.acquire().release()
        proxy.refuse()
        held = [gate.try_acquire() for gate in (one, other, one, other)]
        assert sum(permit is not None for permit in held) == 2


def test_gates_that_are_told_different_things_know_together_whether_the_store_is_away(
    server: Server, stores: Any, events: list[Any]
) -> None:
    with Proxy(server.address) as proxy:
        store = stores(proxy.url)
        limits = [Concurrency(10, name="slots", lease="1h")]
        closed, small, large = (
            Gate("g", limits, store=store, on_store_error=mode) for mode in ("closed", "local:0.1", "local:0.3")
        )
        closed.acquire().release()
        proxy.refuse()
        with pytest.raises(StoreUnavailable):
            closed.acquire()
        held = [small.try_acquire(), small.try_acquire(), large.try_acquire(), large.try_acquire(), large.try_acquire()]
        assert [permit is not None for permit in held] == [True, False, True, True, False]
        assert [event.kind for event in events].count("store_down") == 1, "told once"
        assert "closed or local" in str(next(event for event in events if event.kind == "store_down"))


# --- rates ------------------------------------------------------------------------------------------------------------


class Spans:
    """When each grant was made: between the moment before its ask and the one after."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        self._lock = threading.Lock()

    def add(self, begun: float) -> None:
        with self._lock:
            self._spans.append((begun, time.monotonic()))

    def most_within(self, seconds: float) -> int:
        """The most grants that were surely made within so many seconds."""
        spans = sorted(self._spans)
        return max((sum(t <= begun and ended < t + seconds for begun, ended in spans) for t, _ in spans), default=0)


@pytest.mark.parametrize(
    "limit", [Window(100, per="1s", slack=0, name="w"), Bucket(100, per="1s", slack=0, burst=100, name="b")], ids=str
)
def test_a_share_of_a_rate_holds_across_outages(server: Server, stores: Any, limit: Any) -> None:
    """The state of the share survives the return of the store, and begins as if used up at each new outage."""
    with Proxy(server.address) as proxy:
        gate = Gate("g", [limit], store=stores(proxy.url), on_store_error="local:0.1")
        gate.acquire()
        spans = Spans()
        proxy.refuse()
        with suppress(StoreUnavailable):
            gate.try_acquire()
        time.sleep(1.3)  # all of the share has come back
        for _ in range(3):
            end = time.monotonic() + 0.3
            while time.monotonic() < end:
                begun = time.monotonic()
                permit = gate.try_acquire()
                if permit is not None and isinstance(permit._store, LocalShare):
                    spans.add(begun)
            proxy.accept_again()
            until(lambda: gate.try_acquire() is not None and not gate._outage.away)
            proxy.refuse()
        bound = 10 if isinstance(limit, Window) else 20  # a bucket's burst, and what it fills in a second
        assert 0 < spans.most_within(1.0) <= bound


def test_a_promise_gate_gives_no_more_than_its_share(server: Server, stores: Any) -> None:
    with Proxy(server.address) as proxy:
        gate = Gate(
            "g",
            [Window(100, per="1s", slack=0, name="w")],
            store=stores(proxy.url),
            waiting="promise",
            on_store_error="local:0.1",
        )
        gate.acquire()
        proxy.refuse()
        spans = Spans()
        assert gate.try_acquire() is None, "as if just used up"
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            begun = time.monotonic()
            gate.acquire(timeout=5)
            spans.add(begun)
        assert 0 < spans.most_within(1.0) <= 10
        with pytest.raises(Denied):
            gate.acquire(cost=50, timeout=5)


# --- what holds a permit of the share -----------------------------------------------------------------------------------


def test_a_permit_of_the_share_can_be_renewed_and_ended_by_its_id(server: Server, stores: Any) -> None:
    with Proxy(server.address) as proxy:
        gate = Gate(
            "g", [Concurrency(4, name="slots", lease="1h")], store=stores(proxy.url), on_store_error="local:0.5"
        )
        gate.acquire().release()
        proxy.refuse()
        one, other = gate.acquire(), gate.acquire()
        assert gate.renew(one.id) > 0
        assert gate.release(one.id) is True
        proxy.accept_again()
        until(lambda: not isinstance(timed(gate.usage)[1], StoreUnavailable))
        assert gate.renew(other.id) > 0
        assert gate.release(other.id) is True
        assert gate.release(other.id) is False
        proxy.refuse()
        assert [gate.try_acquire() is not None for _ in range(3)] == [True, True, False]


def test_a_lease_of_the_share_that_ended_does_not_return_with_the_next_outage() -> None:
    """State that was lost lets holders register again; a share loses none, and only has its rates begin anew."""
    clock = FakeClock()
    share = LocalShare(clock=clock)
    policy = Policy("g", [Concurrency(1, name="slots", lease="10s"), Window(4, per="1s", slack=0, name="w")])
    plan = policy.plan()
    assert isinstance(share.decide(Admit(plan, "late", None, plan.lease)), Wait)
    clock.advance(1)
    late = share.decide(Admit(plan, "late", None, plan.lease))
    clock.advance(11)
    next_one = share.decide(Admit(plan, "next", None, plan.lease))
    clock.advance(1)
    share.use_up("g")
    row = (plan, "late", late.at, plan.lease, late.fence, None)
    mine = (plan, "next", next_one.at, plan.lease, next_one.fence, None)
    [pulse] = share.execute([Renew("g", (row, mine))])
    assert pulse.expires["late"] == 0
    assert pulse.expires["next"] > 0
    assert share.decide(Renew("g", (row,))).expires["late"] == 0


def test_a_child_of_a_fork_has_a_share_of_its_own(server: Server, stores: Any) -> None:
    with Proxy(server.address) as proxy:
        gate = Gate(
            "g", [Concurrency(4, name="slots", lease="1h")], store=stores(proxy.url), on_store_error="local:0.5"
        )
        gate.acquire().release()
        proxy.refuse()
        held = [gate.acquire(), gate.acquire()]
        pid = os.fork()
        if not pid:
            granted = 0
            with suppress(BaseException):
                granted = sum(gate.try_acquire() is not None for _ in range(4))
            os._exit(granted)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
        assert gate.try_acquire() is None
        assert all(permit.release() for permit in held)


# --- replies that are eaten, delayed, and a store that comes and goes -----------------------------------------------------

LIMIT, PER_SECOND = 6, 50
#: With local:0.4.
SHARE_OF_SLOTS, SHARE_PER_SECOND = 2, 20


class Books:
    """What is under way, as its workers know it: from after a grant until before its release."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.live = {"store": 0, "share": 0}
        self.most = {"store": 0, "share": 0, "both": 0}
        self.spans = {"store": Spans(), "share": Spans(), "both": Spans()}

    def enter(self, permit: Any, begun: float) -> str:
        source = "share" if isinstance(permit._store, LocalShare) else "store"
        self.spans[source].add(begun)
        self.spans["both"].add(begun)
        with self._lock:
            self.live[source] += 1
            self.most[source] = max(self.most[source], self.live[source])
            self.most["both"] = max(self.most["both"], sum(self.live.values()))
        return source

    def leave(self, source: str) -> None:
        with self._lock:
            self.live[source] -= 1


def work_in_threads(gate: Gate, books: Books, seed: int, stopping: threading.Event) -> list[threading.Thread]:
    def work(chance: random.Random) -> None:
        while not stopping.is_set():
            begun = time.monotonic()
            permit = gate.try_acquire()
            if permit is None:
                time.sleep(0.005)
                continue
            source = books.enter(permit, begun)
            time.sleep(chance.random() * 0.2)
            books.leave(source)
            permit.release()

    return [threading.Thread(target=work, args=(random.Random(seed + number),)) for number in range(5)]


def work_on_a_loop(gate: AsyncGate, books: Books, seed: int, stopping: threading.Event) -> list[threading.Thread]:
    async def work(chance: random.Random) -> None:
        while not stopping.is_set():
            begun = time.monotonic()
            permit = await gate.try_acquire()
            if permit is None:
                await asyncio.sleep(0.005)
                continue
            source = books.enter(permit, begun)
            await asyncio.sleep(chance.random() * 0.2)
            books.leave(source)
            await permit.release()

    async def work_all() -> None:
        await asyncio.gather(*(work(random.Random(seed + number)) for number in range(5)))

    return [threading.Thread(target=lambda: asyncio.run(work_all()))]


@pytest.fixture
def behind_a_proxy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], tuple[Any, Proxy]]]:
    """A store, and the proxy that it is reached by."""
    ends: list[Callable[[], Any]] = []

    def start(kind: str) -> tuple[Any, Proxy]:
        if kind == "redis":
            server: Server = request.getfixturevalue("server")
            proxy = Proxy(server.address)
            store: Any = request.getfixturevalue("stores")(proxy.url)
        else:
            limits = f"[{{ concurrency = {LIMIT}, name = 'slots', lease = '60s' }}, "
            limits += f"{{ window = {PER_SECOND}, per = '1s', slack = '300ms', name = 'w' }}]"
            guard = GuardProcess(tmp_path, f'store = "sqlite:///guard.db"\n[gates.g]\nlimits = {limits}\n')
            proxy = Proxy(("127.0.0.1", guard.port))
            store = HttpStore(f"http://127.0.0.1:{proxy.port}")
            ends.extend((guard.kill, store.close))
        ends.append(proxy.close)
        return store, proxy

    yield start
    for end in reversed(ends):
        end()


FAULTS: dict[str, Callable[[Proxy], None]] = {
    "eaten": lambda proxy: setattr(proxy, "eats", True),
    "late": lambda proxy: setattr(proxy, "delay", 2.0),
    "refused": Proxy.refuse,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["redis", "http"])
@pytest.mark.parametrize("seed", [1, 2])
def test_store_and_share_together_never_grant_more_than_limit_and_share(
    behind_a_proxy: Callable[[str], tuple[Any, Proxy]], kind: str, seed: int
) -> None:
    store, proxy = behind_a_proxy(kind)
    chance = random.Random(seed)
    books, stopping = Books(), threading.Event()
    limits = [
        Concurrency(LIMIT, name="slots", lease="60s"),
        # What reaches a worker late was granted late enough: an answer comes within 200 ms, or not at all.
        Window(PER_SECOND, per="1s", slack="300ms", name="w"),
    ]
    workers: list[threading.Thread] = []
    for number in range(2):
        gates: tuple[Any, Any] = tuple(
            made("g", limits, store=store, on_store_error="local:0.4") for made in (Gate, AsyncGate)
        )
        workers += work_in_threads(gates[0], books, 100 * seed + number, stopping)
        workers += work_on_a_loop(gates[1], books, 200 * seed + number, stopping)
    for worker in workers:
        worker.start()
    faults = [*FAULTS.values()] * 4
    chance.shuffle(faults)
    for fault in faults:
        time.sleep(chance.random() * 0.5)
        fault(proxy)
        time.sleep(chance.random() * 0.9)
        proxy.eats, proxy.delay = False, 0.0
        if fault is Proxy.refuse:
            proxy.accept_again()
    stopping.set()
    for worker in workers:
        worker.join()
    most, spans = books.most, {source: found.most_within(1.0) for source, found in books.spans.items()}
    assert 0 < most["store"] <= LIMIT
    assert 0 < most["share"] <= SHARE_OF_SLOTS
    assert most["both"] <= LIMIT + SHARE_OF_SLOTS
    assert 0 < spans["store"] <= PER_SECOND
    assert 0 < spans["share"] <= SHARE_PER_SECOND
    assert spans["both"] <= PER_SECOND + SHARE_PER_SECOND
    until(lambda: not keeper_of(store)._later)

"""Some processes are cut off from Redis while others go on: what that can cost at most, by the books of an upstream.

With L the limit, k the processes that are cut off and s their share, in any window the upstream sees at most

- closed: L. Those who are cut off stand still.
- local: L × (1 + k × s). Those who reach the store have all of L, each of the others s × L of its own. Nobody can be given
  more by being cut off again and again: a share begins as if it had just been used up, each time.
- open: there is no bound, and each call that passed is counted.

A slot whose holder is cut off for longer than its lease goes to somebody else, and the holder is told: for as long as it
goes on all the same, there are as many calls more at once as it held slots.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate import AsyncGate, Concurrency, Denied, Gate, HeadgateError, StoreUnavailable
from headgate.stores.redis import RedisStore
from tests.support.servers import Proxy, Server
from tests.support.timing import DECIDES_IN_TIME
from tests.support.waiting import DECIDED, until
from tests.support.workers import Child, children

LIMIT, PER, SLOTS, SHARE = 100, 1.0, 40, 0.1
CUT_OFF = 2

LIMITS: dict[str, Any] = {
    "window": {"limit": LIMIT, "per": PER, "slack": 1.0},
    "slots": {"limit": SLOTS, "lease": "3s"},
}


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    with children() as starter:
        yield starter


def fullest(arrivals: list[float]) -> int:
    """The most in any window, by the upstream's clock."""
    most = first = 0
    for last, at in enumerate(arrivals):
        while arrivals[first] <= at - PER:
            first += 1
        most = max(most, last - first + 1)
    return most


def run(start: Callable[..., Child], server: Server, mode: str) -> tuple[Any, list[Any], list[Any]]:
    """Two processes are cut off three times, two go on. The upstream's books, and what each kind tells."""
    upstream = start("upstream")
    common = {"limits": LIMITS, "port": upstream.read()["port"], "threads": 10}
    with Proxy(server.address) as proxy:
        near = [start("worker", **common, store=f"{server.url}?timeout=10s") for _ in range(2)]
        gate = {"on_store_error": mode}
        far = [start("worker", **common, store=proxy.url, cut_off=True, gate=gate) for _ in range(CUT_OFF)]
        for worker in (*near, *far):
            worker.read()
        for cut in (proxy.refuse, proxy.stall, proxy.refuse):
            time.sleep(1)
            cut()
            enough = upstream.order("count")["count"] + LIMIT
            time.sleep(2)
            until(lambda enough=enough: upstream.order("count")["count"] > enough)  # type: ignore[misc]  # others go on
            (proxy.flow if cut == proxy.stall else proxy.accept_again)()
        time.sleep(1)
        for worker in (*near, *far):
            worker.end_orders()
        told = [[worker.finish() for worker in kind] for kind in (near, far)]
    books = upstream.finish()
    sys.stdout.write(
        f"\n{mode}: at most {fullest(books['arrivals'])} in a window of {LIMIT}, at most {books['most']} at once of "
        f"{SLOTS}; {[one['served'] for one in told[0]]} and, cut off, {[one['served'] for one in told[1]]}\n"
    )
    return books, *told


@pytest.mark.slow
def test_closed_processes_that_are_cut_off_cost_nothing(start: Callable[..., Child], server: Server) -> None:
    books, near, far = run(start, server, "closed")
    assert fullest(books["arrivals"]) <= LIMIT
    assert books["most"] <= SLOTS
    assert all(one["refused"] > 20 for one in far), "they were told, again and again"
    assert all(one["events"]["store_down"] == one["events"]["store_up"] for one in far)
    assert sum(one["served"] for one in near) > LIMIT * 3, "the others went on each time"


@pytest.mark.slow
def test_local_processes_that_are_cut_off_cost_at_most_their_shares(
    start: Callable[..., Child], server: Server
) -> None:
    books, near, far = run(start, server, f"local:{SHARE}")
    assert fullest(books["arrivals"]) <= LIMIT * (1 + CUT_OFF * SHARE)
    assert books["most"] <= SLOTS * (1 + CUT_OFF * SHARE)
    assert all(one["events"]["store_down"] >= 2 for one in far)
    assert all("permit_dropped" not in one["events"] for one in far), "what they held of their share was let go of"
    assert all(one["served"] > 0 for one in far)
    assert all(one["served"] > 0 for one in near)


@pytest.mark.slow
def test_open_processes_that_are_cut_off_count_every_call_that_passed(
    start: Callable[..., Child], server: Server
) -> None:
    books, _, far = run(start, server, "open")
    passed = sum(one["events"].get("passed_open", 0) for one in far)
    assert passed > 2 * LIMIT, "nothing held them back"
    counted = len(books["arrivals"]) - passed
    took = books["arrivals"][-1] - books["arrivals"][0]
    assert counted <= LIMIT * (took / PER + 1), "all others are within the limit"
    assert all(one["refused"] == 0 for one in far)


#: Seconds until those in line know. Where their connections are dropped that tells them; where nothing is said any more it
#: takes the longest time between two heartbeats, and two tries of 200 ms on a busy machine.
KNOWN = {"refuse": DECIDED, "stall": 3.3 + 1.0}


@DECIDES_IN_TIME
@pytest.mark.parametrize("looped", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize("mode", ["closed", "open", "local:0.5"])
@pytest.mark.parametrize("fault", ["refuse", "stall"])
def test_those_in_line_learn_that_the_store_is_away_and_do_what_their_gate_says(
    server: Server, fault: str, mode: str, looped: bool
) -> None:
    """They sleep until they are called, and there is nobody who could call them."""
    limits = [Concurrency(4, name="slots", lease="1h")]
    other = RedisStore(f"{server.url}?timeout=10s")
    held = [Gate("g", limits, store=other).acquire(renew=False) for _ in range(4)]
    told: list[Any] = []
    # Those for whom the share of their process has no slot wait for one as long as they may.
    at_once, patience = (2, 8.0) if mode == "local:0.5" else (10, None)
    with Proxy(server.address) as proxy:
        store = RedisStore(proxy.url)

        def wait() -> None:
            try:
                told.append(Gate("g", limits, store=store, on_store_error=mode).acquire(timeout=patience))
            except Exception as error:
                told.append(error)

        async def wait_looped() -> None:
            gate = AsyncGate("g", limits, store=store, on_store_error=mode)

            async def ask() -> None:
                try:
                    told.append(await gate.acquire(timeout=patience))
                except HeadgateError as error:
                    told.append(error)

            await asyncio.gather(*(ask() for _ in range(10)))

        targets = [lambda: asyncio.run(wait_looped())] if looped else [wait] * 10
        waiters = [threading.Thread(target=target) for target in targets]
        for waiter in waiters:
            waiter.start()
        look = Gate("g", limits, store=other)
        while look.usage().waiting < 10:
            time.sleep(0.01)
        # Until their process listens for its turns: it is that connection's end that tells them.
        until(lambda: server.command("PUBSUB", "CHANNELS"))
        getattr(proxy, fault)()
        until(lambda: len(told) >= at_once, KNOWN[fault])
        for waiter in waiters:
            waiter.join(60)
        granted = sum(not isinstance(one, Exception) for one in told)
        assert len(told) == 10
        assert granted == {"closed": 0, "open": 10, "local:0.5": 2}[mode]
        refused = StoreUnavailable if mode == "closed" else Denied
        assert all(isinstance(one, refused) for one in told if isinstance(one, Exception))
        proxy.flow() if fault == "stall" else proxy.accept_again()
        end = time.monotonic() + 60
        while look.usage().waiting:
            assert time.monotonic() < end, "they have left the line"
            time.sleep(0.05)
        store.close()
    for permit in held:
        permit.release()
    other.close()


def test_who_begins_to_wait_when_nothing_can_be_heard_any_more_looks_as_the_others_did(server: Server) -> None:
    """Its answer was there just before the connections went: without that it learns of it with its heartbeat alone."""
    first: list[Any] = []
    late: list[Any] = []
    with Proxy(server.address) as proxy:
        store = RedisStore(proxy.url)
        store.listen("first", first.append)
        until(lambda: first == [0])  # it is heard from here on
        proxy.refuse()
        until(lambda: len(first) == 2)
        store.listen("late", late.append)
        assert late == [0]
        proxy.accept_again()
        until(lambda: len(late) == 2)
        store.listen("later", late.append)
        assert len(late) == 2, "who comes when it is heard again has nothing to look for"
        store.close()


@pytest.mark.timing("a real process is cut off, and the lease that it left ends by the clock alone")
def test_a_holder_that_is_cut_off_for_longer_than_its_lease_is_told_and_frees_nobody_elses_slot(
    start: Callable[..., Child], server: Server
) -> None:
    one = {"limits": {"slots": {"limit": 1, "lease": "1s"}}}
    with Proxy(server.address) as proxy:
        holder = start("holder", **one, store=proxy.url)
        holder.read()
        proxy.stall()
        other = start("holder", **one, store=f"{server.url}?timeout=10s", ask={"timeout": 10})
        assert other.read()["waited"] <= 2, "its slot is free after one lease"
        proxy.flow()
        end = time.monotonic() + 60
        while not (look := holder.order("look"))["lost"]:
            assert time.monotonic() < end, look
            time.sleep(0.05)
        assert holder.order("release")["released"] is False
        assert other.order("release")["released"] is True
        holder.signal(signal.SIGKILL)

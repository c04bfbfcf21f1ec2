"""The fail mode of a gate takes effect in time when Redis is killed, frozen, slow or full."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Gate, StoreUnavailable
from headgate.events import Event
from tests.support.redis_gates import PATIENT, answers, gate_of, kinds
from tests.support.servers import Proxy, Server
from tests.support.timing import DECIDES_IN_TIME
from tests.support.waiting import DECIDED, Stopwatch, held_up, says_so_in_time, says_so_to_many, timed, until


def refuse(server: Server, proxy: Proxy) -> Callable[[], None]:
    proxy.refuse()
    return proxy.accept_again


def freeze(server: Server, proxy: Proxy) -> Callable[[], None]:
    server.freeze()
    return server.thaw


def swallow(server: Server, proxy: Proxy) -> Callable[[], None]:
    proxy.stall()
    return proxy.flow


def kill(server: Server, proxy: Proxy) -> Callable[[], None]:
    server.kill()
    return server.start  # type: ignore[return-value]


def hold_up(server: Server, proxy: Proxy) -> Callable[[], None]:
    server.command("CLIENT", "PAUSE", 100_000, "ALL")

    def go_on() -> None:
        # CLIENT UNPAUSE would be paused itself where all commands are.
        server.kill()
        server.start()

    return go_on


def fill_up(server: Server, proxy: Proxy) -> Callable[[], None]:
    server.fill_up()
    return lambda: server.command("CONFIG", "SET", "maxmemory", "0")


FAULTS = [refuse, freeze, swallow, kill, hold_up, fill_up]


@DECIDES_IN_TIME
@pytest.mark.parametrize("fault", FAULTS)
def test_a_closed_gate_says_so_in_time_and_is_back_by_itself(
    server: Server, proxy: Proxy, stores: Any, fault: Callable[[Server, Proxy], Callable[[], None]]
) -> None:
    gate = gate_of(stores(proxy.url))
    gate.acquire().release()
    mend = fault(server, proxy)
    says_so_in_time(gate)
    mend()
    until(lambda: answers(gate))


@DECIDES_IN_TIME
@pytest.mark.parametrize("fault", FAULTS)
def test_an_open_gate_lets_pass_in_time_with_a_line_and_a_count_for_each(
    server: Server,
    proxy: Proxy,
    stores: Any,
    events: list[Event],
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[Server, Proxy], Callable[[], None]],
) -> None:
    gate = gate_of(stores(proxy.url), "open")
    gate.acquire().release()
    mend = fault(server, proxy)
    with caplog.at_level(logging.INFO, logger="headgate"):
        took, permit = timed(gate.acquire)
        assert took < DECIDED
        assert permit.release() is True
        begun = time.monotonic()
        for _ in range(50):
            with gate.acquire():
                pass
        assert time.monotonic() - begun < 2
        assert kinds(events).count("passed_open") == 51
        assert kinds(events).count("store_down") == 1
        told = [record for record in caplog.records if "let pass" in record.getMessage()]
        assert len(told) == 51
        mend()
        until(lambda: answers(gate) and "store_up" in kinds(events))


@DECIDES_IN_TIME
@pytest.mark.parametrize("fault", FAULTS)
def test_a_local_gate_uses_its_share_and_no_more(
    server: Server, proxy: Proxy, stores: Any, fault: Callable[[Server, Proxy], Callable[[], None]]
) -> None:
    limits = [Bucket(1000, per="1s", slack=0, name="b")]
    gate = Gate("g", limits, store=stores(proxy.url), on_store_error="local:0.02")
    gate.acquire()
    mend = fault(server, proxy)
    took, first = timed(gate.try_acquire)
    assert took < DECIDED
    assert first is None, "20 a second, and none of them at once"
    begun = time.monotonic()
    passed = 0
    while time.monotonic() - begun < 1:
        passed += gate.try_acquire() is not None
        assert passed <= 20 * (time.monotonic() - begun) + 1
        time.sleep(0.002)
    mend()
    until(lambda: gate.try_acquire(cost=100) is not None)


@DECIDES_IN_TIME
@pytest.mark.parametrize("fault", FAULTS)
def test_an_event_loop_is_told_in_time_and_not_held_up(
    server: Server, proxy: Proxy, stores: Any, fault: Callable[[Server, Proxy], Callable[[], None]]
) -> None:
    gate = AsyncGate("g", [Concurrency(5000, name="slots", lease="1h")], store=stores(proxy.url))

    async def main() -> None:
        await (await gate.acquire()).release()
        mend = await asyncio.to_thread(fault, server, proxy)
        async with held_up() as seconds:
            for _ in range(3):
                watch = Stopwatch()
                told = await asyncio.gather(*(gate.acquire() for _ in range(50)), return_exceptions=True)
                assert all(isinstance(error, StoreUnavailable) for error in told)
                assert watch.seconds() < DECIDED
                await asyncio.sleep(0.3)
        assert max(seconds) < 0.2
        await asyncio.to_thread(mend)
        end = time.monotonic() + 60
        while True:
            try:
                permit = await gate.try_acquire()
                assert permit is not None
                await permit.release()  # one that is dropped would be told to the test after this one
                return
            except StoreUnavailable:
                assert time.monotonic() < end
                await asyncio.sleep(0.05)

    asyncio.run(main())


@DECIDES_IN_TIME
def test_many_threads_that_find_the_server_frozen_are_all_told_in_time(server: Server, stores: Any) -> None:
    gate = gate_of(stores(server.url))
    gate.acquire().release()
    server.freeze()
    says_so_to_many(gate)
    server.thaw()


def test_contention_is_no_failure(server: Server, stores: Any, events: list[Event]) -> None:
    gate = gate_of(stores(server.url + PATIENT), "open")
    granted: list[int] = []

    def ask() -> None:
        for _ in range(30):
            with gate.acquire():
                granted.append(1)

    threads = [threading.Thread(target=ask) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(granted) == 64 * 30
    assert "passed_open" not in kinds(events)
    assert gate.usage()["w"].used == 64 * 30


def test_the_other_half_of_a_partition_costs_at_most_its_share(server: Server, proxy: Proxy, stores: Any) -> None:
    """A process that is cut off uses its share while the others use all: the sum is at most 1 + share of the limit."""
    limits = [Bucket(200, per="1s", slack=0, burst=20, name="b")]
    here = Gate("g", limits, store=stores(server.url + PATIENT))
    cut_off = Gate("g", limits, store=stores(proxy.url), on_store_error="local:0.1")
    cut_off.acquire()
    proxy.refuse()
    begun = time.monotonic()
    passed = {here: 0, cut_off: 0}
    while time.monotonic() - begun < 1.5:
        for gate in passed:
            passed[gate] += gate.try_acquire() is not None
        time.sleep(0.001)
    elapsed = time.monotonic() - begun
    assert passed[here] <= 20 + 200 * elapsed + 1
    assert passed[cut_off] <= 0.1 * (20 + 200 * elapsed) + 1

"""Waiters on the DynamoDB store: who goes, what they cost, and who leaves the line."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from headgate import Concurrency, Denied, Gate, Window
from headgate.stores.dynamodb import DynamoStore
from headgate.testing import FakeClock
from tests.support.dynamo_servers import Fault, Proxy
from tests.support.dynamo_tables import ON_ANY, sometimes
from tests.support.waiting import until
from tests.support.workers import Child, children


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    with children() as starter:
        yield starter


def url_of(proxy: Proxy, table: str, spread: float = 0.25) -> str:
    return f"dynamodb://{table}?region=eu-central-1&endpoint={proxy.endpoint}&timeout=10&spread={spread}"


@ON_ANY
def test_a_slot_that_one_process_releases_goes_to_one_that_waits_in_another(
    start: Callable[..., Child], proxy: Proxy, table: str
) -> None:
    gate = Gate("shared", [Concurrency(1, name="slots", lease="1h")], store=url_of(proxy, table))
    held = gate.acquire()
    waiter = start("waiter", store=url_of(proxy, table), limits={"slots": {"limit": 1, "lease": "1h"}})
    end = time.monotonic() + 60
    while not gate.usage().waiting:
        assert time.monotonic() < end
        time.sleep(0.05)
    proxy.counts.clear()
    held.release()
    assert "granted" in waiter.read()
    assert proxy.counts["GetItem"] <= 5, f"it polls now and then: {dict(proxy.counts)}"


@ON_ANY
@pytest.mark.slow
def test_a_fleet_of_100_that_waits_costs_at_most_one_read_per_waiter_and_named_time(
    start: Callable[..., Child], proxy: Proxy, table: str
) -> None:
    limits = {"window": {"limit": 120, "per": 30.0, "slack": 0.1}}
    gate = Gate("shared", [Window(120, per=30.0, slack=0.1, name="window")], store=url_of(proxy, table))
    for _ in range(120):
        gate.acquire()
    fleet = [start("waiter", store=url_of(proxy, table), limits=limits, threads=25) for _ in range(4)]
    end = time.monotonic() + 240
    while gate.usage().waiting < 100:
        assert time.monotonic() < end
        time.sleep(0.2)
    proxy.counts.clear()
    begun = time.monotonic()
    granted = [waiter.read()["granted"] for waiter in fleet for _ in range(25)]
    waited = max(granted) - begun
    assert waited > 1.5, "they had to wait"
    # Everything that was asked for while 100 waited and went: looks, heartbeats, taking their calls.
    assert proxy.counts["GetItem"] <= 100, dict(proxy.counts)
    assert proxy.counts["PutItem"] <= 100, dict(proxy.counts)


@ON_ANY
@pytest.mark.slow
def test_processes_with_a_single_waiter_each_cost_at_most_one_read_per_waiter_and_named_time(
    opened: Callable[..., DynamoStore], proxy: Proxy
) -> None:
    """Each says twice or more meanwhile that it lives: a write that reads nothing, and is a look at the line as well."""
    limits = [Window(20, per=16.0, slack=0.1, name="window")]
    gate = Gate("shared", limits, store=opened())
    for _ in range(20):
        gate.acquire()
    granted: list[float] = []

    def wait(store: DynamoStore) -> None:
        Gate("shared", limits, store=store).acquire()
        granted.append(time.monotonic())

    waiters = [threading.Thread(target=wait, args=(opened(),)) for _ in range(20)]
    for waiter in waiters:
        waiter.start()
    until(lambda: gate.usage().waiting == 20)
    proxy.counts.clear()
    begun = time.monotonic()
    until(lambda: granted)
    meanwhile = proxy.counts.copy()
    for waiter in waiters:
        waiter.join(60)
    sys.stdout.write(f"\n{granted[0] - begun:.1f} s: {dict(meanwhile)} meanwhile, {dict(proxy.counts)} in all\n")
    assert len(granted) == 20
    assert granted[0] - begun > 8, "they had to wait"
    assert meanwhile["GetItem"] <= 20, meanwhile


@pytest.mark.parametrize(
    "fault", [None, Fault(lose_reply=True), Fault("AccessDeniedException"), Fault("TransactionConflictException")]
)
def test_a_process_that_says_that_it_lives_keeps_its_place_whoever_writes_next(
    opened: Callable[..., DynamoStore], proxy: Proxy, fault: Fault | None
) -> None:
    """It says so with one write; where that is lost or refused, with a read and a write as all else."""
    from headgate.kernel.commands import Renew, Stand

    clock = FakeClock()
    waiting, other = opened(clock=clock), opened(clock=clock)
    gate = Gate("g", [Concurrency(1, name="c", lease="1h")], store=other)
    held = gate.acquire(renew=False)
    plan = gate._policy.plan(1, None, None)
    waiting.polling.close()  # its reads would be counted as those of the heartbeat, on a machine that is slow enough
    waiting.decide(Stand(plan, "ticket", None, plan.lease, waits=True, session=waiting.session))
    if fault is not None:
        proxy.fault = sometimes(fault, "UpdateItem")
    beat = Renew("g", (), waiting.session, ("ticket",))
    for _ in range(3):
        clock.advance(6)
        proxy.counts.clear()
        pulse = waiting.decide(beat)
        assert (pulse.called, pulse.unknown) == ((), ())
        if fault is None:
            assert proxy.counts["GetItem"] == 0, "it is the answer to the write that tells"
        gate.resume()
        assert gate.usage().waiting == 1
    held.release()
    assert waiting.decide(beat).called == ("ticket",), "it looks at the line as well"
    clock.advance(11)
    gate.resume()
    assert gate.usage().waiting == 0, "it was not heard of again"


@ON_ANY
def test_a_killed_process_that_waited_leaves_the_line_by_itself(
    start: Callable[..., Child], proxy: Proxy, table: str
) -> None:
    gate = Gate("shared", [Concurrency(1, name="slots", lease="1h")], store=url_of(proxy, table))
    held = gate.acquire()
    dying = start("waiter", store=url_of(proxy, table), limits={"slots": {"limit": 1, "lease": "1h"}}, threads=3)
    end = time.monotonic() + 60
    while gate.usage().waiting < 3:
        assert time.monotonic() < end
        time.sleep(0.05)
    dying.kill()
    with pytest.raises(Denied):
        gate.acquire(timeout=11)
    assert gate.usage().waiting == 0
    held.release()


def test_the_child_of_a_fork_has_a_session_of_its_own(opened: Callable[..., DynamoStore]) -> None:
    store = opened(clock=FakeClock())
    gate = Gate("g", [Window(10, per="1h", name="w")], store=store)
    gate.acquire()
    mine, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        try:
            gate.acquire()
            theirs.send(store.session.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    mine.settimeout(60)
    assert mine.recv(100).decode() not in ("", store.session)
    assert gate.usage()["w"].used == 2
    mine.close(), theirs.close()

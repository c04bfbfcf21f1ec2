"""From a release to the next waiter on a Redis server: what is sent for a waiter before it is awake, and what is left."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headgate import Concurrency, Denied, Gate, Permit
from headgate.kernel.commands import Cancel, Stand
from headgate.kernel.model import SECOND, Wait
from headgate.kernel.plan import Policy
from headgate.stores.redis import RedisStore
from headgate.testing import FakeClock
from tests.support.servers import NoServer, Server, in_ci

DAY = 86_400


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    try:
        started = Server()
    except NoServer as missing:
        (pytest.fail if in_ci() else pytest.skip)(str(missing))
    with started:
        yield started


@pytest.fixture
def stores(server: Server) -> Iterator[list[RedisStore]]:
    """Two processes, as far as the server can tell."""
    server.command("FLUSHALL")
    opened = [RedisStore(f"{server.url}?timeout=60s") for _ in range(2)]
    yield opened
    for store in opened:
        store.close()


def one_slot(store: RedisStore, **more: Any) -> Gate:
    return Gate("line", [Concurrency(1, lease="1h", name="slots")], store=store, **more)


@contextmanager
def waiting(gate: Gate, **ask: Any) -> Iterator[list[Permit | Denied]]:
    """Somebody in another thread who waits for a permit, and what came of it when the block is left."""
    result: list[Permit | Denied] = []

    def wait() -> None:
        try:
            result.append(gate.acquire(**ask))
        except Denied as error:
            result.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield result
    finally:
        thread.join(60)
        assert not thread.is_alive()


def until_somebody_waits(gate: Gate, gave_up: list[Any] | None = None) -> None:
    """Until a ticket stands in line; or its waiter has given up, which on a busy machine may be before this one looks."""
    end = time.monotonic() + 60
    while not gate.usage().waiting and not gave_up:
        assert time.monotonic() < end
        time.sleep(0.001)


def test_who_gives_up_as_it_is_called_leaves_neither_a_ticket_nor_a_lease(stores: list[RedisStore]) -> None:
    holding, other = map(one_slot, stores)
    granted = tries = 0
    while tries < 60 or not granted:
        tries += 1
        held = holding.acquire(timeout=60)
        with waiting(other, timeout=0.01) as result:
            until_somebody_waits(holding, result)
            time.sleep(random.uniform(0.0, 0.012))
            held.release()
        if isinstance(result[0], Permit):
            granted += 1
            result[0].release()
        usage = holding.usage()
        assert (usage.waiting, usage.limits[0].used) == (0, 0)


def test_what_was_sent_for_a_waiter_is_undone_when_it_cancels(stores: list[RedisStore]) -> None:
    holding, other = stores
    gate = one_slot(holding)
    held = gate.acquire()
    plan = Policy("line", [Concurrency(1, lease="1h", name="slots")]).plan()
    ask = Stand(plan, "mine", None, plan.lease, waits=True, session=other.session, remembered=True)
    assert isinstance(other.decide(ask), Wait)
    called = threading.Event()
    other.listen("mine", lambda delay: called.set() if delay is None else None)
    held.release()
    assert called.wait(10)
    other.execute([Cancel(plan.policy, "mine")])
    other.unlisten("mine")
    usage = gate.usage()
    assert (usage.waiting, usage.limits[0].used) == (0, 0)


def test_a_waiter_is_granted_though_its_connections_and_the_script_are_gone(
    server: Server, stores: list[RedisStore]
) -> None:
    holding, other = (one_slot(store, claim="1h") for store in stores)  # it is not by running out of its call
    for _ in range(3):
        held = holding.acquire(timeout=60)
        with waiting(other, timeout=60) as result:
            until_somebody_waits(holding)
            server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            server.command("FUNCTION", "FLUSH", "SYNC")
            held.release()
        assert isinstance(result[0], Permit)
        result[0].release()


def test_what_is_sent_for_a_waiter_is_understood_whatever_its_holder_is_called(
    server: Server, stores: list[RedisStore]
) -> None:
    def connections() -> int:
        return int(server.command("INFO", "stats").split(b"total_connections_received:")[1].split()[0])

    holding, other = map(one_slot, stores)
    for holder in ("first", "Jörg 🙂", "worker 7"):
        held = holding.acquire(timeout=60)
        with waiting(other, timeout=60, holder=holder) as result:
            until_somebody_waits(holding)
            before = connections()
            held.release()
        if holder != "first":  # which connects to hear of its turn
            assert connections() - before == 1  # the one that counts: nobody had to connect again
        [found] = holding.holders()
        assert isinstance(result[0], Permit)
        assert (found.id, found.holder) == (result[0].id, holder)
        result[0].release()


WITHOUT_HIREDIS = """
import sys, threading
sys.modules["hiredis"] = None
from headgate import Concurrency, Gate
from headgate.stores.redis import RedisStore

stores = [RedisStore(sys.argv[1]) for _ in range(2)]
holding, other = (Gate("line", [Concurrency(1, lease="1h")], store=store) for store in stores)
for _ in range(3):
    held = holding.acquire(timeout=60)
    thread = threading.Thread(target=lambda: other.acquire(timeout=60).release())
    thread.start()
    while not holding.usage().waiting:
        pass
    held.release()
    thread.join()
"""


def test_waiters_are_called_where_the_fast_parser_of_answers_is_not_installed(server: Server) -> None:
    server.command("FLUSHALL")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HIREDIS, server.url], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_keys_of_a_busy_line_always_have_an_end_and_are_given_another_now_and_then(server: Server) -> None:
    server.command("FLUSHALL")
    clock = FakeClock()
    store = RedisStore(f"{server.url}?timeout=60s", clock=clock)
    limits = [Concurrency(2, lease="1h", name="slots", by="org")]
    policy = Policy("busy", limits, priorities={"live": 1.0, "batch": 0.5})
    numbers, chance = iter(range(10**6)), random.Random(1)

    def ask() -> Any:
        plan = policy.plan(1, {"org": chance.choice("ab")}, chance.choice(("live", "batch")))
        return Stand(plan, f"id-{next(numbers)}", None, plan.lease, waits=True, session=store.session, remembered=True)

    def ends() -> dict[bytes, int]:
        return {key: server.command("PTTL", key) // 1000 for key in server.command("KEYS", "*")}

    def busy(rounds: int) -> None:
        for _ in range(rounds):
            standing.append(ask())
            store.execute(standing[-1:])
            if len(standing) > 8:
                store.execute([Cancel(policy, standing.pop(chance.randrange(len(standing))).id)])
            assert min(ends().values()) > 2 * DAY
            clock.advance(microseconds=1000)

    standing: list[Any] = []
    busy(40)
    for _ in range(3):
        for key in ends():
            server.command("PEXPIRE", key, 3 * DAY * 1000)
        clock.advance(28 * 3600)
        busy(40)
        assert min(ends().values()) > 6 * DAY, sorted(key for key, left in ends().items() if left <= 6 * DAY)
    # What a longer lease makes last longer is all of the gate: also what this ask has nothing to do with.
    for key in ends():
        server.command("PEXPIRE", key, 3 * DAY * 1000)
    plan = policy.plan(1, {"org": "c"}, "live")
    store.execute([Stand(plan, "long", None, 30 * DAY * SECOND, session=store.session, remembered=True)])
    common = {key: left for key, left in ends().items() if b"/" not in key}
    assert b"hg:{busy}:tickets" in common
    assert min(common.values()) > 30 * DAY, sorted(common)
    store.close()

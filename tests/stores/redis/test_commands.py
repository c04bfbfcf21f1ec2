"""What gates cost a Redis server, by its own count (INFO commandstats): round trips, wakes, and nothing while waiting."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Gate, Quota, Window
from headgate.stores.redis import RedisStore
from tests.support.redis_gates import PATIENT
from tests.support.servers import Server


@pytest.fixture
def store(server: Server) -> Iterator[RedisStore]:
    made = RedisStore(server.url + PATIENT)
    yield made
    made.close()


def commands(server: Server) -> dict[str, int]:
    """What clients have sent since the last look: not what the script called in its turn, nor this."""
    counts = {}
    for line in server.command("INFO", "commandstats").decode().splitlines():
        name, found, rest = line.partition(":calls=")
        name = name.removeprefix("cmdstat_")
        if found and name in ("eval", "evalsha", "fcall", "function|load", "ping", "subscribe", "script|load"):
            counts[name] = int(rest.partition(",")[0])
    return counts


def reset(server: Server) -> None:
    server.command("CONFIG", "RESETSTAT")


ONE = [Bucket(10_000, per="1m", name="b")]
MANY = [
    Window(10_000, per="1m", name="w"),
    Bucket(10_000, per="1m", name="b"),
    Quota(10_000, per="day", name="q"),
    Concurrency(1000, name="org", by="org"),
    Concurrency(5000, name="all"),
]


@pytest.mark.parametrize(("limits", "key"), [(ONE, None), (MANY, {"org": "acme"})], ids=["one limit", "five limits"])
def test_an_acquire_that_can_go_is_one_round_trip_and_so_is_a_release(
    server: Server, store: RedisStore, limits: list[Any], key: Any
) -> None:
    gate = Gate("g", limits, store=store)
    gate.acquire(key=key).release()
    reset(server)
    permits = [gate.acquire(key=key) for _ in range(50)]
    assert commands(server) == {"fcall": 50}
    reset(server)
    for permit in permits:
        permit.release()
    # Without a lease, and where no confirmation is worth it, there is nobody to tell.
    assert commands(server) == ({"fcall": 50} if len(limits) > 1 else {})


def test_an_acquire_on_an_event_loop_is_one_round_trip_too(server: Server, store: RedisStore) -> None:
    async def main() -> None:
        gate = AsyncGate("g", MANY, store=store)
        async with gate.acquire(key={"org": "acme"}):
            pass
        reset(server)
        for _ in range(50):
            async with gate.acquire(key={"org": "acme"}):
                pass
        assert commands(server) == {"fcall": 100}

    asyncio.run(main())


def test_a_try_that_is_refused_is_one_round_trip(server: Server, store: RedisStore) -> None:
    gate = Gate("g", [Window(1, per="1h")], store=store)
    gate.acquire()
    reset(server)
    assert [gate.try_acquire() for _ in range(20)] == [None] * 20
    assert commands(server) == {"fcall": 20}


def test_asks_of_one_moment_go_out_together_on_an_event_loop(server: Server, store: RedisStore) -> None:
    async def main() -> None:
        gate = AsyncGate("g", MANY, store=store)
        await (await gate.acquire(key={"org": "acme"})).release()
        reset(server)
        permits = await asyncio.gather(*(gate.acquire(key={"org": "acme"}) for _ in range(200)))
        assert len({permit.fence for permit in permits}) == 200
        assert commands(server)["fcall"] <= 4
        reset(server)
        await asyncio.gather(*(permit.release() for permit in permits))
        assert commands(server)["fcall"] <= 4

    asyncio.run(main())


def test_asks_of_threads_that_wait_for_a_call_go_out_together(server: Server, store: RedisStore) -> None:
    gate = Gate("g", MANY, store=store)
    gate.acquire(key={"org": "acme"}).release()
    reset(server)

    def ask() -> None:
        for _ in range(50):
            gate.acquire(key={"org": "acme"})

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert gate.usage(key={"org": "acme"})["all"].used == 800
    assert commands(server)["fcall"] <= 400, "800 asks"


@pytest.mark.timing("a timer in the way of a lone ask shows only in how long it takes, beside a bare command")
def test_a_lone_ask_waits_for_nobody(server: Server, store: RedisStore) -> None:
    """Coalescing has no timer: alone, an ask takes about as long as a bare command."""
    import redis

    client = redis.Redis(port=server.port)
    gate = Gate("g", MANY, store=store)
    gate.acquire(key={"org": "acme"})
    ours, theirs = [], []
    for _ in range(200):
        begun = time.perf_counter()
        gate.acquire(key={"org": "acme"})
        ours.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        client.ping()
        theirs.append(time.perf_counter() - begun)
    client.close()
    assert median(ours) < 10 * median(theirs)


@pytest.mark.parametrize("looped", [False, True], ids=["threads", "asyncio"])
def test_200_waiters_on_50_a_second_cost_at_most_3_commands_per_grant(
    server: Server, store: RedisStore, looped: bool
) -> None:
    limits = [Window(50, per="1s", slack=0, name="w")]
    gate = Gate("g", limits, store=store)
    while gate.try_acquire() is not None:
        pass
    reset(server)
    begun = time.monotonic()
    if looped:

        async def main() -> None:
            waiting = AsyncGate("g", limits, store=store)
            await asyncio.gather(*(waiting.acquire() for _ in range(200)))

        asyncio.run(main())
    else:
        threads = [threading.Thread(target=gate.acquire) for _ in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    took = time.monotonic() - begun
    sent = sum(commands(server).values())
    assert took >= 3, "four seconds for 200, and the first begins in the second that is used up"
    assert sent <= 3 * 200, f"{sent} commands for 200 grants"


def test_waiters_of_many_processes_cost_at_most_3_commands_per_grant(server: Server) -> None:
    limits = [Window(50, per="1s", slack=0, name="w")]
    stores = [RedisStore(server.url + PATIENT) for _ in range(8)]
    try:
        gates = [Gate("g", limits, store=store) for store in stores]
        while gates[0].try_acquire() is not None:
            pass
        reset(server)
        threads = [threading.Thread(target=gates[number % 8].acquire) for number in range(200)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        sent = sum(commands(server).values())
        assert sent <= 3 * 200, f"{sent} commands for 200 grants"
    finally:
        for store in stores:
            store.close()


@pytest.mark.timing("heartbeats are counted over four seconds")
def test_nobody_polls_while_waiting(server: Server, store: RedisStore) -> None:
    gate = Gate("g", [Concurrency(1, lease="1h")], store=store)
    held = gate.acquire(renew=False)
    waiters = [threading.Thread(target=lambda: gate.acquire(timeout=60).release()) for _ in range(30)]
    for waiter in waiters:
        waiter.start()
    while gate.usage().waiting < 30:
        time.sleep(0.01)
    time.sleep(1.5)
    reset(server)
    time.sleep(4)
    # One heartbeat of the process every second, for all of them together.
    assert sum(commands(server).values()) <= 6
    held.release()
    for waiter in waiters:
        waiter.join(60)


@pytest.mark.usefixtures("no_heartbeats")
def test_from_a_release_to_the_next_waiters_grant_it_is_two_commands_and_a_message(server: Server) -> None:
    """The release itself, the message to the waiter, and its taking of the call. `make bench` has what that takes."""
    one, other = RedisStore(server.url + PATIENT), RedisStore(server.url + PATIENT)
    limits = [Concurrency(1, lease="1h")]
    holding, waiting = Gate("g", limits, store=one), Gate("g", limits, store=other)
    try:
        for _ in range(20):
            held = holding.acquire(renew=False)
            granted: list[Any] = []
            waiter = threading.Thread(target=lambda into=granted: into.append(waiting.acquire(renew=False)))  # type: ignore[misc]
            waiter.start()
            while not holding.usage().waiting:
                time.sleep(0.001)
            time.sleep(0.01)
            reset(server)
            held.release()
            waiter.join(60)
            assert granted, "by the message: there is no heartbeat"
            assert commands(server)["fcall"] == 2
            granted[0].release()
    finally:
        one.close()
        other.close()

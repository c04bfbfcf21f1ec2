"""Gates on a cluster of three masters: where their keys are, slots that move under them, and a master that dies."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from headgate import AsyncGate, Concurrency, Gate, StoreUnavailable, Window
from headgate.stores.redis import RedisStore
from tests.support.servers import Cluster, new
from tests.support.timing import DECIDES_IN_TIME
from tests.support.waiting import DECIDED


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with new(of=Cluster) as made:
        yield made


@pytest.fixture
def store(cluster: Cluster) -> Iterator[RedisStore]:
    for server in cluster.servers:
        server.command("FLUSHALL")
    made = RedisStore(f"{cluster.url}?timeout=60s")
    yield made
    made.close()


LIMITS = [Window(10_000, per="1h", name="w"), Concurrency(1000, name="slots", lease="1h")]

_numbers = count()


def names(amount: int = 1) -> list[str]:
    return [f"gate-{next(_numbers)}" for _ in range(amount)]


def other_than(cluster: Cluster, server: Any) -> Any:
    return next(one for one in cluster.servers if one is not server)


def test_gates_are_spread_over_the_masters_and_each_is_whole_on_one(cluster: Cluster, store: RedisStore) -> None:
    gates = [Gate(name, LIMITS, store=store) for name in names(40)]
    for gate in gates:
        gate.acquire()
        gate.acquire().release()
    homes: dict[str, set[int]] = {}
    for server in cluster.servers:
        for key in server.command("KEYS", "*"):
            assert key.startswith(b"hg:{"), key
            homes.setdefault(key.decode().partition("}")[0], set()).add(server.port)
    assert len(homes) == 40
    assert all(len(home) == 1 for home in homes.values())
    assert len(set.union(*homes.values())) == 3


def test_one_batch_for_gates_of_all_masters_is_answered_in_order(store: RedisStore) -> None:
    from headgate.kernel.commands import Peek

    gates = [Gate(name, LIMITS, store=store) for name in names(20)]
    for number, gate in enumerate(gates):
        for _ in range(number):
            gate.acquire()
    looks = [Peek(gate._policy) for gate in gates]
    assert [reply.limits[0].used for reply in store.execute(looks)] == list(range(20))

    async def main() -> list[Any]:
        return await store.aexecute(looks)

    assert [reply.limits[0].used for reply in asyncio.run(main())] == list(range(20))


@pytest.mark.usefixtures("no_heartbeats")
def test_a_waiter_is_woken_whatever_master_it_listens_at(store: RedisStore, cluster: Cluster) -> None:
    elsewhere = RedisStore(f"redis+cluster://127.0.0.1:{cluster.servers[2].port}?timeout=60s")
    for name in names(6):
        held = Gate(name, [Concurrency(1, lease="1h")], store=store, claim="1h").acquire()
        waiting = Gate(name, [Concurrency(1, lease="1h")], store=elsewhere, claim="1h")
        waiter = threading.Thread(target=lambda gate=waiting: gate.acquire(timeout=60).release())  # type: ignore[misc]
        waiter.start()
        while not waiting.usage().waiting:
            time.sleep(0.002)
        held.release()
        waiter.join(60)
        assert not waiter.is_alive(), "there is nothing but the message that could wake it"
    elsewhere.close()


@pytest.mark.parametrize("looped", [False, True], ids=["threads", "asyncio"])
def test_a_slot_that_moves_under_a_gate_costs_it_nothing(cluster: Cluster, store: RedisStore, looped: bool) -> None:
    [name] = names()
    gate: Any = (AsyncGate if looped else Gate)(name, LIMITS, store=store)
    slot = store._requests.slot(name)
    source = cluster.owner(slot)
    target = other_than(cluster, source)
    granted: list[int] = []
    refused: list[float] = []
    running = True

    def ask() -> None:
        while running:
            begun = time.monotonic()
            try:
                gate.acquire().release()
                granted.append(1)
            except StoreUnavailable:
                refused.append(time.monotonic() - begun)
                granted.append(0)

    async def ask_looped() -> None:
        while running:
            begun = time.monotonic()
            try:
                await (await gate.acquire()).release()
                granted.append(1)
            except StoreUnavailable:
                refused.append(time.monotonic() - begun)

    async def main() -> None:
        await asyncio.gather(*(ask_looped() for _ in range(3)))

    askers = [
        threading.Thread(target=(lambda: asyncio.run(main())) if looped else ask) for _ in range(1 if looped else 3)
    ]
    for asker in askers:
        asker.start()
    time.sleep(0.2)
    cluster.begin_move(slot, source, target)
    while cluster.move_keys(slot, source, target):
        pass
    time.sleep(0.3)  # everything is there, and the cluster does not know it yet
    cluster.end_move(slot, target)
    before = len(granted)
    time.sleep(0.3)
    running = False
    for asker in askers:
        asker.join(60)
    assert len(granted) > before, "it goes on at its new place"
    assert refused == []
    look = Gate(name, LIMITS, store=store)
    used = look.usage()
    assert sum(granted) <= used["w"].used <= sum(granted) + 3, (
        "what was cut short by the move is charged, never given away"
    )
    assert look.holders() == []
    assert {server.port for server in cluster.servers if server.command("CLUSTER", "COUNTKEYSINSLOT", slot)} == {
        target.port
    }


@DECIDES_IN_TIME
def test_a_gate_that_is_half_moved_is_unavailable_in_time_and_never_too_generous(
    cluster: Cluster, store: RedisStore
) -> None:
    [name] = names()
    quick = RedisStore(cluster.url)
    gate = Gate(name, [Window(10, per="1h", name="w"), Concurrency(10, lease="1h")], store=quick)
    for _ in range(4):
        gate.acquire()
    slot = quick._requests.slot(name)
    source = cluster.owner(slot)
    target = other_than(cluster, source)
    keys = source.command("CLUSTER", "GETKEYSINSLOT", slot, 100)
    granted = 4
    told: set[str] = set()
    cluster.begin_move(slot, source, target)
    for key in sorted(keys):
        source.command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
        begun = time.monotonic()
        try:
            if gate.try_acquire() is not None:
                granted += 1
        except StoreUnavailable as error:
            told.add(str(error).rpartition(";")[2])
        assert time.monotonic() - begun < DECIDED
        time.sleep(0.5)  # it is tried again every half second
    while cluster.move_keys(slot, source, target):
        pass
    cluster.end_move(slot, target)
    end = time.monotonic() + 60
    while time.monotonic() < end and granted < 20:
        try:
            if gate.try_acquire() is None:
                break
            granted += 1
        except StoreUnavailable:
            time.sleep(0.1)
    assert granted <= 10
    assert told <= {
        " the cluster is moving or missing the slot of this gate",
        " the cluster is moving the slot of this gate",
    }
    quick.close()


def test_a_new_gate_in_a_slot_that_moves_begins_at_the_new_place(cluster: Cluster, store: RedisStore) -> None:
    [name] = names()
    slot = store._requests.slot(name)
    source = cluster.owner(slot)
    target = other_than(cluster, source)
    cluster.begin_move(slot, source, target)
    gate = Gate(name, LIMITS, store=store)
    for _ in range(5):
        gate.acquire().release()
    assert not source.command("CLUSTER", "COUNTKEYSINSLOT", slot)
    cluster.end_move(slot, target)
    assert gate.usage()["w"].used == 5


@DECIDES_IN_TIME
def test_the_gates_of_a_dead_master_are_unavailable_in_time_and_the_others_go_on(cluster: Cluster) -> None:
    # The cluster is told to serve what is left.
    for server in cluster.servers:
        server.command("CONFIG", "SET", "cluster-require-full-coverage", "no")
    store = RedisStore(cluster.url)
    gates = [Gate(name, LIMITS, store=store) for name in names(30)]
    for gate in gates:
        gate.acquire().release()
    victim = cluster.servers[2]
    homes = [cluster.owner(store._requests.slot(gate.name)) for gate in gates]
    victim.kill()
    try:
        for gate, home in zip(gates, homes, strict=True):
            begun = time.monotonic()
            if home is victim:
                with pytest.raises(StoreUnavailable):
                    gate.acquire()
            else:
                gate.acquire().release()
            assert time.monotonic() - begun < DECIDED
    finally:
        victim.start()
        store.close()
    end = time.monotonic() + 60
    while b"cluster_state:ok" not in cluster.servers[0].command("CLUSTER", "INFO"):
        assert time.monotonic() < end
        time.sleep(0.05)

"""A Redis that loses its state or its library, keeps it, or is replaced by its replica."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import pytest

from headgate import AsyncGate, Concurrency, Gate, StoreUnavailable, Window
from headgate.events import Event
from tests.support.redis_gates import PATIENT, answers, gate_of, kinds
from tests.support.servers import Proxy, Server, new
from tests.support.timing import DECIDES_IN_TIME
from tests.support.waiting import DECIDED, timed, until


def test_a_server_that_comes_back_without_its_data_is_noticed(server: Server, stores: Any, events: list[Event]) -> None:
    gate = Gate("g", [Window(100, per="2s", slack=0, name="w")], store=stores(server.url + PATIENT))
    granted = [gate.try_acquire() for _ in range(100)]
    assert None not in granted
    server.kill()
    server.start()
    until(lambda: answers(gate))
    assert kinds(events).count("state_lost") == 1
    begun = time.monotonic()
    passed = 0
    while (elapsed := time.monotonic() - begun) < 1:
        passed += gate.try_acquire() is not None
    assert passed <= 100 * (elapsed + 0.6) / 2, "rates come back in proportion to the time"
    until(lambda: gate.try_acquire(cost=20) is not None)


def test_live_holders_register_again_by_renewing(server: Server, stores: Any) -> None:
    gate = Gate("g", [Concurrency(2, name="slots", lease="2s")], store=stores(server.url + PATIENT))
    permit = gate.acquire()
    server.kill()
    server.start()
    until(lambda: answers(gate))
    until(lambda: permit.id in [holder.id for holder in gate.holders()])
    time.sleep(2.5)
    assert not permit.lost
    assert permit.release() is True


def test_a_server_that_others_have_filled_again_is_noticed(server: Server, stores: Any, events: list[Event]) -> None:
    gate, fresh = (gate_of(stores(server.url)) for _ in range(2))
    permit = gate.acquire(holder="me")
    server.kill()
    server.start()
    until(lambda: answers(fresh))
    for _ in range(40):  # far more than the process that holds a slot has seen
        fresh.acquire().release()
    assert "state_lost" not in kinds(events)
    permit.renew()
    assert kinds(events).count("state_lost") == 1
    assert "me" in [holder.holder for holder in fresh.holders()]
    assert permit.release() is True


def test_a_long_lease_is_registered_again_as_soon_as_its_process_notices_a_loss(server: Server, stores: Any) -> None:
    gate, fresh = (gate_of(stores(server.url)) for _ in range(2))
    permit = gate.acquire(holder="me")  # for an hour: it is due for renewal in twenty minutes
    server.kill()
    server.start()
    until(lambda: answers(fresh))
    for _ in range(40):
        fresh.acquire().release()
    gate.usage()
    assert "me" not in [holder.holder for holder in fresh.holders()], "a process that only looks notices nothing"
    gate.try_acquire()
    until(lambda: "me" in [holder.holder for holder in fresh.holders()])
    assert permit.release() is True


def test_a_server_that_comes_back_with_its_data_has_lost_nothing(stores: Any, events: list[Event]) -> None:
    with new("--appendonly", "yes", "--appendfsync", "always") as server:
        gate = gate_of(stores(server.url + PATIENT))
        permits = [gate.acquire() for _ in range(20)]
        server.kill()
        server.start()
        until(lambda: not isinstance(timed(gate.usage)[1], StoreUnavailable))
        usage = gate.usage()
        assert (usage["w"].used, usage["slots"].used) == (20, 20)
        assert all(permit.release() for permit in permits)
        assert gate.holders() == []
        assert "state_lost" not in kinds(events)


def test_a_promoted_replica_that_lacks_the_last_second_is_noticed(stores: Any, events: list[Event]) -> None:
    with new() as master, new("--replicaof", f"127.0.0.1 {master.port}") as replica, Proxy(master.address) as proxy:
        until(lambda: b"master_link_status:up" in replica.command("INFO", "replication"))
        gate = Gate("g", [Window(100, per="5s", slack=0, name="w")], store=stores(proxy.url))
        for _ in range(50):
            assert gate.try_acquire() is not None
        until(lambda: replica.command("DBSIZE") and offset_of(replica) >= offset_of(master))
        replica.command("REPLICAOF", "NO", "ONE")
        for _ in range(50):
            assert gate.try_acquire() is not None, "the old master does not know yet"
        assert gate.try_acquire() is None
        proxy.target = replica.address
        proxy.drop_now()
        until(lambda: answers(gate))
        assert "state_lost" in kinds(events)
        passed = sum(gate.try_acquire() is not None for _ in range(100))
        assert passed <= 50, "the second half is not given out again at once"


def offset_of(server: Server) -> int:
    info = server.command("INFO", "replication").decode()
    return int(info.partition("master_repl_offset:")[2].split()[0])


@DECIDES_IN_TIME
def test_a_replica_is_no_place_to_decide(stores: Any) -> None:
    with new() as master, new("--replicaof", f"127.0.0.1 {master.port}") as replica:
        until(lambda: b"master_link_status:up" in replica.command("INFO", "replication"))
        took, answer = timed(gate_of(stores(replica.url)).acquire)
        assert isinstance(answer, StoreUnavailable)
        assert "replica" in str(answer)
        assert took < DECIDED


@DECIDES_IN_TIME
def test_a_server_that_still_reads_its_data_is_waited_for_but_not_longer(stores: Any) -> None:
    with new("--appendonly", "yes", "--aof-use-rdb-preamble", "yes") as server:
        gate = gate_of(stores(server.url))
        gate.acquire().release()
        for number in range(100):
            server.command("SET", f"filler-{number}", os.urandom(4096))
        server.command("BGREWRITEAOF")
        until(lambda: b"aof_rewrite_in_progress:0" in server.command("INFO", "persistence"))
        server.kill()
        server.start("--key-load-delay", "15000", "--loading-process-events-interval-bytes", "1024", wait=False)
        seen = []
        end = time.monotonic() + 60
        while time.monotonic() < end:
            took, answer = timed(gate_of(stores(server.url)).try_acquire)
            if not isinstance(answer, StoreUnavailable):
                break
            seen.append((took, str(answer)))
        assert not isinstance(answer, StoreUnavailable)
        assert any("reading its data" in told for _, told in seen)
        assert all(took < DECIDED for took, _ in seen)


APP = ("--user", "app", "on", ">secret", "~*", "&*", "+@all")

#: Servers that know no functions, or not for this user; what the URL needs then.
WITHOUT_FUNCTIONS = {
    "unknown": (("--rename-command", "FCALL", ""), ""),
    "forbidden": ((*APP, "-fcall"), "app:secret@"),
    "not to be loaded": ((*APP, "-function"), "app:secret@"),
}


def _ask_after_each(flush: tuple[str, str], server: Server, gate: Gate) -> None:
    gate.acquire()
    server.command(*flush)
    assert gate.try_acquire() is not None
    server.command(*flush)

    async def main() -> None:
        looped = AsyncGate("g", gate._policy.limits, store=gate._store)
        await asyncio.gather(*(looped.acquire() for _ in range(20)))

    asyncio.run(main())
    assert gate.usage()["w"].used == 22


def test_a_library_that_was_flushed_is_loaded_again(server: Server, stores: Any) -> None:
    _ask_after_each(("FUNCTION", "FLUSH"), server, gate_of(stores(server.url + PATIENT)))
    assert server.calls("function|load") >= 3
    assert server.calls("evalsha") == 0
    assert any(level == "ok" and "FCALL" in line for level, line, _ in stores(server.url + PATIENT).examine())


@pytest.mark.parametrize("why", WITHOUT_FUNCTIONS)
def test_a_server_without_functions_is_asked_by_a_script_and_a_flushed_one_is_sent_again(stores: Any, why: str) -> None:
    options, who = WITHOUT_FUNCTIONS[why]
    with new(*options) as server:
        store = stores(server.url.replace("://", f"://{who}") + PATIENT)
        gate = gate_of(store)
        _ask_after_each(("SCRIPT", "FLUSH"), server, gate)
        assert server.calls("eval") >= 3
        server.command("CONFIG", "RESETSTAT")
        assert gate.usage()["w"].used == 22
        assert server.calls("evalsha") == 1, "it is not asked for functions again"
        [(level, _, remedy)] = [finding for finding in store.examine() if "EVALSHA" in finding[1]]
        assert (level, remedy[:7]) == ("note", "Redis 7" if why == "unknown" else "ACL SET")


def test_gates_that_learn_together_that_functions_are_not_for_them_are_all_answered(stores: Any) -> None:
    options, who = WITHOUT_FUNCTIONS["forbidden"]
    with new(*options) as server:
        for number in range(6):
            store = stores(server.url.replace("://", f"://{who}") + PATIENT)
            gates = [Gate(f"g{number}-{at}", [Window(5, per="1m", name="w")], store=store) for at in range(8)]
            begins = threading.Barrier(len(gates))
            permits: list[Any] = []

            def ask(gate: Gate, begins: threading.Barrier = begins, permits: list[Any] = permits) -> None:
                begins.wait()
                permits.append(gate.acquire(timeout=60))

            threads = [threading.Thread(target=ask, args=(gate,)) for gate in gates]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert len(permits) == len(gates)


def test_a_waiter_is_called_though_its_process_has_learnt_meanwhile_that_functions_are_not_for_it(stores: Any) -> None:
    with new(*APP) as server:
        url = server.url.replace("://", "://app:secret@")
        holding, waiting = (Gate("line", [Concurrency(1, lease="1m")], store=stores(url)) for _ in range(2))
        held = holding.acquire(timeout=60)
        permits: list[Any] = []
        thread = threading.Thread(target=lambda: permits.append(waiting.acquire(timeout=60)))
        thread.start()
        # It hears of its turn, and what it will ask is known, and how it is sent.
        until(lambda: bool(server.command("PUBSUB", "CHANNELS")) and bool(waiting._store._early_takes))
        server.command("ACL", "SETUSER", "app", "-fcall")
        Gate("other", [Window(5, per="1m")], store=waiting._store).acquire(timeout=60)
        held.release()
        thread.join(60)
        assert [permit.lost for permit in permits] == [False]


def test_a_library_that_another_process_has_loaded_meanwhile_is_used(server: Server, stores: Any) -> None:
    gates = [gate_of(stores(server.url + PATIENT)) for _ in range(8)]
    server.command("FUNCTION", "FLUSH")
    threads = [threading.Thread(target=gate.acquire) for gate in gates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert gates[0].usage()["w"].used == 8


def test_the_library_of_another_version_stays_beside_ours(server: Server, stores: Any) -> None:
    other = "#!lua name=headgate_0\nredis.register_function('headgate_0', function() return 'other' end)"
    server.command("FUNCTION", "LOAD", other)
    gate_of(stores(server.url + PATIENT)).acquire()
    assert server.command("FCALL", "headgate_0", 0) == b"other"

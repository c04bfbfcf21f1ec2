"""What gates do when Redis fails them: killed, frozen, slow, full, flushed, moved; and connections cut at every byte."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Denied, Gate, StoreUnavailable, Window
from headgate.errors import StoreFormatError
from headgate.events import Event
from tests.support.servers import Proxy, Server, new
from tests.support.waiting import DECIDED, Stopwatch, held_up, says_so_in_time, says_so_to_many, timed, until

#: On a busy machine a healthy server may take a while; where nothing is to fail, that must not look like a failure.
PATIENT = "?timeout=5s"


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.address) as between:
        yield between


def kinds(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


def gate_of(store: Any, mode: str = "closed", **more: Any) -> Gate:
    limits = [Window(100_000, per="1h", name="w"), Concurrency(10_000, name="slots", lease="1h")]
    return Gate("g", limits, store=store, on_store_error=mode, **more)


def answers(gate: Gate) -> bool:
    return not isinstance(timed(gate.try_acquire)[1], StoreUnavailable)


# --- the fail mode takes effect in time -------------------------------------------------------------------------------


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
    server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.command("CONFIG", "SET", "maxmemory", "1")
    return lambda: server.command("CONFIG", "SET", "maxmemory", "0")


FAULTS = [refuse, freeze, swallow, kill, hold_up, fill_up]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_closed_gate_says_so_in_time_and_is_back_by_itself(
    server: Server, proxy: Proxy, stores: Any, fault: Callable[[Server, Proxy], Callable[[], None]]
) -> None:
    gate = gate_of(stores(proxy.url))
    gate.acquire().release()
    mend = fault(server, proxy)
    says_so_in_time(gate)
    mend()
    until(lambda: answers(gate), 5)


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
        until(lambda: answers(gate) and "store_up" in kinds(events), 5)


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
        time.sleep(0.002)
    assert passed <= 21
    mend()
    until(lambda: gate.try_acquire(cost=100) is not None, 5)


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
        end = time.monotonic() + 5
        while True:
            try:
                await gate.try_acquire()
                return
            except StoreUnavailable:
                assert time.monotonic() < end
                await asyncio.sleep(0.05)

    asyncio.run(main())


def test_many_threads_that_find_the_server_frozen_are_all_told_in_time(server: Server, stores: Any) -> None:
    gate = gate_of(stores(server.url))
    gate.acquire().release()
    server.freeze()
    says_so_to_many(gate)
    server.thaw()


def test_contention_is_no_failure(server: Server, stores: Any, events: list[Event]) -> None:
    gate = gate_of(stores(server.url), "open")
    granted: list[int] = []

    def ask() -> None:
        for _ in range(30):
            with gate.acquire():
                granted.append(1)

    threads = [threading.Thread(target=ask) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
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
    while (elapsed := time.monotonic() - begun) < 1.5:
        for gate in passed:
            passed[gate] += gate.try_acquire() is not None
        time.sleep(0.001)
    assert passed[here] <= 20 + 200 * elapsed + 1
    assert passed[cut_off] <= 0.1 * (20 + 200 * elapsed) + 1


# --- a connection cut at every byte -----------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["request", "reply"])
def test_an_ask_is_admitted_once_wherever_its_connection_is_cut(
    proxy: Proxy, stores: Any, server: Server, direction: str
) -> None:
    gate = gate_of(stores(proxy.url + PATIENT))
    gate.acquire().release()
    for offset in count():
        proxy.drop_after(offset, direction)
        permit = gate.acquire()
        assert gate_of(stores(server.url + PATIENT)).usage()["slots"].used == 1 if offset % 50 == 0 else True
        cut = proxy.dropped
        proxy.drop_after(10**9, direction)
        permit.release()
        if not cut:
            break
    assert offset > (200 if direction == "request" else 10)
    usage = gate.usage()
    assert usage["w"].used == offset + 2
    assert usage["slots"].used == 0
    assert gate.holders() == []


@pytest.mark.parametrize("direction", ["request", "reply"])
def test_a_release_is_done_once_wherever_its_connection_is_cut(proxy: Proxy, stores: Any, direction: str) -> None:
    gate = gate_of(stores(proxy.url + PATIENT))
    gate.acquire().release("unsent")
    for offset in count():
        permit = gate.acquire()
        proxy.drop_after(offset, direction)
        assert permit.release("unsent") is True
        if not proxy.dropped:
            break
    assert offset > (100 if direction == "request" else 5)
    usage = gate.usage()
    assert (usage["w"].used, usage["slots"].used) == (0, 0)


@pytest.mark.parametrize("direction", ["request", "reply"])
def test_an_ask_of_an_event_loop_is_admitted_once_wherever_its_connection_is_cut(
    proxy: Proxy, stores: Any, direction: str
) -> None:
    limits = [Window(100_000, per="1h", name="w"), Concurrency(10_000, name="slots", lease="1h")]
    gate = AsyncGate("g", limits, store=stores(proxy.url + PATIENT))

    async def main() -> None:
        await (await gate.acquire()).release()
        for offset in count():
            proxy.drop_after(offset, direction)
            permit = await gate.acquire()
            cut = proxy.dropped
            proxy.drop_after(10**9, direction)
            await permit.release()
            if not cut:
                break
        assert offset > (200 if direction == "request" else 10)
        usage = await gate.usage()
        assert (usage["w"].used, usage["slots"].used) == (offset + 2, 0)

    asyncio.run(main())


def test_a_batch_whose_answer_is_lost_is_decided_once(proxy: Proxy, stores: Any) -> None:
    gate = AsyncGate("g", [Window(1000, per="1h", name="w")], store=stores(proxy.url + PATIENT))

    async def main() -> None:
        await gate.acquire()
        for offset in (0, 1, 40, 200, 400):
            proxy.drop_after(offset, "reply")
            permits = await asyncio.gather(*(gate.acquire() for _ in range(50)))
            assert len({permit.fence for permit in permits}) == 50
        assert (await gate.usage())["w"].used == 251

    asyncio.run(main())


def test_what_was_really_spent_is_never_charged_twice(proxy: Proxy, stores: Any) -> None:
    gate = Gate("g", [Bucket(1000, per="1h", slack=0, unit="pu", name="b")], store=stores(proxy.url + PATIENT))
    permit = gate.acquire({"pu": 10})
    proxy.drop_after(0, "reply")
    with pytest.raises(StoreUnavailable, match="not known"):
        permit.settle({"pu": 30})
    assert round(gate.usage()["b"].used) in (10, 30)


def test_a_confirmation_whose_answer_is_lost_is_not_told_again(proxy: Proxy, stores: Any) -> None:
    gate = Gate("g", [Window(2, per="2s", slack="1s", name="w")], store=stores(proxy.url + PATIENT))
    first, _ = gate.acquire(), gate.acquire()
    proxy.drop_after(0, "reply")
    first.confirm()
    assert first.release() is True
    time.sleep(2.2)
    assert gate.try_acquire() is not None, "the first was confirmed"
    assert gate.try_acquire() is None, "and the second was not: it counts for its slack as well"


def test_renewals_and_looks_go_on_when_their_connection_is_cut(proxy: Proxy, stores: Any) -> None:
    gate = gate_of(stores(proxy.url + PATIENT))
    permit = gate.acquire()
    for offset in range(0, 60, 3):
        proxy.drop_after(offset, "reply")
        assert permit.renew() > time.time()
        proxy.drop_after(offset, "reply")
        assert gate.usage()["slots"].used == 1


# --- state that is lost, or kept --------------------------------------------------------------------------------------


def test_a_server_that_comes_back_without_its_data_is_noticed(server: Server, stores: Any, events: list[Event]) -> None:
    gate = Gate("g", [Window(100, per="2s", slack=0, name="w")], store=stores(server.url))
    granted = [gate.try_acquire() for _ in range(100)]
    assert None not in granted
    server.kill()
    server.start()
    until(lambda: answers(gate), 5)
    assert kinds(events).count("state_lost") == 1
    begun = time.monotonic()
    passed = 0
    while (elapsed := time.monotonic() - begun) < 1:
        passed += gate.try_acquire() is not None
    assert passed <= 100 * (elapsed + 0.6) / 2, "rates come back in proportion to the time"
    until(lambda: gate.try_acquire(cost=20) is not None, 5)


def test_live_holders_register_again_by_renewing(server: Server, stores: Any) -> None:
    gate = Gate("g", [Concurrency(2, name="slots", lease="2s")], store=stores(server.url))
    permit = gate.acquire()
    server.kill()
    server.start()
    until(lambda: answers(gate), 5)
    until(lambda: permit.id in [holder.id for holder in gate.holders()], 5)
    time.sleep(2.5)
    assert not permit.lost
    assert permit.release() is True


def test_a_server_that_comes_back_with_its_data_has_lost_nothing(stores: Any, events: list[Event]) -> None:
    with new("--appendonly", "yes", "--appendfsync", "always") as server:
        gate = gate_of(stores(server.url))
        permits = [gate.acquire() for _ in range(20)]
        server.kill()
        server.start()
        until(lambda: not isinstance(timed(gate.usage)[1], StoreUnavailable), 5)
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
        until(lambda: answers(gate), 5)
        assert "state_lost" in kinds(events)
        passed = sum(gate.try_acquire() is not None for _ in range(100))
        assert passed <= 50, "the second half is not given out again at once"


def offset_of(server: Server) -> int:
    info = server.command("INFO", "replication").decode()
    return int(info.partition("master_repl_offset:")[2].split()[0])


def test_a_replica_is_no_place_to_decide(stores: Any) -> None:
    with new() as master, new("--replicaof", f"127.0.0.1 {master.port}") as replica:
        until(lambda: b"master_link_status:up" in replica.command("INFO", "replication"))
        took, answer = timed(gate_of(stores(replica.url)).acquire)
        assert isinstance(answer, StoreUnavailable)
        assert "replica" in str(answer)
        assert took < DECIDED


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
        end = time.monotonic() + 15
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
    _ask_after_each(("FUNCTION", "FLUSH"), server, gate_of(stores(server.url)))
    assert server.calls("function|load") >= 3
    assert server.calls("evalsha") == 0
    assert any(level == "ok" and "FCALL" in line for level, line, _ in stores(server.url).examine())


@pytest.mark.parametrize("why", WITHOUT_FUNCTIONS)
def test_a_server_without_functions_is_asked_by_a_script_and_a_flushed_one_is_sent_again(stores: Any, why: str) -> None:
    options, who = WITHOUT_FUNCTIONS[why]
    with new(*options) as server:
        store = stores(server.url.replace("://", f"://{who}"))
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
            store = stores(server.url.replace("://", f"://{who}"))
            gates = [Gate(f"g{number}-{at}", [Window(5, per="1m", name="w")], store=store) for at in range(8)]
            begins = threading.Barrier(len(gates))
            permits: list[Any] = []

            def ask(gate: Gate, begins: threading.Barrier = begins, permits: list[Any] = permits) -> None:
                begins.wait()
                permits.append(gate.acquire(timeout=10))

            threads = [threading.Thread(target=ask, args=(gate,)) for gate in gates]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert len(permits) == len(gates)


def test_a_waiter_is_called_though_its_process_has_learnt_meanwhile_that_functions_are_not_for_it(stores: Any) -> None:
    with new(*APP) as server:
        url = server.url.replace("://", "://app:secret@")
        holding, waiting = (Gate("line", [Concurrency(1, lease="1m")], store=stores(url)) for _ in range(2))
        held = holding.acquire(timeout=5)
        permits: list[Any] = []
        thread = threading.Thread(target=lambda: permits.append(waiting.acquire(timeout=10)))
        thread.start()
        # It hears of its turn, and what it will ask is known, and how it is sent.
        until(lambda: bool(server.command("PUBSUB", "CHANNELS")) and bool(waiting._store._early_takes))
        server.command("ACL", "SETUSER", "app", "-fcall")
        Gate("other", [Window(5, per="1m")], store=waiting._store).acquire(timeout=5)
        held.release()
        thread.join(20)
        assert [permit.lost for permit in permits] == [False]


def test_a_library_that_another_process_has_loaded_meanwhile_is_used(server: Server, stores: Any) -> None:
    gates = [gate_of(stores(server.url)) for _ in range(8)]
    server.command("FUNCTION", "FLUSH")
    threads = [threading.Thread(target=gate.acquire) for gate in gates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert gates[0].usage()["w"].used == 8


def test_the_library_of_another_version_stays_beside_ours(server: Server, stores: Any) -> None:
    other = "#!lua name=headgate_0\nredis.register_function('headgate_0', function() return 'other' end)"
    server.command("FUNCTION", "LOAD", other)
    gate_of(stores(server.url)).acquire()
    assert server.command("FCALL", "headgate_0", 0) == b"other"


# --- a server that refuses --------------------------------------------------------------------------------------------


def test_a_wrong_password_is_named_and_not_tried_for_ever(stores: Any) -> None:
    with new(password="right") as server:
        gate_of(stores(server.url)).acquire()
        for url in (server.url.replace(":right@", ":wrong@"), server.url.replace(":right@", "")):
            before = server.command("INFO", "stats")
            took, answer = timed(gate_of(stores(url)).acquire)
            assert isinstance(answer, StoreUnavailable)
            assert "password" in str(answer)
            assert "wrong" not in str(answer).replace("WRONGPASS", ""), "a password is not shown"
            assert took < DECIDED
            time.sleep(1)
            assert connections(server.command("INFO", "stats")) - connections(before) <= 2, "one attempt, and this look"


def connections(stats: bytes) -> int:
    return int(stats.decode().partition("total_connections_received:")[2].split()[0])


def test_a_full_server_is_named_and_what_was_held_is_given_back_later(server: Server, stores: Any) -> None:
    gate = gate_of(stores(server.url))
    permit = gate.acquire()
    fill_up(server, None)  # type: ignore[arg-type]
    took, answer = timed(gate.acquire)
    assert isinstance(answer, StoreUnavailable)
    assert "maxmemory" in str(answer)
    assert took < DECIDED
    assert permit.release() is True
    assert gate._store._requests.seen["g"] > 0
    server.command("CONFIG", "SET", "maxmemory", "0")
    until(lambda: answers(gate), 5)
    until(lambda: permit.id not in [holder.id for holder in gate.holders()], 5)


def test_a_key_of_somebody_else_is_named_and_left_alone(server: Server, stores: Any) -> None:
    server.command("SET", "hg:{g}", "mine")
    with pytest.raises(StoreFormatError, match=re.escape("hg:{g}")):
        gate_of(stores(server.url)).acquire()
    assert server.command("GET", "hg:{g}") == b"mine"


def test_where_scripts_may_not_ask_for_the_time_the_callers_clock_is_used(server: Server, stores: Any) -> None:
    server.command("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-time")
    url = f"redis://app:secret@127.0.0.1:{server.port}/0{PATIENT}"
    gate = Gate("g", [Window(10, per="1s", slack=0, name="w"), Concurrency(50, name="c")], store=stores(url))
    passed, begun = [], time.monotonic()
    while len(passed) < 30:
        assert time.monotonic() - begun < 20
        if gate.try_acquire() is not None:
            passed.append(time.monotonic())
    assert all(after - first > 0.95 for first, after in zip(passed, passed[10:], strict=False))
    [holder, *_] = gate.holders()
    assert abs(holder.since - (time.monotonic() - passed[0])) < 1
    assert any("TIME" in line for _, line, _ in stores(url).examine())


def test_where_the_user_may_not_publish_waiters_go_by_their_heartbeats(server: Server, stores: Any) -> None:
    server.command("ACL", "SETUSER", "app", "on", ">secret", "~*", "resetchannels", "+@all")
    url = f"redis://app:secret@127.0.0.1:{server.port}/0{PATIENT}"
    gate = Gate("g", [Concurrency(1, name="slots", lease="1h")], store=stores(url))
    held = gate.acquire()
    waiter = threading.Thread(target=lambda: gate.acquire(timeout=20).release())
    waiter.start()
    until(lambda: gate.usage().waiting == 1)
    assert held.release() is True
    waiter.join(20)
    assert not waiter.is_alive()
    until(lambda: gate.holders() == [])
    assert any(level == "wrong" and "publish" in line for level, line, _ in stores(url).examine())


def test_the_callers_clock_is_set_by_the_servers_where_that_may_be_asked(server: Server, stores: Any) -> None:
    store = stores(server.url + PATIENT)
    store._requests.sends_time = True
    store._requests.clock = store._requests.own_time
    gate = gate_of(store)
    permit = gate.acquire()
    assert permit.lease_expires is not None
    assert abs(permit.lease_expires - 3600 - time.time()) < 1


# --- waiting through a fault ------------------------------------------------------------------------------------------


def test_a_waiter_whose_wake_was_lost_with_its_connection_goes_all_the_same(
    server: Server, proxy: Proxy, stores: Any
) -> None:
    limits = [Concurrency(1, name="slots", lease="1h")]
    held = Gate("g", limits, store=stores(server.url + PATIENT)).acquire()
    waiting = Gate("g", limits, store=stores(proxy.url + PATIENT))
    granted: list[float] = []
    waiter = threading.Thread(target=lambda: (waiting.acquire(timeout=30), granted.append(time.monotonic())))
    waiter.start()
    until(lambda: waiting.usage().waiting == 1)
    # Not refused for a moment: a heartbeat that fell into it would find the store away, and the waiter be told so.
    proxy.stall()
    held.release()
    proxy.drop_now()
    proxy.flow()
    released = time.monotonic()
    waiter.join(20)
    assert granted
    assert granted[0] - released < 5


def test_waiters_go_on_after_their_server_was_restarted(server: Server, stores: Any) -> None:
    gate = Gate("g", [Concurrency(1, name="slots", lease="3s")], store=stores(server.url))
    held = gate.acquire()
    told: list[Any] = []
    waiter = threading.Thread(target=lambda: told.append(timed(lambda: gate.acquire(timeout=30))[1]))
    waiter.start()
    until(lambda: gate.usage().waiting == 1)
    server.kill()
    server.start()
    time.sleep(1.5)
    held.release()
    waiter.join(20)
    # It is told that its store was away, or has stood in line again and gone.
    assert len(told) == 1
    assert isinstance(told[0], StoreUnavailable) or told[0].release() is True
    until(lambda: gate.usage().waiting == 0 and gate.holders() == [], 10)


def test_a_cancelled_ask_leaves_nothing_behind(server: Server, proxy: Proxy, stores: Any) -> None:
    limits = [Concurrency(100, name="slots", lease="1h"), Window(100, per="1h", name="w")]
    gate = AsyncGate("g", limits, store=stores(proxy.url))

    async def main() -> None:
        await (await gate.acquire()).release("unsent")
        for pause in (0.0, 0.0001, 0.0003, 0.001, 0.003, 0.01):
            for _ in range(5):
                asks = [asyncio.create_task(gate.acquire()) for _ in range(3)]
                await asyncio.sleep(pause)
                for ask in asks:
                    ask.cancel()
                for done in await asyncio.gather(*asks, return_exceptions=True):
                    if not isinstance(done, BaseException):
                        await done.release("unsent")
        proxy.stall()
        asks = [asyncio.create_task(gate.acquire()) for _ in range(10)]
        await asyncio.sleep(0.05)
        for ask in asks:
            ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
        proxy.flow()

    asyncio.run(main())
    look = gate_of(stores(server.url))
    time.sleep(0.1)
    until(lambda: not look.holders() and look.usage()["w"].used == 0, 10)


def test_a_waiter_that_is_cancelled_leaves_the_line(server: Server, stores: Any) -> None:
    gate = AsyncGate("g", [Concurrency(1, name="slots", lease="1h")], store=stores(server.url))

    async def main() -> None:
        held = await gate.acquire()
        waiters = [asyncio.create_task(gate.acquire()) for _ in range(20)]
        while (await gate.usage()).waiting < 20:
            await asyncio.sleep(0.01)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        await held.release()
        end = time.monotonic() + 10
        while (await gate.usage()).waiting or await gate.holders():
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        await (await gate.acquire(timeout=5)).release()

    asyncio.run(main())


@pytest.mark.timeout(120)
# Between the moment at which the interpreter has made a socket and the moment at which that has a name nobody can close
# it; it is closed as soon as the interrupt is forgotten. And an interrupt in the destructor of a connection is lost.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function AbstractConnection.__del__:pytest.PytestUnraisableExceptionWarning"
)
def test_an_interrupted_thread_leaves_nothing_behind(server: Server, stores: Any) -> None:
    """Ctrl-C in the main thread, at many moments of an ask; other threads go on with the same connections."""
    gate = gate_of(stores(server.url))
    gate.acquire().release()
    others_run = True
    failures: list[BaseException] = []

    def go_on() -> None:
        try:
            while others_run:
                gate.acquire().release()
        except BaseException as error:
            failures.append(error)

    others = [threading.Thread(target=go_on) for _ in range(2)]
    for other in others:
        other.start()
    interrupted = 0
    for number in range(60):
        timer = threading.Timer(0.001 + number % 20 * 0.0005, lambda: os.kill(os.getpid(), signal.SIGINT))
        permit = None
        end = time.monotonic() + 2
        try:
            timer.start()
            while time.monotonic() < end:
                permit = gate.acquire()
                permit.release()
        except KeyboardInterrupt:
            interrupted += 1
            if permit is not None:
                permit.release()
        timer.join()
    others_run = False
    for other in others:
        other.join(20)
    assert interrupted >= 57
    assert failures == []
    # An interrupt between the grant and the assignment of the permit cannot be seen from here, so leases are let go of
    # by those who hold none: whatever is left belongs to nobody.
    until(lambda: len(gate.holders()) <= 1, 10)
    gc.collect()


def test_a_timed_out_waiter_leaves_the_line_before_it_is_told(server: Server, stores: Any) -> None:
    gate = Gate("g", [Concurrency(1, name="slots", lease="1h")], store=stores(server.url + PATIENT))
    held = gate.acquire()
    with pytest.raises(Denied):
        gate.acquire(timeout=0.05)
    assert gate.usage().waiting == 0
    held.release()


def test_an_ask_that_a_frozen_server_reads_later_is_undone(server: Server, stores: Any) -> None:
    gate = gate_of(stores(server.url))
    gate.acquire().release()
    server.freeze()
    assert isinstance(timed(gate.acquire)[1], StoreUnavailable)
    server.thaw()
    look = gate_of(stores(server.url + PATIENT))
    until(lambda: look.holders() == [] and look.usage()["w"].used == 1, 10)
    time.sleep(2.5)
    assert look.holders() == []
    assert look.usage()["w"].used == 1


def test_an_id_that_is_asked_again_is_not_undone_by_what_was_to_be_undone(server: Server, stores: Any) -> None:
    gate = gate_of(stores(server.url))
    gate.acquire().release()
    server.freeze()
    assert isinstance(timed(lambda: gate.acquire(id="job"))[1], StoreUnavailable)
    assert isinstance(timed(lambda: gate.acquire(id="job"))[1], StoreUnavailable)
    server.thaw()
    permits: list[Any] = []

    def granted() -> bool:
        answer = timed(lambda: gate.acquire(id="job"))[1]
        if isinstance(answer, StoreUnavailable):
            return False
        permits.append(answer)
        return True

    until(granted, 5)
    time.sleep(2.5)
    assert [holder.id for holder in gate.holders()] == ["job"]
    assert permits[0].release() is True


def test_a_child_of_a_fork_has_connections_of_its_own(server: Server, stores: Any) -> None:
    gate = gate_of(stores(server.url + PATIENT))
    held = gate.acquire()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with gate.acquire():
                code = 0 if gate.usage()["slots"].used >= 2 else 2
        finally:
            os._exit(code)
    for _ in range(50):
        gate.acquire().release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held.release() is True
    assert gate.usage()["slots"].used == 0

"""What other limiters on Redis get wrong, each with a sentence and a test on a real server: ours must not.

- NOSCRIPT after a flush or a failover: `test_a_library_that_was_flushed_is_loaded_again` in test_loss.py, and here
- a free key that waits behind an exhausted one: here
- cancelled waiters that leave ghost reservations: `test_a_waiter_that_is_cancelled_leaves_the_line` and
  `test_a_cancelled_ask_leaves_nothing_behind` in test_waiting.py, and here for rates
- a large ask that is starved by small ones: here
- a live holder's slot that is given away while the holder renews: here
- denied asks that are charged on other limits: here
- keys that are forgotten because memory was full: here, one by one
- contention that counts as failure and opens the gate: here
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from contextlib import suppress
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Denied, Gate, Quota, StoreUnavailable, Window
from headgate.events import Event
from tests.support.redis_gates import PATIENT
from tests.support.servers import Proxy, Server, new
from tests.support.waiting import until

# --- the script -------------------------------------------------------------------------------------------------------


def test_a_promoted_replica_that_was_never_sent_the_script_decides_at_once(stores: Any, events: list[Event]) -> None:
    with new() as master, new("--replicaof", f"127.0.0.1 {master.port}") as replica, Proxy(master.address) as proxy:
        until(lambda: b"master_link_status:up" in replica.command("INFO", "replication"))
        gate = Gate("g", [Window(100, per="1h", name="w")], store=stores(proxy.url + PATIENT))
        for _ in range(10):
            gate.acquire()
        until(lambda: offset_of(replica) >= offset_of(master))
        replica.command("REPLICAOF", "NO", "ONE")
        replica.command("SCRIPT", "FLUSH")
        replica.command("FUNCTION", "FLUSH")
        proxy.target = replica.address
        proxy.drop_now()
        assert gate.try_acquire() is not None
        assert gate.usage()["w"].used == 11
        assert [event.kind for event in events] == []


def offset_of(server: Server) -> int:
    info = server.command("INFO", "replication").decode()
    return int(info.partition("master_repl_offset:")[2].split()[0])


def test_scripts_and_functions_that_vanish_under_load_cost_no_ask_and_no_second_charge(
    server: Server, stores: Any
) -> None:
    gate = Gate("g", [Window(100_000, per="1h", name="w")], store=stores(server.url + PATIENT))
    gate.acquire()
    granted: list[Any] = []
    running = True

    def ask() -> None:
        while running:
            granted.append(gate.acquire())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        server.command("SCRIPT", "FLUSH")
        server.command("FUNCTION", "FLUSH")
        time.sleep(0.02)
    running = False
    for thread in threads:
        thread.join(60)
    assert gate.usage()["w"].used == 1 + len(granted)


# --- the line ---------------------------------------------------------------------------------------------------------


def test_a_free_key_does_not_wait_behind_an_exhausted_one(server: Server, stores: Any) -> None:
    limits = [Concurrency(1, name="org", by="org", lease="1h"), Concurrency(50, name="all", lease="1h")]
    busy, other = (Gate("g", limits, store=stores(server.url + PATIENT)) for _ in range(2))
    held = busy.acquire(key={"org": "busy"}, renew=False)
    waiters = [
        threading.Thread(target=lambda: busy.acquire(key={"org": "busy"}, timeout=60).release()) for _ in range(30)
    ]
    for waiter in waiters:
        waiter.start()
    until(lambda: busy.usage(key={"org": "busy"}).waiting == 30)
    for number in range(20):
        permit = other.try_acquire(key={"org": f"free-{number}"})
        assert permit is not None, "it stands behind nobody"
        permit.release()
    permit = other.acquire(key={"org": "free"}, timeout=60)
    assert permit.waited == 0
    permit.release()
    held.release()
    for waiter in waiters:
        waiter.join(60)


@pytest.mark.parametrize("taken_back", ["cancelled", "out of time"])
def test_waiters_that_leave_have_reserved_nothing(server: Server, stores: Any, taken_back: str) -> None:
    limits = [
        Window(10, per="1s", slack=0, name="w"),
        Bucket(1000, per="30d", slack=0, name="b"),
        Concurrency(5, name="c"),
    ]
    gate = AsyncGate("g", limits, store=stores(server.url + PATIENT))

    async def main() -> None:
        for _ in range(10):
            await (await gate.acquire()).release()
        if taken_back == "cancelled":
            waiters = [asyncio.create_task(gate.acquire()) for _ in range(100)]
            while (await gate.usage()).waiting < 80:
                await asyncio.sleep(0.005)
            for waiter in waiters:
                waiter.cancel()
        else:
            waiters = [asyncio.create_task(gate.acquire(timeout=0.2)) for _ in range(100)]
        told = await asyncio.gather(*waiters, return_exceptions=True)
        went = [one for one in told if not isinstance(one, BaseException)]
        for permit in went:
            await permit.release()
        end = time.monotonic() + 60
        while (await gate.usage()).waiting or await gate.holders():
            assert time.monotonic() < end
            await asyncio.sleep(0.01)
        usage = await gate.usage()
        assert usage["b"].used == pytest.approx(10 + len(went), abs=0.1)
        await asyncio.sleep(1.1)
        # All of the next window is there for whoever comes now.
        assert None not in [await gate.try_acquire() for _ in range(5)]
        assert (await gate.usage())["w"].used == 5

    asyncio.run(main())


def test_a_large_ask_is_not_starved_by_small_ones(server: Server, stores: Any) -> None:
    limits = [Bucket(100, per="1s", burst=50, slack=0, name="b")]
    gate = Gate("g", limits, store=stores(server.url + PATIENT))
    running = True
    went: list[int] = []

    def small() -> None:
        others = Gate("g", limits, store=stores(server.url + PATIENT))
        while running:
            others.acquire()
            went.append(1)

    threads = [threading.Thread(target=small) for _ in range(20)]
    for thread in threads:
        thread.start()
    until(lambda: gate.usage().waiting >= 15)
    before_it = []
    for _ in range(3):
        begun = len(went)
        gate.acquire(cost=40, timeout=60)
        before_it.append(len(went) - begun)
    running = False
    for thread in threads:
        thread.join(60)
    # Its turn comes after the 20 that stood before it, and no thread comes twice; one each may say late that it went.
    assert max(before_it) <= 40, before_it


def test_a_slot_is_not_given_away_while_its_holder_renews(server: Server, stores: Any, events: list[Event]) -> None:
    limits = [Concurrency(1, name="slots", lease="2s")]
    holding = Gate("g", limits, store=stores(server.url + PATIENT))
    asking = Gate("g", limits, store=stores(server.url + PATIENT))
    permit = holding.acquire()
    expires = permit.lease_expires_at
    assert expires is not None
    took: list[Any] = []

    def wait() -> None:
        with suppress(Denied):
            took.append(asking.acquire(timeout=4))

    waiters = [threading.Thread(target=wait) for _ in range(5)]
    for waiter in waiters:
        waiter.start()
    while (permit.lease_expires_at or 0) < expires + 3:
        assert asking.try_acquire() is None
        assert not permit.lost
    for waiter in waiters:
        waiter.join(60)
    assert took == []
    assert not permit.lost
    assert "lease_lost" not in [event.kind for event in events]
    assert permit.release() is True


# --- charging ---------------------------------------------------------------------------------------------------------


def test_a_denied_ask_is_charged_on_no_limit(server: Server, stores: Any) -> None:
    limits = [
        Window(1000, per="1h", name="w"),
        Bucket(1000, per="1h", slack=0, name="b"),
        Quota(1000, per="month", name="q"),
        Concurrency(100, name="org", by="org", lease="1h"),
        Concurrency(1, name="all", lease="1h"),
    ]
    store = stores(server.url + PATIENT)
    gate = Gate("g", limits, store=store)
    key = {"org": "acme"}
    held = gate.acquire(key=key, renew=False)
    assert [gate.try_acquire(key=key) for _ in range(50)] == [None] * 50
    with pytest.raises(Denied):
        gate.acquire(key=key, timeout=0.05)
    with pytest.raises(Denied):
        gate.acquire(cost=5000, key=key)

    async def together() -> list[Any]:
        looped = AsyncGate("g", limits, store=store)
        return await asyncio.gather(*(looped.try_acquire(key=key) for _ in range(50)))

    assert asyncio.run(together()) == [None] * 50
    assert [one.used for one in gate.usage(key=key).limits] == pytest.approx([1] * 5, abs=0.2), "the bucket runs off"
    held.release()


# --- memory that is full ----------------------------------------------------------------------------------------------


def fill(server: Server) -> int:
    """Somebody else's keys, until there is no room; how many went in."""
    written = 0
    for size in (50_000, 1000, 10):
        with suppress(AssertionError):  # there is no room for one of that size
            while True:
                server.command("SET", f"filler-{written}", "x" * size)
                written += 1
    return written


def test_a_full_server_forgets_nothing_where_it_does_not_evict(stores: Any) -> None:
    with new("--maxmemory", "8mb", "--maxmemory-policy", "noeviction") as server:
        gate = Gate("g", [Window(1000, per="1h", name="w", by="org")], store=stores(server.url + PATIENT))
        orgs = []
        written = fill(server) // 2
        for number in range(written):
            server.command("DEL", f"filler-{number}")
        with pytest.raises(StoreUnavailable, match="maxmemory"):  # noqa: PT012
            while len(orgs) < 100_000:
                org = f"org-{len(orgs)}-{'x' * 60}"
                gate.acquire(key={"org": org})
                orgs.append(org)
        assert len(orgs) > 100
        server.command("CONFIG", "SET", "maxmemory", "100mb")
        until(lambda: answers(gate))
        assert {gate.usage(key={"org": org})["w"].used for org in orgs} == {1}


def answers(gate: Gate) -> bool:
    try:
        gate.acquire(key={"org": "org-0"})
    except StoreUnavailable:
        return False
    return True


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_called_wrong_by_doctor(stores: Any, policy: str) -> None:
    with new("--maxmemory", "100mb", "--maxmemory-policy", policy) as server:
        [told] = [finding for finding in stores(server.url).examine() if policy in finding[1]]
        assert told[0] == "wrong"
        assert "noeviction" in told[2]


def test_a_gate_that_was_evicted_as_a_whole_is_noticed_and_refills_slowly(stores: Any, events: list[Event]) -> None:
    with new("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru") as server:
        gate = Gate("g", [Window(100, per="4s", slack=0, name="w")], store=stores(server.url + PATIENT))
        for _ in range(100):
            assert gate.try_acquire() is not None
        end = time.monotonic() + 60
        number = 0
        while server.command("EXISTS", "hg:{g}", "hg:{g}:states"):
            assert time.monotonic() < end
            server.command("SET", f"filler-{number}", "x" * 50_000)
            number += 1
        begun = time.monotonic()
        passed = sum(gate.try_acquire() is not None for _ in range(100))
        assert [event.kind for event in events].count("state_lost") == 1
        assert passed <= 100 * (time.monotonic() - begun) / 4 + 1, "in proportion to the time, and not all at once"


@pytest.mark.parametrize(
    "keys", ["states", "leases/c", "leases/c:z", "leases/c leases/c:z", "states leases/c leases/c:z"]
)
def test_slots_of_which_a_key_was_evicted_are_still_held(
    server: Server, stores: Any, events: list[Event], keys: str
) -> None:
    limits = [Window(5, per="1h", name="w"), Concurrency(3, name="c", lease="1h")]
    gate = Gate("g", limits, store=stores(server.url + PATIENT))
    permits = [gate.acquire(renew=False, holder="me") for _ in range(3)]
    assert gate.try_acquire() is None
    evict(server, keys)
    assert gate.try_acquire() is None
    assert gate.usage()["c"].used == 3
    assert {holder.id for holder in gate.holders()} == {permit.id for permit in permits}
    assert lost(events) == (keys != "leases/c:z")  # when which of them ends is on record elsewhere too
    assert [permit.release() for permit in permits] == [True] * 3, "and each is its holder's"
    assert gate.usage()["c"].used == 0


def lost(events: list[Event]) -> int:
    return [event.kind for event in events].count("state_lost")


def evict(server: Server, keys: str) -> None:
    """As a server does that is full: these, and no others."""
    names = [f"hg:{{g}}{':' * bool(key)}{key}" for key in keys.replace("HEAD", "").split(" ")]
    assert server.command("DEL", *names) == len(names)


def test_a_holder_that_renews_is_first_to_notice_that_its_lease_was_evicted(
    server: Server, stores: Any, events: list[Event]
) -> None:
    gate = Gate("g", [Concurrency(3, name="c", lease="1h")], store=stores(server.url + PATIENT))
    permits = [gate.acquire() for _ in range(2)]
    evict(server, "leases/c leases/c:z permits permits:z")  # nobody but the holders knows of them
    for permit in permits:
        permit.renew()
    assert gate.usage()["c"].used == 2
    assert lost(events) == 1


def test_the_slots_of_dead_holders_come_back_also_where_their_order_was_evicted(server: Server, stores: Any) -> None:
    gate = Gate("g", [Concurrency(2, name="c", lease="1s")], store=stores(server.url + PATIENT))
    for _ in range(2):
        gate.acquire(renew=False)
    evict(server, "leases/c:z")
    gate.acquire(timeout=60)


def test_slots_that_nobody_holds_are_not_taken_for_evicted_ones(
    server: Server, stores: Any, events: list[Event]
) -> None:
    limits = [Concurrency(2, name="c", lease="1h", by="org"), Window(1000, per="1h", name="w", by="org")]
    gate = Gate("g", limits, store=stores(server.url + PATIENT))
    for round_ in range(3):
        for org in ("a", "b", f"new-{round_}"):
            with gate.acquire(key={"org": org}), gate.acquire(key={"org": org}):
                assert gate.try_acquire(key={"org": org}) is None
        gate.reset("c" if round_ else None)
    assert events == []


RATES = {
    "window": Window(50, per="4s", slack=0, name="l"),
    "bucket": Bucket(50, per="4s", slack=0, name="l"),
    "quota": Quota(50, per="day", name="l", slack=0),
}


@pytest.mark.parametrize(
    ("rate", "keys"),
    [
        ("window", "states"),
        ("window", "windows/l"),
        ("window", "windows/l:z"),
        ("window", "windows/l windows/l:z"),
        ("window", "HEAD"),
        ("bucket", "states"),
        ("bucket", "HEAD"),
        ("quota", "states"),
    ],
)
def test_a_rate_of_which_a_key_was_evicted_comes_back_with_time_and_not_at_once(
    server: Server, stores: Any, events: list[Event], rate: str, keys: str
) -> None:
    gate, look = (Gate("g", [RATES[rate]], store=stores(server.url + PATIENT)) for _ in range(2))
    while gate.try_acquire() is not None:
        time.sleep(0.001)  # at several moments, so that a window has slots
    evict(server, keys)
    asking = look if keys == "HEAD" else gate  # one who knows nothing of what was before
    since = time.monotonic()
    passed = 0
    while (took := time.monotonic() - since) < 0.3 or (passed < 10 and rate != "quota"):
        assert took < 60, "but it does come back"
        passed += asking.try_acquire() is not None
        # Of the day, as much as of its time is left.
        assert passed <= (50 if rate == "quota" else 50 / 4 * (time.monotonic() - since) + 2)
    assert lost(events) == 1


@pytest.mark.parametrize("limit", [Window(10, per="1s", slack=0, name="l"), Bucket(10, per="1s", burst=1, name="l")])
@pytest.mark.parametrize("keys", ["{kind}/l", "{kind}/l:z", "{kind}/l {kind}/l:z", "states"])
def test_promises_that_were_evicted_are_not_given_to_others_at_once(
    server: Server, stores: Any, events: list[Event], limit: Any, keys: str
) -> None:
    gate = Gate("g", [limit], store=stores(server.url + PATIENT), waiting="promise")
    for _ in range(30):
        gate.reserve()
    evict(server, keys.format(kind="promised" if isinstance(limit, Bucket) else "windows"))
    begun = time.monotonic()
    delays = [gate.reserve().delay for _ in range(20)]
    # Each is told how long from its own moment on.
    passed = time.monotonic() - begun
    assert all(delay >= 0.1 * number - 0.11 - passed for number, delay in enumerate(delays)), delays
    assert lost(events) == 1


LINE = (
    "tickets lanes line lane/0.0.org=a:z lane/0.0.org=b:z lane/1.1.org=b:z ready/0.0:z ready/1.1:z parked/org|a:z due:z "
    "sessions sessions:z of/SESSION:z young:z HEAD"
)


@pytest.mark.parametrize("key", LINE.split())
def test_waiters_of_whose_line_a_key_was_evicted_go_all_the_same(server: Server, stores: Any, key: str) -> None:
    """They may lose their places, and come again with the next heartbeat of their process."""
    limits = [Concurrency(1, name="org", by="org", lease="20s"), Concurrency(2, name="all", lease="20s")]
    store = stores(server.url + PATIENT)
    gate = Gate("g", limits, store=store, priorities={"live": 1.0, "batch": 1.0})
    held = [gate.acquire(key={"org": org}) for org in ("a", "c")]
    inside, most, went = [0], [0], [0]
    lock = threading.Lock()

    def wait(org: str, priority: str) -> None:
        with gate.acquire(key={"org": org}, priority=priority, timeout=60):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            time.sleep(0.01)
            with lock:
                inside[0] -= 1
                went[0] += 1

    asks = [("a", "live"), ("a", "batch"), ("b", "batch"), ("b", "live")] * 3
    threads = [threading.Thread(target=wait, args=ask) for ask in asks]
    for thread in threads:
        thread.start()
    until(lambda: gate.usage(key={"org": "a"}).waiting == len(asks))
    evict(server, key.replace("SESSION", store.session))
    for permit in held:
        permit.release()
    for thread in threads:
        thread.join(60)
    assert went[0] == len(asks)
    assert most[0] <= 2
    until(lambda: gate.usage(key={"org": "a"}).waiting == 0 and gate.holders() == [])


# --- failing open -----------------------------------------------------------------------------------------------------


def test_an_open_gate_that_is_full_and_fought_over_lets_nobody_pass_uncounted(
    server: Server, stores: Any, events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    """The lock of another limiter, not obtained in five seconds, let the request in: load itself opened the gate."""
    limits = [Concurrency(3, name="org", by="org", lease="1h"), Concurrency(5, name="all", lease="1h")]
    inside, most, granted = [0], [0], [0]
    lock = threading.Lock()

    def ask(gate: Gate, org: str) -> None:
        for _ in range(15):
            with gate.acquire(key={"org": org}):
                with lock:
                    inside[0] += 1
                    granted[0] += 1
                    most[0] = max(most[0], inside[0])
                time.sleep(0.002)
                with lock:
                    inside[0] -= 1

    gates = [Gate("g", limits, store=stores(server.url + PATIENT), on_store_error="open") for _ in range(4)]
    threads = [threading.Thread(target=ask, args=(gates[number % 4], f"org-{number % 3}")) for number in range(48)]
    with caplog.at_level(logging.INFO, logger="headgate"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert granted[0] == 48 * 15
    assert most[0] <= 5
    assert not {"passed_open", "store_down"} & {event.kind for event in events}
    assert "let pass" not in caplog.text


def test_each_pass_of_an_open_gate_is_one_line_and_one_count_and_is_not_charged_later(
    server: Server, stores: Any, events: list[Event], caplog: pytest.LogCaptureFixture
) -> None:
    with Proxy(server.address) as proxy:
        limits = [Concurrency(2, name="org", by="org", lease="6h"), Concurrency(4, name="all", lease="6h")]
        gate = Gate("api-deployment", limits, store=stores(proxy.url), on_store_error="open")
        key = {"org": "acme"}
        held = [gate.acquire(key=key) for _ in range(2)]
        assert gate.try_acquire(key=key) is None, "full, and no failure"
        proxy.refuse()
        with caplog.at_level(logging.INFO, logger="headgate"):
            passed = [gate.acquire(key=key, holder=f"run-{number}") for number in range(25)]
        assert sum(event.kind == "passed_open" for event in events) == 25
        assert sum("let pass" in record.getMessage() for record in caplog.records) == 25
        assert all("untracked" in repr(permit) for permit in passed)
        proxy.accept_again()
        for permit in passed:
            assert permit.release() is True
        until(lambda: gate.try_acquire(key=key) is None)
        assert gate.usage(key=key)["org"].used == 2
        for permit in held:
            assert permit.release() is True
        assert gate.usage(key=key)["all"].used == 0

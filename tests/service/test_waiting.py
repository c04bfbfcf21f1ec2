"""Waiting at a guard: turns, hanging up, shutting down, kill -9. Real processes, real sockets."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.support.guard_client import Answer, Client, answer_of
from tests.support.guards import GuardProcess

CONFIG = """\
store = "{store}"

[serve]
max_wait = "30s"
max_waiters = 40

[gates.slots]
limits = [{{ concurrency = 1, name = "slots", lease = "20s" }}]

[gates.busy]
limits = [{{ concurrency = 3, name = "slots", lease = "20s" }}, {{ window = 60, per = "1h", name = "total", slack = 0 }}]

[gates.promised]
waiting = "promise"
limits = [{{ bucket = 60, per = "1m", burst = 1, slack = 0, name = "requests" }}]
"""

Start = Callable[..., GuardProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[GuardProcess] = []

    def begin(store: str = "sqlite:///gates.db") -> GuardProcess:
        started.append(GuardProcess(tmp_path, CONFIG.format(store=store)))
        return started[-1]

    yield begin
    for guard in started:
        guard.kill()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as made:
        yield made


STORES = ["memory://", "sqlite:///gates.db"]


@pytest.mark.parametrize("store", STORES)
def test_a_client_waits_for_its_turn_and_is_told_how_long_it_did(
    start: Start, pool: ThreadPoolExecutor, store: str
) -> None:
    client = Client(start(store).port)
    held = client.acquire("slots").json
    waiting = pool.submit(client.acquire, "slots", wait=25)
    client.until(lambda: client.waiting("slots") == 1)
    time.sleep(0.2)
    client.release(held["id"])
    answer = waiting.result(60)
    assert answer.status == 200
    assert answer.json["waited"] >= 0.2
    assert client.waiting("slots") == 0


@pytest.mark.parametrize("store", STORES)
def test_clients_go_in_the_order_in_which_they_came(start: Start, pool: ThreadPoolExecutor, store: str) -> None:
    client = Client(start(store).port)
    held = client.acquire("slots").json["id"]
    waiting = []
    for place in range(6):
        waiting.append(pool.submit(client.acquire, "slots", wait=25, holder=f"{place}"))
        client.until(lambda place=place: client.waiting("slots") == place + 1)
    for one in waiting:
        client.release(held)
        held = one.result(60).json["id"]
        assert sum(other.done() for other in waiting) == waiting.index(one) + 1


def test_a_client_without_an_id_whose_time_is_over_is_refused_with_its_place_and_leaves_the_line(start: Start) -> None:
    client = Client(start().port)
    client.acquire("slots")
    begun = time.monotonic()
    refused = client.acquire("slots", wait=0.3)
    assert time.monotonic() - begun >= 0.3
    assert (refused.status, refused.kind) == (429, "denied")
    assert refused.json["position"] == 1
    assert refused.json["limit"] == "slots"
    assert client.waiting("slots") == 0


@pytest.mark.parametrize("store", STORES)
def test_a_client_whose_time_is_over_comes_again_by_its_id_and_has_kept_its_place(
    start: Start, pool: ThreadPoolExecutor, store: str
) -> None:
    client = Client(start(store).port)
    held = client.acquire("slots").json["id"]
    assert client.acquire("slots", wait=0.2, id="first").json["position"] == 1
    newcomer = pool.submit(client.acquire, "slots", wait=25)
    client.until(lambda: client.waiting("slots") == 2)
    for _ in range(3):
        assert client.acquire("slots", wait=0.2, id="first").status == 429
    again = pool.submit(client.acquire, "slots", wait=25, id="first")
    time.sleep(0.2)
    assert client.waiting("slots") == 2
    client.release(held)
    assert again.result(60).json["id"] == "slots:first"
    assert not newcomer.done()
    client.release("slots:first")
    assert newcomer.result(60).status == 200


@pytest.mark.parametrize("store", STORES)
def test_what_is_granted_to_one_who_may_come_again_waits_for_it_and_is_given_back_if_it_does_not(
    start: Start, store: str
) -> None:
    client = Client(start(store).port)
    held = client.acquire("slots").json["id"]
    assert client.acquire("slots", wait=0.1, id="first").status == 429
    client.release(held)
    client.until(lambda: client.used("slots", "slots") == 1)
    assert client.acquire("slots", id="first").json["id"] == "slots:first"
    assert client.acquire("slots", wait=0.1, id="second").status == 429
    client.release("slots:first")
    client.until(lambda: client.get("/v1/gates/slots/holders").json["holders"] != [])
    client.until(lambda: client.used("slots", "slots") == 0)
    assert client.acquire("slots", wait=25).status == 200


def test_one_who_does_not_come_again_leaves_the_line_after_a_few_seconds(start: Start) -> None:
    client = Client(start().port)
    client.acquire("slots")
    assert client.acquire("slots", wait=0.1, id="first").status == 429
    assert client.waiting("slots") == 1
    client.until(lambda: client.waiting("slots") == 0)


@pytest.mark.parametrize("store", STORES)
def test_of_two_requests_under_one_id_the_later_waits_and_the_earlier_is_told(
    start: Start, pool: ThreadPoolExecutor, store: str
) -> None:
    client = Client(start(store).port)
    held = client.acquire("slots").json["id"]
    earlier = pool.submit(client.acquire, "slots", wait=25, id="mine")
    client.until(lambda: client.waiting("slots") == 1)
    later = pool.submit(client.acquire, "slots", wait=25, id="mine")
    assert earlier.result(60).kind == "conflict"
    assert client.waiting("slots") == 1
    client.release(held)
    assert later.result(60).json["id"] == "slots:mine"


@pytest.mark.parametrize("own", [{}, {"id": "mine"}], ids=["without an id", "with an id"])
@pytest.mark.parametrize("store", STORES)
def test_a_client_that_hangs_up_while_it_waits_leaves_the_line(start: Start, store: str, own: dict[str, str]) -> None:
    client = Client(start(store).port)
    held = client.acquire("slots").json["id"]
    connection = client.begin("/v1/gates/slots/acquire", {"wait": 20, **own})
    client.until(lambda: client.waiting("slots") == 1)
    connection.close()
    client.until(lambda: client.waiting("slots") == 0)
    client.release(held)
    assert client.acquire("slots").status == 200


@pytest.mark.parametrize("store", STORES)
def test_a_client_that_hangs_up_at_the_moment_of_its_grant_leaks_nothing(start: Start, store: str) -> None:
    guard = start(store)
    client = Client(guard.port)
    for turn in range(10):
        held = client.acquire("slots").json["id"]
        connection = client.begin("/v1/gates/slots/acquire", {"wait": 20})
        client.until(lambda: client.waiting("slots") == 1)
        # The guard finds both at once when it goes on: the release that calls the waiter, and that the waiter is gone.
        guard.pause()
        if turn % 2:
            connection.close()
        releasing = client.begin(f"/v1/permits/{held}/release", {})
        connection.close()
        guard.go_on()
        assert answer_of(releasing).json["released"] is True
        releasing.close()
        client.until(lambda: client.used("slots", "slots") == 0 and client.waiting("slots") == 0)


def test_a_client_that_hangs_up_while_it_waits_for_a_promise_gives_it_back(start: Start) -> None:
    client = Client(start().port)
    for _ in range(10):
        client.post("/v1/gates/promised/reserve")
    before = client.get("/v1/gates/promised/explain").json["goes_in"]
    connection = client.begin("/v1/gates/promised/acquire", {"wait": 20})
    client.until(lambda: client.get("/v1/gates/promised/explain").json["goes_in"] > before)
    connection.close()
    client.until(lambda: client.get("/v1/gates/promised/explain").json["goes_in"] < before)


def test_beyond_the_cap_clients_are_refused_at_once_while_those_inside_are_served(
    start: Start, pool: ThreadPoolExecutor
) -> None:
    client = Client(start().port)
    held = client.acquire("slots").json["id"]
    waiting = [pool.submit(client.acquire, "slots", wait=25) for _ in range(40)]
    client.until(lambda: client.waiting("slots") == 40)
    for _ in range(20):
        refused = client.acquire("slots", wait=25)
        assert (refused.status, refused.kind) == (429, "too-many-waiters")
    assert client.acquire("busy", wait=25).status == 200  # one who need not wait is still let in
    client.release(held)
    while waiting:
        client.until(lambda: any(one.done() for one in waiting))
        [done] = [one for one in waiting if one.done()]
        waiting.remove(done)
        client.release(done.result().json["id"])


def commits_of(log: Path) -> int:
    """How many transactions stand in the log of a SQLite file: the last page of each tells how long the file is then."""
    data = log.read_bytes()
    frame = 24 + int.from_bytes(data[8:12], "big")
    frames = (data[at : at + 24] for at in range(32, len(data), frame))
    return sum(found[4:8] != bytes(4) for found in frames if found[8:16] == data[16:24])


def test_those_who_hang_up_together_leave_the_line_together_and_not_in_a_transaction_each(
    start: Start, tmp_path: Path
) -> None:
    guard = start()
    client = Client(guard.port)
    client.acquire("slots")
    connections = [client.begin("/v1/gates/slots/acquire", {"wait": 25}) for _ in range(40)]
    client.until(lambda: client.waiting("slots") == 40)
    guard.pause()
    before = commits_of(tmp_path / "gates.db-wal")
    for connection in connections:
        connection.close()
    guard.go_on()
    client.until(lambda: client.waiting("slots") == 0)
    assert 0 < commits_of(tmp_path / "gates.db-wal") - before < 20


# --- shutting down ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_a_guard_that_is_told_to_stop_ends_with_0(start: Start, told: signal.Signals) -> None:
    process = start("memory://").process
    assert process is not None
    process.send_signal(told)
    assert process.wait(120) == 0


def test_a_guard_that_is_told_to_stop_sends_waiters_away_who_keep_their_place_by_their_id(
    start: Start, pool: ThreadPoolExecutor
) -> None:
    guard = start()
    client = Client(guard.port)
    held = client.acquire("slots").json["id"]
    first = pool.submit(client.acquire, "slots", wait=25, id="first")
    client.until(lambda: client.waiting("slots") == 1)
    nameless = pool.submit(client.acquire, "slots", wait=25)
    client.until(lambda: client.waiting("slots") == 2)
    assert guard.stop() == 0  # it does not wait for their 25 seconds to be over
    for one in (first, nameless):
        answer = one.result(60)
        assert (answer.status, answer.kind) == (503, "shutting-down")
    guard.start()
    assert client.waiting("slots") == 1
    newcomer = pool.submit(client.acquire, "slots", wait=25)
    client.until(lambda: client.waiting("slots") == 2)
    again = pool.submit(client.acquire, "slots", wait=25, id="first")
    time.sleep(0.3)
    assert client.waiting("slots") == 2
    client.release(held)
    assert again.result(60).json["id"] == "slots:first"
    assert not newcomer.done()
    client.release("slots:first")
    assert newcomer.result(60).status == 200


# --- kill -9 ------------------------------------------------------------------------------------------------------------


def test_waiters_of_a_killed_guard_come_again_and_keep_their_places(start: Start, pool: ThreadPoolExecutor) -> None:
    guard = start()
    client = Client(guard.port)
    held = client.acquire("slots").json["id"]
    for place, name in enumerate(("one", "two", "three")):
        pool.submit(client.acquire, "slots", wait=25, id=name)
        client.until(lambda place=place: client.waiting("slots") == place + 1)
    guard.kill()
    guard.start()
    assert client.used("slots", "slots") == 1
    newcomer = pool.submit(client.acquire, "slots", wait=25)
    client.until(lambda: client.waiting("slots") == 4)
    again: dict[str, Future[Answer]] = {}
    for name in ("three", "one", "two"):  # in any order
        again[name] = pool.submit(client.acquire, "slots", wait=25, id=name)
    time.sleep(11)  # longer than a process may go unheard of: they are the new guard's now
    assert client.waiting("slots") == 4
    client.release(held)
    for name in ("one", "two", "three"):
        assert again[name].result(60).json["id"] == f"slots:{name}"
        assert sum(one.done() for one in again.values()) == ("one", "two", "three").index(name) + 1
        client.release(f"slots:{name}")
    assert newcomer.result(60).status == 200


def test_promises_and_leases_outlive_a_kill(start: Start) -> None:
    guard = start()
    client = Client(guard.port)
    lease = client.acquire("slots", holder="a long job").json
    told = time.monotonic()
    places = [client.post("/v1/gates/promised/reserve", {"id": f"p{number}"}).json for number in range(5)]
    guard.kill()
    guard.start()
    for number, place in enumerate(places):
        again = client.post("/v1/gates/promised/reserve", {"id": f"p{number}"}).json
        since = (time.monotonic() - told) * 1000
        assert again["id"] == place["id"]
        assert max(0, place["delay"] - since) <= again["delay"] <= place["delay"]
    fresh = client.post("/v1/gates/promised/reserve").json
    assert fresh["delay"] > client.post("/v1/gates/promised/reserve", {"id": "p4"}).json["delay"] + 500
    [holder] = client.get("/v1/gates/slots/holders").json["holders"]
    assert (holder["id"], holder["holder"]) == (lease["id"], "a long job")
    assert client.post(f"/v1/permits/{lease['id']}/renew").status == 200
    assert client.release(lease["id"]).json["released"] is True


def test_a_guard_killed_again_and_again_under_load_admits_nobody_twice_and_forgets_nothing(start: Start) -> None:
    guard = start()
    client = Client(guard.port, timeout=60)
    lock = threading.Lock()
    holding: set[str] = set()
    most = 0
    grants: dict[str, list[int]] = {}
    over = threading.Event()

    def persist(method: str, path: str, body: dict[str, Any]) -> Answer:
        """As a worker should: ask again with the same id until there is an answer."""
        while True:
            try:
                answer = client(method, path, body)
                if answer.status != 503:
                    return answer
            except (OSError, HTTPException):  # refused, or killed in the middle of its answer
                pass
            time.sleep(0.05)

    def work(worker: int) -> None:
        nonlocal most
        turn = 0
        while not over.is_set():
            turn += 1
            name = f"w{worker}-{turn}"
            answer = persist("POST", "/v1/gates/busy/acquire", {"id": name, "wait": 2})
            if answer.status != 200:
                time.sleep(0.05)
                continue
            with lock:
                grants.setdefault(name, []).append(answer.json["fence"])
                holding.add(name)
                most = max(most, len(holding))
            time.sleep(0.02)
            if turn % 3 == 0:  # asks again for what it has: the same permit, and no second charge
                again = persist("POST", "/v1/gates/busy/acquire", {"id": name})
                grants[name].append(again.json["fence"])
            with lock:
                holding.discard(name)
            persist("POST", f"/v1/permits/busy:{name}/release", {})

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for _ in range(4):
        time.sleep(0.7)
        guard.kill()
        guard.start()
    client.until(lambda: client.used("busy", "total") == 60)
    over.set()
    for worker in workers:
        worker.join(60)
        assert not worker.is_alive()
    assert most <= 3
    assert len(grants) == 60  # all of the window, and not one more
    assert all(len(set(fences)) == 1 for fences in grants.values())
    fences = [fences[0] for fences in grants.values()]
    assert len(set(fences)) == len(fences)
    client.until(lambda: client.used("busy", "slots") == 0)


# --- several guards -----------------------------------------------------------------------------------------------------


@pytest.fixture
def redis() -> Iterator[Any]:
    import os

    from tests.support.servers import NoServer, Server

    try:
        server = Server().start()
    except NoServer as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    yield server
    server.stop()


def test_guards_on_redis_share_what_is_held_and_who_waits(tmp_path: Path, redis: Any, pool: ThreadPoolExecutor) -> None:
    guards = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        guards.append(GuardProcess(tmp_path / name, CONFIG.format(store=redis.url)))
    try:
        one, two = (Client(guard.port) for guard in guards)
        held = one.acquire("slots").json["id"]
        assert two.acquire("slots").status == 429
        assert two.post(f"/v1/permits/{held}/renew").status == 200
        first = pool.submit(one.acquire, "slots", wait=25, id="first")
        two.until(lambda: two.waiting("slots") == 1)
        second = pool.submit(two.acquire, "slots", wait=25)
        one.until(lambda: one.waiting("slots") == 2)
        guards[0].kill()  # its waiter goes to the other guard, and keeps its place
        again = pool.submit(two.acquire, "slots", wait=25, id="first")
        time.sleep(0.5)
        assert two.release(held).json["released"] is True
        assert again.result(60).json["id"] == "slots:first"
        assert not second.done()
        assert two.release("slots:first").json["released"] is True
        assert second.result(60).status == 200
        with pytest.raises(OSError, match=r"."):
            first.result(60)
    finally:
        for guard in guards:
            guard.kill()


def test_a_guard_whose_store_is_away_lives_is_not_ready_and_says_so(tmp_path: Path, redis: Any) -> None:
    guard = GuardProcess(tmp_path, CONFIG.format(store=redis.url))
    try:
        client = Client(guard.port)
        assert client.get("/readyz").status == 200
        redis.kill()
        assert client.get("/livez").status == 200
        assert client.get("/readyz").kind == "store-unavailable"
        refused = client.acquire("slots")
        assert (refused.status, refused.kind) == (503, "store-unavailable")
        redis.start()
        client.until(lambda: client.get("/readyz").status == 200)
        client.until(lambda: client.acquire("slots").status == 200)
    finally:
        guard.kill()

"""`store = "http://…"`: gates whose state is in a guard. The store suite, outages, killed guards, hostile bytes."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Denied, Gate, InvalidInput, StoreUnavailable, Window
from headgate.errors import ConfigError, HeadgateError, IdConflict
from headgate.service.store_protocol.execute import Wire
from headgate.stores.http import HttpStore
from headgate.stores.http.client import GuardEndpoint, Response
from headgate.stores.http.wire import NotAllowed, TooMany, decode, encode
from headgate.stores.memory import MemoryStore
from headgate.stores.remote.jobs import ConnectionLost
from headgate.stores.sqlite import SqliteStore
from headgate.testing import FakeClock, StoreSuite
from tests.support import stores
from tests.support.guards import GuardProcess, GuardThread
from tests.support.histories import FAMILIES, History, plain, usual_deed
from tests.support.waiting import DECIDED, Stopwatch, held_up, timed, until

GATES = """
store = "sqlite:///guard.db"

[gates.g]
limits = [
  { window = 1000, per = "1h", name = "w" },
  { concurrency = 100, name = "slots", lease = "1h" },
]

[gates.one]
limits = [{ concurrency = 1, name = "slots", lease = "1h" }]

[gates.three]
limits = [{ concurrency = 3, name = "slots", lease = "1h" }, { window = 100000, per = "1h", name = "w" }]
"""


def gate_of(url: str, mode: str = "closed", kind: Any = Gate, **more: Any) -> Any:
    limits = [Window(1000, per="1h", name="w"), Concurrency(100, name="slots", lease="1h")]
    return kind("g", limits, store=url, on_store_error=mode, **more)


def one_of(url: str, kind: Any = Gate) -> Any:
    return kind("one", [Concurrency(1, name="slots", lease="1h")], store=url)


def back(gate: Any) -> bool:
    """Whether the gate asks its guard again, having tried it."""
    _, permit = timed(gate.acquire)
    if not isinstance(permit, Exception):
        permit.release()
    return not gate._outage.away


# --- the suite --------------------------------------------------------------------------------------------------------


class TestHttp(StoreSuite):
    """On a guard in memory, whose clock stands still."""

    def make_store(self, clock: FakeClock) -> Any:
        self.guard = GuardThread(self.make_inner(clock))
        return HttpStore(f"{self.guard.url}?timeout=10s")

    def make_inner(self, clock: FakeClock) -> Any:
        return MemoryStore(clock=clock)

    def teardown_method(self, method: Any = None) -> None:
        super().teardown_method(method)
        self.guard.stop()

    def lose_state(self, store: Any, gate: str) -> None:
        """As if the guard had been restarted: nobody but its clients remembers how far it had come."""
        self.guard.store._gates[gate].__init__(gate)


class TestHttpOnSqlite(TestHttp):
    """On a guard whose state is in a file."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.clock = FakeClock()
        self.folder = tmp_path
        self.store = self.make_store(self.clock)

    def setup_method(self, method: Any = None) -> None:
        """The store is made by the fixture, which knows where files may be put."""

    def make_inner(self, clock: FakeClock) -> Any:
        return SqliteStore(str(self.folder / "guard.db"), clock=clock)

    def lose_state(self, store: Any, gate: str) -> None:
        """The file is put back to what it was before anything happened."""
        import sqlite3
        from contextlib import closing

        inner = self.guard.store
        with closing(sqlite3.connect(self.folder / "guard.db")) as file, closing(sqlite3.connect(":memory:")) as empty:
            SqliteStore(str(self.folder / "empty.db"), clock=self.clock).close()
            with closing(sqlite3.connect(self.folder / "empty.db")) as fresh:
                fresh.backup(empty)
            empty.backup(file)
        inner._seen.clear()  # the guard was restarted as well


# --- outages ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[GuardProcess]:
    process = GuardProcess(tmp_path, GATES)
    yield process
    process.kill()


@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_gate_decides_in_time_what_to_do_without_its_guard_and_comes_back(guard: GuardProcess, how: str) -> None:
    closed, opened, local = (gate_of(guard.url, mode) for mode in ("closed", "open", "local:0.5"))
    for gate in (closed, opened, local):
        gate.acquire().release()
    getattr(guard, how)()
    took, answer = timed(closed.acquire)
    assert isinstance(answer, StoreUnavailable)
    assert took < DECIDED
    took, permit = timed(opened.acquire)
    assert permit.release() is True
    assert took < DECIDED
    took, answer = timed(lambda: local.try_acquire())
    assert not isinstance(answer, Exception)
    assert took < DECIDED
    took, answers = timed(lambda: [timed(closed.acquire)[1] for _ in range(100)])
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    assert took < 2, "a hundred calls, of which one in half a second tries the guard"
    if how == "kill":
        guard.start()
    else:
        guard.go_on()
    for gate in (closed, opened, local):
        until(lambda gate=gate: back(gate), 5)  # type: ignore[misc]


def test_an_async_gate_does_not_block_its_loop_while_its_guard_is_silent(guard: GuardProcess) -> None:
    async def main() -> None:
        gate = gate_of(guard.url, kind=AsyncGate)
        await (await gate.acquire()).release()
        async with held_up() as seconds:
            guard.pause()
            watch = Stopwatch()
            results = await asyncio.gather(*(gate.acquire() for _ in range(50)), return_exceptions=True)
            assert all(isinstance(result, StoreUnavailable) for result in results)
            assert watch.seconds() < DECIDED
        assert max(seconds) < 0.15
        guard.go_on()
        async with asyncio.timeout(10):
            while isinstance((await asyncio.gather(gate.acquire(), return_exceptions=True))[0], BaseException):
                await asyncio.sleep(0.05)
        await asyncio.to_thread(lambda: until(lambda: Gate.usage(gate_of(guard.url)).limits[1].used == 1, 10))

    asyncio.run(main())


def test_nothing_stays_behind_of_asks_that_a_silent_guard_answers_later(guard: GuardProcess) -> None:
    gate = gate_of(guard.url)
    gate.acquire().release()
    guard.pause()
    with pytest.raises(StoreUnavailable):
        gate.acquire()
    guard.go_on()
    until(lambda: not isinstance(timed(gate.usage)[1], Exception), 5)
    until(lambda: gate.usage()["slots"].used == 0, 10)
    assert gate.usage()["w"].used == 1


def test_a_name_that_cannot_be_looked_up_is_told_in_time() -> None:
    gate = gate_of("http://headgate.invalid:8420")
    took, answer = timed(gate.acquire)
    assert isinstance(answer, StoreUnavailable)
    assert took < DECIDED


def test_what_answers_but_is_no_guard_is_called_that(tmp_path: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        for text in (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"hello":"you"}'):
            connection, _ = listening.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(text)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    store = HttpStore(f"http://127.0.0.1:{listening.getsockname()[1]}")
    gate = gate_of(store)  # type: ignore[arg-type]
    with pytest.raises(HeadgateError, match="no guard"):
        gate.usage()
    store.close()
    listening.close()
    thread.join(5)


# --- guards that are killed -------------------------------------------------------------------------------------------


def test_a_killed_guard_forgets_no_lease_and_no_window_and_its_clients_come_back(guard: GuardProcess) -> None:
    gate = gate_of(f"{guard.url}?timeout=5s")
    held = [gate.acquire(holder=f"worker-{number}") for number in range(5)]
    guard.kill()
    guard.start()
    until(lambda: not isinstance(timed(gate.usage)[1], Exception), 10)
    usage = gate.usage()
    assert (usage["w"].used, usage["slots"].used) == (5, 5)
    assert [permit.release() for permit in held] == [True] * 5
    assert gate.usage()["slots"].used == 0


@pytest.mark.timeout(120)
def test_those_who_wait_keep_their_place_through_a_kill_and_nobody_is_admitted_twice(guard: GuardProcess) -> None:
    first = one_of(f"{guard.url}?timeout=5s")
    held = first.acquire()
    clients = [HttpStore(f"{guard.url}?timeout=5s") for number in range(3)]
    order: list[int] = []
    inside = most = 0
    lock = threading.Lock()

    def work(number: int) -> None:
        nonlocal inside, most
        gate = one_of(clients[number])  # type: ignore[arg-type]
        while True:  # what a worker does: the same ask again, by its id
            try:
                permit = gate.acquire(id=f"job-{number}", timeout=60)
                break
            except StoreUnavailable:
                time.sleep(0.02)
        with lock:
            inside += 1
            most = max(most, inside)
            order.append(number)
        time.sleep(0.02)
        with lock:
            inside -= 1
        permit.release()

    threads = []
    for number in range(3):
        threads.append(threading.Thread(target=work, args=(number,), daemon=True))
        threads[-1].start()
        until(lambda number=number: first.usage().waiting == number + 1)  # type: ignore[misc]
    for _ in range(2):
        guard.kill()
        guard.start()
    until(lambda: not isinstance(timed(first.usage)[1], Exception), 10)
    assert first.usage().waiting == 3
    assert held.release() is True
    for thread in threads:
        thread.join(60)
    assert order == [0, 1, 2]
    assert most == 1
    until(lambda: first.usage()["slots"].used == 0, 10)
    for store in clients:
        store.close()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_guard_that_is_killed_again_and_again_under_load_admits_nobody_twice_and_loses_nothing(
    guard: GuardProcess,
) -> None:
    limits = [Concurrency(3, name="slots", lease="1h"), Window(100_000, per="1h", name="w")]
    clients = [HttpStore(f"{guard.url}?timeout=2s") for _ in range(8)]
    inside = most = done = 0
    lock = threading.Lock()
    over = threading.Event()

    def work(number: int) -> None:
        nonlocal inside, most, done
        gate = Gate("three", limits, store=clients[number])
        turn = 0
        while not over.is_set():
            turn += 1
            while True:
                try:
                    permit = gate.acquire(id=f"job-{number}-{turn}", timeout=60)
                    break
                except StoreUnavailable:
                    time.sleep(0.02)
            with lock:
                inside += 1
                most = max(most, inside)
            time.sleep(0.002)
            with lock:
                inside -= 1
                done += 1
            permit.release()

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        before = done
        until(lambda before=before: done > before + 50, 30)  # type: ignore[misc]
        guard.kill()
        guard.start()
    before = done
    until(lambda: done > before + 50, 30)
    over.set()
    for thread in threads:
        thread.join(90)
        assert not thread.is_alive()
    assert most == 3
    look = Gate("three", limits, store=clients[0])
    until(lambda: look.usage()["slots"].used == 0 and look.usage().waiting == 0, 20)
    assert look.usage()["w"].used == done, "each admission is counted once, through every kill"
    for store in clients:
        store.close()


def test_a_guard_that_is_stopped_ends_well_and_its_waiters_go_on_with_the_next(guard: GuardProcess) -> None:
    gate = one_of(f"{guard.url}?timeout=5s")
    held = gate.acquire()
    granted: list[Any] = []

    def work() -> None:
        while True:
            try:
                granted.append(gate.acquire(id="waiter", timeout=60))
                return
            except StoreUnavailable:
                time.sleep(0.02)

    waiter = threading.Thread(target=work, daemon=True)
    waiter.start()
    until(lambda: gate.usage().waiting == 1)
    assert guard.stop() in (0, -15), "it ends when it is asked to, in good time"
    guard.start()
    until(lambda: not isinstance(timed(gate.usage)[1], Exception), 10)
    until(lambda: held.release() is True and gate.usage()["slots"].used <= 1, 10)
    waiter.join(20)
    assert len(granted) == 1
    granted[0].release()


# --- waking -----------------------------------------------------------------------------------------------------------


@contextmanager
def shared_store(kind: str, folder: Path) -> Iterator[Callable[[], Any]]:
    """Makes stores on one state."""
    if kind == "redis":
        pytest.importorskip("redis", reason="redis is missing: pip install 'headgate[redis]'")
        from headgate.stores.redis import RedisStore

        with stores.redis(FakeClock()) as one:
            yield lambda: RedisStore(one.url)
    elif kind == "sqlite":
        yield lambda: SqliteStore(str(folder / "guard.db"))
    else:
        yield MemoryStore


@pytest.mark.parametrize("inner", ["memory", "sqlite", "redis"])
def test_a_waiter_is_told_within_a_moment_and_not_by_its_heartbeat(tmp_path: Path, inner: str) -> None:
    with shared_store(inner, tmp_path) as make:
        _waiter_is_told(make())


def _waiter_is_told(store: Any) -> None:
    guard = GuardThread(store)
    here, there = HttpStore(f"{guard.url}?timeout=2s"), HttpStore(f"{guard.url}?timeout=2001ms")
    try:
        mine, theirs = one_of(here), one_of(there)  # type: ignore[arg-type]
        took: list[float] = []
        for _ in range(5):
            held = mine.acquire()
            waiter = threading.Thread(target=lambda: took.append(_told_after(theirs)), daemon=True)
            waiter.start()
            until(lambda: mine.usage().waiting == 1)
            time.sleep(0.05)
            _released.append(time.monotonic())
            held.release()
            waiter.join(20)
        # A heartbeat comes once a second: five waits that each took a small part of that were woken.
        assert sorted(took)[2] < 0.2, took
    finally:
        here.close()
        there.close()
        guard.stop()


_released: list[float] = []


def _told_after(gate: Any) -> float:
    permit = gate.acquire(timeout=20)
    took = time.monotonic() - _released[-1]
    permit.release()
    return took


@pytest.mark.parametrize("inner", ["sqlite", "redis"])
def test_another_guard_and_processes_beside_it_wake_the_clients_of_this_one(tmp_path: Path, inner: str) -> None:
    with shared_store(inner, tmp_path) as make:
        _woken_by_others(make)


def _woken_by_others(make: Callable[[], Any]) -> None:
    guards = [GuardThread(make()), GuardThread(make())]
    clients = [HttpStore(f"{guard.url}?timeout=2s") for guard in guards]
    beside = make()
    try:
        for releaser in (one_of(clients[1]), one_of(beside)):  # type: ignore[arg-type]
            took: list[float] = []
            for _ in range(3):
                held = releaser.acquire(timeout=20)
                gate = one_of(clients[0])  # type: ignore[arg-type]
                waiter = threading.Thread(
                    target=lambda gate=gate, took=took: took.append(_told_after(gate)), daemon=True
                )
                waiter.start()
                until(lambda releaser=releaser: releaser.usage().waiting == 1)  # type: ignore[misc]
                time.sleep(0.05)
                _released.append(time.monotonic())
                held.release()
                waiter.join(20)
            assert sorted(took)[1] < 0.2, took
    finally:
        for store in (*clients, beside):
            store.close()
        for guard in guards:
            guard.stop()


# --- one request per batch --------------------------------------------------------------------------------------------


class Counting:
    """An ASGI application in front of a guard that counts requests and their commands."""

    def __init__(self, guard: Any) -> None:
        self._guard = guard
        self.sizes: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def counted() -> Any:
            message = await receive()
            if scope["path"] == "/v1/execute" and message.get("body"):
                self.sizes.append(len(json.loads(message["body"])["commands"]))
            return message

        await self._guard(scope, counted, send)


def test_what_is_asked_together_goes_in_one_request() -> None:
    guard = GuardThread(MemoryStore())
    counting = Counting(guard.guard)
    guard._server.config.loaded_app = counting  # type: ignore[assignment]
    store = HttpStore(f"{guard.url}?timeout=5s")
    try:

        async def main() -> None:
            gates = [gate_of(store, kind=AsyncGate), one_of(store, AsyncGate)]  # type: ignore[arg-type]
            await (await gates[0].acquire()).release()
            counting.sizes.clear()
            permits = await asyncio.gather(*(gates[0].acquire() for _ in range(64)), gates[1].acquire())
            assert sum(counting.sizes) == 65
            assert len(counting.sizes) <= 3, "gates of one guard go together, in two requests that alternate"
            counting.sizes.clear()
            await asyncio.gather(*(permit.release() for permit in permits))
            assert len(counting.sizes) <= 3

        asyncio.run(main())
        assert store.execute([]) == []
    finally:
        store.close()
        guard.stop()


def test_threads_that_ask_together_share_requests_and_never_get_more_than_there_is() -> None:
    guard = GuardThread(MemoryStore())
    store = HttpStore(f"{guard.url}?timeout=10s")
    gate = Gate("t", [Window(500, per="1h", name="w")], store=store)
    granted: list[int] = []

    def ask() -> None:
        granted.append(sum(gate.try_acquire() is not None for _ in range(100)))

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert sum(granted) == 500
    store.close()
    guard.stop()


def test_cancelling_at_any_moment_leaves_nothing_in_the_guard() -> None:
    guard = GuardThread(MemoryStore())
    store = HttpStore(f"{guard.url}?timeout=5s")

    async def main() -> None:
        gate = gate_of(store, kind=AsyncGate)  # type: ignore[arg-type]
        for number in range(40):
            task = asyncio.ensure_future(gate.acquire())
            await asyncio.sleep(number * 0.0001)
            task.cancel()
            results = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(results[0], BaseException):
                await results[0].release()
        async with asyncio.timeout(10):
            while (await gate.usage())["slots"].used:
                await asyncio.sleep(0.02)

    asyncio.run(main())
    store.close()
    guard.stop()


# --- the guard's file decides -----------------------------------------------------------------------------------------


def test_limits_that_differ_from_the_guards_are_refused_with_the_difference_and_others_are_served() -> None:
    gates = "[gates.g]\nlimits = [{ window = 190, per = '1m', name = 'rpm' }, { concurrency = 5, name = 'slots' }]"
    guard = GuardThread(MemoryStore(), gates, any_gate=False)
    store = HttpStore(f"{guard.url}?timeout=5s")
    try:
        other = Gate("g", [Window(200, per="30s", name="rpm"), Concurrency(5, name="more")], store=store)
        with pytest.raises(ConfigError) as told:
            other.acquire()
        for words in ("'rpm' has limit 190 there and 200 here", "per 60 s there and 30 s here", "'slots' there and not",
                      "'more' here and not there"):  # fmt: skip
            assert words in str(told.value)
        same = Gate("g", [Window(190, per="1m", name="rpm"), Concurrency(5, name="slots")], store=store)
        same.acquire().release()
        with pytest.raises(ConfigError, match=r"has no gate 'unknown'.*--any-gate"):
            Gate("unknown", [Bucket(1, per="1s")], store=store).acquire()
        with pytest.raises(ConfigError, match="waits by line there and by promise here"):
            Gate("g", [Window(190, per="1m", name="rpm")], store=store, waiting="promise").reserve()
    finally:
        store.close()
        guard.stop()


def test_what_a_token_may_not_do_is_refused_by_itself_and_the_gate_stays_open(tmp_path: Path) -> None:
    from headgate.service.tokens import add_token

    worker = add_token(str(tmp_path / "tokens.toml"), "worker", frozenset({"acquire"}))
    boss = add_token(str(tmp_path / "tokens.toml"), "boss", frozenset({"acquire", "observe", "configure"}))
    guard = GuardProcess(tmp_path, f'{GATES}\n[serve]\ntokens = "tokens.toml"\naudit = "audit.jsonl"\n')
    mine = gate_of(f"http://:{worker}@127.0.0.1:{guard.port}?timeout=5s")
    theirs = gate_of(f"http://{boss}@127.0.0.1:{guard.port}?timeout=5s")
    try:
        permit = mine.acquire()
        for call in (mine.usage, mine.holders, lambda: mine.set_limit("w", 5), mine.reset, lambda: mine.pause(5)):
            with pytest.raises(NotAllowed, match="scope"):
                call()
        mine.acquire().release()
        permit.release("rate_limited", retry_after=0.05)
        theirs.set_limit("w", 500)
        theirs.pause(60, "maintenance")
        assert theirs.usage().pause_reason == "maintenance"
        theirs.resume()
        theirs.reset()
        assert theirs.usage()["w"].limit == 500
        lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        assert [(line["action"], line["by"]) for line in lines] == [
            ("set limit", "boss"), ("pause", "boss"), ("resume", "boss"), ("reset", "boss")
        ]  # fmt: skip
        for url in (guard.url, f"http://:hg_wrong@127.0.0.1:{guard.port}"):
            with pytest.raises(StoreUnavailable, match="token"):
                gate_of(url).acquire()
    finally:
        guard.kill()


def test_a_token_can_come_from_the_environment_and_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_TOKEN", "hg_from_environment")
    assert b"Bearer hg_from_environment\r\n" in HttpStore("http://localhost")._endpoint.post("/", b"")
    store = HttpStore("https://:hg_secret@guard.example.org/prefix?timeout=1s")
    assert b"POST /prefix/v1/execute HTTP/1.1\r\nHost: guard.example.org:443\r\n" in store._endpoint.post(
        "/v1/execute", b""
    )
    assert b"Bearer hg_secret\r\n" in store._endpoint.post("/", b"")
    assert "hg_secret" not in store._endpoint.shown


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://", "names no host"),
        ("http://host:port", "no URL of a guard"),
        ("http://host?retries=3", "retries is not known"),
        ("http://host?timeout=soon", "timeout"),
        ("http://a%20b@host", "a token is of printable"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_with_what_would(url: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        HttpStore(url)


# --- what is sent -----------------------------------------------------------------------------------------------------


def test_a_flood_of_waiters_or_keys_beyond_the_caps_is_refused_while_those_inside_are_served() -> None:
    gates = """
[serve]
max_waiters = 3
max_keys = 2
[gates.one]
limits = [{ concurrency = 1, name = "slots", lease = "1h" }]
[gates.keyed]
limits = [{ window = 5, per = "1h", name = "w", by = "org" }]
"""
    guard = GuardThread(MemoryStore(), gates, any_gate=False)
    store = HttpStore(f"{guard.url}?timeout=5s")
    try:
        gate = one_of(store)  # type: ignore[arg-type]
        held = gate.acquire()
        inside: list[Any] = []
        waiters = [
            threading.Thread(target=lambda: inside.append(gate.acquire(timeout=20)), daemon=True) for _ in range(3)
        ]
        for number, waiter in enumerate(waiters):
            waiter.start()
            until(lambda number=number: gate.usage().waiting == number + 1)  # type: ignore[misc]
        for _ in range(5):
            with pytest.raises(TooMany, match="3 wait already"):
                gate.acquire(timeout=20)
        assert gate.usage().waiting == 3
        held.release()
        until(lambda: len(inside) == 1)
        inside[0].release()
        until(lambda: len(inside) == 2)
        inside[1].release()
        until(lambda: len(inside) == 3)
        inside[2].release()
        keyed = Gate("keyed", [Window(5, per="1h", name="w", by="org")], store=store)
        for org in ("a", "b", "a"):
            keyed.acquire(key={"org": org})
        with pytest.raises(TooMany, match="different keys"):
            keyed.acquire(key={"org": "c"})
    finally:
        store.close()
        guard.stop()


def post(url: str, body: bytes, kind: str = "application/json") -> tuple[int, Any]:
    import http.client

    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=20)
    connection.request("POST", "/v1/execute", body, {"Content-Type": kind})
    answer = connection.getresponse()
    told = answer.status, json.loads(answer.read())
    connection.close()
    return told


def test_a_guard_believes_nothing_that_it_is_sent() -> None:
    guard = GuardThread(MemoryStore())
    gate = Gate("g", [Window(5, per="1h", name="w"), Concurrency(5, name="c")], store="memory://")
    fingerprint, spec = gate._policy.fingerprint, gate._policy.spec()
    ask = ["a", 0, 0, {"requests": 1}, {}, "id-1", None, 30_000_000, 3, "session", 2**53]
    try:
        for number in (None, [], "x", 7):
            assert post(guard.url, json.dumps(number).encode())[0] in (400, 422)
        assert post(guard.url, b"{")[0] == 400
        assert post(guard.url, b"{}", "text/plain")[0] == 415
        assert post(guard.url, json.dumps({"v": 2, "commands": [ask]}).encode())[0] == 422
        bad: list[Any] = [
            [], ["?"], ["a"], None, 5, ["a", 5, *ask[2:]], ["a", -1, *ask[2:]], ["a", True, *ask[2:]],
            [*ask[:2], 7, *ask[3:]], [*ask[:3], {"requests": -1}, *ask[4:]], [*ask[:3], {"requests": "1"}, *ask[4:]],
            [*ask[:3], {"requests": 1, "pu": 1}, *ask[4:]], [*ask[:4], {"org": "x"}, *ask[5:]],
            [*ask[:5], "../../etc/passwd\0", *ask[6:]], [*ask[:5], "", *ask[6:]], [*ask[:6], "x" * 500, *ask[7:]],
            [*ask[:7], -5, *ask[8:]], [*ask[:7], 2**60, *ask[8:]], [*ask[:8], 99, *ask[9:]],
            [*ask[:9], "../escape", *ask[10:]], [*ask[:10], -1], [*ask, 1],
            ["e", 0, 0, {"requests": 1}, {}, -5, "i", "ok", True, 0, None, 0, True],
            ["e", 0, 0, {"requests": 1}, {}, 5, "i", "great", True, 0, None, 0, True],
            ["e", 0, 0, {"requests": 1}, {}, 5, "i", "ok", True, 0, {"requests": -1}, 0, True],
            ["e", 0, 0, {}, {}, 5, "i", "ok", True, 0, None, 0, True],
            ["r", 0, "i", "fine", 0, None], ["c", 0, 5], ["n", "g", "a b", ["t"], []], ["n", 5, "s", [], []],
            ["n", "g", "s", [], [[0, 0, {"requests": 1}, {}, "i", 0, 1, 0, None]]], ["o", "g", "w", -1],
            ["o", "g", "w", "5"], ["u", "g", -5, ""], ["p", 9, None, False, False], ["t", 0, "i", 5],
        ]  # fmt: skip
        told = {"v": 1, "policies": [[fingerprint, spec]], "commands": [*bad, ask]}
        status, answer = post(guard.url, json.dumps(told).encode())
        assert status == 200
        refused, granted = answer["replies"][:-1], answer["replies"][-1]
        assert [reply for reply in refused if reply[:1] != ["x"]] == []
        assert isinstance(granted[0], int), "one error spoils nothing"
        # A policy that is not what its fingerprint says, or is none at all.
        others: list[Any] = [
            [fingerprint, [*spec[:1], [["window", 9, 1, 0, "w", "requests", None]], *spec[2:]]],
            [fingerprint, ["g"]],
            ["?", 5],
            [fingerprint, [None] * 6],
            ["x", ["h", [["?"]], "line", [], 1, 1]],
        ]
        for policy in others:
            fresh = {"v": 1, "policies": [policy], "commands": [ask]}
            status, answer = post(guard.url, json.dumps(fresh).encode())
            assert status in (200, 422), answer
            if policy[0] != fingerprint:
                assert answer["replies"][0][0] == "x"
    finally:
        guard.stop()


def test_an_answer_is_understood_however_it_arrives() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    body = b'{"v":1,"seen":{},"replies":[]}'
    chunked = b"".join(
        b"%x;x=1\r\n%s\r\n" % (len(body[at : at + 7]), body[at : at + 7]) for at in range(0, len(body), 7)
    )
    whole = [
        head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        head + b"transfer-encoding: chunked\r\n\r\n" + chunked + b"0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + head + b"content-length: %d\r\n\r\n" % len(body) + body,
    ]
    for text in whole:
        for size in (1, 2, 3, 5, 8, 1000):
            response = Response()
            for at in range(0, len(text), size):
                assert not response.done
                response.feed(text[at : at + size])
            assert response.done
            assert response.keeps
            assert decode(response.checked(), 0) == ([], {})
    until_closed = Response()
    for part in (b"HTTP/1.0 200 OK\r\n\r\n", body, b""):
        until_closed.feed(part)
    assert until_closed.checked() == body
    assert not until_closed.keeps
    for broken in (b"SSH-2.0\r\n\r\n", b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"x" * 70_000):
        with pytest.raises(ConnectionLost):
            Response().feed(broken)
    with pytest.raises(ConnectionLost):
        Response().feed(b"")


def test_an_ask_under_an_id_of_another_is_an_error_through_a_guard_as_well() -> None:
    guard = GuardThread(MemoryStore())
    store = HttpStore(f"{guard.url}?timeout=5s")
    gate = Gate("ids", [Window(5, per="1m", name="w")], store=store)
    gate.acquire(id="job", timeout=0)
    with pytest.raises(IdConflict, match="another ask"):
        gate.acquire(2, id="job", timeout=0)
    with pytest.raises(Denied) as denied:
        gate.acquire(6)
    assert denied.value.limit == "w"
    store.close()
    guard.stop()


def test_a_child_of_a_fork_has_connections_of_its_own(guard: GuardProcess) -> None:
    import os

    gate = gate_of(f"{guard.url}?timeout=5s")
    gate.acquire().release()
    child = os.fork()
    if not child:
        code = 1
        try:
            gate.acquire().release()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    gate.acquire().release()
    assert gate.usage()["w"].used == 3


def test_a_request_names_each_policy_once_however_many_commands_it_carries() -> None:
    from headgate.kernel.commands import Stand

    gate = Gate("g", [Window(5, per="1h", name="w")], store="memory://")
    plan = gate._policy.plan()
    told = json.loads(encode([Stand(plan, f"id-{number}", remembered=True) for number in range(50)], {"g": 7, "h": 9}))
    assert len(told["policies"]) == 1
    assert len(told["commands"]) == 50
    assert told["seen"] == {"g": 7}


class Carried:
    """The same commands on a store in memory, and on one behind the form in which a guard is asked."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.plain, self.behind = MemoryStore(clock=self.clock), MemoryStore(clock=self.clock)
        self.told: tuple[list[Any], list[Any]] = ([], [])
        self._wire = Wire({}, self.behind)
        self._loop = asyncio.new_event_loop()

    def listen(self, ticket: str) -> None:
        for store, told in zip((self.plain, self.behind), self.told, strict=True):
            store.listen(ticket, lambda delay, told=told: told.append((ticket, delay)))  # type: ignore[misc]

    def execute(self, commands: list[Any], which: int = 0) -> list[Any]:
        replies = self.plain.execute(commands)
        answer = self._wire.execute(json.loads(encode(commands, {})), lambda scope: True)
        carried, seen = decode(self._loop.run_until_complete(answer), len(commands))
        assert plain(carried) == plain(replies)
        assert [type(reply) for reply in carried] == [type(reply) for reply in replies]
        assert seen == {gate: self.plain._gates[gate].head[0] for gate in seen}
        return replies

    def check(self) -> None:
        self._loop.close()
        assert self.told[0] == self.told[1]
        assert {gate: records.head for gate, records in self.behind._gates.items()} == {
            gate: records.head for gate, records in self.plain._gates.items()
        }


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_carried_by_http_is_decided_and_answered_as_it_would_be_here(family: str) -> None:
    numbers = Random(11)
    pair = Carried()
    history = History(pair, FAMILIES[family])
    for _ in range(400):
        deeds = [usual_deed(numbers) for _ in range(numbers.randrange(1, 5))]
        pair.clock.advance(microseconds=numbers.choice([0, 1000, 333_333, 1_000_000]))
        history.execute(deeds)
    pair.check()


def test_an_endpoint_may_be_ipv6() -> None:
    endpoint = GuardEndpoint("http://[::1]:8420")
    assert b"Host: [::1]:8420\r\n" in endpoint.post("/", b"")


def test_a_guard_behind_tls_is_reached_by_threads_and_loops_and_a_strange_certificate_is_refused(
    tmp_path: Path,
) -> None:
    import shutil
    import subprocess

    if shutil.which("openssl") is None:
        pytest.skip("openssl is missing: it makes the certificate (apt-get install openssl)")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    guard = GuardThread(MemoryStore(), ssl_certfile=str(certificate), ssl_keyfile=str(key))
    url = f"https://localhost:{guard.port}?timeout=5s"
    store = HttpStore(f"{url}&ca={certificate}")
    strange = HttpStore(url)
    try:
        gate = one_of(store)
        held = gate.acquire()
        waiter = threading.Thread(target=lambda: gate.acquire(timeout=20).release(), daemon=True)
        waiter.start()
        until(lambda: gate.usage().waiting == 1)
        held.release()
        waiter.join(20)
        assert not waiter.is_alive()

        async def main() -> None:
            async with one_of(store, AsyncGate).acquire():
                pass

        asyncio.run(main())
        with pytest.raises(StoreUnavailable, match=r"certificate verify failed|CERTIFICATE_VERIFY_FAILED"):
            one_of(strange).acquire()
    finally:
        store.close()
        strange.close()
        guard.stop()

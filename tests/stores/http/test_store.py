"""`store = "http://…"`: gates whose state is in a guard. The store suite, one request per batch, and whose limits hold."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncGate, Gate, InvalidInput, StoreUnavailable, Window
from headgate.stores.base import new_session
from headgate.stores.http import HttpStore
from headgate.stores.http.wire import NotAllowed
from headgate.stores.memory import MemoryStore
from headgate.stores.sqlite import SqliteStore
from headgate.testing import FakeClock, StoreSuite
from tests.support.guards import GATES, GuardProcess, GuardThread, gate_of, one_of

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

    def another_process(self, store: Any) -> Any:
        return HttpStore(f"{self.guard.url}?timeout=10s")

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
        # The guard was restarted as well.
        inner._seen.clear(), inner._told.clear()
        inner._transactions._session = new_session()


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
        thread.join(60)
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
        async with asyncio.timeout(60):
            while (await gate.usage())["slots"].used:
                await asyncio.sleep(0.02)

    asyncio.run(main())
    store.close()
    guard.stop()


# --- what a token may do ----------------------------------------------------------------------------------------------


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

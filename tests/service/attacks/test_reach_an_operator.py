"""A client with a token wants its text to act on the terminal, the log or the page of somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import Window
from headgate.kernel.commands import Pause, Stand
from headgate.kernel.plan import Policy
from headgate.service.fast.answers import TurnBatch
from headgate.stores import open_store
from headgate.stores.sqlite import SqliteStore
from tests.service.test_tokens import headgate
from tests.support.guard_client import Client
from tests.support.guards import GuardProcess

CONFIG = """\
store = "sqlite:///gates.db"

[serve]
audit = "audit.jsonl"

[gates.g]
limits = [{ concurrency = 100, name = "slots", lease = "10m" }]

[gates.one]
limits = [{ concurrency = 1, name = "slots", lease = "10m" }]
"""

#: What clears a screen, sets a title, begins an escape in eight bits, and turns the text around.
NASTY = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\x7f\u2028"
MARKUP = "[link=http://evil.example]click[/link] [/bold] [red]"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("guard")


@pytest.fixture(scope="module")
def guard(folder: Path) -> Iterator[GuardProcess]:
    guard = GuardProcess(folder, CONFIG)
    yield guard
    assert guard.stop() == 0


def printable(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_a_reason_with_escape_sequences_reaches_no_terminal_and_no_log(guard: GuardProcess, folder: Path) -> None:
    client = Client(guard.port)
    assert client.post("/v1/gates/one/pause", {"seconds": 600, "reason": NASTY}).status == 422
    store = open_store(guard.url)
    try:
        # As a worker would that was told so by its upstream; `acquire` is scope enough.
        [reply] = store.execute([Pause("one", 600_000_000, f"upstream: why {NASTY}")])
        assert not isinstance(reply, Exception), reply
        shown = client.get("/v1/gates/one").json["pause_reason"]
        assert shown.startswith("upstream: why ")
        assert shown.isprintable()
        assert len(shown) <= 200
        for words in (("status",), ("explain", "one")):
            told = headgate(folder, *words)
            assert told.returncode == 0, told.stderr
            assert "why " in told.stdout
            assert printable(told.stdout + told.stderr), words
        assert printable(guard.log())
        assert printable((folder / "audit.jsonl").read_text(encoding="utf-8"))
    finally:
        client.post("/v1/gates/one/resume")
        store.close()


def test_the_name_of_a_holder_is_text_wherever_it_is_listed(guard: GuardProcess, folder: Path) -> None:
    client = Client(guard.port)
    assert client.acquire("g", holder=MARKUP).status == 200
    assert client.acquire("g", holder=f"x{NASTY}").status == 200
    assert client.acquire("one", holder=MARKUP).status == 200
    with client.begin("/v1/gates/one/acquire", {"wait": 30, "holder": MARKUP}):
        client.until(lambda: client.waiting("one") == 1)
        for words in (("leases", "list"), ("waiters", "one"), ("status",), ("explain", "one")):
            told = headgate(folder, *words)
            assert told.returncode == 0, told.stderr
            assert printable(told.stdout + told.stderr), words
        assert "[link=http://evil.example]" in headgate(folder, "leases", "list").stdout


def test_a_client_that_cannot_be_told_keeps_no_other_from_its_answer(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "gates.db"))
    plan = Policy("g", [Window(100, per="1m", name="rpm")]).plan(1)
    told: list[object] = []

    def fail(reply: object) -> None:
        raise UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed")

    async def ask_together() -> None:
        batch = TurnBatch(store)
        for number, respond in enumerate((told.append, fail, told.append, told.append)):
            batch.add(Stand(plan, f"id-{number}", None, 0, session=store.session, remembered=True), respond)
        async with asyncio.timeout(60):
            while len(told) < 3:
                await asyncio.sleep(0.003)

    try:
        asyncio.run(ask_together())
        assert not [reply for reply in told if isinstance(reply, Exception)], told
    finally:
        store.close()

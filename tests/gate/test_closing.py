"""Closing a gate: what the store was to be told is told, its connections and files are closed, waiters are let go."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate import AsyncGate, Concurrency, Denied, Gate, Window
from headgate.stores import _open, open_store
from headgate.stores.memory import MemoryStore
from headgate.stores.redis import RedisStore
from tests.support.guards import GuardThread
from tests.support.redis_gates import PATIENT
from tests.support.servers import Proxy, Server
from tests.support.waiting import until

LIMITS = [Window(1000, per="1h", name="w"), Concurrency(1, name="slots", lease="1h")]


@pytest.fixture(params=["memory", "sqlite", "redis", "http"])
def url(request: Any, tmp_path: Path) -> Iterator[str]:
    """The URL of a store of each kind."""
    if request.param == "memory":
        yield "memory://closing"
        _open.pop("memory://closing", None)
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/gates.db"
    elif request.param == "redis":
        yield request.getfixturevalue("server").url + PATIENT
    else:
        guard = GuardThread(MemoryStore())
        yield f"{guard.url}?timeout=5s"
        guard.stop()


def open_files(folder: Path) -> list[str]:
    """What this process has open in a folder."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return [path for path in found if path.startswith(str(folder))]


def clients(server: Server) -> int:
    """How many connections the server has beside the one that asks."""
    return len(server.command("CLIENT", "LIST").splitlines()) - 1


def test_a_gate_that_was_closed_has_kept_its_state_and_can_be_used_again(url: str) -> None:
    with Gate("g", LIMITS, store=url) as gate, gate.acquire():
        pass
    assert gate.usage()["w"].used == 1
    with Gate("g", LIMITS, store=url) as again:
        again.acquire().release()
        assert again.usage()["w"].used == 2
    gate.close()
    gate.close()  # twice is harmless


def test_asyncio_has_the_same(url: str) -> None:
    async def main() -> None:
        async with AsyncGate("g", LIMITS, store=url) as gate, gate.acquire():
            pass
        async with AsyncGate("g", LIMITS, store=url) as again:
            assert (await again.usage())["w"].used == 1

    asyncio.run(main())


def test_waiters_of_a_gate_that_is_closed_are_denied_and_leave_the_line(url: str) -> None:
    gate, other = Gate("g", LIMITS, store=url), Gate("other", LIMITS, store=url)
    held = gate.acquire()
    told: list[str] = []

    def wait() -> None:
        try:
            gate.acquire(timeout=600)
        except Denied as error:
            told.append(error.reason)

    waiters = [threading.Thread(target=wait) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    until(lambda: gate.usage().waiting == 3)
    gate.close()
    for waiter in waiters:
        waiter.join(60)
    assert told == ["the gate was closed"] * 3
    assert gate.usage().waiting == 0
    with pytest.raises(Denied, match="the gate was closed"):
        gate.acquire(timeout=600)
    held.release()
    assert gate.usage()["slots"].used == 0
    gate.close()
    other.close()


def test_tasks_that_wait_at_a_gate_that_is_closed_are_denied_too(url: str) -> None:
    async def main() -> None:
        gate = AsyncGate("g", LIMITS, store=url)
        held = await gate.acquire()
        waiting = [asyncio.ensure_future(gate.acquire(timeout=600)) for _ in range(3)]
        while (await gate.usage()).waiting < 3:
            await asyncio.sleep(0.003)
        await gate.aclose()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [str(error) for error in found] == ["gate 'g': the gate was closed (limit 'slots')"] * 3
        assert (await gate.usage()).waiting == 0
        await held.release()
        await gate.aclose()

    asyncio.run(main())


def test_the_last_gate_on_a_file_closes_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/gates.db"
    one, two = Gate("one", LIMITS, store=url), Gate("two", LIMITS, store=url)
    one.acquire().release()
    one.close()
    two.acquire().release()
    assert open_files(tmp_path)
    two.close()
    assert not open_files(tmp_path)


def test_the_last_gate_on_a_server_closes_its_connections(server: Server) -> None:
    url = server.url + PATIENT
    gate = Gate("g", LIMITS, store=url)
    with gate.acquire():
        assert gate.try_acquire() is None
    assert clients(server)
    gate.close()
    until(lambda: not clients(server))

    async def main() -> None:
        async with AsyncGate("g", LIMITS, store=url) as gate:
            await asyncio.gather(*(gate.usage() for _ in range(10)))
            assert clients(server)
        while clients(server):
            await asyncio.sleep(0.003)

    asyncio.run(main())


def test_what_a_store_that_was_away_was_to_be_told_is_told_on_closing(server: Server) -> None:
    with Proxy(server.address) as proxy:
        gate = Gate("g", LIMITS, store=RedisStore(proxy.url + PATIENT))
        permit = gate.acquire()
        proxy.refuse()
        permit.release()  # cannot be told now
        proxy.accept_again()
        gate.close()
        assert Gate("g", LIMITS, store=server.url + PATIENT).usage()["slots"].used == 0


def test_closing_ends_also_where_the_store_is_away(server: Server) -> None:
    with Proxy(server.address) as proxy:
        gate = Gate("g", LIMITS, store=RedisStore(proxy.url))
        permit = gate.acquire()
        proxy.refuse()
        permit.release()
        gate.close()


def test_a_lease_that_is_still_held_is_renewed_no_longer(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/gates.db"
    limits = [Concurrency(1, name="slots", lease="300ms")]
    with Gate("g", limits, store=url) as gate:
        permit = gate.acquire()
    with Gate("g", limits, store=url) as other:
        other.acquire(timeout=60).release()  # it has run out, since nobody renewed it
    assert permit.release() is False
    gate.close()


def test_the_gates_of_a_file_are_closed_together(tmp_path: Path) -> None:
    text = f'store = "sqlite:///{tmp_path}/gates.db"\n' + "".join(
        f"[gates.{name}]\nlimits = [{{ concurrency = 1 }}]\n" for name in ("one", "two")
    )
    (tmp_path / "headgate.toml").write_text(text)
    with headgate.load(tmp_path / "headgate.toml") as gates:
        for gate in gates.values():
            gate.acquire().release()
        assert open_files(tmp_path)
    assert not open_files(tmp_path)

    async def main() -> None:
        async with headgate.load(tmp_path / "headgate.toml") as gates:
            await (await gates.async_gate("one").acquire()).release()
            gates["two"].acquire().release()
            assert open_files(tmp_path)
        assert not open_files(tmp_path)

    asyncio.run(main())


def test_a_source_of_values_is_read_no_longer(tmp_path: Path) -> None:
    (tmp_path / "rpm").write_text("5")
    text = f'[gates.g]\nstore = "sqlite:///{tmp_path}/gates.db"\n'
    text += 'limits = [{ window = 9, per = "1m", source = "file:rpm", refresh = "10ms" }]'
    (tmp_path / "headgate.toml").write_text(text)
    gates = headgate.load(tmp_path / "headgate.toml")
    gate = gates["g"]
    assert gate.policy.limits[0].limit == 5
    keeper: Any = open_store(gates.config["g"].store).keeper
    gates.close()
    until(lambda: not keeper._refresh_at)

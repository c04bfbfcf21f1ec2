"""A gate that uses a share of its own while its store is away: asks wait for it, and for no longer than they may."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from headgate import AsyncGate, Concurrency, Denied, Gate, Window
from tests.support.servers import Proxy, Server
from tests.support.waiting import timed, until


@pytest.mark.parametrize("looped", [False, True], ids=["threads", "asyncio"])
def test_asks_wait_for_the_share_that_their_process_has(server: Server, stores: Any, looped: bool) -> None:
    limits = [Window(100, per="1s", slack=0, name="w")]
    with Proxy(server.address) as proxy:
        store = stores(proxy.url)
        gate = Gate("g", limits, store=store, on_store_error="local:0.1")
        gate.acquire()
        proxy.refuse()
        begun = time.monotonic()

        async def all_of_them() -> None:
            other = AsyncGate("g", limits, store=store, on_store_error="local:0.1")
            await asyncio.gather(*(other.acquire() for _ in range(12)))

        if looped:
            asyncio.run(all_of_them())
        else:
            for _ in range(12):
                gate.acquire()
        assert time.monotonic() - begun > 1.0, "ten a second, beginning with none"


def test_an_ask_waits_for_its_share_no_longer_than_it_may(server: Server, stores: Any) -> None:
    with Proxy(server.address) as proxy:
        gate = Gate("g", [Concurrency(4, name="c", lease="1h")], store=stores(proxy.url), on_store_error="local:0.5")
        gate.acquire().release()
        proxy.refuse()
        held = [gate.acquire() for _ in range(2)]
        begun = time.monotonic()
        _, answer = timed(lambda: gate.acquire(timeout=0.6))
        assert isinstance(answer, Denied)
        assert answer.limit == "c"
        assert time.monotonic() - begun > 0.55
        assert gate.try_acquire() is None
        with pytest.raises(Denied):
            gate.acquire(timeout=0)
        threading.Timer(0.3, held[0].release).start()
        gate.acquire(timeout=60)  # a slot of the share came back: its lease lasts for an hour


def test_who_waits_for_a_share_goes_to_the_store_when_that_is_back(server: Server, stores: Any) -> None:
    with Proxy(server.address) as proxy:
        gate = Gate(
            "g", [Window(1000, per="1h", slack=0, name="w")], store=stores(proxy.url), on_store_error="local:0.01"
        )
        gate.acquire()
        proxy.refuse()
        granted: list[Any] = []
        waiter = threading.Thread(target=lambda: granted.append(gate.acquire()))
        waiter.start()
        until(lambda: gate._outage.away)
        proxy.accept_again()
        waiter.join(60)
        assert granted
        assert gate.usage()["w"].used == 2

"""Connections to Redis that are cut at every byte: each ask is admitted once."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Gate, StoreUnavailable, Window
from tests.support.redis_gates import PATIENT, gate_of
from tests.support.servers import Proxy, Server


@pytest.mark.parametrize("direction", ["request", "reply"])
def test_an_ask_is_admitted_once_wherever_its_connection_is_cut(
    proxy: Proxy, stores: Any, server: Server, direction: str
) -> None:
    gate = gate_of(stores(proxy.url + PATIENT))
    gate.acquire().release()
    for offset in count():
        proxy.drop_after(offset, direction)
        permit = gate.acquire()
        assert gate_of(stores(server.url + PATIENT)).usage()["slots"].used == 1 if offset % 50 == 0 else True
        cut = proxy.dropped
        proxy.drop_after(10**9, direction)
        permit.release()
        if not cut:
            break
    assert offset > (200 if direction == "request" else 10)
    usage = gate.usage()
    assert usage["w"].used == offset + 2
    assert usage["slots"].used == 0
    assert gate.holders() == []


@pytest.mark.parametrize("direction", ["request", "reply"])
def test_a_release_is_done_once_wherever_its_connection_is_cut(proxy: Proxy, stores: Any, direction: str) -> None:
    gate = gate_of(stores(proxy.url + PATIENT))
    gate.acquire().release("unsent")
    for offset in count():
        permit = gate.acquire()
        proxy.drop_after(offset, direction)
        assert permit.release("unsent") is True
        if not proxy.dropped:
            break
    assert offset > (100 if direction == "request" else 5)
    usage = gate.usage()
    assert (usage["w"].used, usage["slots"].used) == (0, 0)


@pytest.mark.parametrize("direction", ["request", "reply"])
def test_an_ask_of_an_event_loop_is_admitted_once_wherever_its_connection_is_cut(
    proxy: Proxy, stores: Any, direction: str
) -> None:
    limits = [Window(100_000, per="1h", name="w"), Concurrency(10_000, name="slots", lease="1h")]
    gate = AsyncGate("g", limits, store=stores(proxy.url + PATIENT))

    async def main() -> None:
        await (await gate.acquire()).release()
        for offset in count():
            proxy.drop_after(offset, direction)
            permit = await gate.acquire()
            cut = proxy.dropped
            proxy.drop_after(10**9, direction)
            await permit.release()
            if not cut:
                break
        assert offset > (200 if direction == "request" else 10)
        usage = await gate.usage()
        assert (usage["w"].used, usage["slots"].used) == (offset + 2, 0)

    asyncio.run(main())


@pytest.mark.parametrize("offset", [0, 1, 12])
def test_an_ask_goes_again_where_its_connection_is_cut_while_it_is_made(proxy: Proxy, stores: Any, offset: int) -> None:
    gate = gate_of(stores(proxy.url + PATIENT))
    gate.acquire().release()
    proxy.drop_now()
    proxy.drop_after(offset, "reply")  # which is within the greeting of the next connection
    permit = gate.acquire()
    assert proxy.dropped == 1
    assert gate.usage()["w"].used == 2
    permit.release()


def test_a_batch_goes_again_where_its_connection_is_cut_while_it_is_made(proxy: Proxy, stores: Any) -> None:
    gate = AsyncGate("g", [Window(1000, per="1h", name="w")], store=stores(proxy.url + PATIENT))

    async def main() -> None:
        await gate.acquire()
        for offset in (0, 1, 12):
            proxy.drop_now()
            proxy.drop_after(offset, "reply")
            permits = await asyncio.gather(*(gate.acquire() for _ in range(20)))
            assert len({permit.fence for permit in permits}) == 20
            assert proxy.dropped == 1
        assert (await gate.usage())["w"].used == 61

    asyncio.run(main())


def test_a_batch_whose_answer_is_lost_is_decided_once(proxy: Proxy, stores: Any) -> None:
    gate = AsyncGate("g", [Window(1000, per="1h", name="w")], store=stores(proxy.url + PATIENT))

    async def main() -> None:
        await gate.acquire()
        for offset in (0, 1, 40, 200, 400):
            # On a connection that stands: a cut that fell on the end of the last reply would else move into a handshake.
            proxy.drop_after(10**9, "reply")
            await gate.usage()
            proxy.drop_after(offset, "reply")
            permits = await asyncio.gather(*(gate.acquire() for _ in range(50)))
            assert len({permit.fence for permit in permits}) == 50
        assert (await gate.usage())["w"].used == 251

    asyncio.run(main())


def test_what_was_really_spent_is_never_charged_twice(proxy: Proxy, stores: Any) -> None:
    gate = Gate("g", [Bucket(1000, per="1h", slack=0, unit="pu", name="b")], store=stores(proxy.url + PATIENT))
    permit = gate.acquire({"pu": 10})
    proxy.drop_after(0, "reply")
    with pytest.raises(StoreUnavailable, match="not known"):
        permit.settle({"pu": 30})
    assert round(gate.usage()["b"].used) in (10, 30)


def test_a_confirmation_whose_answer_is_lost_is_not_told_again(proxy: Proxy, stores: Any) -> None:
    gate = Gate("g", [Window(2, per="2s", slack="1s", name="w")], store=stores(proxy.url + PATIENT))
    first, _ = gate.acquire(), gate.acquire()
    proxy.drop_after(0, "reply")
    first.confirm()
    assert first.release() is True
    time.sleep(2.2)
    assert gate.try_acquire() is not None, "the first was confirmed"
    assert gate.try_acquire() is None, "and the second was not: it counts for its slack as well"


def test_renewals_and_looks_go_on_when_their_connection_is_cut(proxy: Proxy, stores: Any) -> None:
    gate = gate_of(stores(proxy.url + PATIENT))
    permit = gate.acquire()
    for offset in range(0, 60, 3):
        proxy.drop_after(offset, "reply")
        assert permit.renew() > time.time()
        proxy.drop_after(offset, "reply")
        assert gate.usage()["slots"].used == 1

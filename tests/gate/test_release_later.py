"""`release(id, later=True)`: work that is done does not fail because the store is away, and the slot comes back with it."""

from __future__ import annotations

import asyncio

import pytest

from headgate import AsyncGate, Concurrency, Gate, Holder, StoreUnavailable
from tests.support.servers import Server
from tests.support.waiting import until


def limits() -> list[Concurrency]:
    return [Concurrency(5, name="slots", lease="1h")]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_release_by_id_that_the_store_could_not_be_told_is_told_when_it_is_back(kind: str) -> None:
    with Server() as server:
        gate = Gate("later", limits(), store=f"{server.url}?timeout=2s")
        gate.acquire(id="run-1", renew=False)
        gate.acquire(id="run-2", renew=False)
        server.freeze()
        with pytest.raises(StoreUnavailable):
            gate.release("run-3")
        if kind == "sync":
            assert gate.release("run-1", later=True) is True
        else:
            aio = AsyncGate("later", limits(), store=f"{server.url}?timeout=2s")

            async def release() -> bool:
                return await aio.release("run-1", later=True)

            assert asyncio.run(release()) is True
        server.thaw()
        until(lambda: {holder.id for holder in holders(gate)} == {"run-2"})


def holders(gate: Gate) -> list[Holder]:
    try:
        return gate.holders()
    except StoreUnavailable:
        return []

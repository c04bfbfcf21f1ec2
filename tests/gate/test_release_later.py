"""`release(id, later=True)`: work that is done does not fail because the store is away, and the slot comes back with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from headgate import AsyncGate, Concurrency, Gate, Holder, Permit, StoreUnavailable
from headgate.stores.memory import MemoryStore
from tests.support.guards import GuardThread
from tests.support.servers import Proxy, Server
from tests.support.waiting import until

#: Seconds.
SETTLED = 1.5


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


@contextmanager
def two_ways(kind: str) -> Iterator[tuple[Proxy, Gate, Gate]]:
    """A process whose way to the store can be cut, and another whose way cannot: the proxy, and the gate of each."""
    with ExitStack() as stack:
        if kind == "redis":
            server = stack.enter_context(Server())
            proxy = stack.enter_context(Proxy(server.address))
            urls = [f"{url}?timeout=2s" for url in (proxy.url, server.url)]
        else:
            guard = GuardThread(MemoryStore())
            stack.callback(guard.stop)
            proxy = stack.enter_context(Proxy(("127.0.0.1", guard.port)))
            urls = [f"http://127.0.0.1:{proxy.port}", guard.url]
        first, second = (Gate("later", limits(), store=url) for url in urls)
        yield proxy, first, second
        first.close()
        second.close()


def told_by_now(gate: Gate) -> None:
    """Wait until what was said before the release of `last` has arrived, and that too."""
    until(lambda: "last" not in {holder.id for holder in gate.holders()})


@pytest.mark.parametrize("kind", ["redis", "http"])
def test_a_pending_release_does_not_end_what_was_admitted_under_its_id_since(kind: str) -> None:
    with two_ways(kind) as (proxy, cut, other):
        first = cut.acquire(id="run", renew=False)
        cut.acquire(id="last", renew=False)
        proxy.refuse()
        assert cut.release("run", later=True) is True
        assert cut.release("last", later=True) is True
        # So far apart that a request which takes long on a busy machine does not look as if it had been said later.
        until(lambda: other.holders()[0].held_for > SETTLED)
        assert other.release("run"), "by hand, or by its lease, or by another process: the id is free"
        again = other.acquire(id="run", renew=False)
        assert again.fence > first.fence
        proxy.accept_again()
        told_by_now(other)
        assert [holder.id for holder in other.holders()] == ["run"], "the pending release was of the first"
        assert again.release() is True


@pytest.mark.parametrize("kind", ["redis", "http"])
def test_an_ask_under_an_id_whose_release_is_pending_in_this_process_is_a_new_one(kind: str) -> None:
    with two_ways(kind) as (proxy, cut, other):
        first = cut.acquire(id="run", renew=False)
        cut.acquire(id="last", renew=False)
        proxy.refuse()
        assert cut.release("run", later=True) is True
        assert cut.release("last", later=True) is True
        proxy.accept_again()
        again = until_there(lambda: cut.acquire(id="run", renew=False))
        assert again.fence > first.fence, "the release was said before"
        told_by_now(other)
        assert [holder.id for holder in other.holders()] == ["run"]


def test_an_async_ask_under_an_id_whose_release_is_pending_is_a_new_one_too() -> None:
    with two_ways("redis") as (proxy, _, other):
        aio = AsyncGate("later", limits(), store=f"{proxy.url}?timeout=2s")

        async def program() -> tuple[int, int]:
            first = await aio.acquire(id="run", renew=False)
            proxy.refuse()
            assert await aio.release("run", later=True) is True
            proxy.accept_again()
            while True:
                try:
                    again = await aio.acquire(id="run", renew=False)
                except StoreUnavailable:
                    await asyncio.sleep(0.05)
                    continue
                await aio.aclose()
                return first.fence, again.fence

        before, after = asyncio.run(program())
        assert after > before
        assert [holder.id for holder in other.holders()] == ["run"]


def until_there(ask: Callable[[], Permit]) -> Permit:
    """The answer to an ask, made again for as long as the store is away."""
    answers: list[Permit] = []

    def asked() -> bool:
        with suppress(StoreUnavailable):
            answers.append(ask())
        return bool(answers)

    until(asked)
    return answers[0]

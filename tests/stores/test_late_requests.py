"""Requests that arrive late, twice, or after what undoes them: nothing is admitted, and no slot stays taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from headgate import AsyncGate, Concurrency, Gate, Window
from headgate.kernel.commands import Pause
from headgate.stores.memory import MemoryStore
from tests.support import servers, stores
from tests.support.guards import GuardThread
from tests.support.reordering import ReorderingProxy, send_again
from tests.support.waiting import until

LIMITS = [Concurrency(1, lease="1m", name="slot"), Window(100, per="1h", slack=0, name="w")]


class Remote:
    """A server, a proxy before it, and stores on both ways to it. `asks` is what the request of a decision has in it."""

    def __init__(self, name: str, port: int, open_at: Callable[[int], Any], asks: bytes) -> None:
        self.name = name
        self.port = port
        self._open_at = open_at
        self._asks = asks
        self.proxy: ReorderingProxy
        self._opened: list[Any] = []
        self._proxies: list[ReorderingProxy] = []
        self.direct = self._store(port)

    def _store(self, port: int) -> Any:
        store = self._open_at(port)
        self._opened.append(store)
        return store

    def through_proxy(self) -> Any:
        """A store whose threads are connected by a new proxy, and whose event loops are not."""
        self.proxy = ReorderingProxy(self.port, self._asks)
        self._proxies.append(self.proxy)
        store = self._store(self.proxy.port)
        if self.name != "dynamodb":  # where both go by the same
            store.decide(Pause("late", 0))
        return store

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        for store in self._opened:
            store.close()


def redis(stack: ExitStack) -> Remote:
    from headgate.stores.redis import RedisStore

    server = stack.enter_context(servers.new())
    return Remote("redis", server.port, lambda port: RedisStore(f"redis://127.0.0.1:{port}/0?timeout=20s"), b"FCALL")


def guard(stack: ExitStack) -> Remote:
    from headgate.stores.http import HttpStore

    thread = GuardThread(MemoryStore())
    stack.callback(thread.stop)
    return Remote("http", thread.port, lambda port: HttpStore(f"http://127.0.0.1:{port}?timeout=20s"), b"/v1/execute")


def dynamodb(stack: ExitStack) -> Remote:
    from headgate.stores.dynamodb import DynamoStore
    from tests.support.dynamo_servers import make_table

    server = stores.dynamo_server()
    if isinstance(server, str):
        pytest.skip(server)
    name = f"late-{next(stores._tables)}"
    make_table(server.endpoint, name)

    def open_at(port: int) -> Any:
        return DynamoStore(name, endpoint=f"http://127.0.0.1:{port}", region="eu-central-1", timeout=20)

    return Remote("dynamodb", server.port, open_at, b"PutItem")


REMOTES: dict[str, Callable[[ExitStack], Remote]] = {"redis": redis, "http": guard, "dynamodb": dynamodb}


@pytest.fixture(params=REMOTES)
def remote(request: pytest.FixtureRequest) -> Iterator[Remote]:
    with ExitStack() as stack:
        made = REMOTES[request.param](stack)
        stack.callback(made.close)
        yield made


@pytest.fixture(params=["redis", "http"])
def on_a_wire(request: pytest.FixtureRequest) -> Iterator[Remote]:
    with ExitStack() as stack:
        made = REMOTES[request.param](stack)
        stack.callback(made.close)
        yield made


def told(gate: Any) -> bool:
    """Whether the store has been told all that a gate had to undo."""
    return not gate._keeper._later


def nothing_is_left(watch: Gate, before: float) -> None:
    usage = watch.usage()
    assert (usage["slot"].used, usage.waiting, usage["w"].used) == (0, 0, before)


# --- cancelled asks -------------------------------------------------------------------------------------------------------

IDS = pytest.mark.parametrize("id", [None, "mine"])


async def cancelled(ask: Any, turns: int) -> None:
    """Cancel an ask after so many turns of the loop."""
    task = asyncio.ensure_future(ask)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def soon(true: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, true)


@IDS
@pytest.mark.parametrize("waits", [False, True], ids=["goes", "waits"])
def test_an_undo_that_overtakes_its_ask_wins_while_the_loop_is_still_connecting(
    remote: Remote, id: str | None, waits: bool
) -> None:
    watch = Gate("late", LIMITS, store=remote.direct)
    watch.acquire().release()  # the server knows the script, the table has an item

    async def main(turns: int) -> None:
        gate = AsyncGate("late", LIMITS, store=remote.through_proxy())
        held = watch.acquire() if waits else None
        before = watch.usage()["w"].used
        remote.proxy.keeps = "request"  # of the loop's connection, which is yet to be made
        sent = len(remote.proxy.requests)
        await cancelled(gate.acquire(id=id), turns)
        # The first turns come before it is sent; and on DynamoDB the process decides one command after the other.
        overtaken = turns >= 3 and remote.name != "dynamodb"
        if overtaken:
            await soon(lambda: told(gate) and remote.proxy.is_keeping)
            assert not remote.proxy.late_replies
        remote.proxy.let_go()
        await soon(lambda: told(gate))
        if overtaken:
            await soon(lambda: remote.proxy.late_replies)
            assert len(remote.proxy.requests) == sent + 2, "what undoes it, and then the ask itself"
        if held is not None:
            assert watch.usage().waiting == 0
            assert held.release()
        nothing_is_left(watch, before)
        again = await gate.acquire(id=id)
        assert [holder.id for holder in watch.holders()] == [again.id]
        assert await again.release()
        nothing_is_left(watch, before + 1)

    for turns in (1, 2, 3, 5, 8):
        asyncio.run(main(turns))


@IDS
def test_an_ask_cancelled_while_its_reply_is_on_the_way_keeps_nothing(remote: Remote, id: str | None) -> None:
    watch = Gate("late", LIMITS, store=remote.direct)
    watch.acquire().release()

    async def main() -> None:
        gate = AsyncGate("late", LIMITS, store=remote.through_proxy())
        before = watch.usage()["w"].used
        remote.proxy.keeps = "reply"
        task = asyncio.ensure_future(gate.acquire(id=id))
        sent = len(remote.proxy.requests)
        await soon(lambda: len(remote.proxy.requests) > sent)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if remote.name == "dynamodb":
            remote.proxy.let_go()
        await soon(lambda: told(gate))
        nothing_is_left(watch, before)  # elsewhere with the reply still on its way
        remote.proxy.let_go()
        await soon(lambda: remote.proxy.late_replies)

    for _ in range(3):
        asyncio.run(main())


@IDS
def test_a_crowd_that_is_cancelled_at_any_moment_with_delayed_replies_keeps_nothing(
    remote: Remote, id: str | None
) -> None:
    watch = Gate("late", LIMITS, store=remote.direct)
    watch.acquire().release()

    async def main(turns: int) -> None:
        gate = AsyncGate("late", LIMITS, store=remote.through_proxy())
        before = watch.usage()["w"].used
        remote.proxy.delay = 0.01
        asks = [cancelled(gate.acquire(id=id and f"{id}-{number % 3}"), turns + number) for number in range(9)]
        await asyncio.gather(*asks)
        await soon(lambda: told(gate))
        last = await gate.acquire()  # which passes by the same way, after all that was still to be sent
        await last.release()
        nothing_is_left(watch, before + 1)

    for turns in range(1, 7):
        asyncio.run(main(turns))


@IDS
def test_a_promise_whose_undo_overtakes_it_is_not_charged(on_a_wire: Remote, id: str | None) -> None:
    limits = [Window(2, per="1h", slack=0, name="w")]
    watch = Gate("promises", limits, store=on_a_wire.direct, waiting="promise")
    watch.reserve().cancel()

    async def main() -> None:
        gate = AsyncGate("promises", limits, store=on_a_wire.through_proxy(), waiting="promise")
        on_a_wire.proxy.keeps = "request"
        await cancelled(gate.reserve(id=id), 5)
        await soon(lambda: told(gate) and on_a_wire.proxy.is_keeping)
        on_a_wire.proxy.let_go()
        await soon(lambda: on_a_wire.proxy.late_replies)
        assert watch.usage()["w"].used == 0

    asyncio.run(main())


# --- requests that arrive again -----------------------------------------------------------------------------------------


@IDS
def test_the_bytes_of_an_ask_that_arrive_again_after_its_end_admit_nothing(on_a_wire: Remote, id: str | None) -> None:
    watch = Gate("late", LIMITS, store=on_a_wire.direct)
    watch.acquire().release()
    gate = Gate("late", LIMITS, store=on_a_wire.through_proxy())
    requests = []
    for _ in range(3):
        sent = len(on_a_wire.proxy.requests)
        permit = gate.acquire(id=id)
        requests.append(on_a_wire.proxy.requests[sent])
        send_again(on_a_wire.port, requests[-1])
        assert [holder.id for holder in watch.holders()] == [permit.id]
        assert permit.release()
        before = watch.usage()["w"].used
        for request in requests:
            send_again(on_a_wire.port, request)
            nothing_is_left(watch, before)
    with gate.acquire(id=id) as permit:
        for request in requests:
            send_again(on_a_wire.port, request)
        assert [holder.id for holder in watch.holders()] == [permit.id]
        assert not permit.lost


@IDS
def test_the_bytes_of_a_release_that_arrive_again_end_no_other_permit(on_a_wire: Remote, id: str | None) -> None:
    watch = Gate("late", LIMITS, store=on_a_wire.direct)
    gate = Gate("late", LIMITS, store=on_a_wire.through_proxy())
    permit = gate.acquire(id=id)
    sent = len(on_a_wire.proxy.requests)
    permit.release()
    release = on_a_wire.proxy.requests[sent]
    again = gate.acquire(id=id)
    send_again(on_a_wire.port, release)
    assert [holder.id for holder in watch.holders()] == [again.id]
    assert again.release() is True

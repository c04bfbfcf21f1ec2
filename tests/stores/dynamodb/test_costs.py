"""How many reads and writes the DynamoDB store pays for its decisions."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable

from headgate import AsyncGate, Concurrency, Gate, Window
from headgate.stores.dynamodb import DynamoStore
from headgate.stores.dynamodb import records as dynamodb_records
from headgate.testing import FakeClock
from tests.support.dynamo_servers import Fault, Proxy


def test_who_is_alone_pays_one_write_per_decision_and_no_read(still: DynamoStore, proxy: Proxy) -> None:
    gate = Gate("g", [Window(1000, per="1h"), Concurrency(100)], store=still)
    for _ in range(5):
        gate.acquire().release()
    proxy.counts.clear()
    for _ in range(20):
        gate.acquire().release()
    assert dict(proxy.counts) == {"PutItem": 40}


def test_a_refusal_costs_one_read_and_no_write(still: DynamoStore, proxy: Proxy) -> None:
    gate = Gate("g", [Window(1, per="1h", name="w"), Concurrency(5)], store=still)
    gate.acquire()
    gate.try_acquire()
    proxy.counts.clear()
    for _ in range(10):
        assert gate.try_acquire() is None
    assert dict(proxy.counts) == {"GetItem": 10}
    assert gate.usage()["w"].used == 1


def test_threads_that_ask_at_the_same_moment_share_a_write_and_one_is_in_flight(
    still: DynamoStore, proxy: Proxy
) -> None:
    gate = Gate("g", [Window(10_000, per="1h", name="w")], store=still)
    for _ in range(3):
        gate.acquire()
    proxy.counts.clear()
    under_way, most = [0], [0]
    passing = proxy.fault

    def count_in_flight(operation: str) -> Fault | None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        return passing(operation)

    proxy.fault = count_in_flight
    proxy.on_answer = lambda operation: under_way.__setitem__(0, under_way[0] - 1)
    threads = [threading.Thread(target=lambda: [gate.acquire() for _ in range(10)]) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gate.usage()["w"].used == 403
    assert most[0] == 1
    assert proxy.counts["PutItem"] <= 100, "400 asks"


def test_tasks_share_writes_as_threads_do(still: DynamoStore, proxy: Proxy) -> None:
    async def main() -> None:
        gate = AsyncGate("g", [Window(10_000, per="1h", name="w"), Concurrency(1000)], store=still)

        async def one() -> None:
            async with gate.acquire():
                await asyncio.sleep(0)

        await asyncio.gather(*(one() for _ in range(200)))
        assert (await gate.usage())["w"].used == 200
        assert await gate.holders() == []

    asyncio.run(main())
    assert proxy.counts["PutItem"] <= 40, "400 decisions"


def test_a_cancelled_task_leaves_nothing_behind(still: DynamoStore) -> None:
    async def main() -> None:
        gate = AsyncGate("g", [Concurrency(1, lease="1h")], store=still)
        held = await gate.acquire()
        waiters = [asyncio.ensure_future(gate.acquire()) for _ in range(10)]
        while (await gate.usage()).waiting < 10:
            await asyncio.sleep(0.01)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        async with asyncio.timeout(10):
            while (await gate.usage()).waiting:
                await asyncio.sleep(0.02)
        await held.release()
        assert (await gate.try_acquire()) is not None

    asyncio.run(main())


def test_what_was_read_of_a_gate_goes_without_the_garbage_collector(opened: Callable[..., DynamoStore]) -> None:
    """Else that is called for often, and takes a tenth of a second each time: the driver alone has 100,000 objects."""
    clock = FakeClock()
    gates = [Gate("g", [Concurrency(50, name="c", lease="1h")], store=opened(clock=clock)) for _ in range(2)]

    def read() -> int:
        return sum(isinstance(one, dynamodb_records.DynamoRecords) for one in gc.get_objects())

    gc.disable()
    try:
        before = read()
        for _ in range(10):
            for gate in gates:
                gate.acquire(renew=False)
                gate.usage()
        assert read() - before <= 2 * len(gates)
    finally:
        gc.enable()

"""Waiting through a fault of Redis; what is cancelled, interrupted or timed out leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from typing import Any

import pytest

from headgate import AsyncGate, Concurrency, Denied, Gate, StoreUnavailable, Window
from tests.support.redis_gates import PATIENT, gate_of
from tests.support.servers import Proxy, Server
from tests.support.waiting import timed, until


def test_a_waiter_whose_wake_was_lost_with_its_connection_goes_all_the_same(
    server: Server, proxy: Proxy, stores: Any
) -> None:
    limits = [Concurrency(1, name="slots", lease="1h")]
    held = Gate("g", limits, store=stores(server.url + PATIENT)).acquire()
    waiting = Gate("g", limits, store=stores(proxy.url + PATIENT))
    granted: list[Any] = []
    waiter = threading.Thread(target=lambda: granted.append(waiting.acquire(timeout=60)))
    waiter.start()
    until(lambda: waiting.usage().waiting == 1)
    # Not refused for a moment: a heartbeat that fell into it would find the store away, and the waiter be told so.
    proxy.stall()
    held.release()
    proxy.drop_now()
    proxy.flow()
    waiter.join(60)
    assert granted


def test_waiters_go_on_after_their_server_was_restarted(server: Server, stores: Any) -> None:
    gate = Gate("g", [Concurrency(1, name="slots", lease="3s")], store=stores(server.url))
    held = gate.acquire()
    told: list[Any] = []
    waiter = threading.Thread(target=lambda: told.append(timed(lambda: gate.acquire(timeout=60))[1]))
    waiter.start()
    until(lambda: gate.usage().waiting == 1)
    server.kill()
    server.start()
    time.sleep(1.5)
    held.release()
    waiter.join(60)
    # It is told that its store was away, or has stood in line again and gone.
    assert len(told) == 1
    assert isinstance(told[0], StoreUnavailable) or told[0].release() is True
    until(lambda: gate.usage().waiting == 0 and gate.holders() == [])


def test_a_cancelled_ask_leaves_nothing_behind(server: Server, proxy: Proxy, stores: Any) -> None:
    limits = [Concurrency(100, name="slots", lease="1h"), Window(100, per="1h", name="w")]
    gate = AsyncGate("g", limits, store=stores(proxy.url + PATIENT))

    async def main() -> None:
        await (await gate.acquire()).release("unsent")
        for pause in (0.0, 0.0001, 0.0003, 0.001, 0.003, 0.01):
            for _ in range(5):
                asks = [asyncio.create_task(gate.acquire()) for _ in range(3)]
                await asyncio.sleep(pause)
                for ask in asks:
                    ask.cancel()
                for done in await asyncio.gather(*asks, return_exceptions=True):
                    if not isinstance(done, BaseException):
                        await done.release("unsent")
        proxy.stall()
        asks = [asyncio.create_task(gate.acquire()) for _ in range(10)]
        await asyncio.sleep(0.05)
        for ask in asks:
            ask.cancel()
        await asyncio.gather(*asks, return_exceptions=True)
        proxy.flow()

    asyncio.run(main())
    look = gate_of(stores(server.url + PATIENT))
    time.sleep(0.1)
    until(lambda: not look.holders() and look.usage()["w"].used == 0)


def test_a_waiter_that_is_cancelled_leaves_the_line(server: Server, stores: Any) -> None:
    gate = AsyncGate("g", [Concurrency(1, name="slots", lease="1h")], store=stores(server.url + PATIENT))

    async def main() -> None:
        held = await gate.acquire()
        waiters = [asyncio.create_task(gate.acquire()) for _ in range(20)]
        while (await gate.usage()).waiting < 20:
            await asyncio.sleep(0.01)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        await held.release()
        end = time.monotonic() + 60
        while (await gate.usage()).waiting or await gate.holders():
            assert time.monotonic() < end
            await asyncio.sleep(0.02)
        await (await gate.acquire(timeout=60)).release()

    asyncio.run(main())


# Between the moment at which the interpreter has made a socket and the moment at which that has a name nobody can close
# it; it is closed as soon as the interrupt is forgotten. And an interrupt in the destructor of a connection is lost.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <function AbstractConnection.__del__:pytest.PytestUnraisableExceptionWarning"
)
def test_an_interrupted_thread_leaves_nothing_behind(server: Server, stores: Any) -> None:
    """Ctrl-C in the main thread, at many moments of an ask; other threads go on with the same connections."""
    gate = gate_of(stores(server.url))
    gate.acquire().release()
    others_run = True
    failures: list[BaseException] = []

    def go_on() -> None:
        try:
            while others_run:
                gate.acquire().release()
        except BaseException as error:
            failures.append(error)

    others = [threading.Thread(target=go_on) for _ in range(2)]
    for other in others:
        other.start()
    interrupted = 0
    for number in range(60):
        timer = threading.Timer(0.001 + number % 20 * 0.0005, lambda: os.kill(os.getpid(), signal.SIGINT))
        permit = None
        end = time.monotonic() + 2
        try:
            timer.start()
            while time.monotonic() < end:
                permit = gate.acquire()
                permit.release()
        except KeyboardInterrupt:
            interrupted += 1
            if permit is not None:
                permit.release()
        timer.join()
    others_run = False
    for other in others:
        other.join(60)
    assert interrupted >= 57
    assert failures == []
    # An interrupt between the grant and the assignment of the permit cannot be seen from here, so leases are let go of
    # by those who hold none: whatever is left belongs to nobody.
    until(lambda: len(gate.holders()) <= 1)
    gc.collect()


def test_a_timed_out_waiter_leaves_the_line_before_it_is_told(server: Server, stores: Any) -> None:
    gate = Gate("g", [Concurrency(1, name="slots", lease="1h")], store=stores(server.url + PATIENT))
    held = gate.acquire()
    with pytest.raises(Denied):
        gate.acquire(timeout=0.05)
    assert gate.usage().waiting == 0
    held.release()


def first_ask(gate: Gate) -> None:
    """Take a permit and release it. The first ask loads the script, for which a busy machine may take too long."""
    until(lambda: not isinstance(timed(lambda: gate.acquire().release())[1], StoreUnavailable))


def test_an_ask_that_a_frozen_server_reads_later_is_undone(server: Server, stores: Any) -> None:
    gate = gate_of(stores(server.url))
    first_ask(gate)
    server.freeze()
    assert isinstance(timed(gate.acquire)[1], StoreUnavailable)
    server.thaw()
    look = gate_of(stores(server.url + PATIENT))
    until(lambda: look.holders() == [] and look.usage()["w"].used == 1)
    time.sleep(2.5)
    assert look.holders() == []
    assert look.usage()["w"].used == 1


def test_an_id_that_is_asked_again_is_not_undone_by_what_was_to_be_undone(server: Server, stores: Any) -> None:
    gate = gate_of(stores(server.url))
    first_ask(gate)
    server.freeze()
    assert isinstance(timed(lambda: gate.acquire(id="job"))[1], StoreUnavailable)
    assert isinstance(timed(lambda: gate.acquire(id="job"))[1], StoreUnavailable)
    server.thaw()
    permits: list[Any] = []

    def granted() -> bool:
        answer = timed(lambda: gate.acquire(id="job"))[1]
        if isinstance(answer, StoreUnavailable):
            return False
        permits.append(answer)
        return True

    until(granted)
    time.sleep(2.5)
    look = gate_of(stores(server.url + PATIENT))
    assert [holder.id for holder in look.holders()] == ["job"]
    assert permits[0].release() is True


def test_a_child_of_a_fork_has_connections_of_its_own(server: Server, stores: Any) -> None:
    gate = gate_of(stores(server.url + PATIENT))
    held = gate.acquire()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with gate.acquire():
                code = 0 if gate.usage()["slots"].used >= 2 else 2
        finally:
            os._exit(code)
    for _ in range(50):
        gate.acquire().release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held.release() is True
    assert gate.usage()["slots"].used == 0

"""What gates do while their guard is away or silent."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from headgate import AsyncGate, Gate, StoreUnavailable
from headgate.errors import HeadgateError
from headgate.stores.http import HttpStore
from tests.support.guards import GuardProcess, back, gate_of
from tests.support.timing import DECIDES_IN_TIME
from tests.support.waiting import DECIDED, Stopwatch, held_up, timed, until


@DECIDES_IN_TIME
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_a_gate_decides_in_time_what_to_do_without_its_guard_and_comes_back(guard: GuardProcess, how: str) -> None:
    closed, opened, local = (gate_of(guard.url, mode) for mode in ("closed", "open", "local:0.5"))
    for gate in (closed, opened, local):
        gate.acquire().release()
    getattr(guard, how)()
    took, answer = timed(closed.acquire)
    assert isinstance(answer, StoreUnavailable)
    assert took < DECIDED
    took, permit = timed(opened.acquire)
    assert permit.release() is True
    assert took < DECIDED
    took, answer = timed(lambda: local.try_acquire())
    assert not isinstance(answer, Exception)
    assert took < DECIDED
    took, answers = timed(lambda: [timed(closed.acquire)[1] for _ in range(100)])
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    assert took < 2, "a hundred calls, of which one in half a second tries the guard"
    if how == "kill":
        guard.start()
    else:
        guard.go_on()
    for gate in (closed, opened, local):
        until(lambda gate=gate: back(gate))  # type: ignore[misc]


@DECIDES_IN_TIME
def test_an_async_gate_does_not_block_its_loop_while_its_guard_is_silent(guard: GuardProcess) -> None:
    async def main() -> None:
        gate = gate_of(guard.url, kind=AsyncGate)
        await (await gate.acquire()).release()
        async with held_up() as seconds:
            guard.pause()
            watch = Stopwatch()
            results = await asyncio.gather(*(gate.acquire() for _ in range(50)), return_exceptions=True)
            assert all(isinstance(result, StoreUnavailable) for result in results)
            assert watch.seconds() < DECIDED
        assert max(seconds) < 0.15
        guard.go_on()
        async with asyncio.timeout(60):
            while isinstance((await asyncio.gather(gate.acquire(), return_exceptions=True))[0], BaseException):
                await asyncio.sleep(0.05)
        await asyncio.to_thread(lambda: until(lambda: Gate.usage(gate_of(guard.url)).limits[1].used == 1))

    asyncio.run(main())


def test_nothing_stays_behind_of_asks_that_a_silent_guard_answers_later(guard: GuardProcess) -> None:
    gate = gate_of(guard.url)
    gate.acquire().release()
    guard.pause()
    with pytest.raises(StoreUnavailable):
        gate.acquire()
    guard.go_on()
    until(lambda: not isinstance(timed(gate.usage)[1], Exception))
    until(lambda: gate.usage()["slots"].used == 0)
    assert gate.usage()["w"].used == 1


@DECIDES_IN_TIME
def test_a_name_that_cannot_be_looked_up_is_told_in_time() -> None:
    gate = gate_of("http://headgate.invalid:8420")
    took, answer = timed(gate.acquire)
    assert isinstance(answer, StoreUnavailable)
    assert took < DECIDED


def test_what_answers_but_is_no_guard_is_called_that(tmp_path: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        for text in (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", b'HTTP/1.1 200 OK\r\ncontent-length: 15\r\n\r\n{"hello":"you"}'):
            connection, _ = listening.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(text)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    store = HttpStore(f"http://127.0.0.1:{listening.getsockname()[1]}")
    gate = gate_of(store)  # type: ignore[arg-type]
    with pytest.raises(HeadgateError, match="no guard"):
        gate.usage()
    store.close()
    listening.close()
    thread.join(60)

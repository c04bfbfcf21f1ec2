"""What a crowd leaves that was killed: its tickets and its sockets go by themselves, without an ask of anybody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from headgate import Concurrency, Gate
from headgate.kernel.commands import Peek
from headgate.stores.sqlite import SqliteStore
from headgate.testing import FakeClock
from tests.support.guards import GuardProcess
from tests.support.stores import dynamo_server, redis_server
from tests.support.waiting import until

NUMBERS = count()

#: Waits in line so many times, says so, and then does nothing.
CROWD = """
    import asyncio, sys
    from headgate import AsyncGate, Concurrency

    async def main(url, name, size):
        gate = AsyncGate(name, [Concurrency(1, name="slots", lease="1h")], store=url)

        async def wait():
            await gate.acquire()

        waiting = [asyncio.ensure_future(wait()) for _ in range(size)]
        while (await gate.usage()).waiting < size:
            await asyncio.sleep(0.01)
        print("waiting", flush=True)
        await asyncio.gather(*waiting)

    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def killed_crowd(script: str, *arguments: str) -> None:
    """Start a process, and kill it as soon as all of its asks stand in line."""
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()


@pytest.fixture(params=["sqlite", "redis", "dynamodb", "http"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str, int]]:
    """The URL of a store, the name of a gate on it, and the size of a crowd that it takes in good time."""
    name = f"crowd-{os.getpid()}-{next(NUMBERS)}"
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/gates.db", name, 1500
    elif request.param == "redis":
        server = redis_server()
        if isinstance(server, str):
            pytest.skip(server)
        yield f"{server.url}?timeout=10s", name, 1500
    elif request.param == "dynamodb":
        from tests.support.dynamo_servers import make_table

        server = dynamo_server()
        if isinstance(server, str):
            pytest.skip(server)
        make_table(server.endpoint, name)
        yield f"dynamodb://{name}?endpoint={server.endpoint}&region=eu-central-1&timeout=10", name, 600
    else:
        gates = f'[gates."{name}"]\nlimits = [{{ concurrency = 1, name = "slots", lease = "1h" }}]'
        guard = GuardProcess(tmp_path, f'store = "sqlite:///guard.db"\n{gates}')
        try:
            yield f"{guard.url}?timeout=10s", name, 600
        finally:
            guard.kill()


def look(gate: Gate) -> Any:
    return gate.store.decide(Peek(gate.policy))


@pytest.mark.slow
def test_a_killed_crowd_leaves_the_line_of_a_process_that_only_looks(place: tuple[str, str, int]) -> None:
    url, name, size = place
    gate = Gate(name, [Concurrency(1, name="slots", lease="1h")], store=url)
    held = gate.acquire(renew=False)
    killed_crowd(CROWD, url, name, str(size))
    # A look alone removes nothing; what it shows has the line served, in the background and without an ask.
    until(lambda: gate.usage().waiting == 0 and not look(gate).overdue)
    held.release()
    gate.acquire(timeout=0).release()


def test_a_killed_crowd_leaves_the_line_by_the_heartbeat_of_a_lease(tmp_path: Path) -> None:
    clock = FakeClock()
    gate = Gate("g", [Concurrency(1, name="slots", lease="1h")], store=SqliteStore(f"{tmp_path}/gates.db", clock=clock))
    held = gate.acquire(renew=False)
    killed_crowd(WAITS_ON_A_CLOCK, f"{tmp_path}/gates.db", str(clock()))
    clock.advance("11s")
    held.renew()
    assert look(gate).waiting == 0
    held.release()
    gate.store.close()


#: The same with a clock that stands still, as that of the test does.
WAITS_ON_A_CLOCK = """
    import sys, threading, time
    from headgate import Concurrency, Gate
    from headgate.stores.sqlite import SqliteStore

    store = SqliteStore(sys.argv[1], clock=lambda: int(sys.argv[2]))
    gate = Gate("g", [Concurrency(1, name="slots", lease="1h")], store=store)
    before = gate.usage().waiting
    threading.Thread(target=gate.acquire, daemon=True).start()
    while gate.usage().waiting == before:
        time.sleep(0.001)
    print("waiting", flush=True)
    time.sleep(3600)
"""


def test_the_sockets_of_killed_processes_are_removed_with_their_tickets(tmp_path: Path) -> None:
    clock, folder = FakeClock(), Path(f"{tmp_path}/gates.db-wake")
    gate = Gate("g", [Concurrency(1, name="slots", lease="1h")], store=SqliteStore(f"{tmp_path}/gates.db", clock=clock))
    held = gate.acquire(renew=False)
    for _ in range(4):
        killed_crowd(WAITS_ON_A_CLOCK, f"{tmp_path}/gates.db", str(clock()))
    assert gate.usage().waiting == 4
    clock.advance("11s")
    until(lambda: gate.usage().waiting == 0 and not look(gate).overdue)
    until(lambda: not list(folder.glob("*")))
    held.release()
    gate.store.close()

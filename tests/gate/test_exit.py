"""A process ends by itself, whatever it leaves behind: coroutines in `acquire`, permits released in `__del__`, threads.

When the interpreter ends, every other thread is frozen where it is. A wait for one of them never ends, so each of these
scripts is a process of its own, and ends or does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from headgate import Concurrency, Gate
from tests.support.guards import GuardProcess
from tests.support.stores import dynamo_server, redis_server

#: Seconds after which a process is taken to hang. It is ended within two by itself, also on a busy machine.
HANGS = 60.0

NUMBERS = count()

BEGIN = """
    import asyncio, sys, threading, types
    from headgate import AsyncGate, Concurrency, Gate, StoreUnavailable

    def late_module():  # threads that are frozen keep the names here alive; those of the module that came last go first
        module = sys.modules["late"] = types.ModuleType("late")
        return module

    limits = [Concurrency(2, name="slots", lease="1h")]
    gate, agate = [kind(sys.argv[2], limits, store=sys.argv[1]) for kind in (Gate, AsyncGate)]

    class Held:
        def __init__(self, permit, release):
            self.permit, self.release = permit, release

        def __del__(self):
            self.release(self.permit)

    async def acquire():
        return await agate.acquire()

    async def until_two_wait():
        while (await agate.usage()).waiting < 2:
            await asyncio.sleep(0.001)

    def run(coroutine):  # as a program that forgets to cancel its tasks
        loop = asyncio.new_event_loop()
        loop.run_until_complete(coroutine)
        loop.close()
"""

LEFT_BEHIND = {
    "coroutines that wait in line, their loop closed under them": """
        async def main():
            global left
            left = [asyncio.ensure_future(acquire()) for _ in range(4)]
            await until_two_wait()

        run(main())
    """,
    "coroutines whose ask is on its way, their loop closed under them": """
        async def main():
            global left
            left = [asyncio.ensure_future(acquire()) for _ in range(4)]
            await asyncio.sleep(0)

        run(main())
    """,
    "a block of an async generator that was never ended": """
        async def held():
            async with agate.acquire():
                yield

        async def main():
            global left
            left = held()
            await left.__anext__()

        run(main())
    """,
    "permits that are released in __del__": """
        left = [Held(gate.acquire(), lambda permit: permit.release()) for _ in range(2)]
    """,
    "async permits that are released in __del__, each on a loop of its own": """
        left = [Held(asyncio.run(acquire()), lambda permit, run=asyncio.run: run(permit.release())) for _ in range(2)]
    """,
    "an ask in __del__": """
        def ask(gate):
            try:
                gate.acquire().release()
            except StoreUnavailable:
                pass

        left = Held(gate, ask)
        gate.acquire().release()
    """,
    "permits that are released in __del__ while threads go on asking": """
        late = late_module()
        late.left = Held(gate.acquire(), lambda permit: permit.release())

        def work():
            while True:
                gate.acquire().release()
                asked.set()

        asked = threading.Event()
        for _ in range(3):
            threading.Thread(target=work, daemon=True).start()
        asked.wait()
    """,
}

every_store = pytest.mark.parametrize("url", ["memory", "sqlite", "redis", "dynamodb", "http"], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A store that other processes can reach, as its URL."""
    if request.param == "memory":
        yield "memory://"
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/gates.db"
    elif request.param == "redis":
        server = redis_server()
        if isinstance(server, str):
            pytest.skip(server)
        yield f"{server.url}?timeout=10s"
    elif request.param == "dynamodb":
        from tests.support.dynamo_servers import make_table

        server = dynamo_server()
        if isinstance(server, str):
            pytest.skip(server)
        table = f"exit-{os.getpid()}-{next(NUMBERS)}"
        make_table(server.endpoint, table)
        yield f"dynamodb://{table}?endpoint={server.endpoint}&region=eu-central-1&timeout=10"
    else:
        gates = f'[gates.{GATE}]\nlimits = [{{ concurrency = 2, name = "slots", lease = "1h" }}]'
        guard = GuardProcess(tmp_path, f'store = "sqlite:///guard.db"\n{gates}')
        try:
            yield f"{guard.url}?timeout=10s"
        finally:
            guard.kill()


GATE = f"exit{os.getpid()}"


def end_of(script: str, *arguments: str) -> float:
    """Run a script to its last line, and return how many seconds its process took to end after that."""
    program = textwrap.dedent(BEGIN) + textwrap.dedent(script) + "\nprint('done', flush=True)\n"
    child = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        line = child.stdout.readline()
        done = time.monotonic()
        _, errors = child.communicate(timeout=HANGS)
    except subprocess.TimeoutExpired:
        child.kill()
        _, errors = child.communicate()
        pytest.fail(f"it did not end:\n{errors}")
    assert (line, child.returncode) == ("done\n", 0), errors
    return time.monotonic() - done


@every_store
@pytest.mark.parametrize("left", LEFT_BEHIND)
def test_a_process_ends_whatever_it_leaves_behind(url: str, left: str) -> None:
    end_of(LEFT_BEHIND[left], url, f"{GATE}" if url.startswith("http") else f"{GATE}-{next(NUMBERS)}")


@pytest.mark.timing("the contract is a bound in real time: a process ends within 2 s, whatever it leaves behind")
@every_store
def test_a_process_ends_within_two_seconds(url: str) -> None:
    crowd = """
        loops = [asyncio.new_event_loop() for _ in range(3)]
        held = [Held(gate.acquire(), lambda permit: permit.release()) for _ in range(2)]
        left = []

        async def main():
            left.extend([asyncio.ensure_future(acquire()) for _ in range(100)])
            await until_two_wait()

        for loop in loops:
            loop.run_until_complete(main())
            loop.close()
        for _ in range(20):
            threading.Thread(target=gate.acquire, daemon=True).start()
    """
    assert end_of(crowd, url, GATE) < 2.0


STUCK = """
    from headgate.stores.{module} import {store}

    deciding = threading.Event()

    def clock():
        if threading.current_thread() is not threading.main_thread():
            deciding.set()
            threading.Event().wait()  # as a disk that does not answer, or the moment in which another thread got its turn
        return 1_800_000_000_000_000

    gate = Gate("g", limits, store={store}({arguments}clock=clock))
    late = late_module()
    late.left = Held(gate.acquire(), lambda permit: permit.release())
    threading.Thread(target=gate.acquire, daemon=True).start()
    deciding.wait()
"""


@pytest.mark.parametrize(
    ("module", "store", "arguments"),
    [("memory", "MemoryStore", ""), ("sqlite", "SqliteStore", "sys.argv[3], ")],
)
def test_a_process_ends_although_a_thread_was_frozen_in_the_middle_of_a_decision(
    module: str, store: str, arguments: str, tmp_path: Path
) -> None:
    script = STUCK.format(module=module, store=store, arguments=arguments)
    end_of(script, "memory://", "g", str(tmp_path / "gates.db"))


def test_a_release_in_del_at_the_end_is_still_decided_where_the_state_is_in_a_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/gates.db"
    end_of(LEFT_BEHIND["permits that are released in __del__"], url, "g")
    assert Gate("g", [Concurrency(2, name="slots", lease="1h")], store=url).holders() == []

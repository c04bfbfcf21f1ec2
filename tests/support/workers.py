"""What runs in other processes: workers under a gate, an upstream that keeps its own books, and scripts of a few lines.

Each role is started as `python tests/support/workers.py ROLE JSON`, tells what it does in lines of JSON, and takes orders
as lines on its standard input; its end is the end of its orders.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from typing import Any

HERE = os.path.abspath(__file__)


# --- for the tests ----------------------------------------------------------------------------------------------------


def run_script(script: str, timeout: float = 240.0, wait_for_output: bool = True) -> tuple[float, str]:
    """Run some lines of Python in a new process; returns when it ended (monotonic) and what it printed."""
    out = subprocess.PIPE if wait_for_output else subprocess.DEVNULL
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=out, stderr=out if wait_for_output else None, text=True
    )
    try:
        printed, errors = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        raise
    ended = time.monotonic()
    assert child.returncode == 0, f"it ended with {child.returncode}:\n{printed}\n{errors}"
    return ended, printed or ""


class Child:
    """A role in a process of its own."""

    def __init__(self, role: str, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, HERE, role, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.killed = False

    @property
    def pid(self) -> int:
        return self.process.pid

    def read(self) -> Any:
        """The next line that it tells."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"{self.process.args!r} ended with {self.process.wait()}"
        return json.loads(line)

    def order(self, word: str) -> Any:
        """Give an order and read the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        return self.read()

    def end_orders(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def finish(self, seconds: float = 120.0) -> Any:
        """End its orders; returns the last that it tells."""
        if self.process.stdin is not None:
            self.end_orders()
        printed, _ = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, f"{self.process.args!r} ended with {self.process.returncode}"
        return json.loads(printed.splitlines()[-1]) if printed.strip() else None

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Not gently, and not only at the end of a test."""
        self.killed = True
        with contextlib.suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def children() -> Iterator[Any]:
    """A function that starts children, all of which end with the block."""
    started: list[Child] = []

    def start(role: str, **options: Any) -> Child:
        child = Child(role, **options)
        started.append(child)
        return child

    try:
        yield start
    finally:
        for child in started:
            child.kill()


# --- the roles --------------------------------------------------------------------------------------------------------


def tell(**facts: Any) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def orders() -> Iterator[str]:
    for line in sys.stdin:
        yield line.strip()


def upstream(options: dict[str, Any]) -> None:
    """Counts calls by its own clock, and knows nothing of gates. A call begins with `a`; it ends with `d`, or its line.

    An order is answered with the number of calls so far.
    """
    server = socket.create_server(("127.0.0.1", 0), backlog=256)
    server.setblocking(False)
    tell(port=server.getsockname()[1])
    selector = selectors.DefaultSelector()
    selector.register(server, selectors.EVENT_READ)
    selector.register(sys.stdin, selectors.EVENT_READ)
    arrivals: list[float] = []
    under_way: set[socket.socket] = set()
    most = 0
    while True:
        for key, _ in selector.select():
            source: Any = key.fileobj
            if source is sys.stdin:
                if not sys.stdin.readline():
                    tell(arrivals=arrivals, most=most)
                    return
                tell(count=len(arrivals))
            elif source is server:
                line, _ = server.accept()
                selector.register(line, selectors.EVENT_READ)
            else:
                try:
                    word = source.recv(1)
                except ConnectionError:
                    word = b""
                if word == b"a":
                    arrivals.append(time.monotonic())
                    under_way.add(source)
                    most = max(most, len(under_way))
                    with contextlib.suppress(ConnectionError):
                        source.send(b"k")
                else:
                    under_way.discard(source)
                    if not word:
                        selector.unregister(source)
                        source.close()


def shift_wall_clock(by: float) -> None:
    """This process takes the time of day to be another; `by` may be 0 for one that is set back and forward all the time."""
    real, real_ns = time.time, time.time_ns
    hours = (by,) if by else (-3600.0, 3600.0, 0.0)
    shift = lambda: hours[int(time.monotonic() * 5) % len(hours)]  # noqa: E731
    time.time = lambda: real() + shift()
    time.time_ns = lambda: real_ns() + int(shift() * 1e9)


def make_gate(options: dict[str, Any]) -> Any:
    if "wall_clock" in options:
        shift_wall_clock(options["wall_clock"])
    from headgate import Gate

    return Gate(options.get("name", "shared"), make_limits(options), store=options["store"], **options.get("gate", {}))


def make_limits(options: dict[str, Any]) -> list[Any]:
    from headgate import Bucket, Concurrency, Window

    kinds = {"window": Window, "bucket": Bucket, "slots": Concurrency}
    return [kinds[kind](**arguments, name=kind) for kind, arguments in options["limits"].items()]


def worker(options: dict[str, Any]) -> None:
    """Calls the upstream again and again from several threads, each call under a permit, until its orders end.

    Where it is told that it will be `cut_off` from its store, it asks again when that is away, and counts what it was told.
    """
    gate = make_gate(options)
    stopping = threading.Event()
    served, lost, refused = [0], [0], [0]
    events: dict[str, int] = {}
    if options.get("cut_off"):
        from headgate.events import subscribe

        subscribe(lambda event: events.update({event.kind: events.get(event.kind, 0) + 1}))

    def ask() -> Any:
        from headgate import Denied, StoreUnavailable

        while True:
            try:
                return gate.acquire()
            except (StoreUnavailable, Denied):  # denied by its local share
                if not options.get("cut_off"):
                    raise
                refused[0] += 1
                if stopping.wait(0.02):
                    return None

    def work() -> None:
        pause = options.get("pause", 0.0)
        with socket.create_connection(("127.0.0.1", options["port"])) as line:
            while not stopping.wait(random.uniform(0, 2 * pause)):
                if (permit := ask()) is None:
                    return
                with permit:
                    line.send(b"a")
                    line.recv(1)
                    time.sleep(random.uniform(0.005, 0.05))
                    line.send(b"d")
                served[0] += 1
                lost[0] += permit.lost

    threads = [threading.Thread(target=work) for _ in range(options["threads"])]
    for thread in threads:
        thread.start()
    tell(ready=True)
    for _ in orders():
        pass
    stopping.set()
    for thread in threads:
        thread.join()
    tell(served=served[0], lost=lost[0], refused=refused[0], events=events)


def nursery(options: dict[str, Any]) -> None:
    """Starts workers by forking, so that a new one is there at once: an order has the options of one, `end` ends all."""
    if options["store"].startswith("redis"):
        import headgate.stores.redis.store  # noqa: F401  # what takes long is done once
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    ends: list[int] = []
    tell(ready=True)
    for order in orders():
        if order == "end":
            break
        theirs, ours = os.pipe()
        pid = os.fork()
        if pid == 0:
            for end in (*ends, ours):
                os.close(end)
            sys.stdin = open(theirs)  # noqa: SIM115
            random.seed()
            worker({**options, **json.loads(order)})
            os._exit(0)
        os.close(theirs)
        ends.append(ours)
        tell(pid=pid)
    for end in ends:
        os.close(end)


def holder(options: dict[str, Any]) -> None:
    """Takes one permit, and does with it as it is told."""
    from headgate import LeaseLost
    from headgate.events import subscribe

    gate = make_gate(options)
    events: list[str] = []
    subscribe(lambda event: events.append(event.kind))
    permit = gate.acquire(**options.get("ask", {}))
    tell(id=permit.id, waited=permit.waited)
    for order in orders():
        if order == "release":
            tell(released=permit.release(), lost=permit.lost, events=events)
        elif order == "renew":
            try:
                permit.renew()
                tell(renewed=True)
            except LeaseLost:
                tell(renewed=False)
        else:
            tell(lost=permit.lost, events=events)


def waiter(options: dict[str, Any]) -> None:
    """Several threads that wait for a permit each, and tell when they have it."""
    gate = make_gate(options)
    lock = threading.Lock()
    begun = time.process_time()

    def wait() -> None:
        permit = gate.acquire(**options.get("ask", {}))
        at = time.monotonic()
        with lock:
            tell(granted=at, id=permit.id, cpu=time.process_time() - begun)
        if options.get("release", True):
            permit.release()

    for _ in range(options.get("threads", 1)):
        threading.Thread(target=wait, daemon=True).start()
    for _ in orders():
        tell(cpu=time.process_time() - begun)


def turns(options: dict[str, Any]) -> None:
    """Takes the one slot in turns with another process, and tells when it released and when it was granted."""
    gate = make_gate(options)
    tell(ready=True)
    released, granted = [], []
    for _ in range(options["turns"]):
        permit = gate.acquire()
        granted.append(time.monotonic())
        deadline = time.monotonic() + 5
        while not gate.usage().waiting and time.monotonic() < deadline:
            time.sleep(0.001)
        released.append(time.monotonic())
        permit.release()
    tell(released=released, granted=granted)


def spender(options: dict[str, Any]) -> None:
    """Spends, holds and promises, and then stays until it is killed or its orders end."""
    gate = make_gate(options)
    for cost in options["costs"]:
        gate.acquire(cost=cost, renew=False, holder="before the restart")
    bucket = {"bucket": {"limit": 1, "per": "1h", "burst": 1, "slack": 0}}
    promise = make_gate({**options, "name": "promised", "limits": bucket, "gate": {"waiting": "promise"}})
    delays = [promise.reserve().delay for _ in range(options["promises"])]
    tell(delays=delays)
    for _ in orders():
        pass


def crowd(options: dict[str, Any]) -> None:
    """Asks for many permits `at_once` on an event loop, one for each org, gives them back, and asks again, until its orders
    end.

    Where it is to be `starved`, it begins to have next to no processor when it has asked once, until the order `feed`.
    """
    import asyncio

    from headgate import AsyncGate, StoreUnavailable

    gate = AsyncGate("shared", make_limits(options), store=options["store"], **options.get("gate", {}))
    passed = count_events()
    rounds = refused = 0
    stopping = threading.Event()

    def obey() -> None:
        for order in orders():
            if order == "feed":
                os.kill(burner, signal.SIGKILL)
                os.waitpid(burner, 0)
        stopping.set()

    async def ask() -> None:
        nonlocal rounds, refused
        while not stopping.is_set():
            asks = (gate.acquire(key={"org": str(number)}) for number in range(options["at_once"]))
            answers = await asyncio.gather(*asks, return_exceptions=True)
            refused += sum(isinstance(answer, StoreUnavailable) for answer in answers)
            permits = [answer for answer in answers if not isinstance(answer, BaseException)]
            await asyncio.gather(*(permit.release() for permit in permits))
            rounds += 1

    async def main() -> None:
        nonlocal burner
        await (await gate.acquire(key={"org": "0"})).release()
        if options.get("starved"):
            burner = starve()
        threading.Thread(target=obey, daemon=True).start()
        tell(ready=True)
        await ask()

    burner = 0
    asyncio.run(main())
    tell(rounds=rounds, refused=refused, passed_open=passed["passed_open"])


def starve() -> int:
    """Share one processor with a process that takes nearly all of it. Returns that one's id; it ends with this one too."""
    parent = os.getpid()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    burner = os.fork()
    if burner == 0:
        while os.getppid() == parent:
            for _ in range(100_000):
                pass
        os._exit(0)
    os.nice(19)
    return burner


def count_events() -> dict[str, int]:
    from collections import Counter

    from headgate.events import subscribe

    counts: dict[str, int] = Counter()
    subscribe(lambda event: counts.update([event.kind]))
    return counts


def one_by_one(options: dict[str, Any]) -> None:
    """Asks for one permit after the other, for so many `seconds` or until its orders end; tells how long that took it."""
    from headgate import StoreUnavailable

    gate = make_gate(options)
    passed = count_events()
    stopping = threading.Event()

    def obey() -> None:
        for _ in orders():
            pass
        stopping.set()

    threading.Thread(target=obey, daemon=True).start()
    gate.acquire(key={"org": "other"}).release()
    tell(ready=True)
    refused = 0
    waits: list[float] = []
    end = time.monotonic() + options["seconds"]
    while not stopping.is_set() and time.monotonic() < end:
        began = time.monotonic()
        try:
            gate.acquire(key={"org": "other"}).release()
        except StoreUnavailable:
            refused += 1
        waits.append(time.monotonic() - began)
    waits.sort()
    at = {name: waits[int(part * (len(waits) - 1))] for name, part in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0))}
    tell(asks=len(waits), refused=refused, passed_open=passed["passed_open"], **at)


def locker(options: dict[str, Any]) -> None:
    """Another program that keeps a database to itself."""
    import sqlite3

    connection = sqlite3.connect(options["path"], isolation_level=None, timeout=5)
    connection.execute("BEGIN EXCLUSIVE")
    tell(locked=True)
    for _ in orders():
        pass
    connection.execute("ROLLBACK")
    connection.close()


ROLES = {
    role.__name__: role
    for role in (upstream, worker, nursery, holder, waiter, turns, spender, crowd, one_by_one, locker)
}

if __name__ == "__main__":
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))

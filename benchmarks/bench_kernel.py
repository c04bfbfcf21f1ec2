"""How the kernel grows in memory: live keys, leases and waiters; what a key weighs; and what an import costs."""

import gc
import random
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable

from benchmarks.bench_sqlite import growth, turn
from benchmarks.measure import Spread, Table
from headgate import Bucket, Concurrency, Gate, Permit, Window
from headgate.stores.memory import MemoryStore

ENOUGH = 10**9


def run(quick: bool) -> list[Table]:
    return [keys(quick), leases(quick), *waiters(quick), weight(quick), imports(quick)]


def granted(permit: Permit | None) -> Permit:
    if permit is None:
        raise RuntimeError("refused: only grants are to be timed")
    return permit


def keys(quick: bool) -> Table:
    """One bucket per key, all of them live, drawn at random."""
    sizes = [10, 1_000, 100_000] if quick else [10, 1_000, 100_000, 1_000_000]

    def prepared(size: int) -> Callable[[], object]:
        gate = Gate("bench", [Bucket(ENOUGH, per="24h", slack=0, by="org")], store=MemoryStore())
        for number in range(size):
            granted(gate.try_acquire(key={"org": f"org-{number}"}))
        return lambda: granted(gate.try_acquire(key={"org": f"org-{random.randrange(size)}"}))

    return growth("Memory, live keys", sizes, {size: prepared(size) for size in sizes}, 20 if quick else 200, 1.5)


def leases(quick: bool) -> Table:
    """A grant and its release, among so many live leases."""
    sizes = [1, 100, 10_000]

    def prepared(size: int) -> Callable[[], object]:
        gate = Gate("bench", [Concurrency(10**6, lease="24h")], store=MemoryStore())
        held = [granted(gate.try_acquire(renew=False)) for _ in range(size)]

        def operation() -> None:
            granted(gate.try_acquire()).release()
            assert held

        return operation

    return growth("Memory, live leases", sizes, {size: prepared(size) for size in sizes}, 40 if quick else 400, 1.5)


def waiters(quick: bool) -> list[Table]:
    """One goes, the next is called and takes its call, and another comes to the end of the line."""
    sizes = [10, 1_000] if quick else [10, 1_000, 10_000]
    tables = []
    for lanes, bound, where in ((1, 1.5, "one lane"), (10**9, 3.0, "a lane each")):
        # Time stands still, or calls would run out while another store has its turn.
        operations = {size: turn(MemoryStore(clock=lambda: 10**15), size, lanes) for size in sizes}
        tables.append(growth(f"Memory, waiters in {where}", sizes, operations, 10 if quick else 60, bound))
    return tables


def weight(quick: bool) -> Table:
    """Bytes that a live key takes, and how many are left once they are idle and others come."""
    size = 10_000 if quick else 100_000
    rows = []
    for name, limit in (
        ("bucket", Bucket(ENOUGH, per="1s", slack=0, by="org")),
        ("window", Window(ENOUGH, per="1s", slack=0, by="org")),
    ):
        now = [10**15]
        store = MemoryStore(clock=lambda now=now: now[0])  # type: ignore[misc]
        gate = Gate("bench", [limit], store=store)
        gc.collect()
        tracemalloc.start()
        for number in range(size):
            granted(gate.try_acquire(key={"org": f"org-{number}"}))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        before = len(store._gates["bench"].states)
        now[0] += 3600 * 10**6
        for number in range(size):
            granted(gate.try_acquire(key={"org": f"other-{number % 100}"}))
        after = len(store._gates["bench"].states)
        rows.append([name, f"{taken / size:,.0f}", f"{before:,}", f"{after:,}"])
    return Table("Memory, keys", ["limit", "bytes per key", "live keys", "left after an idle hour"], rows)


def imports(quick: bool) -> Table:
    """Fresh interpreters, in turns; the time of an interpreter that imports nothing is taken off."""
    programs = {
        "nothing": "pass",
        "three modules": "import dataclasses, enum, threading",
        "headgate": "import headgate",
    }
    samples: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(10 if quick else 40):
        for name, program in programs.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, "-I", "-c", program], check=True)
            samples[name].append(time.perf_counter() - began)
    base = Spread.of(samples["nothing"]).median
    three = Spread.of(samples["three modules"]).median - base
    ours = Spread.of(samples["headgate"]).median - base
    verdict = "kept" if ours <= 2.5 * three else "MISSED"
    rows = [
        ["import dataclasses, enum, threading", f"{three * 1000:.1f} ms", "1.00", ""],
        ["import headgate", f"{ours * 1000:.1f} ms", f"{ours / three:.2f}", f"≤ 2.5 {verdict}"],
    ]
    return Table("Import", ["program", "median", "ratio", "bound"], rows)

"""What a look at a gate with 10,000 waiters costs, beside another version: `python -m benchmarks.looks --against REVISION`.

Without `--against` the looks are timed on this version alone. With it, the package of that git revision is unpacked into a
temporary directory, a process of each version prepares the same gates in memory, and the two take turns: ratios are taken
within a round. A look in memory waits for nothing, so what is counted is processor time, which other programs disturb less.
The program ends with 1 where a look takes more than it may. The names that it uses are those that versions from before
`headgate.kernel.overlay` have too: 47682bc is the last of them.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import process_time_ns

from benchmarks.measure import Spread, Table
from headgate import Concurrency, Window
from headgate.kernel.commands import Peek, Stand
from headgate.kernel.plan import Policy
from headgate.stores.memory import MemoryStore

ROOT = Path(__file__).parents[1]
#: A look may cost so many times what it did. A waiter was five facts and is ten: what it asks for, what it waits for, how
#: much of that is left and when it goes came with its list, so that the list alone may cost more.
AT_MOST = 1.5
WAITERS_AT_MOST = 3.0
SLOTS = 150


def gate(waiters: int, by: str | None, lanes: int) -> tuple[Policy, MemoryStore]:
    """A gate whose slots are taken and in whose line so many wait, in so many lanes. Its time stands still."""
    limits = [Window(1000, per="1m", name="rpm"), Concurrency(SLOTS, lease="24h", name="slots")]
    if by is not None:
        limits.append(Window(500, per="1m", name="own", by=by))
    policy = Policy("bench", limits)
    store = MemoryStore(clock=lambda: 10**15)
    for number in range(SLOTS + waiters):
        plan = policy.plan(1, None if by is None else {by: f"org-{number % lanes}"})
        ticket = f"ticket-{number}"
        store.decide(Stand(plan, ticket, f"job {number}", plan.lease, waits=True, session=store.session))
    return policy, store


def looks(waiters: int) -> dict[str, Callable[[], object]]:
    """The looks that faces make, by name."""
    found: dict[str, Callable[[], object]] = {}
    for where, by, lanes in (("one lane", None, 1), ("a lane each of 1,000 keys", "org", 1000)):
        policy, store = gate(waiters, by, lanes)
        plan = policy.plan(1, None if by is None else {by: "org-1"})
        peeks = {
            "usage": Peek(policy),
            "explain": Peek(policy, plan=plan, leases=True),
            "explain without leases": Peek(policy, plan=plan),
            "waiters": Peek(policy, waiters=True),
            "dashboard": Peek(policy, leases=True, waiters=True),
        }
        for name, peek in peeks.items():
            found[f"{name}, {where}"] = lambda store=store, peek=peek: store.decide(peek)  # type: ignore[misc]
    return found


def answer(waiters: int, times: int) -> None:
    """The process of one version: for each line that it reads, the nanoseconds of each look."""
    ready = looks(waiters)
    for _ in sys.stdin:
        took = {}
        for name, look in ready.items():
            begun = process_time_ns()
            for _ in range(times):
                look()
            took[name] = (process_time_ns() - begun) / times
        sys.stdout.write(json.dumps(took) + "\n")
        sys.stdout.flush()


def unpacked(revision: str, into: str) -> Path:
    """The package as it was at a revision. Raises SystemExit where git does not know it."""
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", revision, "src"], capture_output=True)
    if packed.returncode:
        raise SystemExit(f"git archive {revision} src: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(into, filter="data")
    return Path(into) / "src"


def run(sources: dict[str, Path], waiters: int, rounds: int, times: int) -> dict[str, dict[str, list[float]]]:
    """version → look → nanoseconds, one value per round, versions in turns."""
    samples: dict[str, dict[str, list[float]]] = {name: {} for name in sources}
    with ExitStack() as stack:
        processes = {}
        for name, source in sources.items():
            path = os.pathsep.join([str(source), str(ROOT)])
            command = [sys.executable, "-P", "-m", "benchmarks.looks", "--answer"]
            processes[name] = stack.enter_context(
                subprocess.Popen(
                    [*command, "--waiters", str(waiters), "--times", str(times)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": path},
                )
            )
        for number in range(rounds + 1):
            for name, process in processes.items():
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                took = json.loads(process.stdout.readline())
                for look, value in took.items() if number else ():  # the first round makes what is made on first use
                    samples[name].setdefault(look, []).append(value)
    return samples


def table(waiters: int, rounds: int, times: int, against: str | None) -> tuple[Table, bool]:
    """The looks and what they take, and whether all bounds were kept."""
    with TemporaryDirectory() as directory:
        sources = {"now": ROOT / "src"}
        if against is not None:
            sources["before"] = unpacked(against, directory)
        samples = run(sources, waiters, rounds, times)
    rows, good = [], True
    for look, now in samples["now"].items():
        row = [look, f"{median(now) / 1000:.1f} µs"]
        if against is not None:
            before = samples["before"][look]
            spread = Spread.of([mine / theirs for mine, theirs in zip(now, before, strict=True)])
            at_most = WAITERS_AT_MOST if look.startswith("waiters") else AT_MOST
            kept = spread.median <= at_most
            good = good and kept
            verdict = f"at most {at_most:g}: {'kept' if kept else 'MISSED'}"
            between = f"{spread.low:.2f} to {spread.high:.2f}"
            row += [f"{median(before) / 1000:.1f} µs", f"{spread.median:.2f}", between, verdict]
        rows.append(row)
    columns = ["look", "now"]
    if against is not None:
        columns += [against, "ratio", "middle half", "bound"]
    return Table(f"Memory, looks at {waiters:,} waiters", columns, rows), good


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.looks", description=__doc__)
    parser.add_argument("--against", metavar="REVISION", help="a git revision to compare with")
    parser.add_argument("--waiters", type=int, default=10_000, help="how many wait (default: 10,000)")
    parser.add_argument("--rounds", type=int, default=15, help="how often the versions take turns (default: 15)")
    parser.add_argument("--times", type=int, default=100, help="how many looks of a kind in a round (default: 100)")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.answer:
        answer(options.waiters, options.times)
        return 0
    found, kept = table(options.waiters, options.rounds, options.times, options.against)
    sys.stdout.write(f"\n{found.as_text()}\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())

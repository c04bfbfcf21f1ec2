"""The published benchmark of a guard that hands out delays: fleets in real processes against a local Sentinel Hub.

50 requests and 200 processing units per 10 s. Each worker makes a request, waits some seconds for its answer, works on
it, and makes the next. Strategies run side by side, each against a Sentinel Hub of its own, whose books are the judge.

    python -m benchmarks.sentinel_hub --demo        # 30 seconds, ends with a table: `make demo-sentinel`
"""

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import sentinel_workers
from benchmarks.measure import Table
from headgate.simulate import upstreams

#: Strategy → what it is.
STRATEGIES = {
    "headgate": "promises of a guard (`reserve`), on SQLite",
    "seed": "negative buckets in a process of their own, with a filler",
    "package": "the limiter of the `sentinelhub` package, one per process",
    "backoff": "each worker backs off by itself: 1 s, doubled up to 32 s",
}
REQUESTS, UNITS, PER = 50, 200, 10.0
#: Seconds at full scale: an answer, and the work on it.
ANSWER, WORK = 2.0, 1.0
PROCESSES = 4
#: By how much the delays of two calls, from promise to arrival, may differ. It is not scaled: the machine is not either.
SLACK = "250ms"


@dataclass(frozen=True)
class Fleet:
    """One run: `workers` × `calls` at a time scale; what goes wrong in it."""

    workers: int = 50
    calls: int = 10
    scale: float = 1.0
    #: The guard is killed and started again so many times.
    kills: int = 0
    #: The share of workers that die between asking and sending.
    dying: float = 0.0
    ramp_up: bool = False
    #: What the account really has, as a share of what is configured.
    true: float = 1.0
    tighten: bool = False
    #: Seconds after which a strategy is cut off, at full scale.
    longest: float = 300.0

    @property
    def per(self) -> float:
        return PER * self.scale


def run_fleet(fleet: Fleet, strategy: str) -> dict[str, Any]:
    """One strategy; returns the books, with the seconds from the first to the last acceptance beside the ideal."""
    policies = [
        f"requests={REQUESTS * fleet.true:g}/{fleet.per:g}s",
        f"pu={UNITS * fleet.true:g}/{fleet.per:g}s",
    ]
    settings: dict[str, Any] = {"ramp_up": True} if fleet.ramp_up else {}
    with (
        tempfile.TemporaryDirectory(prefix="headgate-sentinel-") as folder,
        upstreams.start_process("sentinel-hub", policies, delay=ANSWER * fleet.scale, **settings) as hub,
    ):
        guard = GuardProcess(fleet, folder) if strategy == "headgate" else None
        seed = SeedProcess(fleet) if strategy == "seed" else None
        address = guard.address if guard else seed.address if seed else ""
        context = multiprocessing.get_context("spawn")
        results: Any = context.Queue()
        counts = [count for at in range(PROCESSES) if (count := len(range(at, fleet.workers, PROCESSES)))]
        ready = context.Barrier(len(counts) + 1)  # a process that is slow to start must not thin out the first burst
        setting = sentinel_workers.Setting(
            strategy, hub.url, address, fleet.calls, WORK * fleet.scale, fleet.dying, fleet.scale
        )
        workers = [
            context.Process(
                target=sentinel_workers.work,
                args=(setting, count, at, fleet.longest * fleet.scale, ready, results),
                daemon=True,
            )
            for at, count in enumerate(counts)
        ]
        for worker in workers:
            worker.start()
        ready.wait()
        killer = threading.Thread(target=kill_now_and_then, args=(guard, fleet, time.monotonic()), daemon=True)
        if guard and fleet.kills:
            killer.start()
        tallies = [results.get() for _ in workers]
        for worker in workers:
            worker.join()
        if guard and fleet.kills:
            killer.join()
        books = hub.books()
        if guard:
            guard.stop()
        if seed:
            seed.stop()
    tally = {name: sum(one[name] for one in tallies) for name in tallies[0]}
    seconds, ideal = books["seconds"], books["ideal"]
    # What the dead had reserved is gone: the ideal of what was asked for is another, and is told beside it.
    asked = books["accepted"] + tally["dead"]
    return {
        "strategy": strategy,
        "accepted": books["accepted"],
        "wanted": fleet.workers * fleet.calls,
        "refused": books["refused"],
        "seconds": seconds,
        "ideal": ideal,
        "ratio": seconds / ideal if ideal else 0.0,
        "ideal_asked": max(0.0, asked - REQUESTS * fleet.true) * fleet.per / (REQUESTS * fleet.true),
        "accepted_at": books["accepted_at"],
        "refused_at": books["refused_at"],
        **tally,
    }


def kill_now_and_then(guard: "GuardProcess", fleet: Fleet, start: float) -> None:
    whole = max(1.0, (fleet.workers * fleet.calls / REQUESTS - 1) * fleet.per)
    for number in range(fleet.kills):
        time.sleep(max(0.0, start + whole * (number + 1) / (fleet.kills + 1) - time.monotonic()))
        guard.kill()
        guard.begin()


class GuardProcess:
    """`headgate serve` with its limits from the command line, or from a file where it is to tighten itself."""

    def __init__(self, fleet: Fleet, folder: str) -> None:
        self._folder = folder
        rates = {"requests": REQUESTS, "pu": UNITS}
        if fleet.tighten:
            limits = ", ".join(
                f'{{ bucket = {amount}, per = "{fleet.per:g}s", name = "{unit}", unit = "{unit}", slack = "{SLACK}" }}'
                for unit, amount in rates.items()
            )
            rule = f'tighten = {{ hold = "{max(1.0, 60 * fleet.scale):g}s", quiet = "{max(0.2, 2 * fleet.scale):g}s" }}'
            text = f'store = "sqlite:///s.db"\n[gates.sentinel-hub]\nwaiting = "promise"\n{rule}\nlimits = [{limits}]\n'
            Path(folder, "headgate.toml").write_text(text, encoding="utf-8")
            self._limits: list[str] = []
        else:
            self._limits = ["--gate", "sentinel-hub", "--store", "sqlite:///s.db"]
            for unit, amount in rates.items():
                burst = f",burst={amount * 0.5:g}" if fleet.ramp_up else ""
                told = f"{unit}={amount}/{fleet.per:g}s,slack={SLACK}{burst}"
                self._limits += ["--limit", told]
        self._port = "0"
        self.begin()

    def begin(self) -> None:
        command = [
            sys.executable,
            "-m",
            "headgate",
            "serve",
            "--port",
            self._port,
            "--log-level",
            "error",
            *self._limits,
        ]
        self._process = subprocess.Popen(
            command, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().split(" on ")[1].split(",")[0]
        self._port = self.address.rpartition(":")[2]

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def stop(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=60)


class SeedProcess:
    """The design that grew from the seed, in a process of its own."""

    def __init__(self, fleet: Fleet) -> None:
        given = json.dumps({"requests": REQUESTS, "pu": UNITS, "per": fleet.per})
        command = [sys.executable, "-m", "benchmarks.seed_guard", given]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()

    def stop(self) -> None:
        self._process.communicate(timeout=60)


def side_by_side(fleet: Fleet, strategies: list[str] | None = None) -> list[dict[str, Any]]:
    """The strategies at the same time, each against a Sentinel Hub of its own."""
    names = list(STRATEGIES if strategies is None else strategies)
    rows: dict[str, dict[str, Any]] = {}

    def one(name: str) -> None:
        rows[name] = run_fleet(fleet, name)

    threads = [threading.Thread(target=one, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [rows[name] for name in names]


COLUMNS = ["", "done", "429s", "seconds", "ideal", "times the ideal"]


def table_row(row: dict[str, Any], name: str | None = None) -> list[str]:
    done = f"{row['accepted']:,}" + ("" if row["accepted"] == row["wanted"] else f" of {row['wanted']:,}")
    return [
        name or row["strategy"],
        done,
        f"{row['refused']:,}",
        f"{row['seconds']:.1f}",
        f"{row['ideal']:.1f}",
        f"{row['ratio']:.4f}" if row["accepted"] == row["wanted"] or row["dead"] else "cut off",
    ]


def plot(rows: list[dict[str, Any]], width: int = 60) -> list[str]:
    """Acceptances and refusals over time, as text."""
    levels = " ▁▂▃▄▅▆▇█"
    longest = max([1.0, *(at for row in rows for at in [*row["accepted_at"][-1:], *row["refused_at"][-1:]])])
    lines = []
    for row in rows:
        for what in ("accepted", "refused"):
            counts = [0] * width
            for at in row[f"{what}_at"]:
                counts[min(width - 1, int(at / longest * width))] += 1
            most = max([*counts, 1])
            signs = "".join(levels[round(8 * (count / most) ** 0.5)] if count else "·" for count in counts)
            lines.append(f"{row['strategy'] if what == 'accepted' else '':10} {what:9} {signs}")
    return [*lines, f"{'':20} 0 s{'':{width - 10}}{longest:6.0f} s"]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Fleets against a local Sentinel Hub, side by side.")
    parser.add_argument("--demo", action="store_true", help="30 seconds at a fifth of the time scale")
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--dying", type=float, default=0.0)
    parser.add_argument("--ramp-up", action="store_true")
    parser.add_argument("--true", type=float, default=1.0)
    parser.add_argument("--tighten", action="store_true")
    parser.add_argument("--longest", type=float, default=300.0)
    parser.add_argument("--json", action="store_true")
    given = vars(parser.parse_args(arguments))
    as_json, strategies, demo = given.pop("json"), given.pop("strategies").split(","), given.pop("demo")
    fleet = Fleet(**given)
    if demo:
        fleet = replace(fleet, scale=0.2, longest=125.0)
    out = sys.stdout
    if not as_json:
        out.write(
            f"{fleet.workers} workers × {fleet.calls} calls; {REQUESTS} requests and {UNITS} PU per {fleet.per:g} s; "
            f"strategies side by side, each against a Sentinel Hub of its own\n\n"
        )
        out.flush()
    rows = side_by_side(fleet, strategies)
    if as_json:
        out.write(json.dumps({"load": os.getloadavg()[0], "rows": rows}) + "\n")
        return
    cells = [COLUMNS, *(table_row(row) for row in rows)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(COLUMNS))]
    for line in cells:
        out.write(
            "  ".join(
                cell.ljust(wide) if at == 0 else cell.rjust(wide)
                for at, (cell, wide) in enumerate(zip(line, widths, strict=True))
            )
            + "\n"
        )
    wide = max(20, min(60, shutil.get_terminal_size().columns - 24))
    out.write("\n" + "\n".join(plot(rows, wide)) + "\n\nThe books of each Sentinel Hub counted this.\n")


def tables(quick: bool) -> list[Table]:
    """What `headgate bench sentinel-hub` measures."""
    fleet = Fleet(scale=0.2 if quick else 1.0, longest=150.0)
    plain = side_by_side(fleet)
    kept = plain[0]["refused"] == 0 and plain[0]["ratio"] <= 1.005
    scaled = f" at {fleet.scale:g} of the time scale" if quick else ""
    note = (
        f"50 workers × 10 calls in {PROCESSES} processes, 50 requests and 200 PU per 10 s{scaled}; an answer takes 2 s and "
        "the work on it 1 s. Times the ideal: the time from the first to the last acceptance over the shortest that the "
        f"limits allow. Cut off after {fleet.longest * fleet.scale:g} s. Of Headgate no 429 and at most 1.005 are wanted "
        f"at full scale: {'scaled here' if quick else 'kept' if kept else 'MISSED'}."
    )
    rows = [table_row(row) for row in plain]
    return [Table("Sentinel Hub: a guard that hands out delays", COLUMNS, rows, note)]


if __name__ == "__main__":
    main()

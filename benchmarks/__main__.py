"""Run the benchmarks, print their tables, and with --write make the results page."""

import argparse
import importlib
import importlib.util
import os
import pkgutil
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import benchmarks
from benchmarks.floor import make_floor
from benchmarks.measure import Contender, Table, calling, measure, ratio, timing_table

PREFIX = "bench_"
#: Packages that `bench_peers` imports, and no other benchmark.
PEERS = ("aiolimiter", "limits", "pyrate_limiter", "throttled")
REMEDY = "`make bench` installs them, and so does `pip install --group bench`; or name the benchmarks that you want"


def modules() -> list[str]:
    """The names of the benchmarks: every ``bench_NAME.py`` beside this file. Each has ``run(quick) -> list[Table]``."""
    found = (module.name for module in pkgutil.iter_modules(benchmarks.__path__))
    return sorted(name.removeprefix(PREFIX) for name in found if name.startswith(PREFIX))


def run_module(name: str, quick: bool) -> list[Table]:
    run: Callable[[bool], list[Table]] = importlib.import_module(f"benchmarks.{PREFIX}{name}").run
    return run(quick)


def noise(quick: bool) -> Table:
    """The floor against itself, under two names. What differs from 1.00 is the machine's noise, in all tables."""
    contenders = [Contender("floor", calling(make_floor)), Contender("floor again", calling(make_floor))]
    samples = measure(contenders, operations=20_000, rounds=9 if quick else 25)
    spread = ratio(samples, "floor again", "floor")
    note = (
        f"The ratio of the floor to itself should be 1.00; half of the rounds gave {spread.low:.2f} to "
        f"{spread.high:.2f}. A difference smaller than that says nothing."
    )
    return timing_table("Noise of this machine", samples, "floor", note=note)


def machine() -> str:
    """Where the figures are from, in one line."""
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores{load}."
    )


def page(tables: Sequence[Table], before: str = "") -> str:
    """The results page: of one that was there before, the tables that were not measured again stay as they are."""
    head = (
        "# Benchmarks\n\n"
        'Written by `make bench ARGS="--write docs/benchmarks.md"`, or with the names of some benchmarks, which leaves the '
        "other tables; do not edit. Each table is from one run, in which the contenders took turns. Trust the ratios, not "
        "the absolute figures."
    )
    sections = {section.partition("\n")[0]: f"## {section.strip()}" for section in before.split("\n## ")[1:]}
    sections |= {table.title: table.as_markdown() for table in tables}
    return "\n\n".join([head, machine(), *sections.values()]) + "\n"


def not_writable(page: Path) -> str:
    """Why a page cannot be written; nothing where it can."""
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        with page.open("a", encoding="utf-8"):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"only these of: {', '.join(modules())}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: for a look, not for a result")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="also write the results to this Markdown page")
    options = parser.parse_args(arguments)
    unknown = sorted(name for name in options.names if name.replace("-", "_") not in modules())
    if unknown:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(modules())}")
    options.names = [name.replace("-", "_") for name in options.names]  # people write sentinel-hub
    names = options.names or modules()
    absent = [peer for peer in PEERS if "peers" in names and importlib.util.find_spec(peer) is None]
    if absent:
        parser.error(f"the peers to compare with are not installed ({', '.join(absent)}): {REMEDY}")
    if options.write and (problem := not_writable(options.write)):
        parser.error(f"--write: {options.write}: {problem}")  # now: not after the run

    print(machine(), flush=True)
    tables = [noise(options.quick)]
    print(f"\n{tables[0].as_text()}", flush=True)
    for name in names:
        for table in run_module(name, options.quick):
            tables.append(table)
            print(f"\n{table.as_text()}", flush=True)
    if options.write:
        before = options.write.read_text(encoding="utf-8") if options.names else ""
        options.write.write_text(page(tables, before), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

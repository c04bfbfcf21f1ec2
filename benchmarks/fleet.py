"""The figures of the simulated fleet: `python -m benchmarks.fleet [NAME]…`. Takes up to an hour; `make bench` has them too.

`reference` is adobe.toml with 10, 1,000 and 10,000 workers and three kinds of start, `slow` is adobe-slow.toml, `late` is
adobe-late.toml (clients that write their calls late) with several slacks, stamped and not, `others` is what the other
strategies get in the same runs, `million` is the whole of S1's job. The bounds are those that the project
promises; the program ends with 1 where one is not kept. Time is virtual: a seed gives the same figure on every machine, so
what is repeated is seeds, and the spread is over them.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.measure import Table
from headgate.kernel.limits import Window
from headgate.simulate import STRATEGIES, load, run
from headgate.simulate.planning import slack_costs
from headgate.simulate.result import span
from headgate.simulate.scenario import STARTS, Scenario

SCENARIOS = Path(__file__).parent / "scenarios"
#: (workers, processes): the reference; the same in ten processes; ten workers; ten thousand.
SIZES = ((1000, 20), (1000, 10), (10, 10), (10_000, 20))
DAY = 86_400.0
#: Even and Poisson starts are spread over so many seconds: a whole window, which is the hardest that still fills the first.
OVER = 60
#: Where nothing confirms early, also over this. With a minute the first 200 calls take 9 s to come, and in a sliding window
#: the 200 of every later minute come as far apart: no gate could make up for it, and 0.2 % of half an hour is 3.6 s.
OVER_SLOW = 5
#: Seconds of slack for clients that are late; None: the default. From ENOUGH on it covers the reference fleet's network.
SLACKS = (0.6, 0.8, None, 2.0)
ENOUGH = 1.0


@dataclass(frozen=True)
class Case:
    """One scenario, started in one way, under many seeds. `least` is the utilisation it must reach."""

    scenario: Scenario
    least: float
    #: One refusal in so many calls is allowed; 0: none is.
    one_in: int = 0
    #: Whether `least` is wanted from the moment on at which the first window is full, rather than from the first call on.
    ramped: bool = False

    @property
    def name(self) -> str:
        scenario = self.scenario
        if not scenario.client_lag.is_zero:
            stamped = "stamped" if scenario.stamp else "not stamped"
            return f"{scenario.name}, slack {window_of(scenario).slack / 1e6:g} s, {stamped}"
        over = "" if scenario.start == "at once" else f" over {scenario.over / 1e6:g} s"
        crew = f"{scenario.workers:,} workers in {scenario.processes} processes"
        return f"{scenario.name}, {crew}, {scenario.start}{over}"


@dataclass(frozen=True)
class RunFigures:
    """The figures of one run, small enough to be sent between processes."""

    refused: int
    unexplained: int
    late: int
    utilisation: float
    #: Utilisation from the acceptance on that fills the first window.
    full: float
    makespan: float
    stretch: float


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def one(work: tuple[Scenario, str, int]) -> RunFigures:
    scenario, strategy, seed = work
    row = run(scenario, strategy, seed)
    assert strategy != "headgate" or row.done == scenario.total, (
        f"{scenario.name}, seed {seed}: only {row.done} of {scenario.total} calls were done"
    )
    tally, rule = row.tally, scenario.rules[0]
    first = int(rule.steps[0][1])
    took = tally.accepted[-1] - tally.accepted[first - 1]
    full = (len(tally.accepted) - first) / first * rule.per / 1e6 / took
    return RunFigures(
        row.refused, tally.unexplained, tally.late, row.utilisation, full, row.makespan, row.makespan / row.ideal
    )


def window_of(scenario: Scenario) -> Window:
    return next(limit for limit in scenario.gate.limits if isinstance(limit, Window))


def late() -> Iterator[Case]:
    scenario = load(SCENARIOS / "adobe-late.toml")
    for slack in SLACKS:
        window = window_of(scenario)
        limit = window if slack is None else window.with_slack(round(slack * 1e6))
        gate = replace(scenario.gate, limits=(limit,))
        for stamp in (True, False):
            # The network alone takes longer than the shorter slacks now and then: one refusal in 30,000 calls is that.
            enough = slack is None or slack >= ENOUGH
            one_in = 0 if stamp and enough else 30_000 if stamp else 1
            yield Case(scenario.having(gate=gate, stamp=stamp), 0.985 if stamp else 0.0, one_in)


def reference() -> Iterator[Case]:
    scenario = load(SCENARIOS / "adobe.toml")
    for workers, processes in SIZES:
        for start in STARTS:
            crew = scenario.having(workers=workers, processes=processes, start=start, over=OVER * 1_000_000)
            # Ten workers with one job each cannot make 200 calls of 6 s a minute: the fleet itself binds.
            least = 0.0 if workers < 50 else 0.99 if start == "at once" else 0.988
            yield Case(crew, least)


def slow() -> Iterator[Case]:
    scenario = load(SCENARIOS / "adobe-slow.toml")
    window = window_of(scenario)
    least = 0.998 * (1 - slack_costs(window))
    for over, ramped in ((OVER_SLOW, False), (OVER, True)):
        for start in STARTS:
            if start != "at once" or not ramped:
                yield Case(scenario.having(start=start, over=over * 1_000_000), least, 100_000, ramped)


def found(cases: Sequence[Case], seeds: int, jobs: int) -> Iterator[tuple[Case, list[RunFigures], bool]]:
    """Each case with the figures of its seeds, and whether its bounds were kept, as soon as it is known."""
    with get_context("spawn").Pool(jobs) as pool:
        for case in cases:
            work = [(case.scenario, "headgate", seed) for seed in range(1, seeds + 1)]
            runs = pool.map(one, work, chunksize=1)
            refused = sum(each.refused for each in runs)
            # One run is shorter than 100,000 calls: one refusal is one too many only when there are more of them.
            allowed = max(1.0, len(runs) * case.scenario.total / case.one_in) if case.one_in else 0
            kept = refused <= allowed and not any(each.unexplained for each in runs)
            # A refusal takes a call's place, and the last call then waits for the window after the last: not a matter of
            # utilisation, so where refusals are allowed for their runs do not count here.
            reached = [
                each.full if case.ramped else each.utilisation for each in runs if not (case.one_in and each.refused)
            ]
            yield case, runs, kept and min(reached, default=1.0) >= case.least


COLUMNS = (
    "",
    "runs",
    "429s",
    "late",
    "utilisation",
    "lowest",
    "highest",
    "from a full window",
    "time / ideal",
    "bound",
)


def cells(case: Case, runs: Sequence[RunFigures], kept: bool) -> list[str]:
    shares = [each.utilisation for each in runs]
    where = " from a full window" if case.ramped else ""
    where += ", without a 429" if case.one_in and any(each.refused for each in runs) else ""
    bound = f"{case.least:.2%}{where}: {'kept' if kept else 'MISSED'}" if case.least else "no 429"
    if case.one_in == 1:
        bound = "for comparison"
    return [
        case.name,
        str(len(runs)),
        str(sum(each.refused for each in runs)),
        str(sum(each.late for each in runs)),
        f"{median(shares):.2%}",
        f"{min(shares):.2%}",
        f"{max(shares):.2%}",
        f"{median(each.full for each in runs):.2%}",
        f"{max(each.stretch for each in runs):.4f}",
        bound,
    ]


SWEEP_NOTE = (
    "Utilisation is 29 windows over the time from the first to the last acceptance, by the upstream's books: the median, "
    "the lowest and the highest of all seeds. Late are calls that were under way for longer than the slack, which nothing "
    "at the gate can see coming. From a full window: the same over the time from the 200th acceptance on."
)


def sweep(title: str, cases: Sequence[Case], seeds: int, jobs: int) -> tuple[Table, bool]:
    """A table of all cases, and whether every bound was kept."""
    rows = []
    good = True
    for case, runs, kept in found(cases, seeds, jobs):
        rows.append(cells(case, runs, kept))
        good &= kept
        print_row(rows[-1])
    return Table(title, COLUMNS, rows, SWEEP_NOTE), good


def print_row(row: Sequence[str]) -> None:
    """A line as soon as it is known, on standard error: a run takes long."""
    sys.stderr.write("  ".join([f"{row[0]:62}", *row[1:]]) + "\n")
    sys.stderr.flush()


def others(seeds: int, jobs: int) -> Table:
    """The figures of every strategy, on the same scenarios, starts and seeds."""
    rows = []
    with get_context("spawn").Pool(jobs) as pool:
        for name in ("adobe", "adobe-slow"):
            for start in STARTS:
                scenario = load(SCENARIOS / f"{name}.toml").having(start=start, over=OVER * 1_000_000)
                work = [(scenario, strategy, seed) for strategy in STRATEGIES for seed in range(1, seeds + 1)]
                runs = pool.map(one, work, chunksize=1)
                for number, strategy in enumerate(STRATEGIES):
                    mine = runs[number * seeds : (number + 1) * seeds]
                    refused = [each.refused for each in mine]
                    shares = [each.utilisation for each in mine]
                    rows.append(
                        [
                            f"{name}, {start}: {strategy}",
                            f"{median(refused):,.0f}",
                            f"{min(refused):,} to {max(refused):,}",
                            f"{median(shares):.1%}",
                            f"{min(shares):.1%} to {max(shares):.1%}",
                            span(median(each.makespan for each in mine)),
                        ]
                    )
                    print_row(rows[-1])
    note = f"Medians, and the lowest and highest, of {seeds} seeds each; starts that are not at once are over {OVER} s."
    return Table("Fleet: all strategies", ["", "429s", "spread", "utilisation", "spread", "makespan"], rows, note)


def million(seed: int = 1) -> tuple[Table, bool]:
    """S1's whole job, and what slack costs beside it."""
    scenario = load(SCENARIOS / "million.toml")
    window = window_of(scenario)
    begun = perf_counter()
    row = run(scenario, "headgate", seed)
    took = perf_counter() - begun
    ideal = scenario.total / window.limit * window.per / 1e6
    round_trip = 2 * scenario.network.mean / 1e6
    longer = row.makespan / ideal - 1

    def verdict(kept: bool) -> str:
        return "kept" if kept else "MISSED"

    rows = [
        ["ideal", f"{ideal / DAY:.3f} days", ""],
        ["makespan", f"{row.makespan / DAY:.3f} days, {longer:+.2%}", f"at most +0.5 %: {verdict(longer <= 0.005)}"],
        ["429s", f"{row.refused}", f"none: {verdict(not row.refused)}"],
        ["utilisation", f"{row.utilisation:.2%}", ""],
        [f"slack of {window.slack / 1e6:g} s, confirmed after {span(round_trip)}, costs",
         f"{slack_costs(window, round_trip):.2%}", ""],
        ["unconfirmed it would cost", f"{slack_costs(window):.2%}, {ideal * window.slack / window.per / DAY:.2f} days", ""],
        ["simulated in", f"{took:.0f} s", f"under 120 s: {verdict(took < 120)}"],
    ]  # fmt: skip
    kept = not row.refused and longer <= 0.005 and took < 120.0
    return Table(f"Fleet: {scenario.total:,} calls at {window.limit:g} a minute", ["", "", "bound"], rows), kept


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="only these of: reference, late, slow, others, million"
    )
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds for each case (default: 50)")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes (default: 2)")
    options = parser.parse_args(arguments)
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs must be 1 or more")
    parts: dict[str, Callable[[], tuple[Table, bool]]] = {
        "reference": lambda: sweep("Fleet: adobe", list(reference()), options.seeds, options.jobs),
        "late": lambda: sweep("Fleet: adobe-late", list(late()), options.seeds, options.jobs),
        "slow": lambda: sweep("Fleet: adobe-slow", list(slow()), options.seeds, options.jobs),
        "others": lambda: (others(options.seeds, options.jobs), True),
        "million": million,
    }
    unknown = sorted(set(options.names) - parts.keys())
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(parts)}")
    good = True
    for name in options.names or parts:
        table, kept = parts[name]()
        good &= kept
        say(f"\n{table.as_text()}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""The figures of the simulated fleet: `python -m benchmarks.fleet [reference|slow|million]…`. Takes minutes; run by hand.

`reference` is adobe.toml with 10, 1,000 and 10,000 workers and three kinds of start, `slow` is adobe-slow.toml, `million`
is the whole of S1's job. The bounds are those that the project promises; the program ends with 1 where one is not kept.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter

from headgate.limits import Window
from headgate.planning import slack_costs
from headgate.simulate import Row, load, run
from headgate.simulate.scenario import STARTS, Scenario

SCENARIOS = Path(__file__).parent / "scenarios"
#: (workers, processes): the reference; ten that have a hundred jobs in hand each; ten with one each; ten thousand.
SIZES = ((1000, 20), (1000, 10), (10, 10), (10_000, 20))
DAY = 86_400.0


@dataclass(frozen=True)
class Case:
    """One scenario, started in one way, under many seeds. `least` is the utilisation it must reach."""

    scenario: Scenario
    least: float
    #: One refusal in so many calls is allowed; 0: none is.
    one_in: int = 0

    @property
    def name(self) -> str:
        scenario = self.scenario
        return (
            f"{scenario.name}, {scenario.workers:,} workers in {scenario.processes} processes, start {scenario.start}"
        )


@dataclass(frozen=True)
class Outcome:
    """What one run gave, small enough to be sent between processes."""

    refused: int
    unexplained: int
    late: int
    utilisation: float
    stretch: float


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def one(work: tuple[Scenario, int]) -> Outcome:
    scenario, seed = work
    row = run(scenario, "headgate", seed)
    assert row.done == scenario.total, (
        f"{scenario.name}, seed {seed}: only {row.done} of {scenario.total} calls were done"
    )
    tally = row.tally
    return Outcome(row.refused, tally.unexplained, tally.late, row.utilisation, row.makespan / row.ideal)


def reference() -> Iterator[Case]:
    scenario = load(SCENARIOS / "adobe.toml")
    for workers, processes in SIZES:
        for start in STARTS:
            crew = scenario.having(workers=workers, processes=processes, start=start)
            # Ten workers with one job each cannot make 200 calls of 6 s a minute: the fleet itself binds.
            least = 0.0 if workers < 50 else 0.99 if start == "at once" else 0.988
            yield Case(crew, least)


def slow() -> Iterator[Case]:
    scenario = load(SCENARIOS / "adobe-slow.toml")
    window = next(limit for limit in scenario.gate.limits if isinstance(limit, Window))
    for start in STARTS:
        yield Case(scenario.having(start=start), 0.998 * (1 - slack_costs(window)), one_in=100_000)


def sweep(cases: Sequence[Case], seeds: int, jobs: int) -> bool:
    """A table of all cases, one line as soon as it is known. Returns whether every bound was kept."""
    kept = True
    say(
        f"{'case':60} {'runs':>5} {'429s':>5} {'late':>5} {'util. min':>10} {'median':>8} {'bound':>8} {'time/ideal':>10}"
    )
    with get_context("spawn").Pool(jobs) as pool:
        for case in cases:
            found = pool.map(one, [(case.scenario, seed) for seed in range(1, seeds + 1)], chunksize=1)
            refused = sum(outcome.refused for outcome in found)
            lowest = min(outcome.utilisation for outcome in found)
            stretch = max(outcome.stretch for outcome in found)
            allowed = len(found) * case.scenario.total / case.one_in if case.one_in else 0
            good = refused <= allowed and not any(outcome.unexplained for outcome in found)
            good &= lowest >= case.least
            kept &= good
            say(
                f"{case.name:60} {len(found):5} {refused:5} {sum(outcome.late for outcome in found):5} {lowest:10.4%} "
                f"{median(outcome.utilisation for outcome in found):8.3%} {case.least:8.3%} {stretch:10.4f}"
                f"{'' if good else '  NOT KEPT'}"
            )
    return kept


def million(seed: int = 1) -> bool:
    """S1's whole job, and what slack costs beside it."""
    scenario = load(SCENARIOS / "million.toml")
    window = next(limit for limit in scenario.gate.limits if isinstance(limit, Window))
    begun = perf_counter()
    row: Row = run(scenario, "headgate", seed)
    took = perf_counter() - begun
    ideal = (scenario.total / window.limit - 1) * window.per / 1e6
    round_trip = 2 * scenario.network.mean / 1e6
    say(
        f"{scenario.total:,} calls: {row.makespan / DAY:.4f} days, {row.makespan / ideal - 1:+.3%} of {ideal / DAY:.4f}"
    )
    say(f"refused {row.refused}, utilisation {row.utilisation:.3%}, simulated in {took:.1f} s")
    say(
        f"slack costs {slack_costs(window, round_trip):.2%} with a confirmation after {round_trip * 1e3:.0f} ms, "
        f"and would cost {slack_costs(window):.2%} ({ideal * window.slack / window.per / DAY:+.2f} days) without"
    )
    return not row.refused and row.makespan <= 1.005 * ideal and took < 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these of: reference, slow, million")
    parser.add_argument("--seeds", type=int, default=50, help="how many seeds for each case (default: 50)")
    parser.add_argument("--jobs", type=int, default=2, help="how many processes (default: 2)")
    options = parser.parse_args(arguments)
    parts: dict[str, Callable[[], bool]] = {
        "reference": lambda: sweep(list(reference()), options.seeds, options.jobs),
        "slow": lambda: sweep(list(slow()), options.seeds, options.jobs),
        "million": million,
    }
    unknown = sorted(set(options.names) - parts.keys())
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(parts)}")
    kept = [parts[name]() for name in options.names or parts]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())

"""How the rules of an adaptive limit do on an upstream whose capacity changes, against an oracle that knows it.

    python -m benchmarks.adaptive --seeds 20 --plot docs/img/adaptive.svg

In virtual time, on `scenarios/images.toml`: the same fleet, the same calls, the same refusals. The oracle's limit is the
upstream's capacity at every moment, so what it takes is what can be had; a rule's share is the oracle's time over its own.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from headgate import Concurrency
from headgate.kernel.commands import Configure, Peek
from headgate.limits import AdaptiveRule, Aimd, Probing
from headgate.simulate import Scenario, load
from headgate.simulate.fleet import Fleet

SCENARIO = Path(__file__).parent / "scenarios" / "images.toml"
#: Successes in a row for one slot more: what the trade-off of `Aimd` is drawn over.
EVERY = (2, 3, 5, 7, 10, 15, 20, 30)
#: The same for `Probing`: rounds before a probe, at first and at most.
PROBES = ((1, 1), (2, 2), (2, 4), (4, 8), (8, 8))


@dataclass(frozen=True)
class Trial:
    """One run. Times are seconds; `limits` are (time, working limit)."""

    seconds: float
    done: int
    refused: int
    limits: tuple[tuple[float, float], ...]

    @property
    def refusals(self) -> float:
        """The share of all calls that the upstream refused."""
        return self.refused / (self.done + self.refused)


def trial(scenario: Scenario, rule: AdaptiveRule | None, seed: int) -> Trial:
    """The fleet under one rule; None is the oracle."""
    (limit,) = scenario.gate.limits
    own = Concurrency(int(limit.limit), lease=limit.lease / 1e6, adaptive=rule, name=limit.name)  # type: ignore[attr-defined]
    fleet = Fleet(replace(scenario, gate=replace(scenario.gate, limits=(own,))), "headgate", seed)
    strategy: Any = fleet.strategy
    limits: list[tuple[float, float]] = []

    def watch() -> Any:
        while True:
            (row,) = strategy.store.decide(Peek(strategy.policy)).limits
            limits.append(((fleet.engine.now - fleet.engine.begun) / 1e6, row.limit))
            yield 250_000

    def know(capacity: float) -> Any:
        strategy.store.decide(Configure(strategy.policy.name, own.name, capacity))
        return
        yield

    if rule is None:
        for at, capacity in scenario.rules[0].steps:
            fleet.engine.start(know(capacity), at)
    fleet.engine.start(watch())
    tally = fleet.run(3600.0)
    return Trial(tally.last_done, tally.done, len(tally.refused), tuple(limits))


@dataclass(frozen=True)
class Score:
    """A rule over several seeds: its share of the oracle's throughput, and of its own calls that were refused."""

    rule: AdaptiveRule
    shares: tuple[float, ...]
    refusals: tuple[float, ...]

    def __str__(self) -> str:
        return (
            f"{self.rule!r:68} {mean(self.shares):6.1%} ({min(self.shares):.1%} to {max(self.shares):.1%})   "
            f"{mean(self.refusals):5.2%} ({min(self.refusals):.2%} to {max(self.refusals):.2%})"
        )


def score(scenario: Scenario, rule: AdaptiveRule, seeds: int) -> Score:
    pairs = [(trial(scenario, rule, seed), trial(scenario, None, seed)) for seed in range(1, seeds + 1)]
    shares = tuple(oracle.seconds / ours.seconds for ours, oracle in pairs)
    return Score(rule, shares, tuple(ours.refusals for ours, _ in pairs))


# --- the picture --------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 980, 620
LEFT, RIGHT = 60, 30
COLOURS = {"aimd": "#e69f00", "probing": "#009e73", "capacity": "#bbbbbb"}


def picture(scenario: Scenario, aimd: list[Score], probing: list[Score]) -> str:
    """Above the working limits over time, below throughput against refusals."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="24" font-size="15">Working limit over time: 500 images, seed 1</text>',
    ]
    trials = {"aimd": trial(scenario, Aimd(), 1), "probing": trial(scenario, Probing(), 1)}
    end = max(found.seconds for found in trials.values())
    across, top, height, most = WIDTH - LEFT - RIGHT, 60, 210, 22.0

    def place(second: float, value: float) -> str:
        return f"{LEFT + across * second / end:.1f},{top + height * (1 - value / most):.1f}"

    for tick in range(0, 21, 5):
        y = top + height * (1 - tick / most)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{tick}</text>')
    for second in range(0, int(end) + 1, 25):
        x = LEFT + across * second / end
        parts.append(f'<text x="{x:.0f}" y="{top + height + 16}" text-anchor="middle" fill="#555555">{second} s</text>')
    steps = [(at / 1e6, capacity) for at, capacity in scenario.rules[0].steps]
    corners = [(second, value) for index, (at, value) in enumerate(steps)
               for second in (at, steps[index + 1][0] if index + 1 < len(steps) else end)]  # fmt: skip
    corners = [(second, steps[index // 2][1]) for index, (second, _) in enumerate(corners)]
    lines = {"capacity": corners, **{name: list(found.limits) for name, found in trials.items()}}
    names = {"capacity": "what the upstream takes", "aimd": "Aimd()", "probing": "Probing()"}
    for number, (name, points) in enumerate(lines.items()):
        stroke = 6 if name == "capacity" else 2
        text = " ".join(place(*point) for point in points)
        parts.append(f'<polyline points="{text}" fill="none" stroke="{COLOURS[name]}" stroke-width="{stroke}"/>')
        label = names[name]
        if name in trials:
            label += f": {trials[name].seconds:.0f} s, {trials[name].refused} refused"
        x = LEFT + number * 300
        parts.append(f'<line x1="{x}" y1="42" x2="{x + 18}" y2="42" stroke="{COLOURS[name]}" stroke-width="4"/>')
        parts.append(f'<text x="{x + 24}" y="46">{label}</text>')
    return "\n".join([*parts, *trade_off(aimd, probing, 350, 210), "</svg>"]) + "\n"


def trade_off(aimd: list[Score], probing: list[Score], top: int, height: int) -> list[str]:
    """Throughput up, refusals to the right: the better rule is higher and further left."""
    most = 0.14
    low, high = 0.6, 1.0
    across = WIDTH - LEFT - RIGHT

    def place(found: Score) -> tuple[float, float]:
        share = (mean(found.shares) - low) / (high - low)
        return LEFT + across * mean(found.refusals) / most, top + height * (1 - share)

    parts = [
        f'<text x="{LEFT}" y="{top - 36}" font-size="15">Share of an oracle\'s throughput, over refused calls: '
        f"the mean of {len(aimd[0].shares)} seeds</text>",
        f'<text x="{LEFT}" y="{top - 16}" fill="{COLOURS["aimd"]}">Aimd(increase_every=N)</text>',
        f'<text x="{LEFT + 200}" y="{top - 16}" fill="{COLOURS["probing"]}">Probing(probe_every=A, probe_most=B)</text>',
    ]
    for tick in range(60, 101, 10):
        y = top + height * (1 - (tick / 100 - low) / (high - low))
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{tick} %</text>')
    for tick in range(0, 15, 2):
        x = LEFT + across * tick / 100 / most
        parts.append(f'<line x1="{x:.0f}" y1="{top}" x2="{x:.0f}" y2="{top + height}" stroke="#f0f0f0"/>')
        parts.append(f'<text x="{x:.0f}" y="{top + height + 16}" text-anchor="middle" fill="#555555">{tick} %</text>')
    for name, scores in (("aimd", aimd), ("probing", probing)):
        points = [place(found) for found in scores]
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{text}" fill="none" stroke="{COLOURS[name]}" stroke-width="1.5"/>')
        for found, (x, y) in zip(scores, points, strict=True):
            told = found.rule.arguments()
            label = f"N={told['increase_every']}" if name == "aimd" else f"{told['probe_every']}, {told['probe_most']}"
            default = found.rule.spec() == type(found.rule)().spec()  # type: ignore[call-arg]
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{6 if default else 3}" fill="{COLOURS[name]}"/>')
            bold = ' font-weight="bold"' if default else ""
            dy = 18 if name == "aimd" else -9
            parts.append(f'<text x="{x + 6:.1f}" y="{y + dy:.1f}" font-size="11"{bold}>{label}</text>')
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="runs of each rule (20)")
    parser.add_argument("--plot", help="write the picture to this SVG")
    options = parser.parse_args()
    scenario = load(SCENARIO)
    aimd = [score(scenario, Aimd(increase_every=every), options.seeds) for every in EVERY]
    probing = [score(scenario, Probing(probe_every=first, probe_most=most), options.seeds) for first, most in PROBES]
    lines = ["rule; share of the oracle's throughput, and of calls refused: mean (least to most)"]
    sys.stdout.write("\n".join([*lines, *map(str, (*aimd, *probing))]) + "\n")
    if options.plot:
        Path(options.plot).write_text(picture(scenario, aimd, probing), encoding="utf-8")


if __name__ == "__main__":
    main()

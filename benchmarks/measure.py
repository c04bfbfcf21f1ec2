"""Timing that survives a noisy machine: contenders take turns in shuffled order, ratios are taken within a round."""

import gc
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import repeat
from statistics import median
from time import perf_counter_ns

Run = Callable[[int], object]
"""Performs that many operations."""

Samples = Mapping[str, Sequence[float]]
"""Nanoseconds per operation of each contender, one value per round, rounds in the same order for all."""


@dataclass(frozen=True)
class Contender:
    """One thing to time. ``prepare`` gives it fresh for every round, outside the timing, and cleans up after it."""

    name: str
    prepare: Callable[[], AbstractContextManager[Run]]


def calling(make: Callable[[], Callable[[], object]]) -> Callable[[], AbstractContextManager[Run]]:
    """A ``prepare`` for an operation that is one call of what ``make`` returns."""

    @contextmanager
    def prepare() -> Iterator[Run]:
        operation = make()

        def run(operations: int) -> None:
            for _ in repeat(None, operations):
                operation()

        yield run

    return prepare


def measure(contenders: Sequence[Contender], operations: int, rounds: int = 9, seed: int = 1) -> dict[str, list[float]]:
    """Nanoseconds per operation of each contender in each round.

    All contenders run once per round, in an order shuffled anew, so that a slow moment of the machine hits no one
    contender every time. The garbage collector is off while the clock runs.
    """
    samples: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    if len(samples) != len(contenders):
        raise ValueError("two contenders have the same name")
    order = list(contenders)
    shuffle = random.Random(seed).shuffle
    for _ in range(rounds):
        shuffle(order)
        for contender in order:
            with contender.prepare() as run:
                run(max(1, operations // 10))  # what is made on first use is made now
                samples[contender.name].append(_timed(run, operations))
    return samples


def _timed(run: Run, operations: int) -> float:
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        start = perf_counter_ns()
        run(operations)
        return (perf_counter_ns() - start) / operations
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True)
class Spread:
    """The median of some values, and the quarter and three-quarter marks around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        ordered = sorted(values)
        last = len(ordered) - 1
        return cls(median(ordered), ordered[last // 4], ordered[last - last // 4])


def ratio(samples: Samples, name: str, baseline: str) -> Spread:
    """How many times the baseline's cost: divided within each round, then the median over the rounds."""
    return Spread.of([mine / base for mine, base in zip(samples[name], samples[baseline], strict=True)])


@dataclass(frozen=True)
class Table:
    """A result as it is printed. The first column is text, the others are aligned as numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def as_text(self) -> str:
        lines = [self.columns, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.columns))]

        def aligned(line: Sequence[str]) -> str:
            rest = (cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))
            return "  ".join([line[0].ljust(widths[0]), *rest]).rstrip()

        body = [aligned(self.columns), "  ".join("-" * width for width in widths), *map(aligned, self.rows)]
        return "\n".join([self.title, "=" * len(self.title), *body, *([self.note] if self.note else [])])

    def as_markdown(self) -> str:
        def piped(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        rule = "| --- |" + " ---: |" * (len(self.columns) - 1)
        table = "\n".join([piped(self.columns), rule, *map(piped, self.rows)])
        return "\n\n".join([f"## {self.title}", table, *([self.note] if self.note else [])])


def timing_table(
    title: str, samples: Samples, baseline: str, at_most: Mapping[str, float] | None = None, note: str = ""
) -> Table:
    """Time per operation and ratio to the baseline, in the order of the samples.

    ``at_most`` names the ratio that a contender must not exceed: the table then says whether its median kept it.
    """
    bounds = at_most or {}
    unknown = bounds.keys() - samples.keys()
    if unknown:
        raise ValueError(f"a bound for what was not measured: {', '.join(sorted(unknown))}")
    columns = ["", "ns per operation", "middle half", f"× {baseline}", "middle half"] + (["bound"] if bounds else [])
    rows = []
    for name, values in samples.items():
        cost = Spread.of(values)
        times = ratio(samples, name, baseline)
        row = [
            name,
            f"{cost.median:,.0f}",
            f"{cost.low:,.0f} to {cost.high:,.0f}",
            f"{times.median:.2f}",
            f"{times.low:.2f} to {times.high:.2f}",
        ]
        if bounds:
            bound = bounds.get(name)
            kept = "" if bound is None else f"at most {bound:g}: {'kept' if times.median <= bound else 'MISSED'}"
            row.append(kept)
        rows.append(row)
    return Table(title, columns, rows, note)

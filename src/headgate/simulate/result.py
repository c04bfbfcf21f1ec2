"""What a simulation found: one row per strategy, as text, JSON, CSV or a plot."""

from __future__ import annotations

from dataclasses import dataclass, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from .fleet import Tally

#: The columns of every form, in order, and what they mean.
COLUMNS = {
    "strategy": "how the workers share the upstream",
    "done": "calls that were accepted and finished",
    "ideal": "seconds that the whole would take if nothing were ever wasted",
    "utilisation": "share of what the upstream would have allowed from the first to the last acceptance",
    "refused": "calls that the upstream refused (429)",
    "makespan": "seconds until everything was done",
    "wait_p50": "seconds from wanting to make a call to sending the one that was accepted: the median",
    "wait_p99": "the same, exceeded by one call in a hundred",
    "fairness": "Jain's index of the calls accepted, over workers, or over tenants while all of them had work: 1 is even",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy. Times are seconds; `tally` has every acceptance and refusal."""

    strategy: str
    done: int
    ideal: float
    utilisation: float
    refused: int
    makespan: float
    wait_p50: float
    wait_p99: float
    fairness: float
    tally: Tally = field(repr=False, compare=False)
    total: int = field(default=0, compare=False)

    def values(self) -> dict[str, Any]:
        """Column → value, numbers rounded to what they are worth."""
        return {
            "strategy": self.strategy,
            "done": self.done,
            "ideal": round(self.ideal, 3),
            "utilisation": round(self.utilisation, 5),
            "refused": self.refused,
            "makespan": round(self.makespan, 3),
            "wait_p50": round(self.wait_p50, 3),
            "wait_p99": round(self.wait_p99, 3),
            "fairness": round(self.fairness, 4),
        }


@dataclass(frozen=True, slots=True)
class Result:
    """All strategies of one scenario under one seed."""

    scenario: str
    seed: int
    rows: tuple[Row, ...]
    total: int
    #: Requests, and seconds in which the upstream allows them; None where it limits something else.
    allows: tuple[float, float] | None = None
    #: What there is to say beside the table.
    notes: tuple[str, ...] = ()

    def __getitem__(self, strategy: str) -> Row:
        for row in self.rows:
            if row.strategy == strategy:
                return row
        raise KeyError(f"{strategy!r} was not simulated; {', '.join(row.strategy for row in self.rows)} were")

    def as_json(self) -> dict[str, Any]:
        return {"scenario": self.scenario, "seed": self.seed, "rows": [row.values() for row in self.rows]}

    def as_csv(self) -> str:
        import csv
        import io

        text = io.StringIO()
        writer = csv.DictWriter(text, ("scenario", "seed", *COLUMNS), lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            writer.writerow({"scenario": self.scenario, "seed": self.seed, **row.values()})
        return text.getvalue()

    def as_table(self) -> tuple[list[str], list[list[str]]]:
        """Headings and cells for people: for a terminal to lay out."""
        headings = [
            "strategy",
            "done",
            "429s",
            "utilisation",
            "makespan",
            "ideal",
            "× ideal",
            "wait p50",
            "wait p99",
            "fairness",
        ]
        cells = [
            [
                row.strategy,
                f"{row.done:,}" if row.done == row.total else f"{row.done:,} of {row.total:,}",
                f"{row.refused:,}",
                f"{row.utilisation:.1%}",
                span(row.makespan),
                span(row.ideal),
                f"{row.makespan / row.ideal:.3f}" if row.done == row.total else "–",
                span(row.wait_p50),
                span(row.wait_p99),
                f"{row.fairness:.3f}",
            ]
            for row in self.rows
        ]
        return headings, cells

    def as_text(self) -> str:
        headings, cells = self.as_table()
        widths = [max(len(line[at]) for line in [headings, *cells]) for at in range(len(headings))]
        lines = []
        for line in [headings, *cells]:
            first, *rest = line
            numbers = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
            lines.append("  ".join([first.ljust(widths[0]), *numbers]))
        head = f"{self.scenario}: {self.total:,} calls, seed {self.seed}"
        return "\n".join([head, "", *lines, *(["", *self.notes] if self.notes else [])])

    def as_svg(self) -> str:
        """A plot of 429s and utilisation over time."""
        from .plot import draw

        return draw(self)


def span(seconds: float) -> str:
    """A time as people read it: 0.31 s, 42.1 s, 29.0 min, 5.2 h, 6.94 days."""
    for longest, divisor, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if abs(seconds) < longest:
            return f"{seconds / divisor:.2f} {unit}" if seconds / divisor < 10 else f"{seconds / divisor:.1f} {unit}"
    return f"{seconds / 86_400:.2f} days"


def percentiles(values: Sequence[float], *shares: float) -> list[float]:
    """For each share, the value that so many of all do not exceed; 0 where there is none."""
    ordered = sorted(values) or [0.0]
    return [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in shares]


def jain(shares: Sequence[float]) -> float:
    """Jain's fairness index: 1 when all got the same, 1/n when one got everything."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0

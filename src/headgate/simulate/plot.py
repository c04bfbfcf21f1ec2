"""A plot of a simulation as an SVG, written by hand: utilisation above, 429s below, one line per strategy."""

from __future__ import annotations

from bisect import bisect_right
from math import ceil, floor, log10

from .result import span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .result import Result, Row

WIDTH, HEIGHT = 980, 560
LEFT, RIGHT, TOP, GAP, BOTTOM = 60, 36, 90, 56, 48
#: Told apart also without colour vision (Okabe and Ito); ours last and widest.
COLOURS = {
    "uncoordinated": "#d55e00",
    "minute-counter": "#e69f00",
    "full-bucket": "#cc79a7",
    "negative-buckets": "#56b4e9",
    "headgate": "#009e73",
}
BINS = 120


def draw(result: Result) -> str:
    """The whole picture as text."""
    longest = max((row.makespan for row in result.rows), default=0.0) or 1.0
    # A run that took for ever would squeeze all others into the first pixels.
    ours = max((row.makespan for row in result.rows if row.strategy == "headgate"), default=longest)
    end = min(longest, max(3 * ours, 1.0))
    height = (HEIGHT - TOP - GAP - BOTTOM) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{_escape(result.scenario)}: {result.total:,} calls, '
        f"seed {result.seed}</text>",
    ]
    for number, row in enumerate(result.rows):
        colour = COLOURS.get(row.strategy, "#000000")
        label = f"{row.strategy}: {row.refused:,} × 429, {row.utilisation:.1%} used"
        x, y = LEFT + (number % 3) * (WIDTH - LEFT - RIGHT) / 3, 42 + 16 * (number // 3)
        parts.append(
            f'<line x1="{x:.0f}" y1="{y - 4}" x2="{x + 18:.0f}" y2="{y - 4}" stroke="{colour}" stroke-width="3"/>'
        )
        parts.append(f'<text x="{x + 24:.0f}" y="{y}">{_escape(label)}</text>')
    width = end / BINS
    refused = [(row, _per_bin(row.tally.refused, width)) for row in result.rows]
    if result.allows is None:
        used = [(row, _per_bin(row.tally.accepted, width)) for row in result.rows]
        title = "accepted per second"
    else:
        limit, per = result.allows
        used = [(row, _trailing(row.tally.accepted, width, limit, per)) for row in result.rows]
        title = f"utilisation in %: accepted in the last {span(per)}, of {limit:g} allowed"
    parts += _panel(TOP, height, end, used, width, title)
    parts += _panel(TOP + height + GAP, height, end, refused, width, "429s per second")
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 10}" font-size="11" fill="#555555">time since the start</text>')
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _per_bin(times: Sequence[float], width: float) -> list[float]:
    counts = [0] * BINS
    for time in times:
        at = int(time / width)
        if at < BINS:
            counts[at] += 1
    return [count / width for count in counts]


def _trailing(times: Sequence[float], width: float, limit: float, per: float) -> list[float]:
    """At the end of each bin: the share of what the upstream allows in `per` seconds that it has just accepted."""
    ends = [width * (at + 1) for at in range(BINS)]
    return [100 * (bisect_right(times, end) - bisect_right(times, end - per)) / limit for end in ends]


def _panel(
    top: float, height: float, end: float, lines: list[tuple[Row, list[float]]], width: float, title: str
) -> list[str]:
    highest = max((max(values) for _, values in lines), default=0.0) or 1.0
    step = _step(highest)
    most = ceil(highest / step) * step
    right = WIDTH - RIGHT
    across = right - LEFT
    parts = [f'<text x="{LEFT}" y="{top - 8:.0f}" fill="#333333">{title}</text>']
    for tick in range(round(most / step) + 1):
        y = top + height - height * tick * step / most
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{tick * step:g}</text>')
    for tick in range(6):
        x = LEFT + across * tick / 5
        parts.append(
            f'<text x="{x:.0f}" y="{top + height + 16:.0f}" text-anchor="middle" fill="#555555">'
            f"{span(end * tick / 5)}</text>"
        )
    for row, values in lines:
        last = min(BINS, int(row.makespan / width) + 1)
        points = " ".join(
            f"{LEFT + across * (at + 0.5) / BINS:.1f},{top + height - height * value / most:.1f}"
            for at, value in enumerate(values[:last])
        )
        stroke = 2.5 if row.strategy == "headgate" else 1.2
        colour = COLOURS.get(row.strategy, "#000000")
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{stroke}"/>')
    return parts


def _step(highest: float) -> float:
    """Between ticks: 1, 2 or 5 times a power of ten, so that there are three to six of them."""
    power = 10.0 ** floor(log10(highest / 4))
    return next((factor * power for factor in (1, 2, 5) if factor * power * 4 >= highest), 10 * power)


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

"""A plot of a simulation as an SVG, written by hand: utilisation above, 429s below, one line per strategy."""

from __future__ import annotations

from math import ceil, floor, log10

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .result import Result, Row

WIDTH, HEIGHT = 980, 560
LEFT, RIGHT, TOP, GAP, BOTTOM = 60, 36, 90, 56, 48
#: Distinct also without colour vision (Okabe and Ito); Headgate's last and widest.
COLOURS = {
    "uncoordinated": "#d55e00",
    "minute-counter": "#e69f00",
    "full-bucket": "#cc79a7",
    "negative-buckets": "#56b4e9",
    "headgate": "#009e73",
}
BINS = 120
#: Seconds between the marks of the time.
TIMES = (
    0.1,
    0.5,
    1,
    2,
    5,
    10,
    30,
    60,
    120,
    300,
    600,
    1800,
    3600,
    7200,
    21_600,
    43_200,
    86_400,
    7 * 86_400,
    70 * 86_400,
)


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
        weight = ' font-weight="bold"' if row.strategy == "headgate" else ""
        parts.append(f'<text x="{x + 24:.0f}" y="{y}"{weight}>{_escape(label)}</text>')
    width = end / BINS
    refused = [(row, [60 * value for value in _per_bin(row.tally.refused, width)]) for row in result.rows]
    if result.allows is None:
        used = [(row, _per_bin(row.tally.accepted, width)) for row in result.rows]
        title = "accepted per second"
    else:
        limit, per = result.allows
        used = [(row, _trailing(row.tally.accepted, width, limit, per)) for row in result.rows]
        title = f"utilisation in %: accepted in the last {_time(per)}, of {limit:g} allowed"
    parts += _panel(TOP, height, end, used, width, title, _even_scale(used))
    title = "429s a minute, on a logarithmic scale"
    parts += _panel(TOP + height + GAP, height, end, refused, width, title, _wide_scale(refused))
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
    """In the mean over each bin: the share of what the upstream allows in `per` seconds that it has just accepted.

    Each acceptance counts for `per` seconds, so a bin gets the part of those that lies in it. Looked at in moments instead,
    a fleet that sends all at once would seem to use nothing in the moment before.
    """
    seconds = [0.0] * BINS
    for time in times:
        first, last = int(time / width), int((time + per) / width)
        for at in range(first, min(last + 1, BINS)):
            seconds[at] += min(time + per, (at + 1) * width) - max(time, at * width)
    # Before the first `per` seconds are over there is less to be had.
    allowed = [limit * (min(1.0, (at + 0.5) * width / per) if width < per else 1.0) for at in range(BINS)]
    return [min(100.0, 100 * used / width / most) for used, most in zip(seconds, allowed, strict=True)]


#: From a value to its height, 0 to 1; and the values that are marked.
Scale = tuple["Callable[[float], float]", "list[float]"]


def _even_scale(lines: list[tuple[Row, list[float]]]) -> Scale:
    highest = max((max(values) for _, values in lines), default=0.0) or 1.0
    step = _step(highest)
    most = ceil(highest / step - 1e-9) * step
    return lambda value: value / most, [tick * step for tick in range(round(most / step) + 1)]


def _wide_scale(lines: list[tuple[Row, list[float]]]) -> Scale:
    """From none at all to thousands, so that a few are seen beside very many."""
    highest = max((max(values) for _, values in lines), default=0.0)
    powers = max(1, ceil(log10(highest + 1)))
    return lambda value: log10(value + 1) / powers, [0.0, *(10.0**power for power in range(powers + 1))]


def _panel(
    top: float,
    height: float,
    end: float,
    lines: list[tuple[Row, list[float]]],
    width: float,
    title: str,
    scale: Scale,
) -> list[str]:
    place, ticks = scale
    right = WIDTH - RIGHT
    across = right - LEFT
    parts = [f'<text x="{LEFT}" y="{top - 8:.0f}" fill="#333333">{title}</text>']
    for tick in ticks:
        y = top + height * (1 - place(tick))
        if y < top - 1:
            continue  # above the highest
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#555555">{tick:,.10g}</text>')
    step = next((step for step in TIMES if end / step <= 8), TIMES[-1])
    for tick in range(int(end / step) + 1):
        x = LEFT + across * tick * step / end
        parts.append(
            f'<text x="{x:.0f}" y="{top + height + 16:.0f}" text-anchor="middle" fill="#555555">'
            f"{_time(tick * step)}</text>"
        )
    for row, values in lines:
        last = min(BINS, int(row.makespan / width) + 1)
        points = " ".join(
            f"{LEFT + across * (at + 0.5) / BINS:.1f},{top + height * (1 - place(value)):.1f}"
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


def _time(seconds: float) -> str:
    """A round time in its own unit: 30 s, 5 min, 6 h, 2 days."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds / length:g} {unit}"
    return f"{seconds:g} s" if seconds else "0"


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

"""PURE. What a person looks at after a run: a contact sheet as HTML, with a plot of the working limit as SVG."""

from __future__ import annotations

from html import escape
from urllib.parse import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .prompts import Prompt
    from .run import ImageRun

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 980, 260, 46, 34, 30

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; color: #222;
  background: #fafafa }
h1 { font-size: 1.4rem }
ul { list-style: none; padding: 0; display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: 1rem }
li { background: #fff; border: 1px solid #ddd; border-radius: 6px; overflow: hidden }
img { width: 100%; display: block; aspect-ratio: 1; object-fit: cover }
li p { margin: .4rem .6rem .6rem; font-size: .8rem; overflow-wrap: anywhere }
svg { width: 100%; height: auto; background: #fff; border: 1px solid #ddd }
"""


def plot(run: ImageRun) -> str:
    """The working limit over time as SVG: a line, a dot for each image made, a cross for each call refused."""
    end = max([run.statistics.seconds, *(at for at, _ in run.limits), 1.0])
    most = run.maximum * 1.1
    across, height = WIDTH - LEFT - 16, HEIGHT - TOP - BOTTOM

    def x(second: float) -> float:
        return LEFT + across * second / end

    def y(value: float) -> float:
        return TOP + height * (1 - value / most)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<text x="{LEFT}" y="20">calls in flight that the gate allows, over time; below, each image made and (above the '
        f"line, in red) each call refused</text>",
    ]
    step = max(1, run.maximum // 5)
    for tick in range(0, run.maximum + 1, step):
        parts.append(
            f'<line x1="{LEFT}" y1="{y(tick):.1f}" x2="{WIDTH - 16}" y2="{y(tick):.1f}" stroke="#e8e8e8"/>'
            f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="#666">{tick}</text>'
        )
    second = next((size for size in (1, 2, 5, 10, 30, 60, 300, 900, 3600) if end / size <= 12), 7200)
    for tick in range(0, int(end) + 1, second):
        parts.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - 8}" text-anchor="middle" fill="#666">{tick} s</text>')
    corners = []
    before: float | None = None
    for at, value in run.limits:
        if before is not None:
            corners.append(f"{x(at):.1f},{y(before):.1f}")
        corners.append(f"{x(at):.1f},{y(value):.1f}")
        before = value
    parts += [
        f'<circle cx="{x(at):.1f}" cy="{y(0) - 4:.1f}" r="2" fill="#0072b2" opacity="0.6"/>' for at in run.made_at
    ]
    parts.append(f'<polyline points="{" ".join(corners)}" fill="none" stroke="#009e73" stroke-width="2.5"/>')
    for at in run.refused_at:
        here = next((value for moment, value in reversed(run.limits) if moment <= at), run.limits[0][1])
        cx, cy = x(at), y(here) - 9
        parts.append(f'<path d="M{cx - 4:.1f} {cy - 4:.1f}l8 8m0-8l-8 8" stroke="#d55e00" stroke-width="2"/>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def contact_sheet(title: str, prompts: Sequence[Prompt], made: Iterable[str], run: ImageRun) -> str:
    """The page: the plot, then every image that is there, with its prompt; what failed at the end."""
    there = set(made)
    cards = [
        f'<li><a href="{quote(prompt.name)}"><img src="{quote(prompt.name)}" alt="{escape(prompt.text)}"></a>'
        f"<p><b>{escape(prompt.name)}</b><br>{escape(prompt.text)}</p></li>"
        for prompt in prompts
        if prompt.name in there
    ]
    failed = "".join(f"<li><p><b>{escape(name)}</b><br>{escape(words)}</p></li>" for name, words in run.failed)
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>',
        f"<h1>{escape(title)}</h1><p>{escape(str(run.statistics))}</p>",
        plot(run),
        f"<ul>{''.join(cards)}</ul>",
    ]
    if failed:
        parts.append(f"<h2>Failed</h2><ul>{failed}</ul>")
    return "\n".join(parts) + "\n</html>\n"

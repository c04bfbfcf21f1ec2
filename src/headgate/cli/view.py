"""How gates look in a terminal: bars, figures, the line, the pause, who holds what. `status`, `top` and `explain` use it.

Everything is laid out for the width it is given: from 110 columns on there is room for longer bars, for when all that
counts is back, and for a sparkline of the last minutes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, Group
from rich.text import Text

from headgate.kernel.limits import kind_of
from headgate.kernel.model import label_of
from headgate.kernel.why import FREE, amount, override_words, paused_words, span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headgate import Gate, Holder, LimitUsage, Override, Usage
    from headgate.kernel.limits import Limit

WIDE = 110
EIGHTHS = " ▏▎▍▌▋▊▉"
LEVELS = " ▁▂▃▄▅▆▇█"
#: Gates with limits by a key: so many of the busiest keys are shown.
KEYS_SHOWN = 5
#: At most so many overrides are shown with their reasons; `headgate limits list` shows all.
OVERRIDES_SHOWN = 5


@dataclass(frozen=True, slots=True)
class View:
    """One gate at one moment, as it is shown."""

    usage: Usage
    holders: Sequence[Holder]
    #: Limits that are kept by a key, which `usage` alone does not tell of.
    keyed: Sequence[Limit] = ()
    #: The usage of the busiest keys.
    busiest: Sequence[LimitUsage] = ()
    #: One sentence that says what keeps asks from going.
    why: str = ""
    #: The values that are not the configured ones.
    overrides: Sequence[Override] = ()
    history: Mapping[tuple[str, str | None], Sequence[float]] = field(default_factory=dict)


def look(
    gate: Gate, limits: Sequence[Limit], key: Mapping[str, str] | None = None, top_keys: int | None = None
) -> View:
    """Ask a gate for all that is shown of it. Spends nothing."""
    holders = gate.holders()
    if key is not None:
        holders = [holder for holder in holders if all(holder.key.get(by) == value for by, value in key.items())]
    keyed = [limit for limit in limits if limit.by is not None]
    return View(
        usage=gate.usage(key),
        holders=holders,
        keyed=() if key is not None else keyed,
        busiest=() if key is not None else _fullest(gate, keyed, top_keys or KEYS_SHOWN),
        why=gate.why(),
        overrides=gate.overrides(),
    )


def _fullest(gate: Gate, keyed: Sequence[Limit], most: int) -> list[LimitUsage]:
    """Of each limit by a key, the keys that use most of it."""
    return [usage for limit in keyed for usage in gate.keys(limit.name, top=most)]


def plain_signs(console: Console) -> bool:
    """Whether the terminal or the file cannot show block characters."""
    return not (console.encoding or "").lower().replace("-", "").startswith("utf8")


# --- figures ------------------------------------------------------------------------------------------------------


def colour(share: float) -> str:
    return "red" if share >= 0.9995 else "yellow" if share >= 0.8 else "green"


def bar(share: float, width: int, plain: bool = False) -> Text:
    """How full it is. Something is never shown as nothing, and not quite full never as full."""
    eighths = round(min(1.0, max(0.0, share)) * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    if share < 0.9995:
        eighths = min(eighths, width * 8 - 1)
    full, part = divmod(eighths, 8)
    if plain:
        return Text("#" * full + "." * (width - full))
    filled = "█" * full + (EIGHTHS[part] if part else "")
    return Text.assemble((filled, colour(share)), ("░" * (width - len(filled)), "bright_black"))


def sparkline(shares: Sequence[float], width: int, plain: bool = False) -> Text:
    """How full it was, the latest on the right."""
    latest = list(shares)[-width:]
    if plain:
        return Text("")
    signs = "".join(LEVELS[max(1 if share > 0 else 0, round(min(1.0, share) * 8))] for share in latest)
    return Text(signs.rjust(width), style="cyan")


def fit(text: str, width: int) -> str:
    """Cut or filled to exactly so many cells; what is cut ends with an ellipsis."""
    if cell_len(text) > width:
        while text and cell_len(text) > width - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (width - cell_len(text))


# --- a gate -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Columns:
    """How wide each column is: the same for all gates that are shown together, and from one frame to the next."""

    name: int
    bar: int
    used: int
    allowed: int
    sparkline: int


#: What stands behind a limit that is full, at its longest.
SOON = len("next in 59m59s")


def columns(views: Sequence[View], width: int, plain: bool = False) -> Columns:
    """The columns for these gates. The bars take the room that the rest leaves; nothing here depends on what is used."""
    wide = width >= WIDE
    shown = [(view, row) for view in views for row in (*view.usage.limits, *view.busiest)]
    rows = [row for _, row in shown]
    names = [_name(row) for row in rows] + [limit.name for view in views for limit in view.keyed]
    name = min(26 if wide else 18, max([cell_len(text) for text in names], default=4))
    allowed = max([len(_allowed(row, wide)) for row in rows], default=0)
    used = max([_used_width(row, wide) for row in rows], default=0)
    notes = max([len(_notes(view, row, wide, longest=True)) for view, row in shown], default=0)
    sparkline = 16 if wide and not plain and any(view.history for view in views) else 0
    rest = 2 + name + 2 + 6 + used + 1 + allowed + 2 + SOON + (sparkline and sparkline + 2) + (notes and notes + 2)
    return Columns(name, max(8, min(44, width - rest)), used, allowed, sparkline)


def gate_lines(
    view: View, width: int, holders: int = 5, plain: bool = False, widths: Columns | None = None
) -> list[Text]:
    """The whole of a gate, as lines that fit the width, with at most so many `holders`.

    `widths` are the columns of all gates that are shown together; without them they are made for this one.
    """
    widths = widths or columns([view], width, plain)
    lines = [_heading(view, width, plain)]
    if view.why and view.why != FREE:
        lines.append(Text(f"  {view.why}", style="bold yellow"))
    lines += [_limit_line(view, row, widths, width >= WIDE, plain) for row in (*view.usage.limits, *view.busiest)]
    shown = {row.name for row in view.busiest}
    for limit in view.keyed:
        if limit.name not in shown:
            about = f"{amount(limit.limit)} per {limit.by}; look at one with --key {limit.by}=…"
            lines.append(Text.assemble("  ", fit(limit.name, widths.name), "  ", (about, "bright_black")))
    lines += _override_lines(view)
    lines += _holder_lines(view, width, holders)
    for line in lines:
        line.rstrip()
        line.truncate(width, overflow="ellipsis")
    return lines


def _name(row: LimitUsage) -> str:
    return row.name if row.key is None else f"{row.name} {row.key}"


def _heading(view: View, width: int, plain: bool) -> Text:
    usage = view.usage
    facts: list[tuple[str, str]] = []
    if usage.paused_for is not None:
        why = f": {usage.pause_reason}" if usage.pause_reason else ""
        facts.append((f"{paused_words(usage.paused_for)}{why}", "bold red"))
    facts.append((f"{usage.waiting:,} waiting", "bold yellow" if usage.waiting else "bright_black"))
    if view.holders:
        facts.append((f"{len(view.holders):,} in flight", "cyan"))
    right = Text("")
    for text, style in facts:
        right.append(" · " if right else "", "bright_black")
        right.append(fit(text, min(cell_len(text), max(20, width - 40))), style)
    left = Text(usage.gate, style="bold")
    rule = ("-" if plain else "─") * max(2, width - left.cell_len - right.cell_len - 2)
    return Text.assemble(left, " ", (rule, "bright_black"), " ", right)


def _limit_line(view: View, row: LimitUsage, widths: Columns, wide: bool, plain: bool) -> Text:
    if row.free_in <= 0:
        soon = "free"
    elif kind_of(row.kind).leased:
        soon = f"within {span(row.free_in)}"  # when the next lease runs out: a release may come at any moment
    else:
        soon = f"next in {span(row.free_in)}"
    line = Text.assemble(
        "  ",
        (fit(_name(row), widths.name), "bold" if row.key is None and "@" not in row.name else ""),
        "  ",
        bar(row.utilisation, widths.bar, plain),
        f" {row.utilisation:>4.0%} ",
        f"{_amount(row.used, wide):>{widths.used}}/{fit(_allowed(row, wide), widths.allowed)}",
        "  ",
        (fit(soon, SOON), "green" if soon == "free" else "yellow"),
    )
    if widths.sparkline:
        line.append("  ")
        line.append_text(sparkline(view.history.get((row.name, row.key), ()), widths.sparkline))
    if note := _notes(view, row, wide):
        line.append(f"  {note}", "magenta")
    return line


def _amount(value: float, wide: bool) -> str:
    """An amount; where room is scarce 400k for 400,000."""
    if wide or value < 100_000:
        return amount(value)
    return f"{value / 1e3:.0f}k" if value < 9_999_500 else f"{value / 1e6:,.0f}M"


def _used_width(row: LimitUsage, wide: bool) -> int:
    """Room for what is used: slots and requests are whole, of anything else there can be as much as 189.9."""
    whole = kind_of(row.kind).leased or (row.unit == "requests" and row.used == int(row.used))
    return max(0 if whole else 5, len(_amount(row.limit, wide)))


def _allowed(row: LimitUsage, wide: bool) -> str:
    text = _amount(row.limit, wide)
    if wide or row.unit != "requests":
        text += " slots" if kind_of(row.kind).leased else f" {row.unit}"
    return text


def _notes(view: View, row: LimitUsage, wide: bool, longest: bool = False) -> str:
    """What else there is to say of a limit; with `longest`, the longest that it may say in a later frame."""
    notes = []
    if mine := [one for one in view.overrides if (one.limit, one.key) == (row.name, row.key)]:
        notes.append("tightened" if any(one.tightened for one in mine) else "override")
    if row.promised:
        notes.append(f"{amount(row.promised)} promised")
    if row.maximum is not None:
        notes.append(f"adaptive, max {amount(row.maximum)}" if wide else "adaptive")
    if wide and (row.resets_in or (longest and not kind_of(row.kind).leased)):
        left = "59m59s" if longest else span(row.resets_in or 0.0)
        notes.append(f"{kind_of(row.kind).frees} in {left}")
    return ", ".join(notes)


def _override_lines(view: View) -> list[Text]:
    """Why values are not the configured ones, and for how long: of those that say so."""
    told = [one for one in view.overrides if one.reason or one.expires_in is not None]
    names = [one.limit if one.key is None else f"{one.limit} {one.key}" for one in told]
    return [
        Text(f"  · {name} {override_words(one)}", "magenta")
        for name, one in zip(names[:OVERRIDES_SHOWN], told, strict=False)
    ]


def _holder_lines(view: View, width: int, most: int) -> list[Text]:
    if not view.holders or most <= 0:
        return []
    wide = width >= WIDE
    name_width = 48 if wide else 30
    keyed = any(holder.key or holder.priority for holder in view.holders[:most])
    lines = []
    for holder in view.holders[:most]:
        key = ",".join(f"{by}={value}" for by, value in sorted(holder.key.items()))
        about = " ".join(part for part in (key, holder.priority or "") if part)
        line = Text.assemble(
            "  ",
            ("· ", "bright_black"),
            (fit(label_of(holder.holder) or "(no name)", name_width), "" if holder.holder else "bright_black"),
            f" held {span(holder.held_for):>6}",
            (f"  lease {span(holder.expires_in):>6}", "bright_black" if holder.expires_in > 5 else "yellow"),
            (f"  {fit(about, 24) if wide else about}" if keyed else "", "cyan"),
        )
        if wide:
            line.append(f"  {holder.id}", "bright_black")
        lines.append(line)
    more = len(view.holders) - most
    if more > 0:
        lines.append(Text(f"  · and {more:,} more: headgate leases list {view.usage.gate}", style="bright_black"))
    return lines


def stacked(blocks: Sequence[Sequence[Text]]) -> Group:
    """Gates one under the other, an empty line between them."""
    lines: list[Text] = []
    for number, block in enumerate(blocks):
        lines += ([Text("")] if number else []) + list(block)
    return Group(*lines)


def make_console() -> Console:
    """The console of standard output. Piped output is wide, so that nothing is cut."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(highlight=False, width=140)
    return console

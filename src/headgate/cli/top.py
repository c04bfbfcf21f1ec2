"""`headgate top`: every gate, live."""

from __future__ import annotations

import os
import select
import sys
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import replace

import click
from rich.text import Text

from headgate import HeadgateError

from . import params
from .view import columns, gate_lines, look, make_console, plain_signs, stacked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, Group

    from headgate.gate.gates import Gates

    from .view import View

#: How many earlier frames of a limit its sparkline shows.
PAST = 60


@click.command()
@params.optional_gate_argument
@click.option("--every", default="1s", type=params.Duration(), show_default=True, help="How often to look.")
@click.pass_context
def top(context: click.Context, gate: str | None, every: str | float) -> None:
    """Show the gates live: bars, the line, pauses, holders.

    q or Ctrl-C ends it. Where the output is no terminal it prints one frame and ends.
    """
    from headgate import duration

    gates = params.load_gates(context)
    names = [gate] if gate is not None else list(gates)
    for name in names:
        gates.config[name]  # a gate that is not there is an error, not an empty frame
    console = make_console()
    screen = Screen(gates, names, console, params.path_of(gates.config))
    if not console.is_terminal:
        console.print(screen.frame(None, strict=True))
        return
    watch(screen, console, duration.parse(every) / 1e6)


def watch(screen: Screen, console: Console, every: float) -> None:
    from rich.live import Live

    with keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(screen.frame(console.height), refresh=True)
                if pressed(every) in ("q", "Q", "\x1b"):
                    return
        except KeyboardInterrupt:
            return


class Screen:
    """Draws frames, and remembers how full each limit was."""

    def __init__(self, gates: Gates, names: Sequence[str], console: Console, file: str) -> None:
        self._gates = gates
        self._names = names
        self._console = console
        self._file = file
        self._plain = plain_signs(console)
        self._past: dict[str, dict[tuple[str, str | None], deque[float]]] = {name: {} for name in names}

    def frame(self, height: int | None, strict: bool = False) -> Group:
        """All gates at this moment, cut to the height by showing fewer holders. `strict` raises what goes wrong."""
        width = self._console.width
        views: list[View] = []
        problems: list[list[Text]] = []
        for name in self._names:
            try:
                view = look(self._gates[name], params.limits_of(self._gates, name))
            except HeadgateError as error:
                if strict:
                    raise
                problems.append(list(Text(f"{name}: {error}", style="red").wrap(self._console, width)))
                continue
            past = self._past[name]
            for row in (*view.usage.limits, *view.busiest):
                past.setdefault((row.name, row.key), deque(maxlen=PAST)).append(row.utilisation)
            views.append(replace(view, history=past) if height is not None else view)
        widths = columns(views, width, self._plain)
        for most in range(10, -1, -1):
            blocks = [gate_lines(view, width, most, self._plain, widths) for view in views] + problems
            if height is None or _height(blocks) <= height:
                break
        return stacked([[self._title(width)], *self._cut(blocks, height)])

    def _cut(self, blocks: list[list[Text]], height: int | None) -> list[list[Text]]:
        """As many gates as there is room for, and a line that says how many are left out."""
        if height is None or _height(blocks) <= height:
            return blocks
        kept = len(blocks)
        while kept > 1 and _height(blocks[:kept]) + 2 > height:
            kept -= 1
        more = f"… {len(blocks) - kept} more: headgate top GATE, or headgate status for all"
        return [*blocks[:kept], [Text(more, style="bright_black")]]

    def _title(self, width: int) -> Text:
        stores = params.stores_of(self._gates, self._names)
        right = f"{time.strftime('%H:%M:%S')}  q quits" if self._console.is_terminal else time.strftime("%H:%M:%S")
        room = max(10, width - len(right) - 2)
        left = f"headgate · {stores} · {self._file}"
        if len(left) > room:  # the store is what two directories could differ in
            left = f"headgate · {stores} · {os.path.basename(self._file)}"
        title = Text(left, style="bright_black")
        title.truncate(room, overflow="ellipsis", pad=True)
        return Text.assemble(title, "  ", (right, "bright_black"))


def _height(blocks: Sequence[Sequence[Text]]) -> int:
    """Lines that blocks take under the title, each with an empty line before it."""
    return 1 + sum(len(block) + 1 for block in blocks)


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key. Without a terminal to read from, it only waits."""
    if not sys.stdin.isatty():
        yield _pause
        return
    import termios
    import tty

    stream = sys.stdin.fileno()
    before = termios.tcgetattr(stream)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([stream], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    try:
        tty.setcbreak(stream)
        yield pressed
    finally:
        termios.tcsetattr(stream, termios.TCSADRAIN, before)


def _pause(seconds: float) -> str:
    time.sleep(seconds)
    return ""

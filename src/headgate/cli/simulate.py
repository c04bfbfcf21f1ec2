"""`headgate simulate`: a fleet in virtual time."""

from __future__ import annotations

import os
from contextlib import contextmanager

import click

from . import params
from .app import Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import RenderableType

    from headgate.simulate import Result, Scenario

    #: Called with the name of each strategy, and a function that returns how much of its run is done.
    Progress = Callable[[str, Callable[[], float]], None]


@click.command()
@click.argument("file")
@click.option("--seed", default=1, show_default=True, type=int, help="The same seed gives the same run.")
@click.option("--strategy", "strategies", multiple=True, help="Only this one; may be given several times.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--plot", metavar="OUT.SVG", help="Also draw 429s and utilisation over time.")
@click.pass_context
def simulate(
    context: click.Context,
    file: str,
    seed: int,
    strategies: tuple[str, ...],
    as_json: bool,
    as_csv: bool,
    plot: str | None,
) -> None:
    """Run the scenario in FILE (TOML): the real kernel in virtual time, beside other strategies.

    The repository has scenarios under benchmarks/scenarios.
    """
    import headgate.simulate as simulator

    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other", context)
    for name in strategies:
        if strategies.count(name) > 1:
            raise click.UsageError(f"strategy {name!r} is given twice", context)
    if plot is not None and not plot.lower().endswith(".svg"):
        raise click.UsageError(f"--plot draws SVG, so name it like fleet.svg, not {plot!r}", context)
    scenario = simulator.load(file)
    if plot is not None:
        _try_to_write(plot)  # now: not after a run of minutes
    with shown_progress(scenario) as progress:
        result = simulator.simulate(scenario, seed, strategies or None, progress)
    if plot is not None:
        with open(plot, "w", encoding="utf-8") as stream:
            stream.write(result.as_svg())
        click.echo(f"headgate: wrote {os.path.abspath(plot)}", err=True)
    if as_json:
        params.print_json(result.as_json())
    elif as_csv:
        click.echo(result.as_csv(), nl=False)
    else:
        print_table(result)


def _try_to_write(file: str) -> None:
    try:
        with open(file, "a", encoding="utf-8"):
            pass
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = getattr(error, "strerror", None) or error
        raise Failed(f"--plot: {file!r} cannot be written: {reason}") from None


@contextmanager
def shown_progress(scenario: Scenario) -> Iterator[Progress | None]:
    """In a terminal, a bar per strategy, which asks how far its run is whenever it is drawn."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield None
        return
    asked: dict[int, Callable[[], float]] = {}

    class Bars(Progress):
        def get_renderables(self) -> Iterable[RenderableType]:
            for number, share in list(asked.items()):
                self.tasks[number].completed = share() * scenario.total
            return super().get_renderables()

    bars = Bars(
        TextColumn("{task.description:16}"),
        BarColumn(None),
        TextColumn(f"{{task.completed:>{len(f'{scenario.total:,}')},.0f}}/{scenario.total:,} calls"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=4,
        transient=True,
    )

    def progress(name: str, share: Callable[[], float]) -> None:
        for number in asked:
            bars.stop_task(bars.task_ids[number])
        asked[len(asked)] = share
        bars.add_task(name, total=scenario.total)

    with bars:
        yield progress


#: Headings where room is scarce.
SHORT = {"utilisation": "used", "× ideal": "×ideal", "fairness": "fair"}


def print_table(result: Result) -> None:
    from rich.table import Table
    from rich.text import Text

    from .view import make_console

    console = make_console()
    console.print(
        Text.assemble((result.scenario, "bold"), f": {params.counted(result.total, 'call')}, seed {result.seed}")
    )
    headings, cells = result.as_table()
    narrow = console.width < 110
    table = Table(box=None, pad_edge=False, padding=(0, 1 if narrow else 3, 0, 0), header_style="bright_black")
    # The ideal is the same in every row: it gives way first.
    shown = [number for number, heading in enumerate(headings) if not (narrow and heading == "ideal")]
    for number in shown:
        heading = SHORT.get(headings[number], headings[number]) if narrow else headings[number]
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in cells:
        table.add_row(*[row[number] for number in shown], style="bold" if row[0] == "headgate" else "")
    console.print(table)
    for note in result.notes:
        console.print(Text(note, style="bright_black"))

"""`headgate simulate`: a fleet in virtual time."""

from __future__ import annotations

import click

from . import params


@click.command()
@click.argument("file")
@click.option("--seed", default=1, show_default=True, type=int, help="The same seed gives the same run.")
@click.option("--strategy", "strategies", multiple=True, help="Only this one; may be given several times.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@click.option("--plot", metavar="OUT.SVG", help="Also draw 429s and utilisation over time.")
def simulate(file: str, seed: int, strategies: tuple[str, ...], as_json: bool, as_csv: bool, plot: str | None) -> None:
    """Run the scenario in FILE (TOML): the real kernel in virtual time, beside other strategies.

    The repository has scenarios under benchmarks/scenarios.
    """
    from rich.console import Console

    import headgate.simulate as simulator

    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    scenario = simulator.load(file)
    names = strategies or None
    with Console(stderr=True).status("simulating") as status:
        result = simulator.simulate(scenario, seed, names, lambda name: status.update(f"simulating {name}"))
    if plot is not None:
        with open(plot, "w", encoding="utf-8") as stream:
            stream.write(result.as_svg())
    if as_json:
        params.print_json(result.as_json())
    elif as_csv:
        click.echo(result.as_csv(), nl=False)
    else:
        print_table(result)


def print_table(result: object) -> None:
    from rich.table import Table
    from rich.text import Text

    from headgate.simulate import Result

    from .view import make_console

    assert isinstance(result, Result)
    console = make_console()
    console.print(Text.assemble((result.scenario, "bold"), f": {result.total:,} calls, seed {result.seed}"))
    headings, cells = result.as_table()
    narrow = console.width < 100
    table = Table(box=None, pad_edge=False, collapse_padding=narrow, header_style="bright_black")
    # The ideal is the same in every row: it gives way first.
    shown = [number for number, heading in enumerate(headings) if not (narrow and heading == "ideal")]
    for number in shown:
        table.add_column(headings[number], justify="right" if number else "left", no_wrap=True)
    for row in cells:
        table.add_row(*[row[number] for number in shown], style="bold" if row[0] == "headgate" else "")
    console.print(table)

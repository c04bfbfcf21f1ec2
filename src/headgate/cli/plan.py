"""`headgate plan`: what limits mean for a job, by arithmetic."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite

import click

from headgate import Concurrency, InvalidInput, Window, duration
from headgate.simulate import planning
from headgate.simulate.result import span

from . import params

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headgate.kernel.limits import Limit
    from headgate.simulate.planning import Forecast


class Rate(params.Type):
    """AMOUNT/PER, as in 190/1m."""

    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        amount, slash, per = value.partition("/")
        try:
            number = float(amount)
            if not slash or not isfinite(number) or number <= 0:
                raise ValueError
            per = per if per[:1].isdigit() or per[:1] == "P" else f"1{per}"  # 190/m is 190/1m
            duration.parse(per, what="it")
        except (ValueError, InvalidInput):
            self.fail(f"{value!r} is not a rate; write it like 190/1m", param, context)
        return number, per


@click.command()
@params.optional_gate_argument
@click.option("--duration", "call", type=params.Duration(), help="How long a call takes: 5, 30s, 2m.")
@click.option(
    "--rate", "rates", multiple=True, type=Rate(), metavar="N/PER", help="A rate such as 190/1m, without a GATE."
)
@click.option("--in-flight", type=click.IntRange(min=1), help="Calls at the same time, without a GATE.")
@click.option("--workers", type=click.IntRange(min=1), help="How many workers there are to make calls.")
@click.option("--calls", type=click.IntRange(min=1), default=1, show_default=True, help="Calls that each item needs.")
@click.option("--items", type=click.IntRange(min=1), help="How many items there are to do.")
@params.cost_option
@click.option("--tenants", type=click.IntRange(min=1), help="Size a shared limit for so many tenants; needs --each.")
@click.option("--each", type=float, help="What each tenant has in use, in the mean.")
@click.option("--claims", is_flag=True, help="Check the published tables of the designs that Headgate grew from.")
@params.json_option
@click.pass_context
def plan(
    context: click.Context,
    gate: str | None,
    call: str | float | None,
    rates: tuple[tuple[float, str], ...],
    in_flight: int | None,
    workers: int | None,
    calls: int,
    items: int | None,
    cost: dict[str, float] | None,
    tenants: int | None,
    each: float | None,
    claims: bool,
    as_json: bool,
) -> None:
    """Tell which limit binds, the throughput, and how long everything takes.

    For the limits of GATE, or for those given by --rate and --in-flight. Steady state, by arithmetic alone;
    `headgate simulate` runs a fleet.
    """
    if claims:
        return _claims(as_json)
    if tenants is not None or each is not None:
        if tenants is None or each is None:
            raise click.UsageError("--tenants and --each belong together", context)
        return _sizing(tenants, each, as_json)
    if call is None:
        raise click.UsageError("say how long a call takes: --duration 30s", context)
    limits: list[Limit] = []
    if gate is not None:
        if rates or in_flight is not None:
            raise click.UsageError("a GATE has limits of its own: leave out --rate and --in-flight", context)
        limits += params.limits_of(params.load_gates(context), gate)
    for number, (amount, per) in enumerate(rates):
        limits.append(Window(amount, per=per, name="rate" if number == 0 else f"rate-{number + 1}"))
    if in_flight is not None:
        limits.append(Concurrency(in_flight, name="in_flight"))
    seconds = duration.parse(call) / 1e6
    found = planning.forecast(limits, seconds, calls=calls, items=items, workers=workers, cost=cost)
    if as_json:
        params.print_json(_values(found))
    else:
        _print(found)


def _values(found: Forecast) -> dict[str, Any]:
    return {
        "duration": found.duration,
        "binding": found.binding.name,
        "per_minute": found.per_minute,
        "without": found.without if isfinite(found.without) else None,
        "crossover": found.crossover,
        "in_flight": found.in_flight,
        "bounds": [asdict(bound) for bound in found.bounds],
        "calls": found.calls,
        "items": found.items,
        "items_per_minute": found.items_per_minute,
        "items_per_hour": found.items_per_hour,
        "items_per_day": found.items_per_day,
        "takes": found.takes,
    }


def _print(found: Forecast) -> None:
    from rich.text import Text

    from .view import bar, fit, make_console, plain_signs

    console = make_console()
    console.print(
        Text.assemble(
            (found.binding.name, "bold yellow"),
            f" {'bind' if found.binding.name == planning.WORKERS else 'binds'} for calls of {span(found.duration)}: ",
            (f"{_figure(found.per_minute)} calls/min", "bold"),
            f" ({_figure(found.without)} without it)" if isfinite(found.without) else "",
            f", {_figure(found.in_flight)} under way",
        )
    )
    most = max(bound.per_minute for bound in found.bounds)
    width = max(len(bound.name) for bound in found.bounds)
    for bound in found.bounds:
        filled = bar(bound.per_minute / most, 30, plain_signs(console))
        filled.style = "yellow" if bound is found.binding else ""
        console.print(Text.assemble("  ", fit(bound.name, width), "  ", filled, f"  {_figure(bound.per_minute)}/min"))
    if found.crossover is not None:
        console.print(
            f"slots and rates allow the same at {found.crossover:.1f} s a call; below it the rate binds, above it the slots"
        )
    if found.calls > 1 or found.items is not None:
        console.print(
            f"{params.counted(found.calls, 'call')} an item: {_figure(found.items_per_minute)} items/min, "
            f"{_figure(found.items_per_hour)}/h, {_figure(found.items_per_day)}/day"
        )
    if found.items is not None and found.takes is not None:
        console.print(
            Text.assemble(params.counted(found.items, "item takes/items take"), " ", (span(found.takes), "bold"))
        )


def _sizing(tenants: int, each: float, as_json: bool) -> None:
    sizing = planning.size_shared_limit(tenants, each)
    if as_json:
        params.print_json(asdict(sizing))
        return
    click.echo(
        f"{params.counted(tenants, 'tenant')} with {each:g} each: {sizing.expected:,} expected; "
        f"a shared limit of {sizing.low:,} to {sizing.high:,} leaves room for spikes"
    )


def _claims(as_json: bool) -> None:
    from rich.table import Table

    from .view import make_console

    claims = planning.published_figures()
    if as_json:
        params.print_json({"claims": [asdict(claim) for claim in claims]})
        return
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for heading in ("seed", "about", "claimed", "is", "", "why"):
        table.add_column(heading, justify="right" if heading == "is" else "left")
    for claim in claims:
        verdict = "[green]right[/]" if claim.right else "[bold red]wrong[/]"
        table.add_row(claim.seed, claim.about, claim.claimed, _figure(claim.figure), verdict, claim.why)
    make_console().print(table)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"

"""`headgate waiters`: who stands in line, for what, and when each would go."""

from __future__ import annotations

import click

from . import params


@click.command()
@click.argument("gate")
@params.key_option
@params.json_option
@click.pass_context
def waiters(context: click.Context, gate: str, key: dict[str, str] | None, as_json: bool) -> None:
    """List the asks that wait at GATE, the oldest first: what each costs, what it waits for and when it would go.

    The first 50. Spends nothing. With --key only those of that key.
    """
    from rich.table import Table
    from rich.text import Text

    from headgate.kernel.model import label_of, plain
    from headgate.kernel.why import amount, span

    from .view import make_console

    found = params.find_gate(context, gate)
    listed = [
        waiter for waiter in found.waiters() if all(waiter.key.get(by) == value for by, value in (key or {}).items())
    ]
    why = found.why()
    if as_json:
        params.print_json({"gate": gate, "why": why, "waiters": plain(listed)})
        return
    console = make_console()
    console.print(Text.assemble((f"{gate}: ", "bold"), why))
    if not listed:
        return
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for heading in ("holder", "key", "class", "cost", "waits for", "waiting", "goes in", "id"):
        table.add_column(
            heading, justify="right" if heading in ("waiting", "goes in") else "left", no_wrap=heading == "id"
        )
    for waiter in listed:
        costs = (
            waiter.cost
            if len(waiter.cost) == 1
            else {unit: cost for unit, cost in waiter.cost.items() if unit != "requests"}
        )
        table.add_row(
            # As text: what a client wrote must not be taken for markup.
            Text(label_of(waiter.holder) or ""),
            Text(",".join(f"{by}={value}" for by, value in sorted(waiter.key.items()))),
            waiter.priority or "",
            ", ".join(f"{amount(cost)} {unit}" for unit, cost in costs.items()),
            waiter.limit or "" if waiter.state == "waits" else waiter.state,
            span(waiter.waiting_for),
            span(waiter.goes_in) if waiter.state == "waits" else "",
            Text(waiter.id),
        )
    console.print(table)

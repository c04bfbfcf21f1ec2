"""`headgate leases`: who holds a slot, and freeing one by hand."""

from __future__ import annotations

from dataclasses import asdict

import click

from headgate import duration

from . import params
from .app import Failed


@click.group()
def leases() -> None:
    """List who holds slots, and release one by hand."""


@leases.command("list")
@params.optional_gate_argument
@params.key_option
@click.option("--older-than", metavar="DURATION", help="Only those held for at least so long, such as 1h.")
@params.json_option
@click.pass_context
def list_leases(
    context: click.Context, gate: str | None, key: dict[str, str] | None, older_than: str | None, as_json: bool
) -> None:
    """List the live leases of all gates, or of GATE, the oldest first."""
    from rich.table import Table
    from rich.text import Text

    from headgate.kernel.model import label_of
    from headgate.kernel.why import span

    from .view import make_console

    gates = params.load_gates(context)
    names = [gate] if gate is not None else list(gates)
    for by in key or ():
        known = sorted({limit.by for name in names for limit in params.limits_of(gates, name) if limit.by})
        if by not in known:
            right = f"the keys are {', '.join(known)}" if known else "no limit there is kept by a key"
            raise click.UsageError(f"no limit is kept by {by!r}; {right}", context)
    least = 0.0 if older_than is None else duration.parse(older_than, what="--older-than", zero=True) / 1_000_000
    found = [
        (name, holder)
        for name in names
        for holder in gates[name].holders()
        if all(holder.key.get(by) == value for by, value in (key or {}).items()) and holder.held_for >= least
    ]
    if as_json:
        params.print_json({"leases": [{"gate": name} | asdict(holder) for name, holder in found]})
        return
    if not found:
        click.echo("nobody holds a lease")
        return
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for heading in ("gate", "holder", "key", "held", "lease", "id"):
        # Ids are for copying: never cut, whatever else has to give way.
        table.add_column(heading, justify="right" if heading in ("held", "lease") else "left", no_wrap=heading == "id")
    for name, holder in found:
        keys = ",".join(f"{by}={value}" for by, value in sorted(holder.key.items()))
        # As text: what a client wrote must not be taken for markup.
        who, id = Text(label_of(holder.holder) or ""), Text(holder.id)
        table.add_row(name, who, Text(keys), span(holder.held_for), span(holder.expires_in), id)
    make_console().print(table)


@leases.command("release")
@params.gate_argument
@click.argument("id")
@click.pass_context
def release_lease(context: click.Context, gate: str, id: str) -> None:
    """End the lease ID (see `headgate leases list`): its slot is free at once.

    Its holder is told when it lets go, and frees nobody else's slot.
    """
    if not params.find_gate(context, gate).release(id, "error"):
        raise Failed(
            f"gate {gate!r} has no live lease {id!r}; `headgate leases list {gate}` shows those that there are"
        )
    click.echo(f"{gate}: {id} is released")

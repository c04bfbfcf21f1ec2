"""`headgate reset`: forget what counts."""

from __future__ import annotations

import click

from . import params
from .app import OK


@click.command()
@params.gate_argument
@click.option(
    "--limit", metavar="NAME", help="This limit alone; the others count on.", shell_complete=params.complete_limit
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def reset(context: click.Context, gate: str, limit: str | None, yes: bool) -> None:
    """Forget all that counts on a gate, or on one of its limits.

    Charges and leases are gone, also those of work that is still under way: the upstream may see more than the limit until
    that has ended. Late releases change nothing. Overrides stay.
    """
    gates = params.load_gates(context)
    found = gates[gate]
    names = [one.name for one in params.limits_of(gates, gate)]
    if limit is not None and limit not in names:
        raise click.UsageError(f"gate {gate!r} has no limit {limit!r}; it has {', '.join(names)}", context)
    what = f"limit {limit!r} of gate {gate!r}" if limit is not None else f"gate {gate!r}"
    if not yes:
        if not params.interactive():
            raise click.UsageError(f"this forgets all that counts on {what}: say --yes", context)
        if not click.confirm(f"Forget all that counts on {what}?", err=True):
            context.exit(OK)
    found.reset(limit)
    click.echo(f"{what} is reset")

"""`headgate pause` and `headgate resume`."""

from __future__ import annotations

import click

from . import params


@click.command()
@click.argument("gate")
@click.argument("seconds", type=params.Duration())
@click.option("--reason", default="", help="Why; everybody who asks what blocks is shown it.")
@click.pass_context
def pause(context: click.Context, gate: str, seconds: str | float, reason: str) -> None:
    """Give no new grants for SECONDS (or 5m, 2h, …). What is under way goes on."""
    from headgate.kernel.why import span

    found = params.find_gate(context, gate)
    found.pause(seconds, reason or "paused by hand")
    until = found.usage().paused_until
    click.echo(f"{gate}: paused for {span(until or 0.0)}; `headgate resume {gate}` ends it")


@click.command()
@click.argument("gate")
@click.pass_context
def resume(context: click.Context, gate: str) -> None:
    """End a pause. Harmless where there is none."""
    found = params.find_gate(context, gate)
    paused = found.usage().paused_until is not None
    found.resume()
    click.echo(f"{gate}: {'goes on' if paused else 'was not paused'}")

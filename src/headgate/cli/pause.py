"""`headgate pause` and `headgate resume`."""

from __future__ import annotations

import click

from . import params


@click.command()
@params.gate_argument
@click.argument("seconds", type=params.Duration(), required=False)
@click.option("--until-resumed", is_flag=True, help="Pause without an end, in place of SECONDS.")
@click.option("--reason", default="", help="Why; everybody who asks what blocks is shown it.")
@click.pass_context
def pause(context: click.Context, gate: str, seconds: str | float | None, until_resumed: bool, reason: str) -> None:
    """Give no new grants for SECONDS (or 5m, 2h, …), or until it is resumed. What is under way goes on."""
    from headgate.kernel.why import paused_words

    if (seconds is None) != until_resumed:
        raise click.UsageError(
            f"say for how long, or that it has no end: `headgate pause {gate} 10m`, `--until-resumed`"
        )
    found = params.find_gate(context, gate)
    found.pause(seconds, reason or "paused by hand")
    click.echo(f"{gate}: {paused_words(found.usage().paused_for or 0.0)}; `headgate resume {gate}` ends it")


@click.command()
@params.gate_argument
@click.pass_context
def resume(context: click.Context, gate: str) -> None:
    """End a pause. Harmless where there is none."""
    found = params.find_gate(context, gate)
    paused = found.usage().paused_for is not None
    found.resume()
    click.echo(f"{gate}: {'goes on' if paused else 'was not paused'}")

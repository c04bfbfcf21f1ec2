"""`headgate serve`: the gates of the configuration over HTTP."""

from __future__ import annotations

from dataclasses import replace

import click

from headgate.extras import how_to_install

from . import params
from .app import Failed


@click.command()
@click.option("--host", help="The address to listen on; anything but loopback needs tokens.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port; 0 takes one that is free.")
@click.option("--any-gate", is_flag=True, help='Let clients of store = "http://…" use gates that are not in the file.')
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What the log on standard error tells, one JSON object a line.",
)
@click.pass_context
def serve(context: click.Context, host: str | None, port: int | None, any_gate: bool, log_level: str) -> None:
    """Serve the gates of the configuration over HTTP, until SIGTERM or Ctrl-C.

    Prints the address on standard output as soon as it answers.
    """
    gates = params.load_gates(context)
    settings = gates.config.serve
    settings = replace(
        settings, host=settings.host if host is None else host, port=settings.port if port is None else port
    )
    try:
        from headgate.service import server

        guard = server.make_guard(gates, settings, any_gate)
        served = params.counted(len(gates), "gate")
        where = f"from {params.path_of(gates.config)} in {params.stores_of(gates)}"
        server.serve(guard, log_level, lambda address: click.echo(f"headgate: serving {served} on {address}, {where}"))
    except ModuleNotFoundError as error:
        raise Failed(f"serving needs a server: {how_to_install('server')} ({error})") from error

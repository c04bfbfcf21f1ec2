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
@click.option(
    "--gate", "gates", multiple=True, metavar="NAME", help="A gate whose limits are given here, in the file or not."
)
@click.option(
    "--limit",
    "limits",
    multiple=True,
    metavar="UNIT=AMOUNT/PERIOD",
    help="A limit of that gate, as in requests=1000/PT1M or pu=5000/PT0S (a budget); once per limit. It is a bucket, "
    "unless ,window or ,quota follows; ,burst=N ,slack=D ,name=N may. With several gates: GATE:UNIT=…",
)
@click.option("--store", metavar="URL", help="The store, in place of the file's.")
@click.option("--any-gate", is_flag=True, help='Let clients of store = "http://…" use gates that are not in the file.')
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What the log on standard error tells, one JSON object a line.",
)
@click.pass_context
def serve(
    context: click.Context,
    host: str | None,
    port: int | None,
    gates: tuple[str, ...],
    limits: tuple[str, ...],
    store: str | None,
    any_gate: bool,
    log_level: str,
) -> None:
    """Serve the gates of the configuration over HTTP, until SIGTERM or Ctrl-C.

    Prints the address on standard output as soon as it answers. With --gate and --limit no file is needed; limits that are
    given here take the place of the file's.
    """
    served_gates = params.load_gates_with(context, gates, limits, store)
    settings = served_gates.config.serve
    settings = replace(
        settings, host=settings.host if host is None else host, port=settings.port if port is None else port
    )
    try:
        from headgate.service import server

        guard = server.make_guard(served_gates, settings, any_gate)
        served = params.counted(len(served_gates), "gate")
        file = params.path_of(served_gates.config) if served_gates.config.path else "the command line"
        where = f"from {file} in {params.stores_of(served_gates)}"
        server.serve(guard, log_level, lambda address: click.echo(f"headgate: serving {served} on {address}, {where}"))
    except ModuleNotFoundError as error:
        raise Failed(f"serving needs a server: {how_to_install('server')} ({error})") from error

"""`headgate status`: what every gate is doing, once."""

from __future__ import annotations

import os
from dataclasses import replace

import click

from headgate.kernel.model import plain

from . import params

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .view import View


@click.command()
@params.optional_gate_argument
@params.key_option
@params.json_option
@click.pass_context
def status(context: click.Context, gate: str | None, key: dict[str, str] | None, as_json: bool) -> None:
    """Show how full each limit is, who waits, and who holds what.

    All gates, or GATE alone. Spends nothing. With --key also the limits of that key.
    """
    from rich.text import Text

    from .view import columns, gate_lines, look, make_console, plain_signs, stacked

    gates = params.load_gates(context)
    if key is not None and gate is None:
        raise click.UsageError("--key belongs to one gate: name it", context)
    names = [gate] if gate is not None else list(gates)
    views = [look(gates[name], params.limits_of(gates, name), key) for name in names]
    if as_json:
        told = [as_values(view) | {"store": params.stores_of(gates, [view.usage.gate])} for view in views]
        params.print_json({"config": params.path_of(gates.config), "gates": told})
        return
    console = make_console()
    signs = plain_signs(console)
    widths = columns(views, console.width, signs)
    console.print(stacked([gate_lines(view, console.width, plain=signs, widths=widths) for view in views]))
    where = f"{params.stores_of(gates, names)} · {params.path_of(gates.config)}"
    cut = console.is_terminal or "COLUMNS" in os.environ  # else a path stays in one piece, to be searched for
    console.print(Text(where, "bright_black", overflow="fold"), soft_wrap=not cut)
    for store in sorted({gates.config[name].store for name in names}):
        params.warn_if_unshared(store)


def as_values(view: View) -> dict[str, Any]:
    """What `--json` prints of a gate: the fields of `Usage`, and the holders."""
    told = replace(view.usage, limits=(*view.usage.limits, *view.busiest))
    return {**plain(told), "holders": plain(list(view.holders))}

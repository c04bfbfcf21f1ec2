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
@click.option(
    "--top-keys",
    type=click.IntRange(1, 1000),
    is_flag=False,
    flag_value=10,
    metavar="[N]",
    help="Of each limit by a key, the N keys that use most of it. Default: 10.",
)
@params.json_option
@click.pass_context
def status(
    context: click.Context, gate: str | None, key: dict[str, str] | None, top_keys: int | None, as_json: bool
) -> None:
    """Show how full each limit is, why asks wait, and who holds what.

    All gates, or GATE alone. Spends nothing. With --key also the limits of that key, with --top-keys those of the keys that
    use most.
    """
    from rich.text import Text

    from .view import columns, gate_lines, look, make_console, plain_signs, stacked

    gates = params.load_gates(context)
    if key is not None and gate is None:
        raise click.UsageError("--key belongs to one gate: name it", context)
    if top_keys is not None and (gate is None or key is not None):
        raise click.UsageError("--top-keys belongs to one gate, and to no key: name the gate alone", context)
    names = [gate] if gate is not None else list(gates)
    views = [look(gates[name], params.limits_of(gates, name), key, top_keys) for name in names]
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
    """What `--json` prints of a gate: the fields of `Usage`, why its asks do not go, overrides and holders."""
    told = replace(view.usage, limits=(*view.usage.limits, *view.busiest))
    more = {"overrides": plain(list(view.overrides)), "holders": plain(list(view.holders))}
    return {**plain(told), "why": view.why, **more}

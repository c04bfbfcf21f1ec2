"""`headgate limits`: the values of limits, and changing them while everything runs."""

from __future__ import annotations

from math import isfinite

import click

from . import params

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headgate import Gate, Override
    from headgate.kernel.limits import Limit


@click.group()
def limits() -> None:
    """List, get, set and delete the values of limits while everything runs.

    A value that is set lives in the store, beside the state it governs: the next decision of every process uses it.
    """


def rows_of(gate: Gate, known: tuple[Limit, ...]) -> list[dict[str, Any]]:
    """Every limit with the value that is configured and the one in force; one more row per key with its own."""
    changed = gate.overrides()
    rows = []
    for limit in known:
        mine = [override for override in changed if override.limit == limit.name]
        rows.append(_row(gate.name, limit, next((one for one in mine if one.key is None), None)))
        rows += [_row(gate.name, limit, one) for one in mine if one.key is not None]
    return rows


def _row(gate: str, limit: Limit, override: Override | None) -> dict[str, Any]:
    return {
        "gate": gate,
        "limit": limit.name,
        "kind": limit.kind,
        "unit": limit.unit,
        "by": limit.by,
        "key": None if override is None else override.key,
        "configured": limit.limit,
        "override": None if override is None else override.value,
        "value": limit.limit if override is None else override.value,
    }


@limits.command("list")
@params.optional_gate_argument
@params.json_option
@click.pass_context
def list_limits(context: click.Context, gate: str | None, as_json: bool) -> None:
    """List the limits of all gates, or of GATE, with the values in force."""
    from rich.table import Table

    from headgate.kernel.limits import kind_of
    from headgate.kernel.why import amount

    from .view import make_console

    gates = params.load_gates(context)
    rows = [
        row
        for name in ([gate] if gate is not None else list(gates))
        for row in rows_of(gates[name], params.limits_of(gates, name))
    ]
    if as_json:
        params.print_json({"limits": rows})
        return
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for heading in ("gate", "limit", "kind", "unit", "by", "value", "configured"):
        table.add_column(heading, justify="right" if heading in ("value", "configured") else "left")
    for row in rows:
        by = row["by"] or ""
        value = amount(row["value"])
        table.add_row(
            row["gate"],
            row["limit"],
            row["kind"],
            "slots" if kind_of(row["kind"]).leased else row["unit"],
            by if row["key"] is None else f"{by}={row['key']}",
            value if row["override"] is None else f"[magenta]{value}[/]",
            amount(row["configured"]),
        )
    make_console().print(table)


@limits.command("get")
@params.gate_argument
@params.limit_argument
@params.key_option
@params.json_option
@click.pass_context
def get_limit(context: click.Context, gate: str, limit: str, key: dict[str, str] | None, as_json: bool) -> None:
    """Print the value of one limit that is in force, for everybody or for one key."""
    gates = params.load_gates(context)
    rows = rows_of(gates[gate], params.limits_of(gates, gate))
    mine = [row for row in rows if row["limit"] == limit]
    if not mine:
        names = ", ".join(dict.fromkeys(row["limit"] for row in rows))
        raise click.UsageError(f"gate {gate!r} has no limit {limit!r}; it has {names}", context)
    [general] = [row for row in mine if row["key"] is None]
    by = general["by"]
    if key is not None and (by is None or list(key) != [by]):
        right = f"--key {by}=…" if by else "no --key: it is not kept by one"
        raise click.UsageError(f"limit {limit!r} of gate {gate!r} takes {right}", context)
    value = None if key is None else key[by]
    row = next((row for row in mine if row["key"] == value), general) if value is not None else general
    if as_json:
        params.print_json(row | {"key": value})
    else:
        click.echo(f"{row['value']:.15g}")


@limits.command("set", context_settings={"ignore_unknown_options": True})  # -5 is a wrong value, not an option
@params.gate_argument
@params.limit_argument
@click.argument("value", type=float)
@params.key_option
@click.pass_context
def set_limit(context: click.Context, gate: str, limit: str, value: float, key: dict[str, str] | None) -> None:
    """Override the value of a limit, for everybody or for one key, from the next decision on."""
    if not isfinite(value) or value <= 0:
        raise click.UsageError(f"{value:g} is not a value; a limit is above nought (to stop, use `pause`)", context)
    whole = int(value) if value == int(value) else value
    params.find_gate(context, gate).set_limit(limit, whole, key)
    click.echo(f"{gate}: {limit}{_of(key)} is now {whole:.15g}")


@limits.command("delete")
@params.gate_argument
@params.limit_argument
@params.key_option
@click.pass_context
def delete_limit(context: click.Context, gate: str, limit: str, key: dict[str, str] | None) -> None:
    """End an override: the configured value is in force again. Harmless where there is none."""
    found = params.find_gate(context, gate)
    before = found.overrides()
    found.clear_limit(limit, key)
    if len(found.overrides()) < len(before):
        click.echo(f"{gate}: {limit}{_of(key)} is as configured again")
    else:
        click.echo(f"{gate}: {limit}{_of(key)} had no override")


def _of(key: dict[str, str] | None) -> str:
    return "" if not key else " of " + ",".join(f"{by}={value}" for by, value in key.items())

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
        keys = dict.fromkeys([None, *(one.key for one in changed if one.limit == limit.name)])
        rows += [_row(gate.name, limit, changed, key) for key in keys]
    return rows


def _row(gate: str, limit: Limit, changed: list[Override], key: str | None) -> dict[str, Any]:
    from headgate import Override
    from headgate.kernel.overrides import in_force

    found = in_force(changed, Override(limit.name, key, limit.limit))
    mine = [one for one in changed if one.limit == limit.name and one.key == key]
    return {
        "gate": gate,
        "limit": limit.name,
        "kind": limit.kind,
        "unit": limit.unit,
        "by": limit.by,
        "key": key,
        "configured": limit.limit,
        "override": next((one.value for one in mine if not one.tightened), None),
        "tightened": next((one.value for one in mine if one.tightened), None),
        "value": found.value,
        "reason": found.reason or None,
        "expires_in": found.expires_in,
    }


@limits.command("list")
@params.optional_gate_argument
@params.json_option
@click.pass_context
def list_limits(context: click.Context, gate: str | None, as_json: bool) -> None:
    """List the limits of all gates, or of GATE, with the values in force."""
    from rich.table import Table
    from rich.text import Text

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
    headings = ["gate", "limit", "kind", "unit", "by", "value", "configured"]
    if any(row["reason"] or row["expires_in"] is not None for row in rows):
        headings.append("in force")
    for heading in headings:
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
            value if row["override"] is None and row["tightened"] is None else f"[magenta]{value}[/]",
            amount(row["configured"]),
            *([] if len(headings) == 7 else [Text(_terms_of(row))]),
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
        return
    click.echo(f"{row['value']:.15g}")
    if terms := _terms_of(row):
        click.echo(terms, err=True)  # for people: a script reads the number alone


@limits.command("set", context_settings={"ignore_unknown_options": True})  # -5 is a wrong value, not an option
@params.gate_argument
@params.limit_argument
@click.argument("value", type=float)
@params.key_option
@click.option("--reason", help="Why; everybody who looks at the limit is shown it.")
@click.option(
    "--for", "expires_in", type=params.Duration(), help="It ends by itself after so long: 30m, 2h. Default: it stays."
)
@click.pass_context
def set_limit(
    context: click.Context,
    gate: str,
    limit: str,
    value: float,
    key: dict[str, str] | None,
    reason: str | None,
    expires_in: str | float | None,
) -> None:
    """Override the value of a limit, for everybody or for one key, from the next decision on.

    What workers have tightened stays in force where it is lower; `headgate limits delete --tightened` ends that.
    """
    from headgate import duration
    from headgate.kernel.why import override_words, span

    if not isfinite(value) or value <= 0:
        raise click.UsageError(f"{value:g} is not a value; a limit is above nought (to stop, use `pause`)", context)
    whole = int(value) if value == int(value) else value
    found = params.find_gate(context, gate)
    found.set_limit(limit, whole, key, reason, expires_in)
    lower = next((one for one in found.overrides() if _lowers(one, limit, key) and one.value < whole), None)
    if lower is not None:
        click.echo(f"{gate}: {limit}{_of(key)} is set to {whole:.15g}, and {override_words(lower)}")
    else:
        length = "" if expires_in is None else f" for {span(duration.parse(expires_in) / 1e6)}"
        click.echo(f"{gate}: {limit}{_of(key)} is now {whole:.15g}{length}")


@limits.command("delete")
@params.gate_argument
@params.limit_argument
@params.key_option
@click.option("--tightened", is_flag=True, help="End what workers have lowered, and leave what was set.")
@click.pass_context
def delete_limit(context: click.Context, gate: str, limit: str, key: dict[str, str] | None, tightened: bool) -> None:
    """End an override: the configured value is in force again. Harmless where there is none."""
    found = params.find_gate(context, gate)
    before = found.overrides()
    found.clear_limit(limit, key, tightened)
    left = found.overrides()
    if len(left) == len(before):
        what = "was not tightened" if tightened else "had no override"
        lowered = not tightened and any(_lowers(one, limit, key) for one in left)
        click.echo(f"{gate}: {limit}{_of(key)} {what}" + ("; it is tightened: see --tightened" if lowered else ""))
    elif any(one.limit == limit for one in left):
        click.echo(
            f"{gate}: that override of {limit}{_of(key)} has ended; `headgate limits list {gate}` shows the others"
        )
    else:
        click.echo(f"{gate}: {limit}{_of(key)} is as configured again")


def _lowers(override: Override, limit: str, key: dict[str, str] | None) -> bool:
    """Whether it is a tightening of this limit, for everybody or for this key."""
    return override.tightened and override.limit == limit and override.key in (None, *(key or {}).values())


def _terms_of(row: dict[str, Any]) -> str:
    """Until when the value in force holds, and why, where it says so."""
    from headgate.kernel.why import span

    ends = "" if row["expires_in"] is None else f"for {span(row['expires_in'])}"
    return ": ".join(part for part in (ends, row["reason"]) if part)


def _of(key: dict[str, str] | None) -> str:
    return "" if not key else " of " + ",".join(f"{by}={value}" for by, value in key.items())

"""`headgate explain`: what would become of an ask, and what blocks it."""

from __future__ import annotations

from dataclasses import replace

import click

from . import params


@click.command()
@params.gate_argument
@params.cost_option
@params.key_option
@params.priority_option
@params.json_option
@click.pass_context
def explain(
    context: click.Context,
    gate: str,
    cost: dict[str, float] | None,
    key: dict[str, str] | None,
    priority: str | None,
    as_json: bool,
) -> None:
    """Tell whether an ask would go, which limit blocks it, who holds that, and when it would go.

    Ask as the worker would: with its cost, key and priority. Spends nothing.
    """
    from rich.text import Text

    from headgate.kernel.model import plain
    from headgate.kernel.why import when_words

    from .view import View, gate_lines, make_console, plain_signs

    found = params.find_gate(context, gate)
    answer = found.explain(cost or 1, key, priority)
    if as_json:
        params.print_json(plain(answer))
        return
    console = make_console()
    if answer.granted:
        line = Text("it would go now", style="bold green")
    elif answer.goes_in is None:
        line = Text(f"it can never go: {answer.reason}", style="bold red")
    else:
        when = when_words(answer.goes_in, answer.timing)
        line = Text(f"it would go {when}: {answer.reason}", style="bold yellow")
    console.print(Text.assemble((f"{gate}: ", "bold"), line))
    usage = replace(found.usage(), limits=answer.limits, waiting=answer.waiting)
    view = View(usage, answer.holders, why=found.why(), overrides=answer.overrides)
    for text in gate_lines(view, console.width, plain=plain_signs(console)):
        console.print(text)

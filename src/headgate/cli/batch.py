"""`headgate batch FILE.jsonl --url … --gate … -o OUT.jsonl`: thousands of HTTP calls under a gate, without any Python."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

import click

from headgate import duration
from headgate.batch import Interrupted, Journal, Retry, run
from headgate.batch.http_call import HttpCall

from . import params
from .app import FAILED, INTERRUPTED, OK, Failed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, TextIO

    from headgate.batch import ItemResult, Statistics


def _header(context: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for line in given:
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not value.strip() or not f"{name}{value}".isprintable():
            raise click.BadParameter(f"{line!r} is not a header; write it like 'Authorization: Bearer TOKEN'")
        headers[name.strip()] = os.path.expandvars(value.strip())
    return headers


@click.command()
@click.argument("file", metavar="FILE.jsonl", type=click.Path(exists=True, dir_okay=False))
@click.option("--url", required=True, help="Where to; {field} stands for a field of the item.")
@click.option("--gate", required=True, shell_complete=params.complete_gate, help="The gate of every call.")
@click.option(
    "-o", "--output", metavar="OUT.jsonl", required=True, type=click.Path(dir_okay=False), help="The results."
)
@click.option(
    "--method", default="POST", show_default=True, help="The item is the JSON body, except of GET and DELETE."
)
@click.option(
    "--header",
    metavar="'NAME: VALUE'",
    multiple=True,
    callback=_header,
    help="A header of every request; $NAME in its value is a variable of the environment.",
)
@click.option("--workers", type=click.IntRange(1, 1000), help="Calls at a time. Default: the gate's slots, or 64.")
@click.option("--attempts", default=5, show_default=True, type=click.IntRange(1), help="Calls for an item, at most.")
@click.option("--deadline", type=params.Duration(), help="For all attempts at an item together.")
@click.option("--timeout", default="60s", show_default=True, type=params.Duration(), help="For one answer.")
@params.cost_option
@params.key_option
@params.priority_option
@click.option("--in-order", is_flag=True, help="Results in the order of the items, not as they come.")
@click.option("--journal", metavar="PATH", help="Where finished items are kept. Default: OUT.jsonl.journal.")
@click.option("--retry-failed", is_flag=True, help="Call again for the items that an earlier run left as failed.")
@click.option(
    "--price", type=click.FloatRange(0), help="What a successful call costs: the sum is shown, and projected."
)
@click.option("--quiet", is_flag=True, help="Show no progress.")
@params.json_option
@click.pass_context
def batch(
    context: click.Context,
    file: str,
    url: str,
    gate: str,
    output: str,
    method: str,
    header: dict[str, str],
    workers: int | None,
    attempts: int,
    deadline: str | float | None,
    timeout: str | float,
    cost: dict[str, float] | None,
    key: dict[str, str] | None,
    priority: str | None,
    in_order: bool,
    journal: str | None,
    retry_failed: bool,
    price: float | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Make an HTTP call for every line of FILE.jsonl, under a gate, and write the results to OUT.jsonl.

    Each line of the file is a JSON value. 429 and 503 are tried again, and pause the whole fleet where the answer says for
    how long. What is finished is kept in a journal: the same command again, after Ctrl-C or a crash, calls for nothing
    twice, and OUT.jsonl then has every item once. Ends with 1 where an item failed.
    """
    call = HttpCall(url, method, header, duration.parse(timeout) / 1e6)
    gates = params.load_gates(context)
    found = gates[gate]
    params.warn_if_unshared(gates.config[gate].store)
    total = checked_lines(file)
    kept = journal or f"{output}.journal"
    if os.path.exists(output) and not os.path.exists(kept):
        raise Failed(f"{output}: it is there, and no journal of it ({kept}); delete it, or name another file")
    name = f"{method.upper()} {url}"
    interrupted = False
    with open(f"{output}.part", "w", encoding="utf-8") as results:
        try:
            statistics = run(
                items_of(file),
                call,
                gate=found,
                workers=workers,
                retry=Retry(attempts, deadline=deadline),
                cost=cost or 1,
                key=key,
                priority=priority,
                on_result=lambda result: write(results, result),
                in_order=in_order,
                price=None if price is None else lambda item, value: price,
                total=total,
                journal=Journal(kept, name=name, retry_failed=retry_failed),
                progress=not quiet,
            )
        except Interrupted as stopped:
            statistics, interrupted = stopped.statistics, True
        except BaseException:
            os.remove(f"{output}.part")
            raise
        finally:
            call.close()
    # Whole, or as it was: what a killed run has written of it is in the journal.
    os.replace(f"{output}.part", output)
    tell(statistics, output, kept, as_json)
    context.exit(INTERRUPTED if interrupted else FAILED if statistics.failed else OK)


def checked_lines(file: str) -> int:
    """How many items a file has; a line that is no JSON is refused before anything is called."""
    return sum(1 for _ in items_of(file))


def items_of(file: str) -> Iterator[Any]:
    """The JSON values of the lines; empty lines are passed over."""
    with open(file, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise Failed(f"{file}:{number}: this line is no JSON value ({error}); nothing was called") from None


def write(results: TextIO, result: ItemResult) -> None:
    line: dict[str, Any] = {"index": result.index, "item": result.item, "status": result.status}
    if result.ok:
        line |= {"http_status": result.value["status"], "body": result.value["body"]}
    else:
        line |= {"http_status": getattr(result.error, "status", 0) or None, "error": str(result.error)}
    results.write(json.dumps({**line, "attempts": result.attempts}, ensure_ascii=False) + "\n")
    results.flush()


def tell(statistics: Statistics, output: str, journal: str, as_json: bool) -> None:
    if as_json:
        facts = asdict(statistics)
        del facts["results"]
        params.print_json(facts | {"output": output, "journal": journal})
        return
    click.echo(f"{output}: {statistics}")
    if statistics.unfinished or statistics.interrupted:
        click.echo(f"the same command goes on where this one stopped ({journal})", file=sys.stderr)

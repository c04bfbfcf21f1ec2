"""`headgate queue`: how the queues of a pipeline stand, and holding, draining and emptying them."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict

import click

from . import params
from .app import DENIED, Failed
from .pipelines import find_pipeline, stage_argument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headgate.stages import Pipeline

#: Seconds between two looks at a queue that drains.
LOOK_S = 0.2


@click.group()
def queue() -> None:
    """Show the queues of a pipeline, and pause, drain or empty them."""


@queue.command("list")
@click.argument("pipeline", metavar="MODULE:PIPELINE")
@params.json_option
def list_queues(pipeline: str, as_json: bool) -> None:
    """List the queues of PIPELINE, first stage to last."""
    from rich.table import Table

    from headgate.kernel.why import span

    from .view import make_console

    found = find_pipeline(pipeline)
    stats = found.stats()
    if as_json:
        params.print_json(
            {"pipeline": found.name, "stages": [{"stage": name} | asdict(one) for name, one in stats.items()]}
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for heading in ("stage", "ready", "delayed", "in work", "dead", "done", "failed", "oldest", "gate", ""):
        table.add_column(heading, justify="left" if heading in ("stage", "gate", "") else "right")
    for name, one in stats.items():
        gate = found[name].gate
        counts = (one.ready, one.delayed, one.in_work, one.dead, one.done, one.failed)
        oldest = "" if one.oldest_for is None else span(one.oldest_for)
        paused = "" if one.paused is None else f"paused: {one.paused}"
        table.add_row(name, *map(str, counts), oldest, "" if gate is None else gate.name, paused)
    make_console().print(table)


@queue.command("peek")
@stage_argument
@click.option("--most", type=click.IntRange(1, 10_000), default=10, show_default=True, help="So many messages.")
@params.json_option
def peek(pipeline: str, stage: str, most: int, as_json: bool) -> None:
    """Show the first messages of STAGE, without taking them."""
    seen = find_pipeline(pipeline)[stage].queue.peek(most)
    if as_json:
        messages = [{"id": id, "state": state, "body": body} | asdict(history) for id, state, body, history in seen]
        params.print_json({"messages": messages})
        return
    for id, state, body, history in seen:
        tries = f"{history.attempts} failed, received {history.receives}×"
        click.echo(f"{id}  {state:8} {tries}  {body if len(body) <= 120 else body[:119] + '…'}")
    if not seen:
        click.echo("there is no message")


@queue.command("pause")
@stage_argument
@click.option("--reason", default="paused by hand", show_default=True, help="Why; `queue list` shows it.")
def pause(pipeline: str, stage: str, reason: str) -> None:
    """Let no worker take a message of STAGE. Those in work go on, and new ones are put."""
    find_pipeline(pipeline)[stage].queue.pause(reason)
    click.echo(f"{stage}: paused; `headgate queue resume {pipeline} {stage}` ends it")


@queue.command("resume")
@stage_argument
def resume(pipeline: str, stage: str) -> None:
    """Let workers take messages of STAGE again. Harmless where it is not paused."""
    one = find_pipeline(pipeline)[stage].queue
    paused = one.stats().paused is not None
    one.resume()
    click.echo(f"{stage}: {'goes on' if paused else 'was not paused'}")


@queue.command("drain")
@click.argument("pipeline", metavar="MODULE:PIPELINE")
@click.option(
    "--timeout", type=params.Duration(zero=True), default="10m", show_default=True, help="Wait at most so long."
)
def drain(pipeline: str, timeout: str | float) -> None:
    """Pause all stages, and wait until nothing is in work: before a deploy.

    Messages stay in their queues. `headgate queue resume` lets the stages go on, one by one. Ends with 75 when the time is
    over.
    """
    from headgate import duration

    found = find_pipeline(pipeline)
    for stage in found:
        stage.queue.pause("drained")
    until = time.monotonic() + duration.parse(timeout, what="--timeout", zero=True) / 1_000_000
    with _Watched(found) as watched:
        while (busy := watched.look()) and time.monotonic() < until:
            time.sleep(LOOK_S)
    if busy:
        raise Failed(f"{busy} messages are still in work; the stages stay paused", DENIED)
    click.echo(f"{found.name}: nothing is in work, and all stages are paused")


class _Watched:
    """What is in work, shown on a terminal while it becomes less."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._shows = sys.stderr.isatty()

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *error: object) -> None:
        if self._shows:
            click.echo("\r\x1b[K", nl=False, err=True)

    def look(self) -> int:
        stats = self._pipeline.stats()
        if self._shows:
            told = ", ".join(f"{name} {one.in_work}" for name, one in stats.items())
            click.echo(f"\r\x1b[Kin work: {told}", nl=False, err=True)
        return sum(one.in_work for one in stats.values())


@queue.command("purge")
@stage_argument
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def purge(context: click.Context, pipeline: str, stage: str, yes: bool) -> None:
    """Delete every message of STAGE that no worker has. Dead letters stay."""
    one = find_pipeline(pipeline)[stage].queue
    params.make_sure(context, yes, f"this deletes all messages of {stage} for good")
    click.echo(f"{stage}: {one.purge()} messages are deleted")

"""`headgate dlq`: the dead letters of a pipeline: which, why, and what to do with them."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import wraps

import click

from headgate import duration

from . import params
from .app import Failed
from .pipelines import find_pipeline, stage_argument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from headgate.stages import DeadFilter, DeadLetter

#: Letters that one command looks at.
MOST = 100_000


@click.group()
def dlq() -> None:
    """Show dead letters, put them back at a rate, or drop them."""


def filters(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which letters are meant: handed on as one `which`."""

    @click.option("--reason", type=click.Choice(["poison", "failed", "killed"]), help="Only those of this reason.")
    @click.option("--older-than", metavar="DURATION", help="Only those buried at least so long ago, such as 1h.")
    @click.option("--text", help="Only those with this text in their id, body or error.")
    @wraps(command)
    def call(reason: str | None, older_than: str | None, text: str | None, **more: Any) -> Any:
        from headgate.stages import DeadFilter

        least = None if older_than is None else duration.parse(older_than, what="--older-than", zero=True) / 1_000_000
        return command(which=DeadFilter(reason, least, text), **more)

    return call


def plain(stage: str, letter: DeadLetter) -> dict[str, Any]:
    found = asdict(letter)
    buried_at = found.pop("buried_at_us") / 1_000_000
    return {"stage": stage} | found | {"buried_at": buried_at}


@dlq.command("list")
@click.argument("pipeline", metavar="MODULE:PIPELINE")
@click.option("--stage", "names", metavar="NAME", multiple=True, help="Only this stage; may be repeated.")
@filters
@click.option("--most", type=click.IntRange(1, MOST), default=50, show_default=True, help="So many of each stage.")
@params.json_option
def list_letters(pipeline: str, names: tuple[str, ...], which: DeadFilter, most: int, as_json: bool) -> None:
    """List the dead letters of PIPELINE, the oldest first."""
    found = find_pipeline(pipeline)
    stages = [found[name] for name in names] or list(found)
    letters = [(stage.name, letter) for stage in stages for letter in stage.queue.dead_letters(which, most)]
    if as_json:
        params.print_json({"letters": [plain(stage, letter) for stage, letter in letters]})
        return
    for stage, letter in letters:
        error = letter.error.splitlines()[0] if letter.error else ""
        click.echo(f"{stage}  {letter.id}  {letter.reason:6}  {letter.history.attempts} failed  {error}")
    if not letters:
        click.echo("there is no dead letter")


@dlq.command("show")
@stage_argument
@click.argument("id")
@params.json_option
def show(pipeline: str, stage: str, id: str, as_json: bool) -> None:
    """Show one dead letter of STAGE: its reason, the whole error, its history and its body."""
    from headgate.stages import DeadFilter

    letters = find_pipeline(pipeline)[stage].queue.dead_letters(DeadFilter(ids=(id,)), 1)
    if not letters:
        raise Failed(f"stage {stage!r} has no dead letter {id!r}; `headgate dlq list {pipeline}` shows those there are")
    if as_json:
        params.print_json(plain(stage, letters[0]))
        return
    for name, value in plain(stage, letters[0]).items():
        click.echo(f"{name}: {json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else value}")


@dlq.command("redrive")
@stage_argument
@click.argument("ids", nargs=-1)
@filters
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second. Default: all at once.")
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
def redrive(
    pipeline: str, stage: str, ids: tuple[str, ...], which: DeadFilter, rate: float | None, dry_run: bool
) -> None:
    """Put dead letters of STAGE back into its queue: IDS, or all that the options name.

    They begin with a new history, and go through the gate of the stage like all others.
    """
    one = find_pipeline(pipeline)[stage].queue
    found = [letter.id for letter in one.dead_letters(which._replace(ids=ids), MOST)]
    if dry_run:
        click.echo(f"{stage}: {len(found)} dead letters would be put back")
        return
    moved = one.redrive(found, 0 if rate is None else round(1_000_000 / rate))
    click.echo(f"{stage}: {moved} dead letters are messages again")


@dlq.command("drop")
@stage_argument
@click.argument("ids", nargs=-1)
@filters
@click.option("--dry-run", is_flag=True, help="Only say how many there are.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def drop(
    context: click.Context, pipeline: str, stage: str, ids: tuple[str, ...], which: DeadFilter, dry_run: bool, yes: bool
) -> None:
    """Delete dead letters of STAGE for good: IDS, or all that the options name."""
    one = find_pipeline(pipeline)[stage].queue
    found = [letter.id for letter in one.dead_letters(which._replace(ids=ids), MOST)]
    if dry_run:
        click.echo(f"{stage}: {len(found)} dead letters would be deleted")
        return
    params.make_sure(context, yes, f"this deletes {len(found)} dead letters of {stage} for good")
    click.echo(f"{stage}: {one.drop(found)} dead letters are deleted")

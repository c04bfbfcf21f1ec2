"""`headgate worker MODULE:PIPELINE`: work on the stages of a pipeline."""

from __future__ import annotations

import sys
import time

import click

from . import params
from .pipelines import find_pipeline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.stages import Pipeline, Worker


@click.command()
@click.argument("pipeline", metavar="MODULE:PIPELINE")
@click.option(
    "--stage", "names", metavar="NAME", multiple=True, help="Work on this stage; may be repeated. Default: on all."
)
@click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True, help="Handlers per stage.")
@click.option("--until-empty", is_flag=True, help="End when no stage has a message, delayed ones included.")
@click.option(
    "--stop-within",
    type=params.Duration(zero=True),
    default="30s",
    show_default=True,
    help="How long SIGTERM and Ctrl-C wait for handlers. What is not done then goes back to its queue.",
)
@params.json_option
def worker(
    pipeline: str, names: tuple[str, ...], concurrency: int, until_empty: bool, stop_within: str | float, as_json: bool
) -> None:
    """Take permits and messages, and run handlers, until a signal comes or all is done.

    PIPELINE is a `headgate.stages.Pipeline` in MODULE, which is imported from the working directory: `headgate worker
    papers:pipeline --until-empty`. Prints how many messages ended how.
    """
    from headgate.stages import Worker

    found = find_pipeline(pipeline)
    stages = [found[name] for name in names] or list(found)
    working = Worker(stages, concurrency=concurrency, stop_within=stop_within)
    if until_empty and sys.stderr.isatty():
        with StageBars(found) as on_progress:
            tally = working.run(until_empty=True, on_progress=on_progress)
    else:
        tally = working.run(until_empty=until_empty)
    if as_json:
        params.print_json({stage: dict(counts) for stage, counts in tally.items()})
        return
    for stage, counts in tally.items():
        told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "nothing to do"
        click.echo(f"{found.name}.{stage}: {told}")


class StageBars:
    """A bar per stage on the terminal: how many are left, the rate, and the time that takes as the gate allows it."""

    def __init__(self, pipeline: Pipeline) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self._pipeline = pipeline
        self._began = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._bars = {stage.name: self._progress.add_task(stage.name, total=None, told="") for stage in pipeline}

    def __enter__(self) -> Callable[[Worker], None]:
        self._progress.start()
        return self._show

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def _show(self, worker: Worker) -> None:
        took_s = max(time.monotonic() - self._began, 0.001)
        for name, counts in worker.tally().items():
            stats = self._pipeline[name].queue.stats()
            ended = counts["done"] + counts["repeated"] + counts["dead"]
            rate = ended / took_s
            left = f", {stats.waiting / rate:.0f} s left" if rate else ""
            self._progress.update(
                self._bars[name],
                completed=ended,
                total=ended + stats.waiting,
                told=f"{rate:.1f}/s{left}, {stats.in_work} in work, {stats.dead} dead",
            )

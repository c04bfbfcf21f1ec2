"""`headgate demo`: worker processes against an upstream that keeps its own books, without Headgate and with it.

The upstream is `window` of `simulate/upstreams` in a process of its own, a fresh one for each run; the figures of the
table are its count. The workers are processes too. First each is on its own, and backs off when it is refused; then they
share a gate whose state is in a SQLite file.
"""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from pathlib import Path

import click

from headgate import InvalidInput, duration
from headgate.simulate import upstreams

from . import params
from .app import Failed
from .demo_workers import Caller, Setting, work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from rich.console import Console

RUNS = ("uncoordinated", "headgate")


@click.command()
@click.option("--limit", default=200, show_default=True, type=click.IntRange(1, 10_000), help="Requests in any window.")
@click.option("--window", default="10s", show_default=True, type=params.Duration(), help="The window: a scaled minute.")
@click.option("--calls", type=click.IntRange(1, 100_000), help="Calls to make. Default: three windows' worth.")
@click.option("--workers", default=4, show_default=True, type=click.IntRange(1, 200), help="Worker processes.")
@click.option(
    "--threads", default=8, show_default=True, type=click.IntRange(1, 100), help="Calls at a time in each of them."
)
@click.option(
    "--seconds", default="25s", show_default=True, type=params.Duration(), help="Cut the first run off after this."
)
@params.json_option
def demo(
    limit: int, window: str | float, calls: int | None, workers: int, threads: int, seconds: str | float, as_json: bool
) -> None:
    """See the promise: the same work without Headgate and with it.

    A local HTTP upstream allows 200 requests in any window and answers 429 to the rest, on its own books. Worker processes
    call it, first each on its own, then under a gate. Ends by itself within a minute, with a table.
    """
    setting = Setting(
        limit=limit,
        per=duration.parse(window) / 1e6,
        calls=calls or 3 * limit,
        workers=workers,
        threads=threads,
        seconds=duration.parse(seconds) / 1e6,
    )
    if setting.per < 0.5:
        raise InvalidInput(
            f"a window of {setting.per:g} s is too short to tell anything here; take half a second or more"
        )
    from .view import make_console

    show: Show = Quiet() if as_json else Live() if make_console().is_terminal else Lines()
    show.begin(setting)
    rows = demonstrate(setting, show)
    if as_json:
        params.print_json(
            {"limit": setting.limit, "per": setting.per, "rows": [row | {"run": name} for name, row in rows]}
        )
    else:
        print_table(setting, rows)


# --- the demonstration --------------------------------------------------------------------------------------------


def demonstrate(setting: Setting, show: Show) -> list[tuple[str, dict[str, Any]]]:
    """Make both runs; returns each one's name and what the upstream counted."""
    context = multiprocessing.get_context("spawn")
    rows = []
    with tempfile.TemporaryDirectory(prefix="headgate-demo-") as directory:
        store = f"sqlite:///{Path(directory, 'demo.db')}"
        ports = context.Array("i", len(RUNS))
        left = [context.Value("q", setting.calls) for _ in RUNS]
        deadlines = [context.Value("d", 0.0) for _ in RUNS]
        barrier = context.Barrier(setting.workers + 1)
        arguments = (setting, store, ports, left, deadlines, barrier)
        workers = [context.Process(target=work, args=arguments, daemon=True) for _ in range(setting.workers)]
        for worker in workers:
            worker.start()
        try:
            for number, name in enumerate(RUNS):
                policy = f"requests={setting.limit}/{duration.render(round(setting.per * 1e6))},sliding"
                with upstreams.start_process("window", [policy]) as upstream:
                    port = ports[number] = upstream.port
                    longest = setting.seconds if number == 0 else setting.calls / setting.limit * setting.per + 10
                    rows.append((name, one_run(setting, name, port, barrier, deadlines[number], longest, show)))
            for worker in workers:
                worker.join(10)
        except multiprocessing.context.TimeoutError:
            raise Failed("the workers did not get ready; is the machine very busy?") from None
        finally:
            show.end()
            for worker in workers:
                worker.kill()
                worker.join(10)
    return rows


def one_run(
    setting: Setting, name: str, port: int, barrier: Any, deadline: Any, longest: float, show: Show
) -> dict[str, Any]:
    import threading

    finished = threading.Event()
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            barrier.wait(longest + 60)
        except threading.BrokenBarrierError as error:
            failed.append(error)
        finished.set()

    deadline.value = time.monotonic() + 60  # until all are at the start
    try:
        barrier.wait(60)
    except threading.BrokenBarrierError:
        raise Failed("the workers did not get ready within a minute; is the machine very busy?") from None
    begun = time.monotonic()
    deadline.value = begun + longest
    threading.Thread(target=wait, daemon=True).start()
    caller = Caller(port)
    while not finished.wait(0.2):
        show.progress(name, json.loads(caller.get("/_books")[1]), time.monotonic() - begun)
    page: dict[str, Any] = json.loads(caller.get("/_books")[1])
    caller.close()
    if failed:
        raise Failed(f"the {name} run did not end; {page['accepted']} of {setting.calls} calls were made")
    show.progress(name, page, time.monotonic() - begun, done=True)
    return page


# --- output -------------------------------------------------------------------------------------------------------


class Show:
    """Shows how the runs go: `begin`, `progress` several times a second, `end`."""

    def begin(self, setting: Setting) -> None:
        raise NotImplementedError

    def progress(self, name: str, page: dict[str, Any], seconds: float, done: bool = False) -> None:
        raise NotImplementedError

    def end(self) -> None:
        pass


class Quiet(Show):
    """Shows nothing: for `--json`."""

    def begin(self, setting: Setting) -> None:
        pass

    def progress(self, name: str, page: dict[str, Any], seconds: float, done: bool = False) -> None:
        pass


class Lines(Show):
    """Where there is no terminal: a line now and then."""

    def begin(self, setting: Setting) -> None:
        self._setting = setting
        self._next = 5.0
        click.echo(_what(setting))

    def progress(self, name: str, page: dict[str, Any], seconds: float, done: bool = False) -> None:
        if not done and seconds < self._next:
            return
        self._next = 5.0 if done else self._next + 5.0
        told = f"{page['accepted']} of {self._setting.calls} done, {page['refused']} refused"
        click.echo(f"  {name:13} {seconds:5.1f} s: {told}{', ended' if done else ''}")


class Live(Show):
    """In a terminal: two bars."""

    def begin(self, setting: Setting) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(highlight=False)
        console.print(_what(setting), soft_wrap=False)
        console.print()
        self._bars = Progress(
            TextColumn("  [bold]{task.description:13}"),
            BarColumn(None),
            TextColumn("{task.completed:>4.0f}/{task.total:.0f} done"),
            TextColumn("{task.fields[refused]}"),
            TextColumn("{task.fields[seconds]:5.1f} s"),
            console=console,
            expand=True,
        )
        self._tasks = {
            name: self._bars.add_task(name, total=setting.calls, refused=_refusals(0), seconds=0.0, start=True)
            for name in RUNS
        }
        self._bars.start()

    def progress(self, name: str, page: dict[str, Any], seconds: float, done: bool = False) -> None:
        self._bars.update(
            self._tasks[name], completed=page["accepted"], refused=_refusals(page["refused"]), seconds=seconds
        )

    def end(self) -> None:
        self._bars.stop()


def _refusals(count: int) -> str:
    return f"[{'bold red' if count else 'green'}]{count:>5} × 429[/]"


def _what(setting: Setting) -> str:
    return (
        f"An upstream that allows {params.counted(setting.limit, 'request')} in any {setting.per:g} s and counts for "
        f"itself; {params.counted(setting.workers, 'worker process/worker processes')}, "
        f"{params.counted(setting.workers * setting.threads, 'call')} at a time, "
        f"{setting.calls:,} to make."
    )


def print_table(setting: Setting, rows: Sequence[tuple[str, dict[str, Any]]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from .view import make_console, plain_signs

    console = make_console()
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for heading in ("", "done", "refused (429)", "utilisation", "seconds"):
        table.add_column(heading, justify="right" if heading else "left", min_width=0 if heading else 14)
    for name, page in rows:
        table.add_row(
            Text(name, style="bold"),
            f"{page['accepted']:,}" + ("" if page["accepted"] == setting.calls else f" of {setting.calls:,}"),
            Text(f"{page['refused']:,}", style="bold red" if page["refused"] else "bold green"),
            f"{page['utilisation']:.1%}",
            f"{page['seconds']:.1f}",
        )
    console.print()
    console.print(table)
    if not plain_signs(console):
        console.print()
        for name, page in rows:
            draw(console, name, page, max(page["seconds"] for _, page in rows))
    console.print()
    console.print(
        Text(
            "The upstream counted this. Utilisation: of what it would have allowed from the first to the last acceptance.",
            style="bright_black",
        )
    )


def draw(console: Console, name: str, page: dict[str, Any], seconds: float) -> None:
    """Acceptances and refusals over time."""
    from rich.text import Text

    from .view import LEVELS

    width = max(10, min(60, console.width - 24))
    step = max(seconds, 0.1) / (width - 1)
    for what, colour in (("accepted", "green"), ("refused", "red")):
        counts = [0] * width
        for at in page[f"{what}_at"]:
            counts[min(width - 1, int(at / step))] += 1
        most = max([*counts, 1])
        # Roots, so that a handful is seen beside a burst of hundreds.
        signs = "".join(LEVELS[round(8 * (count / most) ** 0.5)] if count else "·" for count in counts)
        console.print(Text.assemble((f"{name if what == 'accepted' else '':14}", "bold"), f"{what:9}", (signs, colour)))

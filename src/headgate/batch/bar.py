"""The progress of a run as a bar in a terminal, with rich."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from .progress import words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .progress import RunProgress


class ProgressBar:
    """A bar, and beside it what a line would say; gone when the run ends, but for its last state."""

    every_s = 0.25

    def __init__(self, console: Console | None = None) -> None:
        columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
        console = console or Console(stderr=True, highlight=False)
        self._progress = Progress(*columns, console=console, auto_refresh=False)
        self._task: TaskID | None = None

    def show(self, snapshot: RunProgress) -> None:
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task("", total=snapshot.total)
        self._progress.update(self._task, completed=snapshot.done, description=words(snapshot), refresh=True)

    def close(self, snapshot: RunProgress) -> None:
        self.show(snapshot)
        self._progress.stop()

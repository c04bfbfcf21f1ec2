"""A job of the SQLite store: what one caller wants decided, from the queue to its replies."""

from __future__ import annotations

from contextlib import suppress
from operator import attrgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...kernel.commands import Command

_writes = attrgetter("writes")


class SqliteJob:
    """The commands of one caller, and their replies."""

    __slots__ = ("commands", "done", "error", "on_done", "replies", "writes")

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.replies: list[Any] = []
        self.error: BaseException | None = None
        self.done = False
        self.writes = any(map(_writes, commands))
        #: Called when it is done, or when it is its task's turn to make an attempt, while a task sleeps until then.
        self.on_done: Callable[[], object] | None = None

    def finish(self) -> None:
        self.done = True
        self.wake()

    def wake(self) -> None:
        if (on_done := self.on_done) is not None:
            with suppress(RuntimeError):  # its event loop has ended
                on_done()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.finish()

    def result(self) -> list[Any]:
        if self.error is not None:
            raise self.error
        return self.replies

"""The commands of one caller on their way to a server, and the errors that they may meet there."""

from __future__ import annotations

from ...errors import HeadgateError, StoreUnavailable
from ...kernel.commands import Admit, Settle

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ...kernel.commands import Command
    from .coalescing import Bell


class ConnectionLost(Exception):
    """There is no connection to the server. `connected`: there was one, so the request may have arrived. `greeting`: it was
    lost while client and server introduced themselves, so the server is there and the request has not been sent."""

    def __init__(self, text: str, connected: bool, greeting: bool = False) -> None:
        super().__init__(text)
        self.connected = connected
        self.greeting = greeting


class AnswerTimeout(Exception):
    """The server did not answer in time."""


class OutcomeUnknown(StoreUnavailable):
    """The reply was lost although the store is there, and sending the command again might do it twice."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args, decided=True)


def repeatable(command: Command) -> bool:
    """Whether a command may be sent again when it is unknown whether it was decided.

    An ask whose id is on record is the same ask, by its attempt; an end is an end; a heartbeat, a peek or a change does
    the same again. What was really spent is charged as a difference, and twice would be wrong.
    """
    if isinstance(command, Admit):
        return command.remembered
    if isinstance(command, Settle):
        return command.remembered and command.actual is None
    return True


class ThreadJob:
    """The commands of one thread, and their replies or the error that came instead."""

    __slots__ = ("bell", "commands", "done", "error", "replies", "sent")

    def __init__(self, commands: Sequence[Command]) -> None:
        self.commands = commands
        self.replies: Sequence[Any] = ()
        self.error: BaseException | None = None
        self.done = False
        #: What its thread waits on, if it has to wait.
        self.bell: Bell | None = None
        #: It may have reached a server.
        self.sent = False

    @property
    def repeatable(self) -> bool:
        return all(repeatable(command) for command in self.commands)

    def finish(self, replies: Sequence[Any]) -> None:
        self.replies = replies
        self.done = True
        if self.bell is not None:
            self.bell.ring()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.done = True
        if self.bell is not None:
            self.bell.ring()

    def result(self) -> list[Any]:
        if self.error is not None:
            raise self.error
        return list(self.replies)


class LoopJob:
    """The commands of one task, and the future that it awaits."""

    __slots__ = ("commands", "future", "sent")

    def __init__(self, commands: Sequence[Command], future: asyncio.Future[Any]) -> None:
        self.commands = commands
        self.future = future
        #: It may have reached a server.
        self.sent = False

    @property
    def repeatable(self) -> bool:
        return all(repeatable(command) for command in self.commands)

    def finish(self, replies: Any) -> None:
        future = self.future
        if not future.done():
            future.set_result(replies)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def fail_all(jobs: Iterable[ThreadJob | LoopJob], error: HeadgateError, *, undecided: bool = False) -> None:
    """Fail every job with an error of its own, since they are raised in different threads.

    `undecided`: the server is known to have decided none of them.
    """
    for job in jobs:
        failure = type(error)(*error.args)
        failure.__cause__ = error.__cause__
        if isinstance(failure, StoreUnavailable) and (undecided or not job.sent):
            failure.decided = False
        job.fail(failure)

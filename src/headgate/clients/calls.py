"""One call under a permit, from its grant to the end of its answer: written once, as steps for threads and for event loops.

A method that talks to the permit is a generator of functions to call; `drive` calls them, `adrive` awaits what they return.
"""

from __future__ import annotations

from time import time

from ..events import emit
from ..http.report import read
from .answers import Answer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any, TypeVar

    from ..gate import AsyncPermit, Permit
    from ..http.report import Report
    from .asking import SettleBy

    T = TypeVar("T")
    Steps = Generator[Callable[[], Any], Any, T]


def drive(steps: Steps[T]) -> T:
    """Take the steps in this thread."""
    value: Any = None
    try:
        step = next(steps)
        while True:
            try:
                value = step()
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def adrive(steps: Steps[T]) -> T:
    """Take the steps on the event loop; each is awaited."""
    value: Any = None
    try:
        step = next(steps)
        while True:
            try:
                value = await step()
            except BaseException as error:
                step = steps.throw(error)
            else:
                step = steps.send(value)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


class Call:
    """One call and its permit. However it goes, `end`, `fail` or `drop` ends the permit, once."""

    __slots__ = ("_discover", "_outcome", "_permit", "_settle", "_state", "is_written")

    def __init__(
        self,
        permit: Permit | AsyncPermit,
        settle: SettleBy | None,
        discover: Callable[[Answer], Steps[None]] | None = None,
    ) -> None:
        self._permit = permit
        self._settle = settle
        #: Reads the limits that the upstream says it has.
        self._discover = discover
        self._outcome: Any = "error"
        #: Whether anything of the request may have left. Until then the permit can be given back.
        self.is_written = False
        self._state = 0

    @property
    def settles(self) -> bool:
        """Whether the body is wanted, to settle by."""
        return self._settle is not None

    @property
    def is_over(self) -> bool:
        return bool(self._state)

    def write(self) -> Steps[None]:
        """The request is about to be written. Raises where it must not be."""
        yield self._permit.sent
        self.is_written = True

    def take(self, answer: Answer, *, comes_in_pieces: bool = False) -> Steps[Report]:
        """The answer's head is here; of a refusal, its body too."""
        self.is_written = True
        report = read(answer, time())
        self._outcome = report.outcome
        if report != "ok" or report.retry_after:
            yield lambda: self._permit.report(answer)
        elif comes_in_pieces:
            # The upstream has counted it, and the last piece may be long in coming. Any other answer tells it as it ends.
            yield self._permit.confirm
        if self._discover is not None:
            yield from self._discover(answer)
        return report

    def fail(self) -> Steps[None]:
        """There is no answer: what never left is given back, anything else may have been counted."""
        if not self._state:
            self._state = 1
            outcome = "error" if self.is_written else "unsent"
            yield lambda: self._permit.release(outcome)  # type: ignore[arg-type]  # both are outcomes

    def end(self, answer: Answer | None = None) -> Steps[None]:
        """The body was read or dropped. `answer` is the whole of it, where that is wanted and was read."""
        if self._state:
            return
        self._state = 1
        try:
            if answer is not None and (actual := self._used(answer)):
                try:
                    yield lambda: self._permit.settle(actual)
                except Exception as error:
                    self._unsettled(error)
        finally:
            yield lambda: self._permit.release(self._outcome)

    def _used(self, answer: Answer) -> Any:
        assert self._settle is not None
        try:
            return self._settle(answer)
        except Exception as error:
            # The call was made, and its caller is to have the answer; the charge stays what it was estimated to be.
            self._unsettled(error)
            return None

    def _unsettled(self, error: Exception) -> None:
        emit("settle_failed", self._permit.gate_name, error=f"{type(error).__name__}: {error}")

    def drop(self) -> None:
        """End it from where nothing can be awaited: its answer was dropped without having been read or closed."""
        if not self._state:
            self._state = 1
            self._permit.release_soon(self._outcome)

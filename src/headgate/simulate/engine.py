"""Virtual time: tasks that sleep, park and are woken, run one event after the other as fast as the machine can.

A task is a generator. It yields how it waits: a number of microseconds (sleep), `PARK` (until it is told something), or
`park_for(delay)` (until it is told something, at most so long). What it was told is what the `yield` gives back;
`TIMED_OUT` when nobody told it anything.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count

from ..kernel.flows import TIMED_OUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    #: What a task is made of; also what is used in one by `yield from`.
    Steps = Generator[int | None, Any, Any]

PARK = None


def park_for(delay: int) -> int:
    """Park for at most `delay` microseconds. (A negative number tells it from a sleep.)"""
    return -1 - delay


class Task:
    """One line of work in virtual time."""

    __slots__ = ("engine", "mail", "parked", "send", "steps", "turn")

    def __init__(self, engine: Engine, steps: Steps) -> None:
        self.engine = engine
        self.steps = steps
        self.send = steps.send
        #: An event of an earlier turn is stale: the task was told something before its timer, or was killed.
        self.turn = 0
        self.parked = False
        self.mail: deque[Any] = deque()

    def tell(self, delay: int | None) -> None:
        """Wake the task if it is parked; with a delay, it is told TIMED_OUT after so many microseconds, unless it is told
        something before. If it is not parked, it finds this when it parks the next time."""
        if not self.parked:
            self.mail.append(delay)
        elif delay is None:
            self.parked = False
            self.turn = turn = self.turn + 1
            self.engine.ready.append((self, turn))
        else:
            self.turn += 1
            self.engine.push(self, delay)

    def kill(self) -> None:
        """End it where it stands. What it would still ask for on its way out is not done: a killed process does nothing."""
        self.turn += 1
        self.parked = False
        self.mail.clear()
        try:
            self.steps.throw(GeneratorExit)
            while True:
                next(self.steps)
        except (StopIteration, GeneratorExit):
            pass


class Engine:
    """The clock and what will happen. `now` is in microseconds."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.begun = now
        self.stopped = False
        #: Tasks that were told something, in their turn.
        self.ready: deque[tuple[Task, int]] = deque()
        self._heap: list[tuple[int, int, Task, int]] = []
        #: Of events at the same moment, the first to be announced comes first.
        self._number = count().__next__

    def start(self, steps: Steps, delay: int = 0) -> Task:
        """A new task whose first step is `delay` microseconds from now."""
        task = Task(self, steps)
        self.push(task, delay)
        return task

    def push(self, task: Task, delay: int) -> None:
        """The task's next event, unless its turn comes before."""
        heappush(self._heap, (self.now + delay, self._number(), task, task.turn))

    def run(self, until: int) -> None:
        """Let things happen until somebody sets `stopped`, or the time is over."""
        heap, ready, number = self._heap, self.ready, self._number
        self.start(self._end(), until - self.now)
        while not self.stopped:
            if ready:
                task, turn = ready.popleft()
                if task.turn != turn:
                    continue
                value = None
            else:
                self.now, _, task, turn = heappop(heap)
                if task.turn != turn:
                    continue
                value = None
                if task.parked:
                    value = TIMED_OUT
                    task.parked = False
            try:
                delay = task.send(value)
                while delay is None or delay < 0:
                    if not task.mail:
                        task.parked = True
                        if delay is not None:
                            self.push(task, -1 - delay)
                        break
                    delay = task.send(task.mail.popleft())
                else:
                    heappush(heap, (self.now + delay, number(), task, task.turn))
            except StopIteration:
                continue

    def _end(self) -> Steps:
        self.stopped = True
        return
        yield

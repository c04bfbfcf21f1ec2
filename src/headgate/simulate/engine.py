"""Virtual time: tasks that sleep, park and are woken, run one event after the other as fast as the machine can.

A task is a generator. It yields how it waits: a number of microseconds (sleep), `PARK` (until it is woken), or
`park_for(delay)` (until it is woken, at most so long). The `yield` returns what `Task.tell` was given, or `TIMED_OUT`.
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
    """A generator that runs in virtual time."""

    __slots__ = ("engine", "mail", "parked", "send", "steps", "turn")

    def __init__(self, engine: Engine, steps: Steps) -> None:
        self.engine = engine
        self.steps = steps
        self.send = steps.send
        #: An event of an earlier turn is stale: the task was woken before its timer ran out, or was killed.
        self.turn = 0
        self.parked = False
        self.mail: deque[Any] = deque()

    def tell(self, delay: int | None) -> None:
        """Wake the task if it is parked. With a delay (microseconds) it gets TIMED_OUT that much later, unless it is woken
        before. If it is not parked, it gets this when it parks the next time."""
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
        """End it where it is. What it still yields on its way out is ignored: a killed process does nothing more."""
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
    """The virtual clock and its queue of events. `now` is in microseconds."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.begun = now
        self.stopped = False
        #: Tasks that were woken, in order.
        self.ready: deque[tuple[Task, int]] = deque()
        self._heap: list[tuple[int, int, Task, int]] = []
        #: Events at the same moment run in the order in which they were queued.
        self._number = count().__next__

    def start(self, steps: Steps, delay: int = 0) -> Task:
        """Start a task that takes its first step `delay` microseconds from now."""
        task = Task(self, steps)
        self.push(task, delay)
        return task

    def push(self, task: Task, delay: int) -> None:
        """Queue the task's next event. It is stale if the task is woken before."""
        heappush(self._heap, (self.now + delay, self._number(), task, task.turn))

    def run(self, until: int) -> None:
        """Run events until a task sets `stopped`, or virtual time reaches `until` (microseconds)."""
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

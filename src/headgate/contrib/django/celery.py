"""Celery: a task that has an execution id keeps its run's slot while it runs, and completes it when it ends.

    from headgate.contrib.django.celery import connect
    connect()                                                # in the worker, where the app is made

The id is the task's argument `execution_id`, or what `execution_id(task, args, kwargs)` returns; None: not a run.
"""

from __future__ import annotations

from celery import signals

from .keeping import Kept, keep
from .slots import complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Find = Callable[[Any, Any, Any], object]


def by_argument(task: Any, args: Any, kwargs: Any) -> object:
    """The keyword argument `execution_id`."""
    return (kwargs or {}).get("execution_id")


class TaskRuns:
    """The receivers. `disconnect()` ends them."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._kept: dict[str, Kept] = {}

    def connect(self) -> TaskRuns:
        for name in ("prerun", "postrun", "failure", "revoked"):
            getattr(signals, f"task_{name}").connect(getattr(self, name), weak=False, dispatch_uid=f"headgate-{name}")
        return self

    def disconnect(self) -> None:
        for name in ("prerun", "postrun", "failure", "revoked"):
            getattr(signals, f"task_{name}").disconnect(dispatch_uid=f"headgate-{name}")

    def prerun(self, task_id: str = "", task: Any = None, args: Any = None, kwargs: Any = None, **more: Any) -> None:
        id = self._find(task, args, kwargs)
        if id is not None:
            self._kept[task_id] = keep(id).__enter__()

    def postrun(
        self, task_id: str = "", task: Any = None, args: Any = None, kwargs: Any = None, state: str | None = None,
        **more: Any,
    ) -> None:  # fmt: skip
        if (kept := self._kept.pop(task_id, None)) is not None:
            kept.__exit__(None, None, None)
        # A task that is retried goes on later, with its slot: its lease has to outlast the wait.
        if state not in ("RETRY", "REJECTED", "IGNORED"):
            self._complete(task, args, kwargs)

    def failure(self, sender: Any = None, args: Any = None, kwargs: Any = None, **more: Any) -> None:
        """Also told by the parent of a worker that died, where no `task_postrun` comes."""
        self._complete(sender, args, kwargs)

    def revoked(self, sender: Any = None, request: Any = None, **more: Any) -> None:
        self._complete(sender, getattr(request, "args", None), getattr(request, "kwargs", None))

    def _complete(self, task: Any, args: Any, kwargs: Any) -> None:
        id = self._find(task, args, kwargs)
        if id is not None:
            complete(id)


def connect(execution_id: Find = by_argument) -> TaskRuns:
    """Have Celery's signals keep and complete runs, in this process. Twice is harmless: a release is made once."""
    return TaskRuns(execution_id).connect()

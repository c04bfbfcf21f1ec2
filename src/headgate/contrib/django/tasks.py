"""Django's Tasks (Django 6, or the package django-tasks before it): a task that finishes completes its run.

from headgate.contrib.django.tasks import connect
connect()                                                # in an AppConfig.ready()
"""

from __future__ import annotations

from importlib import import_module

from django.core.exceptions import ImproperlyConfigured

from .slots import complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def by_argument(result: Any) -> object:
    """The keyword argument `execution_id` of the task."""
    return result.kwargs.get("execution_id")


def connect(execution_id: Callable[[Any], object] = by_argument) -> None:
    """Have `task_finished` complete the run of a task, whatever its end. None for an id: not a run."""

    def finished(sender: Any, task_result: Any, **more: Any) -> None:
        id = execution_id(task_result)
        if id is not None:
            complete(id)

    _signals().task_finished.connect(finished, weak=False, dispatch_uid="headgate-task-finished")


def _signals() -> Any:
    for name in ("django.tasks.signals", "django_tasks.signals"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise ImproperlyConfigured(
        "there are no Tasks: they come with Django 6, and for Django 4.2 and 5.2 with django-tasks"
    )

"""Headgate in Django: each organisation has a cap on concurrent requests, the whole system has one, both in one step.

    INSTALLED_APPS += ["headgate.contrib.django"]     # then: manage.py migrate

    with slot(organization, id=execution_id) as held:           # 429 where a limit is reached
        execution = WorkflowExecution.objects.create(...)
        held.hand_over(lambda: run.delay(execution.id))         # after commit; whoever finishes it calls complete(id)

`headgate.contrib.django.drf` has the mixin, the throttle and the exception for Django REST framework,
`headgate.contrib.django.celery` and `headgate.contrib.django.tasks` complete runs by themselves.
"""

from __future__ import annotations

from .errors import LimiterUnavailable, LimitReached
from .keeping import Kept, keep
from .signals import limit_reached, run_finished, slot_lost, slot_released
from .slots import Slot, SlotRequest, acomplete, complete, release, slot
from .tenants import Refused, Tenants, tenants
from .views import limited

__all__ = [
    "Kept",
    "LimitReached",
    "LimiterUnavailable",
    "Refused",
    "Slot",
    "SlotRequest",
    "Tenants",
    "acomplete",
    "complete",
    "keep",
    "limit_reached",
    "limited",
    "release",
    "run_finished",
    "slot",
    "slot_lost",
    "slot_released",
    "tenants",
]

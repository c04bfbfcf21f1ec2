"""What the app does by itself: rows go to the store after commit, `run_finished` completes runs."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def saved(sender: Any, instance: Any, using: str, **kwargs: Any) -> None:
    from .values import push_after_commit

    before = instance.organization_when_loaded
    if before is not None and before != instance.organization_id:
        # The row was another organisation's: that one has the default again.
        organization = type(instance.organization)._default_manager.using(using).filter(pk=before).first()
        if organization is not None:
            push_after_commit(organization, using)
    push_after_commit(instance.organization, using)
    instance.organization_when_loaded = instance.organization_id


def deleted(sender: Any, instance: Any, using: str, **kwargs: Any) -> None:
    from .values import push_after_commit

    push_after_commit(instance.organization, using)


def finished(sender: Any, execution_id: object, using: str = "default", **kwargs: Any) -> None:
    from .slots import complete

    complete(execution_id, using=using)


def connect() -> None:
    from django.core.signals import setting_changed
    from django.db.models.signals import post_delete, post_save

    from .models import OrganizationRateLimit
    from .signals import run_finished
    from .tenants import forget

    post_save.connect(saved, sender=OrganizationRateLimit, dispatch_uid="headgate-saved")
    post_delete.connect(deleted, sender=OrganizationRateLimit, dispatch_uid="headgate-deleted")
    run_finished.connect(finished, dispatch_uid="headgate-finished")
    setting_changed.connect(forget, dispatch_uid="headgate-settings")

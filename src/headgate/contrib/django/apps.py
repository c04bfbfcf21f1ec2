"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings

from . import conf


class HeadgateConfig(AppConfig):
    """`INSTALLED_APPS += ["headgate.contrib.django"]`."""

    name = "headgate.contrib.django"
    label = "headgate"
    verbose_name = "Headgate"
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        # Django's migrations read the setting of a model that can be swapped, and it has to be there.
        if not hasattr(settings, conf.ORGANIZATION_MODEL):
            setattr(settings, conf.ORGANIZATION_MODEL, conf.OWN_MODEL)
        super().import_models()

    def ready(self) -> None:
        # A wrong setting is told by the checks, and raised where it is first used: raising it here would hide the checks.
        from . import checks, receivers

        checks.register_all()
        receivers.connect()

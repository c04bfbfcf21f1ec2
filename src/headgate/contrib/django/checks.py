"""System checks: `manage.py check` names every setting that makes no sense, and what would be right."""

from __future__ import annotations

from django.core.checks import Error, Warning, register

from . import conf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def check_settings(app_configs: Any = None, **kwargs: Any) -> list[Any]:
    """E001: a setting that makes no sense. W001: settings that do nothing any more."""
    found: list[Any] = [Error(text, hint=None, obj=name, id="headgate.E001") for name, text in conf.problems()]
    idle = [name for name in conf.WITHOUT_EFFECT if conf.given(name)[0] is not None]
    if idle:
        found.append(
            Warning(
                f"{', '.join(idle)}: set, and without effect",
                hint="There is no cache and no lock any more: limits are read in the step that decides. Remove them.",
                id="headgate.W001",
            )
        )
    return found


def check_model(app_configs: Any = None, **kwargs: Any) -> list[Any]:
    """E002: the organisation model, or a field of it, is not there."""
    from .values import organization_model

    name = conf.organization_model_name()
    try:
        model = organization_model()
    except (LookupError, ValueError):
        return [
            Error(
                f"{conf.ORGANIZATION_MODEL} is {name!r}, and no such model is installed",
                hint="It must be 'app_label.Model', of an app in INSTALLED_APPS.",
                id="headgate.E002",
            )
        ]
    try:
        table = conf.own()
    except Exception:  # which E001 tells
        return []
    names = {field.name for field in model._meta.get_fields()} | {"pk"}
    return [
        Error(
            f"{conf.TENANTS}[{key!r}] is {table[key]!r}, which is no field of {name}",
            hint=f"Its fields are {', '.join(sorted(names))}.",
            id="headgate.E002",
        )
        for key in ("id_field", "name_field")
        if table.get(key) and table[key] not in names
    ]


def check_gate(app_configs: Any = None, **kwargs: Any) -> list[Any]:
    """E003: no gate can be made of it. W002: processes share nothing. W003: the total is below one organisation's cap."""
    from django.core.exceptions import ImproperlyConfigured

    from .tenants import tenants

    if any(True for _ in conf.problems()):
        return []
    try:
        made = tenants()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="headgate.E003")]
    found: list[Any] = []
    if made.conf.store.startswith("memory:"):
        found.append(
            Warning(
                f"{conf.STORE} is {made.conf.store!r}: no two processes share it, so each has all of the limits",
                hint="Take sqlite:///… for the processes of one machine, redis://… for several machines.",
                id="headgate.W002",
            )
        )
    totals = {limit.name: limit.limit for limit in made.conf.limits}
    if made.total is not None and totals[made.total] < made.default_limit:
        found.append(
            Warning(
                f"the limit {made.total!r} of {totals[made.total]:g} is below the {made.default_limit} of one organization",
                hint=f"One organization alone reaches it: raise {conf.GLOBAL_LIMIT}, or lower {conf.DEFAULT_LIMIT}.",
                id="headgate.W003",
            )
        )
    return found


def register_all() -> None:
    for check in (check_settings, check_model, check_gate):
        register(check)

"""The values of organisations: rows of the table, and what the store decides by. The table is the truth."""

from __future__ import annotations

import logging
from functools import partial

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, transaction

from headgate import HeadgateError

from . import conf
from .tenants import default_id_field, tenants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

log = logging.getLogger("headgate.django")

#: How often a value is written again that changed in the table while it was written.
TRIES = 8


class OrganizationNotFound(Exception):
    """No organisation, or more than one, goes by what was given. The message says which."""


def organization_model() -> Any:
    """The model that HEADGATE_ORGANIZATION_MODEL names."""
    return apps.get_model(conf.organization_model_name())


def id_field() -> str:
    """The field by which an organisation is known to the gate and to the commands."""
    return tenants().conf.id_field or default_id_field(organization_model())


def find_organization(text: str) -> Any:
    """The organisation with this id, else the one with this name. Raises OrganizationNotFound."""
    model, ids = organization_model(), id_field()
    names = tenants().conf.name_field or ("name" if hasattr(model, "name") else "")
    for field in dict.fromkeys((ids, "pk", names)):
        if not field or (field == "pk" and ids != "pk"):
            continue
        try:
            found = list(model._default_manager.filter(**{field: text})[:6])
        except (ValueError, TypeError, ValidationError):  # no id of this model looks like that
            continue
        if len(found) > 1:
            which = ", ".join(str(getattr(one, ids)) for one in found[:5]) + (", …" if len(found) > 5 else "")
            raise OrganizationNotFound(f'"{text}" is the {field} of several organizations; name one by its id: {which}')
        if found:
            return found[0]
    raise OrganizationNotFound(f'Organization with ID or name "{text}" does not exist')


def row_of(organization: Any, using: str = DEFAULT_DB_ALIAS) -> Any:
    """The row of an organisation, or None where it has the default."""
    from .models import OrganizationRateLimit

    return OrganizationRateLimit.objects.using(using).filter(organization_id=organization.pk).first()


def push(organization: Any, using: str = DEFAULT_DB_ALIAS) -> int | None:
    """Write the value of an organisation's row to the store, and return it; None for the default."""
    return _write(tenants().key(organization), partial(_value_of, organization.pk, using))


def _write(key: dict[str, str], read: Callable[[], int | None]) -> int | None:
    # Two processes that change one row may write to the store in the other order. Each reads the row again after it has
    # written, so that the last to write has written what the row is.
    owner = tenants()
    value = read()
    for _ in range(TRIES):
        owner.set_value(key, value)
        again = read()
        if again == value:
            break
        value = again
    return value


def _value_of(pk: Any, using: str) -> int | None:
    from .models import OrganizationRateLimit

    rows = OrganizationRateLimit.objects.using(using).filter(organization_id=pk)
    value: int | None = rows.values_list("concurrent_request_limit", flat=True).first()
    return value


def push_after_commit(organization: Any, using: str) -> None:
    """Write it once the transaction is committed. What is rolled back was never written."""

    def write() -> None:
        try:
            push(organization, using)
        except HeadgateError as error:
            # The row is saved, and saving it must not fail for this.
            log.error(
                "the limit of organization %s is saved, and the store could not be told (%s); "
                "run `manage.py clear_org_rate_limit_cache --org-id %s` when it is back",
                tenants().id_of(organization), error, tenants().id_of(organization),
            )  # fmt: skip

    transaction.on_commit(write, using=using)


def push_all(using: str = DEFAULT_DB_ALIAS, *, others: bool) -> tuple[int, int]:
    """Write all rows to the store; with `others` also end the overrides of organisations that have no row.

    Returns how many rows there are, and how many values were written or ended.
    """
    from .models import OrganizationRateLimit

    owner = tenants()
    rows = list(OrganizationRateLimit.objects.using(using).select_related("organization"))
    for row in rows:
        push(row.organization, using)
    written = len(rows)
    if others:
        known = {owner.key(row.organization)[owner.conf.key] for row in rows}
        for key in owner.values().keys() - known:
            _write({owner.conf.key: key}, partial(_value_by_key, key, using))
            written += 1
    return len(rows), written


def _value_by_key(key: str, using: str) -> int | None:
    """The value of the organisation with this key, if it has got a row meanwhile."""
    from .models import OrganizationRateLimit

    rows = OrganizationRateLimit.objects.using(using).select_related("organization")
    for row in rows:
        if key in tenants().key(row.organization).values():
            return int(row.concurrent_request_limit)
    return None

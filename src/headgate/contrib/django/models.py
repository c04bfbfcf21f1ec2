"""One row per organisation with a limit of its own, and a small organisation model for projects that have none."""

from __future__ import annotations

import uuid

from django.core.validators import MinValueValidator
from django.db import models

from . import conf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any, Self


class Organization(models.Model):
    """A tenant, for projects without a model of their own: HEADGATE_ORGANIZATION_MODEL names another."""

    organization_id = models.CharField(max_length=200, unique=True)
    name = models.CharField(max_length=200, db_index=True)

    class Meta:
        swappable = conf.ORGANIZATION_MODEL

    def __str__(self) -> str:
        return str(self.name)


def system_default() -> int:
    """What an organisation without a row has: a new row begins with it."""
    from .tenants import tenants

    return tenants().default_limit


class OrganizationRateLimit(models.Model):
    """How many requests of one organisation may run at once. Saving and deleting it tell the store after commit."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.OneToOneField(
        conf.organization_model_name(), on_delete=models.CASCADE, related_name="headgate_rate_limit"
    )
    concurrent_request_limit = models.PositiveIntegerField(
        default=system_default,
        validators=[MinValueValidator(1)],
        help_text="Concurrent requests, at least 1. Holds from the next request on, in every process.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    modified_at = models.DateTimeField(auto_now=True)

    #: Whose row it was when it was loaded.
    organization_when_loaded: Any = None

    class Meta:
        ordering = ("created_at", "id")
        verbose_name = "organization rate limit"

    def __str__(self) -> str:
        return f"{self.organization}: {self.concurrent_request_limit}"

    @classmethod
    def from_db(cls, db: str | None, field_names: Collection[str], values: Sequence[Any], **more: Any) -> Self:
        row: Any = super().from_db(db, field_names, values, **more)
        row.organization_when_loaded = row.__dict__.get("organization_id")
        return row  # type: ignore[no-any-return]

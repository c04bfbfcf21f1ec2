"""What the five commands share: finding the organisation, usage in words, JSON."""

from __future__ import annotations

import json

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from headgate import HeadgateError

from ..tenants import Figures, Tenants, tenants
from ..values import OrganizationNotFound, find_organization

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from typing import Any


class OrganizationCommand(BaseCommand):
    """A command about limits of organisations. An error is one line that says what would be right."""

    #: Whether it has `--json`: commands that only read do.
    reads = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        if self.reads:
            parser.add_argument("--json", action="store_true", help="Print JSON, for programs")

    def execute(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute(*args, **options)
        except (HeadgateError, ImproperlyConfigured, OrganizationNotFound) as error:
            raise CommandError(str(error)) from error

    @property
    def tenants(self) -> Tenants:
        return tenants()

    def find(self, text: str) -> Any:
        """The organisation by its id or name."""
        return find_organization(text)

    def called(self, organization: Any) -> str:
        """`"acme-corp" (org_a1b2c3d4e5f6g7h8)`, without the quotes."""
        return f"{self.tenants.name_of(organization)} ({self.tenants.id_of(organization)})"

    def quoted(self, organization: Any) -> str:
        return f'"{self.tenants.name_of(organization)}" ({self.tenants.id_of(organization)})'

    def print_json(self, value: Any) -> None:
        self.stdout.write(json.dumps(value, ensure_ascii=False, indent=2))

    def tell_usage(self, organization: Any, limit: int, which: str) -> None:
        """The usage after a change, and a warning where it is above the limit now: nothing is taken away."""
        try:
            figures: Figures = self.tenants.figures(organization)
        except HeadgateError as error:
            self.stdout.write(self.style.ERROR(f"Current usage: unknown ({error})"))
            return
        self.stdout.write(self.style.WARNING(f"Current usage: {figures.org_count}/{limit} concurrent requests"))
        if figures.org_count > limit:
            self.stdout.write(
                self.style.ERROR(
                    f"WARNING: Current usage exceeds {which} limit! Nothing is taken away; "
                    "new requests will be rate limited until usage drops."
                )
            )

    def tell_store(self, organization: Any, limit: int) -> None:
        """Whether the store decides by the new value, which it was told after the commit."""
        try:
            known = self.tenants.figures(organization).org_limit
        except HeadgateError as error:
            raise CommandError(
                f"the table is changed, and the store could not be told ({error}); when it is back, run "
                f"`manage.py clear_org_rate_limit_cache --org-id {self.tenants.id_of(organization)}`"
            ) from error
        if known != limit:
            raise CommandError(
                f"the table is changed to {limit}, and the store has {known}: it was changed by another process at the "
                f"same time, or in a transaction that is still open; look again with get_org_rate_limit"
            )
        self.stdout.write(self.style.SUCCESS("✓ Cache automatically cleared"))

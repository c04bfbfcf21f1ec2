"""`manage.py get_org_rate_limit ORG [--clear-cache]`."""

from __future__ import annotations

from django.utils import timezone

from ...values import push, row_of
from ..organizations import OrganizationCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from typing import Any


class Command(OrganizationCommand):
    help = "Show the limit of an organization and its current usage; writes nothing, unless --clear-cache is given"
    reads = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("org_id", help="Organization ID or name")
        parser.add_argument(
            "--clear-cache", action="store_true", help="Read the table again and rewrite what the store has"
        )

    def handle(self, *args: Any, org_id: str, clear_cache: bool, **options: Any) -> None:
        organization = self.find(org_id)
        if clear_cache:
            push(organization)
        row = row_of(organization)
        limit = self.tenants.default_limit if row is None else row.concurrent_request_limit
        figures = self.tenants.figures(organization)
        modified = None if row is None else row.modified_at
        if options.get("json"):
            self.print_json(
                {
                    "organization_id": str(self.tenants.id_of(organization)),
                    "name": self.tenants.name_of(organization),
                    "database_limit": None if row is None else limit,
                    "default_limit": self.tenants.default_limit,
                    "last_modified": None if modified is None else modified.isoformat(),
                    "store_limit": figures.org_limit,
                    "agree": figures.org_limit == limit,
                    "usage": figures.org_count,
                    "global_usage": figures.global_count,
                    "global_limit": figures.global_limit,
                    "percent": round(figures.percent, 1),
                }
            )
            return
        if clear_cache:
            self.stdout.write(self.style.WARNING("Cache cleared"))
        if row is None:
            self.stdout.write("Database Limit: Not set")
            self.stdout.write(f"Using Default: {limit}")
        else:
            at = timezone.localtime(modified) if timezone.is_aware(modified) else modified
            self.stdout.write(f"Database Limit: {limit}")
            self.stdout.write(f"Last Modified: {at:%Y-%m-%d %H:%M:%S}")
        if figures.org_limit == limit:
            self.stdout.write(f"Cached Limit: {figures.org_limit} ✓")
        else:
            self.stdout.write(
                self.style.ERROR(
                    f"Cached Limit: {figures.org_limit} ✗ (the store decides by this, and the table has {limit}: "
                )
                + self.style.ERROR(f"run clear_org_rate_limit_cache --org-id {self.tenants.id_of(organization)})")
            )
        self.stdout.write("\n--- Current Usage ---")
        self.stdout.write(f"Organization: {figures.org_count}/{figures.org_limit} concurrent requests")
        if figures.global_limit is not None:
            self.stdout.write(f"Global System: {figures.global_count}/{figures.global_limit} concurrent requests")
        percent = figures.percent
        style = self.style.ERROR if percent >= 90 else self.style.WARNING if percent >= 70 else self.style.SUCCESS
        self.stdout.write(style(f"Organization at {percent:.1f}% capacity"))

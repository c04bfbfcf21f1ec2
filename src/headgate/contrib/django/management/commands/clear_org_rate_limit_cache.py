"""`manage.py clear_org_rate_limit_cache [--org-id ORG] [--all]`: what the store has is written again, from the table."""

from __future__ import annotations

from django.core.management.base import CommandError

from ...values import push, push_all
from ..organizations import OrganizationCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from typing import Any


class Command(OrganizationCommand):
    help = "Read the limits from the table again and rewrite those of the store, after raw SQL or bulk_update"

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--org-id", help="Of one organization, by its ID or name")
        parser.add_argument(
            "--all", action="store_true", help="Of all organizations: also end what the store has and the table has not"
        )

    def handle(self, *args: Any, org_id: str | None = None, all: bool = False, **options: Any) -> None:
        if org_id is not None and all:
            raise CommandError("--org-id names one organization, and --all means every one: take one of them")
        if org_id is not None:
            organization = self.find(org_id)
            value = push(organization)
            known = f"{self.tenants.default_limit}, the system default" if value is None else value
            self.stdout.write(
                self.style.SUCCESS(f"✓ Cleared cache for {self.called(organization)}: the limit is {known}")
            )
        elif all:
            self.stdout.write("Clearing cache for ALL organizations (including those using defaults)...")
            _, written = push_all(others=True)
            self.stdout.write(f"Deleted {written} cache keys using pattern")
            self.stdout.write(self.style.SUCCESS("✓ Cleared all organization rate limit caches using pattern deletion"))
            self.stdout.write("Note: Cache will be repopulated on next API request for each org")
        else:
            rows, _ = push_all(others=False)
            if rows:
                self.stdout.write(self.style.SUCCESS(f"✓ Cleared cache for {rows} organizations with custom limits"))
            else:
                self.stdout.write(self.style.WARNING("No custom rate limits found - nothing to clear"))

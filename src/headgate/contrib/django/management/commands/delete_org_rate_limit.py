"""`manage.py delete_org_rate_limit ORG [--force]`."""

from __future__ import annotations

import sys

from django.core.management.base import CommandError

from ...values import row_of
from ..organizations import OrganizationCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from typing import Any


class Command(OrganizationCommand):
    help = "Delete the limit of an organization: it has the system default from the next request on"

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("org_id", help="Organization ID or name")
        parser.add_argument("--force", action="store_true", help="Ask nothing")

    def handle(self, *args: Any, org_id: str, force: bool, **options: Any) -> None:
        organization = self.find(org_id)
        row = row_of(organization)
        if row is None:
            self.stdout.write(
                self.style.WARNING(f"No custom rate limit found for organization {self.quoted(organization)}")
            )
            return
        if not force and not self._confirmed(organization, row.concurrent_request_limit):
            self.stdout.write(self.style.WARNING("Cancelled"))
            return
        row.delete()
        default = self.tenants.default_limit
        self.stdout.write(self.style.SUCCESS(f"Deleted custom rate limit for organization {self.quoted(organization)}"))
        self.stdout.write(self.style.WARNING(f"Will now use system default: {default}"))
        self.tell_usage(organization, default, "the default")
        self.tell_store(organization, default)

    def _confirmed(self, organization: Any, limit: int) -> bool:
        if not sys.stdin.isatty():
            raise CommandError("there is no terminal to confirm it at, so nothing was deleted; say --force")
        self.stdout.write(f"Organization: {self.called(organization)}")
        self.stdout.write(f"Current custom limit: {limit}")
        self.stdout.write("\nThis will delete the custom rate limit and revert to the system default.")
        try:
            answer = input("Continue? [y/N]: ")
        except EOFError:
            answer = ""
        self.stdout.write("")
        return answer.strip().lower() in ("y", "yes")

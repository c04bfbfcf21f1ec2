"""`manage.py set_org_rate_limit ORG N`."""

from __future__ import annotations

from argparse import ArgumentTypeError

from ...models import OrganizationRateLimit
from ..organizations import OrganizationCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from typing import Any


def positive(text: str) -> int:
    try:
        number = int(text)
        if not 0 < number < 2**31:
            raise ValueError
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no limit: it must be a whole number of at least 1") from None
    return number


class Command(OrganizationCommand):
    help = "Set the concurrent request limit of an organization; it holds from the next request on"

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("org_id", help="Organization ID or name")
        parser.add_argument("limit", type=positive, help="Concurrent request limit (a positive integer)")

    def handle(self, *args: Any, org_id: str, limit: int, **options: Any) -> None:
        organization = self.find(org_id)
        limit = positive(str(limit))
        _, created = OrganizationRateLimit.objects.update_or_create(
            organization=organization, defaults={"concurrent_request_limit": limit}
        )
        done = "Created" if created else "Updated"
        self.stdout.write(
            self.style.SUCCESS(f"{done} rate limit for organization {self.quoted(organization)}: {limit}")
        )
        self.tell_usage(organization, limit, "new")
        self.tell_store(organization, limit)

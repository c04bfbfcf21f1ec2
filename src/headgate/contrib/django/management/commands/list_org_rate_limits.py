"""`manage.py list_org_rate_limits [--with-usage]`."""

from __future__ import annotations

from collections import Counter

from ...models import OrganizationRateLimit
from ..organizations import OrganizationCommand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser
    from typing import Any


class Command(OrganizationCommand):
    help = "List the organizations that have a limit of their own; writes nothing"
    reads = True

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--with-usage", action="store_true", help="Include current usage, in one look at the store")

    def handle(self, *args: Any, with_usage: bool, **options: Any) -> None:
        rows = list(OrganizationRateLimit.objects.select_related("organization"))
        owner = self.tenants
        used = Counter(holder.key.get(owner.conf.key) for holder in owner.gate.holders()) if with_usage else Counter()
        if options.get("json"):
            self.print_json({"limits": [self._as_json(row, used, with_usage) for row in rows]})
            return
        if not rows:
            self.stdout.write("No custom rate limits configured")
            return
        self.stdout.write(f"Found {len(rows)} custom rate limit{'' if len(rows) == 1 else 's'}:\n\n", ending="")
        for place, row in enumerate(rows):
            limit = row.concurrent_request_limit
            if place:
                self.stdout.write("")
            self.stdout.write(f"• {self.called(row.organization)}")
            self.stdout.write(f"  Limit: {limit}")
            if with_usage:
                count = used[owner.key(row.organization)[owner.conf.key]]
                self.stdout.write(f"  Usage: {count}/{limit} ({count / limit * 100:.1f}%)")

    def _as_json(self, row: Any, used: Counter[Any], with_usage: bool) -> dict[str, Any]:
        owner, limit = self.tenants, row.concurrent_request_limit
        told = {
            "organization_id": str(owner.id_of(row.organization)),
            "name": owner.name_of(row.organization),
            "limit": limit,
        }
        if with_usage:
            count = used[owner.key(row.organization)[owner.conf.key]]
            told |= {"usage": count, "percent": round(count / limit * 100, 1)}
        return told

"""Organisations with keys, to begin with."""

from django.core.management.base import BaseCommand

from deployments.models import ApiKey
from headgate.contrib.django.models import Organization


class Command(BaseCommand):
    help = "Make organizations NAME=KEY; their ids are org_NAME"

    def add_arguments(self, parser) -> None:
        parser.add_argument("organizations", nargs="+", metavar="NAME=KEY")

    def handle(self, *args, organizations: list[str], **options) -> None:
        for text in organizations:
            name, _, key = text.partition("=")
            organization, _ = Organization.objects.get_or_create(organization_id=f"org_{name}", defaults={"name": name})
            ApiKey.objects.update_or_create(key=key, defaults={"organization": organization})

"""A run that is not one of the API: it takes no slot."""

from django.core.management.base import BaseCommand

from deployments.models import WorkflowExecution
from headgate.contrib.django.values import find_organization


class Command(BaseCommand):
    help = "Queue a run of the kind scheduled"

    def add_arguments(self, parser) -> None:
        parser.add_argument("org_id")
        parser.add_argument("workflow")

    def handle(self, *args, org_id: str, workflow: str, **options) -> None:
        run = WorkflowExecution.objects.create(
            organization=find_organization(org_id), workflow=workflow, source="scheduled"
        )
        self.stdout.write(str(run.pk))

"""Deployed workflows, the keys of their organisations, and their executions."""

import time
import uuid

from django.db import models, transaction

from headgate.contrib.django import complete


class ApiKey(models.Model):
    """Whoever has it is its organisation."""

    key = models.CharField(max_length=64, primary_key=True)
    organization = models.ForeignKey("headgate.Organization", on_delete=models.CASCADE)


class WorkflowExecution(models.Model):
    """One run. `asked_at`, `accepted_at` and `ended_at` are the example's books: seconds of the machine's steady clock."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    organization = models.ForeignKey("headgate.Organization", on_delete=models.CASCADE)
    workflow = models.CharField(max_length=100)
    #: api, ui, scheduled or etl: only api takes a slot.
    source = models.CharField(max_length=10)
    status = models.CharField(max_length=10, default="queued", db_index=True)
    #: Just before its slot was asked for: one that nobody renewed has ended one lease after this, at the earliest.
    asked_at = models.FloatField(null=True)
    accepted_at = models.FloatField(default=time.monotonic)
    ended_at = models.FloatField(null=True)

    def update_execution(self, status: str) -> None:
        """The run has ended. Its slot is released after the commit; a rollback leaves the run and the slot as they were."""
        with transaction.atomic():
            self.status, self.ended_at = status, time.monotonic()
            self.save(update_fields=["status", "ended_at"])
            if self.source == "api":
                complete(self.id)

    @classmethod
    def claim(cls) -> "WorkflowExecution | None":
        """Take one queued run, if there is one and no other worker is faster."""
        found = cls.objects.filter(status="queued").order_by("accepted_at").select_related("organization").first()
        if found is not None and cls.objects.filter(pk=found.pk, status="queued").update(status="running"):
            return found
        return None

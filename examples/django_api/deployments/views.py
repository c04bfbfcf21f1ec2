"""The API: a run takes a slot before it is queued, and a worker completes it. A run from the browser takes none."""

import time
import uuid

from django.db import transaction
from django.shortcuts import get_object_or_404
from rest_framework import serializers
from rest_framework.exceptions import PermissionDenied
from rest_framework.permissions import IsAuthenticated
from rest_framework.response import Response
from rest_framework.views import APIView

from headgate.contrib.django.drf import SlotMixin

from .models import WorkflowExecution


class RunRequest(serializers.Serializer):
    document = serializers.CharField(max_length=10_000)


class OfOneOrganization(APIView):
    """Only an organisation itself runs its workflows."""

    permission_classes = (IsAuthenticated,)

    def check_permissions(self, request) -> None:
        super().check_permissions(request)
        if self.kwargs["org"] not in (request.user.organization.name, request.user.organization.organization_id):
            raise PermissionDenied


class DeploymentExecution(SlotMixin, OfOneOrganization):
    """`POST /deployment/api/<org>/<name>/` → 200 {"execution_id", "status": "queued"}, or 429."""

    slot_serializer_class = RunRequest

    def get_execution_id(self, request) -> uuid.UUID:
        self.asked_at = time.monotonic()
        return uuid.uuid4()

    def post(self, request, org: str, name: str) -> Response:
        with transaction.atomic():
            run = WorkflowExecution.objects.create(
                id=self.slot.id, organization=request.user.organization, workflow=name, source="api",
                asked_at=self.asked_at,
            )  # fmt: skip
            self.slot.hand_over()  # the row is the queue; with Celery: hand_over(lambda: task.delay(execution_id=…))
        return Response({"execution_id": str(run.pk), "status": run.status})


class RunInBrowser(OfOneOrganization):
    """A run from the user interface: out of scope, so it takes no slot."""

    def post(self, request, org: str, name: str) -> Response:
        run = WorkflowExecution.objects.create(organization=request.user.organization, workflow=name, source="ui")
        return Response({"execution_id": str(run.pk), "status": run.status})


class ExecutionStatus(APIView):
    """What became of a run."""

    permission_classes = (IsAuthenticated,)

    def get(self, request, id: uuid.UUID) -> Response:
        run = get_object_or_404(WorkflowExecution, pk=id, organization=request.user.organization)
        return Response({"execution_id": str(run.pk), "status": run.status})

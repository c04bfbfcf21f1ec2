"""Views that fail where a test wants them to."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from adrf.views import APIView as AsyncAPIView
from asgiref.sync import sync_to_async
from deployments.models import WorkflowExecution
from django.db import DatabaseError, transaction
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from rest_framework import serializers
from rest_framework.response import Response
from rest_framework.views import APIView

from headgate import Gate, Window
from headgate.contrib.django import limited, slot
from headgate.contrib.django.drf import GateThrottle, SlotMixin, TenantThrottle
from headgate.contrib.django.models import Organization


class Broken(Exception):
    """Something of the project failed."""


def by_header(request: Any, *args: Any, **kwargs: Any) -> Organization | None:
    return Organization.objects.filter(name=request.headers.get("X-Org", "")).first()  # type: ignore[no-any-return]


async def by_header_async(request: Any, *args: Any, **kwargs: Any) -> Organization | None:
    return await Organization.objects.filter(name=request.headers.get("X-Org", "")).afirst()  # type: ignore[no-any-return]


class StepsRequest(serializers.Serializer):
    fail = serializers.CharField(required=False)

    def validate_fail(self, value: str) -> str:
        if value == "validation":
            raise serializers.ValidationError("it was asked for")
        if value == "validation-crash":
            raise Broken(value)
        return value


class Steps(SlotMixin, APIView):
    """A run whose every step can fail: `{"fail": STEP}`."""

    slot_serializer_class = StepsRequest
    authentication_classes = ()

    def get_organization(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return by_header(request)

    def get_execution_id(self, request: Any) -> Any:
        return request.headers.get("X-Id") or uuid.uuid4()

    def post(self, request: Any) -> Response:
        fail = self.validated_data.get("fail")
        assert self.slot is not None
        if fail == "file":
            open("/nowhere/at/all")  # noqa: SIM115
        with transaction.atomic():
            run = WorkflowExecution.objects.create(
                id=self.slot.id, organization=self.slot.organization, workflow="w", source="api"
            )
            if fail == "database":
                raise DatabaseError("gone")
            self.slot.hand_over(lambda: self.dispatch_run(fail))
            if fail == "rollback":
                transaction.set_rollback(True)
            if fail == "rollback-exception":
                raise Broken(fail)
        if fail == "after-commit":
            raise Broken(fail)
        return Response({"execution_id": str(run.pk), "status": "queued"})

    def dispatch_run(self, fail: str | None) -> None:
        if fail == "queue":
            raise ConnectionError("the broker is away")


@limited(organization=by_header)
def plain(request: Any) -> HttpResponse:
    if "fail" in request.GET:
        raise Broken
    assert request.slot.held or request.slot.shadowed
    return JsonResponse({"slots": request.slot.tenants.figures(request.slot.organization).org_count})


def refuse_get(request: Any) -> HttpResponse | None:
    return HttpResponse(status=400) if "bad" in request.GET else None


@limited(organization=by_header_async, validate=refuse_get)
async def aplain(request: Any) -> HttpResponse:
    if "fail" in request.GET:
        raise Broken
    assert request.slot.held
    usage = await request.slot.tenants.async_gate.usage(key=request.slot.tenants.key(request.slot.organization))
    return JsonResponse({"slots": int(usage["org"].used)})


@limited(organization=by_header, execution_id=lambda request: request.headers["X-Id"])
def handing(request: Any) -> HttpResponse:
    request.slot.hand_over()
    return HttpResponse("queued")


@limited(organization=by_header)
def stream(request: Any) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter([b"one", b"two", b"three"]))


class AsyncSteps(SlotMixin, AsyncAPIView):
    """A view of adrf. What it is sent says what it does: `fail` raises, `wait` never answers, `stream`, `hand` over."""

    authentication_classes = ()
    entered: ClassVar[list[asyncio.Event]] = []

    async def validate_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        if "bad" in request.data:
            raise serializers.ValidationError("it was asked for")

    async def get_organization(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return await by_header_async(request)

    def get_execution_id(self, request: Any) -> Any:
        return request.headers.get("X-Id")

    async def post(self, request: Any) -> Any:
        assert self.slot is not None
        assert self.slot.held
        if "fail" in request.data:
            raise Broken
        if "wait" in request.data:
            self.entered[0].set()
            await asyncio.Event().wait()
        if "stream" in request.data:
            return StreamingHttpResponse(parts())
        if "hand" in request.data:
            await sync_to_async(self.slot.hand_over)()
        usage = await self.slot.tenants.async_gate.usage(key=self.slot.tenants.key(self.slot.organization))
        return Response({"slots": int(usage["org"].used)})


async def parts() -> AsyncIterator[bytes]:
    for part in (b"one", b"two", b"three"):
        yield part


class Block(APIView):
    """The context manager alone, in a view of DRF."""

    authentication_classes = ()

    def post(self, request: Any) -> Response:
        with slot(by_header(request)):
            return Response({})


class Throttled(APIView):
    authentication_classes = ()
    throttle_classes = (TenantThrottle,)

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        request.organization = by_header(request)
        super().initial(request, *args, **kwargs)

    def get(self, request: Any) -> Response:
        if "fail" in request.GET:
            raise Broken
        from headgate.contrib.django import tenants

        return Response({"slots": tenants().figures(request.organization).org_count})


class PerAddress(GateThrottle):
    gate = Gate("throttle-of-tests", [Window(3, per="1h", by="address")], store="memory://throttle-of-tests")


class Rated(APIView):
    authentication_classes = ()
    throttle_classes = (PerAddress,)

    def get(self, request: Any) -> Response:
        return Response({})

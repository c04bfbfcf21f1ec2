"""The admin: limits with their usage and a bar, who holds the slots since when, and releasing one by hand."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.views.decorators.http import require_POST

from headgate import HeadgateError

from . import conf
from .models import Organization, OrganizationRateLimit
from .tenants import tenants

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headgate import Holder

#: From which share on a bar is yellow, and red.
HIGH, FULL = 0.7, 0.9


def bar(used: float, limit: float) -> Any:
    """Usage as a bar with its figures."""
    share = min(1.0, used / limit)
    color = "#ba2121" if share >= FULL else "#c48b00" if share >= HIGH else "#2c7a2c"
    return format_html(
        '<div style="display:inline-block;width:10em;height:.8em;background:#8884;border-radius:.2em;overflow:hidden" '
        'role="img" aria-label="{} of {}"><div style="width:{}%;height:100%;background:{}"></div></div> {}/{} ({}%)',
        int(used), int(limit), f"{share * 100:.1f}", color, int(used), int(limit), f"{used / limit * 100:.1f}",
    )  # fmt: skip


@dataclass(frozen=True)
class HeldSlot:
    """A slot as the page shows it."""

    id: str
    organization: str
    holder: str
    held_for: str
    expires_in: str


def seconds(value: float) -> str:
    """A length of time for people: `3 min 20 s`."""
    whole = max(0, round(value))
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def held_slot(holder: Holder) -> HeldSlot:
    organization = holder.key.get(tenants().conf.key, "")
    return HeldSlot(holder.id, organization, holder.holder or "", seconds(holder.held_for), seconds(holder.expires_in))


@admin.register(OrganizationRateLimit)
class OrganizationRateLimitAdmin(admin.ModelAdmin):
    """Limits, and on a page of its own all slots that are held."""

    list_display = ("organization", "concurrent_request_limit", "current_usage", "modified_at")
    list_select_related = ("organization",)
    readonly_fields = ("current_usage", "held_slots", "created_at", "modified_at")
    ordering = ("created_at",)
    change_list_template = "admin/headgate/organizationratelimit/change_list.html"

    def get_search_fields(self, request: Any) -> tuple[str, ...]:
        fields = {field.name for field in OrganizationRateLimit.organization.field.related_model._meta.get_fields()}
        known = tenants().conf
        wanted = (known.id_field or "organization_id", known.name_field or "name")
        return tuple(f"organization__{name}" for name in wanted if name in fields)

    def get_readonly_fields(self, request: Any, obj: Any = None) -> tuple[str, ...]:
        # A row belongs to its organisation; another organisation gets another row.
        return self.readonly_fields if obj is None else ("organization", *self.readonly_fields)

    @admin.display(description="Current usage")
    def current_usage(self, row: Any) -> Any:
        if row.pk is None or row.organization_id is None:
            return "-"
        try:
            figures = tenants().figures(row.organization)
        except HeadgateError as error:
            return f"unknown: {error}"
        return bar(figures.org_count, figures.org_limit)

    @admin.display(description="Held slots")
    def held_slots(self, row: Any) -> Any:
        if row.pk is None or row.organization_id is None:
            return "-"
        owner = tenants()
        mine = owner.key(row.organization)[owner.conf.key]
        page = reverse("admin:headgate_organizationratelimit_usage")
        return format_html('<a href="{}?organization={}">who holds them, and since when</a>', page, mine)

    # --- the page of slots ---------------------------------------------------------------------------------------

    def get_urls(self) -> list[Any]:
        name = "headgate_organizationratelimit"
        return [
            path("usage/", self.admin_site.admin_view(self.usage_view), name=f"{name}_usage"),
            path("usage/release/", self.admin_site.admin_view(require_POST(self.release_view)), name=f"{name}_release"),
            *super().get_urls(),
        ]

    def usage_view(self, request: Any) -> Any:
        """All slots that are held, the oldest first; of one organisation with `?organization=`."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        owner, wanted = tenants(), request.GET.get("organization", "")
        context: dict[str, Any] = {
            **self.admin_site.each_context(request), "title": "Slots in use", "opts": self.model._meta,
            "organization": wanted, "may_release": self.has_change_permission(request), "error": "",
        }  # fmt: skip
        try:
            held = [held_slot(holder) for holder in owner.gate.holders()]
            usage = owner.gate.usage()
            total = None if owner.total is None else usage[owner.total]
            context["total"] = "" if total is None else bar(total.used, total.limit)
            context["slots"] = [slot for slot in held if not wanted or slot.organization == wanted]
            if wanted:
                figures = owner.figures(wanted)
                context["own"] = bar(figures.org_count, figures.org_limit)
        except HeadgateError as error:
            context["error"] = str(error)
        return TemplateResponse(request, "admin/headgate/organizationratelimit/usage.html", context)

    def release_view(self, request: Any) -> Any:
        """Release one slot by hand. It is written to the admin's log who did it."""
        if not self.has_change_permission(request):
            raise PermissionDenied
        id, owner = request.POST.get("id", ""), tenants()
        back = HttpResponseRedirect(reverse("admin:headgate_organizationratelimit_usage"))
        try:
            holder = next((held_slot(one) for one in owner.gate.holders() if one.id == id), None)
            ended = holder is not None and owner.gate.release(id, "error")
        except HeadgateError as error:
            self.message_user(request, str(error), messages.ERROR)
            return back
        if holder is None or not ended:
            self.message_user(request, f"Slot {id} had already ended: nothing was released.", messages.WARNING)
            return back
        told = f"released slot {id} of {holder.organization} by hand, held for {holder.held_for}"
        LogEntry.objects.create(
            user_id=request.user.pk, content_type_id=ContentType.objects.get_for_model(self.model).pk,
            object_id=id, object_repr=f"slot {id}"[:200], action_flag=CHANGE, change_message=told,
        )  # fmt: skip
        audit(request.user.get_username(), told)
        self.message_user(request, f"Slot {id} of {holder.organization} is released.", messages.SUCCESS)
        return back


def audit(user: str, told: str) -> None:
    """A line in the log as well: the admin's own log is in a database that others may edit."""
    from logging import getLogger

    getLogger("headgate.django.audit").warning("%s %s", user, told)


if conf.organization_model_name() == conf.OWN_MODEL:

    @admin.register(Organization)
    class OrganizationAdmin(admin.ModelAdmin):
        """The organisations of a project without a model of its own."""

        list_display = ("name", "organization_id")
        search_fields = ("name", "organization_id")

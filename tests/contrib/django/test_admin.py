"""The admin: usage with a bar, who holds the slots, and releasing one by hand, with a line that says who did it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client

from headgate.contrib.django import slot, tenants
from headgate.contrib.django.models import Organization, OrganizationRateLimit
from tests.contrib.django.conftest import make_organization, occupy, used

PAGES = "/admin/headgate/organizationratelimit/"


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="x"))
    return client


def test_the_list_shows_usage_and_a_bar(acme: Organization, root: Client) -> None:
    OrganizationRateLimit.objects.create(organization=acme, concurrent_request_limit=25)
    occupy(acme, 18)
    page = root.get(PAGES).content.decode()
    assert "18/25 (72.0%)" in page
    assert "width:72.0%" in page
    assert 'href="/admin/headgate/organizationratelimit/usage/"' in page
    assert root.get(f"{PAGES}?q=acme").status_code == 200


def test_a_row_is_made_changed_and_deleted_there_and_holds_at_once(acme: Organization, root: Client) -> None:
    assert root.post(f"{PAGES}add/", {"organization": acme.pk, "concurrent_request_limit": 7}).status_code == 302
    assert tenants().values() == {acme.organization_id: 7}
    row = OrganizationRateLimit.objects.get()
    assert "who holds them, and since when" in root.get(f"{PAGES}{row.pk}/change/").content.decode()
    root.post(f"{PAGES}{row.pk}/change/", {"concurrent_request_limit": 0})
    assert tenants().values() == {acme.organization_id: 7}, "0 is refused"
    root.post(f"{PAGES}{row.pk}/change/", {"concurrent_request_limit": 9})
    assert tenants().values() == {acme.organization_id: 9}
    root.post(f"{PAGES}{row.pk}/delete/", {"post": "yes"})
    assert tenants().values() == {}


def test_the_page_of_slots_tells_who_holds_them_since_when(acme: Organization, root: Client) -> None:
    slot(acme, "execution-1", holder="invoices <b>").take()
    occupy(make_organization("other"), 2)
    page = root.get(f"{PAGES}usage/").content.decode()
    assert "3/100 (3.0%)" in page
    assert "invoices &lt;b&gt;" in page
    assert "execution-1" in page
    assert "org_other-run-1" in page
    assert "9 min" in page or "10 min" in page, "the lease"
    one = root.get(f"{PAGES}usage/?organization={acme.organization_id}").content.decode()
    assert "1/20 (5.0%)" in one
    assert "org_other-run-1" not in one


def test_releasing_by_hand_frees_the_slot_and_leaves_an_audit_line(
    acme: Organization, root: Client, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    occupy(acme, 2)
    answer = root.post(f"{PAGES}usage/release/", {"id": f"{acme.organization_id}-run-0"}, follow=True)
    assert "is released" in answer.content.decode()
    assert used(acme) == 1
    entry = LogEntry.objects.get()
    assert entry.user.username == "root"
    assert "released slot org_a1b2c3d4e5f6g7h8-run-0 of org_a1b2c3d4e5f6g7h8 by hand, held for" in entry.change_message
    assert "root released slot org_a1b2c3d4e5f6g7h8-run-0" in caplog.text
    again = root.post(f"{PAGES}usage/release/", {"id": f"{acme.organization_id}-run-0"}, follow=True)
    assert "had already ended" in again.content.decode()
    assert LogEntry.objects.count() == 1
    assert used(acme) == 1


def test_only_who_may_change_limits_releases_and_only_by_post_with_a_token(acme: Organization) -> None:
    occupy(acme, 1)
    viewer = User.objects.create_user("viewer", password="x", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_organizationratelimit"))
    client = Client()
    client.force_login(viewer)
    page = client.get(f"{PAGES}usage/")
    assert page.status_code == 200
    assert 'value="Release"' not in page.content.decode()
    id = {"id": f"{acme.organization_id}-run-0"}
    assert client.post(f"{PAGES}usage/release/", id).status_code == 403
    nobody = Client()
    assert nobody.post(f"{PAGES}usage/release/", id).status_code == 302, "to the login"
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(User.objects.create_superuser("admin", password="x"))
    assert strict.get(f"{PAGES}usage/release/").status_code == 405
    assert strict.post(f"{PAGES}usage/release/", id).status_code == 403
    assert used(acme) == 1


def test_a_store_that_is_away_is_told_on_the_pages(
    acme: Organization, root: Client, limits: Callable[..., Any]
) -> None:
    OrganizationRateLimit.objects.create(organization=acme)
    limits(HEADGATE_STORE="redis://127.0.0.1:1/0")
    assert "unknown: " in root.get(PAGES).content.decode()
    assert "errornote" in root.get(f"{PAGES}usage/").content.decode()

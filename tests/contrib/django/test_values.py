"""Rows and the store: what is saved is pushed after commit, and holds for the next request of every process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import uuid4

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError, connection, transaction

from headgate.contrib.django import LimitReached, slot, tenants
from headgate.contrib.django.models import Organization, OrganizationRateLimit
from headgate.contrib.django.tenants import Tenants
from tests.contrib.django.conftest import make_organization, occupy, used
from tests.contrib.django.views import Broken


def set_to(organization: Organization, limit: int) -> OrganizationRateLimit:
    row, _ = OrganizationRateLimit.objects.update_or_create(
        organization=organization, defaults={"concurrent_request_limit": limit}
    )
    return row  # type: ignore[no-any-return]


def test_a_changed_limit_holds_for_the_next_request_of_a_process_that_knew_the_old_one(acme: Organization) -> None:
    other_process = Tenants(tenants().conf)
    set_to(acme, 1)
    slot(acme, "one", tenants=other_process).take()
    with pytest.raises(LimitReached, match=r"\(1/1\)"):
        slot(acme, "two", tenants=other_process).take()
    set_to(acme, 2)
    slot(acme, "two", tenants=other_process).take()
    set_to(acme, 1)
    with pytest.raises(LimitReached, match=r"\(2/1\)"):
        slot(acme, "three", tenants=other_process).take()
    OrganizationRateLimit.objects.all().delete()
    slot(acme, "three", tenants=other_process).take()


def test_the_store_is_told_after_the_commit_and_of_a_rollback_never(acme: Organization) -> None:
    with transaction.atomic():
        set_to(acme, 7)
        assert tenants().values() == {}
    assert tenants().values() == {acme.organization_id: 7}
    with suppress(Broken), transaction.atomic():
        set_to(acme, 99)
        raise Broken
    assert tenants().values() == {acme.organization_id: 7}


def test_deleting_a_row_or_its_organization_ends_the_override(acme: Organization) -> None:
    set_to(acme, 7).delete()
    assert tenants().values() == {}
    set_to(acme, 7)
    acme.delete()
    assert tenants().values() == {}


def test_a_row_that_is_given_to_another_organization_leaves_nothing_behind(acme: Organization) -> None:
    other = make_organization("other")
    set_to(acme, 7)
    row = OrganizationRateLimit.objects.get()
    row.organization = other
    row.save()
    assert tenants().values() == {"org_other": 7}


def test_there_is_one_row_per_organization_and_it_is_positive(acme: Organization) -> None:
    set_to(acme, 7)
    with pytest.raises(IntegrityError), transaction.atomic():
        OrganizationRateLimit.objects.create(organization=acme)
    with pytest.raises(ValidationError):
        OrganizationRateLimit(organization=make_organization("other"), concurrent_request_limit=0).full_clean()


def test_a_new_row_begins_with_the_default_of_the_system(acme: Organization, limits: Callable[..., None]) -> None:
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=33)
    row = OrganizationRateLimit.objects.create(organization=acme)
    assert row.concurrent_request_limit == 33
    assert row.id.version == 4
    assert row.created_at <= row.modified_at


def test_processes_that_save_one_row_at_once_leave_the_store_with_what_the_table_has(acme: Organization) -> None:
    """Their pushes may arrive in the other order than their commits."""

    def save(first: int) -> None:
        for number in range(first, first + 15):
            row = OrganizationRateLimit.objects.get()
            row.concurrent_request_limit = number
            row.save()
        connection.close()

    set_to(acme, 1)
    threads = [threading.Thread(target=save, args=(first,)) for first in (100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tenants().values() == {acme.organization_id: OrganizationRateLimit.objects.get().concurrent_request_limit}


def test_a_push_that_came_late_is_put_right_by_the_one_who_made_it(
    acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row changes between the read and the write of a push: the store has the newer value in the end."""
    from headgate.contrib.django import values

    set_to(acme, 10)
    owner, newer = tenants(), iter([30])
    write = owner.set_value

    def late(key: dict[str, str], value: int | None) -> None:
        for limit in newer:  # another process is faster, once
            OrganizationRateLimit.objects.update(concurrent_request_limit=limit)
            write(key, limit)
        write(key, value)

    monkeypatch.setattr(owner, "set_value", late)
    assert values.push(acme) == 30
    assert owner.values() == {acme.organization_id: 30}


def test_a_new_default_holds_after_a_restart_without_a_command(acme: Organization, limits: Callable[..., None]) -> None:
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=1)
    occupy(acme, 1)
    with pytest.raises(LimitReached):
        slot(acme).take()
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=2)
    occupy(acme, 1, first=1)
    assert used(acme) == 2


def test_the_five_scenarios_of_its_operators_are_seen_by_the_very_next_request(
    acme: Organization, limits: Callable[..., None]
) -> None:
    from tests.contrib.django.test_commands import manage

    limits(API_DEPLOYMENT_GLOBAL_RATE_LIMIT=1000)
    other_process = Tenants(tenants().conf)

    def fits(count: int, owner: Tenants = other_process) -> None:
        """With so many held the next goes, and the one after it is refused."""
        for id in [holder.id for holder in owner.gate.holders()]:
            owner.gate.release(id)
        for _ in range(count):
            slot(acme, uuid4(), tenants=owner).take()
        with pytest.raises(LimitReached, match=rf"\({count}/{count}\)"):
            slot(acme, uuid4(), tenants=owner).take()

    # 1: a custom limit for a high-volume customer.
    manage("set_org_rate_limit", "acme-corp", "200")
    fits(200)
    assert "Cached Limit: 200 ✓" in manage("get_org_rate_limit", "acme-corp")
    # 3: monitor.
    assert "Usage: 200/200 (100.0%)" in manage("list_org_rate_limits", "--with-usage")
    # 4: less during an incident, and back.
    manage("set_org_rate_limit", "acme-corp", "10")
    fits(10)
    manage("set_org_rate_limit", "acme-corp", "50")
    fits(50)
    # 5: no custom limits any more.
    manage("delete_org_rate_limit", "acme-corp", "--force")
    fits(20)
    # 2: a new default, in a process that was restarted.
    limits(API_DEPLOYMENT_DEFAULT_RATE_LIMIT=30, API_DEPLOYMENT_GLOBAL_RATE_LIMIT=1000)
    fits(30, tenants())


def test_the_drop_in_for_a_row_without_its_own_model_is_swappable() -> None:
    field: Any = OrganizationRateLimit._meta.get_field("organization")
    assert (field.related_model, field.unique) == (Organization, True)
    assert Organization._meta.swappable == "HEADGATE_ORGANIZATION_MODEL"

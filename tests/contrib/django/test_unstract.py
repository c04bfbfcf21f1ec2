"""`headgate.dropin.unstract`: one import changed, and a view that is written as the original works."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from uuid import uuid4

import pytest
from django.db import transaction

from headgate.contrib.django import tenants
from headgate.contrib.django.models import Organization
from headgate.dropin.unstract import APIDeploymentRateLimiter
from tests.contrib.django.conftest import make_organization, occupy, used
from tests.contrib.django.views import Broken


class RateLimitExceeded(Exception):
    def __init__(self, current_usage: int, limit: int, limit_type: str) -> None:
        super().__init__(f"{limit_type} {current_usage}/{limit}")


def post(organization: Organization, work: Callable[[str], None]) -> str:
    """The original view's use of its limiter, with an object where its release needed an id."""
    execution_id = str(uuid4())
    can_proceed, limit_info = APIDeploymentRateLimiter.check_and_acquire(organization, execution_id)
    if not can_proceed:
        assert limit_info is not None
        raise RateLimitExceeded(**limit_info)
    try:
        work(execution_id)
    except Exception:
        APIDeploymentRateLimiter.release_slot(organization, execution_id)
        raise
    return execution_id


def fail(execution_id: str) -> None:
    raise Broken


def test_the_original_view_works_and_a_failed_request_gives_its_slot_back(acme: Organization) -> None:
    for _ in range(25):
        with suppress(Broken):
            post(acme, fail)
    assert used(acme) == 0, "the original held each for six hours"
    ids = [post(acme, lambda id: None) for _ in range(20)]
    with pytest.raises(RateLimitExceeded, match="organization 20/20"):
        post(acme, lambda id: None)
    APIDeploymentRateLimiter.release_slot(acme.organization_id, ids[0])
    assert used(acme) == 19


def test_a_full_system_is_the_limit_of_type_global(acme: Organization, limits: Callable[..., None]) -> None:
    limits(API_DEPLOYMENT_GLOBAL_RATE_LIMIT=3)
    occupy(make_organization("other"), 3)
    told = APIDeploymentRateLimiter.check_and_acquire(acme, "run")
    assert told == (False, {"limit_type": "global", "current_usage": 3, "limit": 3})
    assert APIDeploymentRateLimiter.check_rate_limit(acme)[0] is False


def test_usage_has_the_names_of_the_original(acme: Organization) -> None:
    occupy(acme, 2)
    occupy(make_organization("other"), 1)
    assert APIDeploymentRateLimiter.get_current_usage(acme) == {
        "org_count": 2, "global_count": 3, "org_limit": 20, "global_limit": 100,
    }  # fmt: skip
    assert APIDeploymentRateLimiter.check_rate_limit(acme) == (True, None)
    APIDeploymentRateLimiter.clear_org_limit_cache(acme.organization_id)


def test_a_release_in_a_transaction_comes_after_its_commit(acme: Organization) -> None:
    assert APIDeploymentRateLimiter.check_and_acquire(acme, "run") == (True, None)
    with transaction.atomic():
        APIDeploymentRateLimiter.release_slot(acme, "run")
        assert used(acme) == 1
    assert used(acme) == 0


def test_nobody_renews_the_originals_slots_so_they_last_as_long_as_its_entries_did(
    acme: Organization,
    limits: Callable[..., None],
) -> None:
    APIDeploymentRateLimiter.check_and_acquire(acme, "run")
    [holder] = tenants().gate.holders()
    assert 6 * 3600 - 60 < holder.expires_in <= 6 * 3600
    limits(lease="1h")
    APIDeploymentRateLimiter.check_and_acquire(acme, "another")
    assert {round(one.expires_in / 3600) for one in tenants().gate.holders()} == {1, 6}


def test_the_drop_in_lets_pass_while_the_store_is_away(acme: Organization, limits: Callable[..., None]) -> None:
    limits(HEADGATE_STORE="redis://127.0.0.1:1/0")
    assert APIDeploymentRateLimiter.check_and_acquire(acme, "run") == (True, None)
    APIDeploymentRateLimiter.release_slot(acme, "run")

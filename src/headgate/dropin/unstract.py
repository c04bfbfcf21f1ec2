"""A drop-in for the rate limiter of Unstract's API deployments: change one import, and the original view works.

    from headgate.dropin.unstract import APIDeploymentRateLimiter      # was: from api_v2.rate_limiter import …

It asks the gate of the Django app, so `headgate.contrib.django` must be installed in the project.
"""

from __future__ import annotations

from headgate.contrib.django import LimitReached, conf, slot, tenants
from headgate.contrib.django.slots import complete
from headgate.contrib.django.values import push

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class APIDeploymentRateLimiter:
    """The names of the original; each organisation and the whole system are asked in one step."""

    @classmethod
    def check_and_acquire(cls, organization: Any, execution_id: object) -> tuple[bool, dict[str, Any] | None]:
        """(True, None) with a slot; (False, {"limit_type", "current_usage", "limit"}) without one.

        Without `keep` in the worker nobody renews a slot, so its lease is the original's life of an entry,
        API_DEPLOYMENT_RATE_LIMIT_TTL_HOURS, unless HEADGATE_TENANTS has a `lease`.
        """
        own = conf.own().get("lease")
        lease = own if own is not None else float(conf.number(conf.TTL_HOURS)) * 3600
        try:
            slot(organization, execution_id, lease=lease).take()
        except LimitReached as error:
            refused, by_key = error.refused, {limit.name for limit in tenants().conf.limits if limit.by}
            return False, {
                "limit_type": "organization" if refused.limit in by_key else "global",
                "current_usage": refused.used,
                "limit": refused.value,
            }
        return True, None

    @classmethod
    def release_slot(cls, organization_id: Any, execution_id: object) -> None:
        """Release a slot, after commit where a transaction is open. The organisation may be its id or the object."""
        complete(execution_id)

    @classmethod
    def get_current_usage(cls, organization: Any) -> dict[str, int | None]:
        """`org_count`, `global_count`, `org_limit` and `global_limit`."""
        figures = tenants().figures(organization)
        return {
            "org_count": figures.org_count,
            "global_count": figures.global_count,
            "org_limit": figures.org_limit,
            "global_limit": figures.global_limit,
        }

    @classmethod
    def check_rate_limit(cls, organization: Any) -> tuple[bool, dict[str, Any] | None]:
        """Whether a slot would be had now, without taking one: another request may be faster. Use check_and_acquire."""
        usage = cls.get_current_usage(organization)
        for kind, count in (("organization", "org"), ("global", "global")):
            used, limit = usage[f"{count}_count"], usage[f"{count}_limit"]
            if used is not None and limit is not None and used >= limit:
                return False, {"limit_type": kind, "current_usage": used, "limit": limit}
        return True, None

    @classmethod
    def clear_org_limit_cache(cls, org_id: str) -> None:
        """Write the organisation's limit to the store again, from the table."""
        from headgate.contrib.django.values import find_organization

        push(find_organization(org_id))

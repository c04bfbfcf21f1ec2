"""The settings: where each comes from, what makes no sense, and what they make together.

A Django setting wins over the environment, the environment over the default. `HEADGATE_TENANTS` is for projects of another
kind: its own gate, limits, key and messages.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from headgate import Concurrency, HeadgateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from headgate.limits import Limit

DEFAULT_LIMIT = "API_DEPLOYMENT_DEFAULT_RATE_LIMIT"
GLOBAL_LIMIT = "API_DEPLOYMENT_GLOBAL_RATE_LIMIT"
TTL_HOURS = "API_DEPLOYMENT_RATE_LIMIT_TTL_HOURS"
STORE = "HEADGATE_STORE"
TENANTS = "HEADGATE_TENANTS"
ORGANIZATION_MODEL = "HEADGATE_ORGANIZATION_MODEL"
OWN_MODEL = "headgate.Organization"

#: Setting → default.
NUMBERS: dict[str, int] = {DEFAULT_LIMIT: 20, GLOBAL_LIMIT: 100, TTL_HOURS: 6}

#: Settings of the system that this one replaces. There is no cache and no lock any more.
WITHOUT_EFFECT = (
    "API_DEPLOYMENT_RATE_LIMIT_CACHE_TTL",
    "API_DEPLOYMENT_RATE_LIMIT_LOCK_TIMEOUT",
    "API_DEPLOYMENT_RATE_LIMIT_LOCK_BLOCKING_TIMEOUT",
)

MESSAGES = {
    "org": "Organization has reached the maximum concurrent API requests limit ({used}/{limit}). Please try again later.",
    "global": "Our system is currently experiencing high load. Please try again in a few moments.",
}
#: For a limit that has no message of its own.
OTHER_MESSAGE = "Too many requests. Please try again later."

#: How long a slot is held without a sign of life of its run. A worker that dies gives it back after this.
LEASE = "10m"
#: The same in seconds, for a slot that this process holds for one request and renews itself.
REQUEST_LEASE = 30.0


def given(name: str) -> tuple[Any, str]:
    """The value of a setting and where it is from; None where nobody gave one."""
    value = getattr(settings, name, None)
    if value is not None:
        return value, "settings"
    if text := os.environ.get(name):
        return text, "the environment"
    return None, ""


def number(name: str) -> int | float:
    """A positive number. Raises ImproperlyConfigured with its name."""
    value, place = given(name)
    if value is None:
        return NUMBERS[name]
    whole = name != TTL_HOURS
    try:
        if isinstance(value, bool):
            raise ValueError
        number = (int if whole else float)(value)
        if number != float(value) or not 0 < number < 1e9:
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        right = "a whole number of at least 1" if whole else "a number of hours above 0"
        raise ImproperlyConfigured(f"{name} is {value!r} (from {place}); it must be {right}") from None
    return number


def store_url() -> str:
    """Where the state lives: the setting, the environment, or a file beside the project."""
    value, place = given(STORE)
    if value is None:
        return f"sqlite:///{Path(getattr(settings, 'BASE_DIR', '.')).resolve() / 'headgate.db'}"
    if not isinstance(value, str):
        raise ImproperlyConfigured(f"{STORE} is {value!r} (from {place}); it must be a URL such as redis://host:6379/0")
    return value


@dataclass(frozen=True)
class Conf:
    """What the settings make together. The fields are the keys of HEADGATE_TENANTS."""

    #: The gate's name: its state, its figures and its leases go by it.
    gate: str = "api-deployment"
    #: What limits are kept by: `Concurrency(20, by="org")`.
    key: str = "org"
    #: The limits, in the order in which they are told when several are full.
    limits: tuple[Limit, ...] = ()
    #: The limit whose value a row of OrganizationRateLimit sets.
    limit: str = "org"
    messages: Mapping[str, str] = field(default_factory=dict)
    #: `code` of every error.
    code: str = "error"
    store: str = ""
    #: While the store is away: "open", "closed" or "local:SHARE".
    on_store_error: str = "open"
    lease: str | float = LEASE
    #: Seconds; of `Retry-After` where a slot is missing. Nobody knows when one is released.
    retry_after: int = 5
    #: Decide, log, count and let pass.
    shadow: bool = False
    #: Finds the organisation of a request: a function, or its dotted path.
    organization: Any = None
    #: The fields of the organisation model that hold its id and its name.
    id_field: str = ""
    name_field: str = ""


KEYS = tuple(one.name for one in fields(Conf))

_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("gate", "key", "limit", "code", "store", "on_store_error", "id_field", "name_field"), (str,)),
    "limits": (list, tuple),
    "messages": (dict,),
    "lease": (str, int, float),
    "retry_after": (int,),
    "shadow": (bool,),
}


def own() -> dict[str, Any]:
    """HEADGATE_TENANTS, checked key by key. Raises ImproperlyConfigured with the key's name."""
    table = getattr(settings, TENANTS, None)
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ImproperlyConfigured(f"{TENANTS} is {table!r}; it must be a dict with keys of {', '.join(KEYS)}")
    for key, value in table.items():
        if key not in KEYS:
            raise ImproperlyConfigured(f"{TENANTS} has the unknown key {key!r}; its keys are {', '.join(KEYS)}")
        types = _TYPES.get(key)
        if types is not None and (not isinstance(value, types) or (isinstance(value, bool) and bool not in types)):
            right = " or ".join(kind.__name__ for kind in types)
            raise ImproperlyConfigured(f"{TENANTS}[{key!r}] is {value!r}; it must be a {right}")
    if table.get("retry_after", 1) < 1:
        raise ImproperlyConfigured(
            f"{TENANTS}['retry_after'] is {table['retry_after']!r}; it must be at least 1 second"
        )
    return dict(table)


def default_limits(lease: str | float) -> tuple[Limit, ...]:
    """One cap for each organisation and one for all."""
    return (
        Concurrency(int(number(DEFAULT_LIMIT)), name="org", by="org", lease=lease),
        Concurrency(int(number(GLOBAL_LIMIT)), name="global", lease=lease),
    )


def read() -> Conf:
    """The settings as they are now. Raises ImproperlyConfigured with the name of the first that makes no sense."""
    table = own()
    table.setdefault("store", "")
    table["store"] = table["store"] or store_url()
    lease = table.get("lease", LEASE)
    number(TTL_HOURS)
    try:
        table["limits"] = tuple(table["limits"]) if "limits" in table else default_limits(lease)
    except HeadgateError as error:
        raise ImproperlyConfigured(f"{TENANTS}['lease']: {error}") from error
    conf = Conf(**table)
    by_key = [limit.name for limit in conf.limits if getattr(limit, "by", None) == conf.key]
    if not by_key:
        raise ImproperlyConfigured(
            f"{TENANTS}['limits'] has no limit by {conf.key!r}, so tenants could not be told apart; "
            f"give one such as Concurrency(20, name='org', by={conf.key!r})"
        )
    if "limit" in table and conf.limit not in by_key:
        raise ImproperlyConfigured(
            f"{TENANTS}['limit'] is {conf.limit!r}; it must be a limit by {conf.key!r}: {' or '.join(by_key)}"
        )
    if conf.limit not in by_key:
        conf = Conf(**{**table, "limit": by_key[0]})
    for name, text in conf.messages.items():
        _check_message(name, text, [limit.name for limit in conf.limits])
    return conf


def _check_message(name: str, text: object, names: list[str]) -> None:
    if name not in names:
        raise ImproperlyConfigured(f"{TENANTS}['messages'] has {name!r}, which is no limit; limits: {', '.join(names)}")
    try:
        str(text).format(used=1, limit=1, organization="x", retry_after=1)
    except (KeyError, IndexError, ValueError) as error:
        raise ImproperlyConfigured(
            f"{TENANTS}['messages'][{name!r}]: {error!r}; "
            f"a message may use {{used}}, {{limit}}, {{organization}} and {{retry_after}}"
        ) from None


def problems() -> Iterator[tuple[str, str]]:
    """(setting, what is wrong) of every setting that makes no sense, for the checks."""
    wrong = False
    looks: list[tuple[str, Callable[[], object]]] = [(name, partial(number, name)) for name in NUMBERS]
    looks += [(STORE, store_url), (TENANTS, own)]
    for name, look in looks:
        try:
            look()
        except ImproperlyConfigured as error:
            wrong = True
            yield name, str(error)
    if not wrong:
        try:
            read()
        except ImproperlyConfigured as error:
            yield TENANTS, str(error)


def organization_model_name() -> str:
    """The project's organisation model, `app.Model`, as AUTH_USER_MODEL names its users."""
    return getattr(settings, ORGANIZATION_MODEL, None) or OWN_MODEL

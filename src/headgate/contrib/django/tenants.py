"""`Tenants`: the gate of a project, asked for one organisation at a time. All decisions of the app are made through it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from math import ceil

from django.core.exceptions import ImproperlyConfigured

from headgate import AsyncGate, Denied, Gate, HeadgateError, LimitUsage, StoreUnavailable
from headgate.duration import parse
from headgate.events import emit
from headgate.http.keys import key_value

from . import conf
from .errors import raised
from .signals import limit_reached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from headgate import AsyncPermit, Permit, Usage


#: Microseconds, as durations are parsed.
SECOND = 1_000_000


@dataclass(frozen=True)
class Refused:
    """What refused a request. `used` and `value` are the limit's; `key` is the organisation's id in the gate."""

    #: The limit's name; None where the gate is paused.
    limit: str | None
    used: int | None
    value: int | None
    organization: Any
    key: str
    detail: str
    code: str
    #: Whole seconds.
    retry_after: int
    #: It was let pass all the same.
    shadow: bool = False


class Tenants:
    """A gate with a limit for each organisation: what the views, commands and signals of the app ask.

    `tenants()` is the one that the settings describe. Make others for views that have limits of their own:
    `Tenants(Conf(gate="exports", limits=(Concurrency(2, name="user", by="user"),), key="user", limit="user"))`.
    """

    def __init__(self, settings: conf.Conf) -> None:
        self.conf = settings
        try:
            self._gate = Gate(settings.gate, settings.limits, **self._options()).at_boundary()
            self._aio: AsyncGate | None = None
            #: Seconds; of a slot under an id. Read once: text would be parsed again with every request.
            self.lease = parse(settings.lease, what="lease") / SECOND
        except HeadgateError as error:
            raise ImproperlyConfigured(f"{conf.TENANTS} or {conf.STORE}: {error}") from error
        self._lock = threading.Lock()
        limits = self._gate.policy.limits
        self._leased = {limit.name for limit in limits if limit.leased}
        #: The limit for all organisations together, where there is one.
        self.total = next((limit.name for limit in limits if limit.leased and limit.by is None), None)

    def _options(self) -> dict[str, Any]:
        return {"store": self.conf.store or "memory://", "on_store_error": self.conf.on_store_error}

    @property
    def gate(self) -> Gate:
        """The gate, for everything that a gate can do: `tenants().gate.explain(key={"org": …})`."""
        return self._gate

    @property
    def async_gate(self) -> AsyncGate:
        """The same gate for asyncio."""
        if self._aio is None:
            with self._lock:
                if self._aio is None:
                    self._aio = AsyncGate(self.conf.gate, self.conf.limits, **self._options()).at_boundary()
        return self._aio

    @property
    def holds_slots(self) -> bool:
        """Whether an admission holds a slot, which has to be released."""
        return bool(self._leased)

    @property
    def default_limit(self) -> int:
        """The value for organisations that have none of their own."""
        return int(next(limit.limit for limit in self.conf.limits if limit.name == self.conf.limit))

    def key(self, organization: object) -> dict[str, str]:
        """The key of an organisation: of an object of the model, or of its id."""
        return {self.conf.key: key_value(str(self.id_of(organization)))}

    def id_of(self, organization: object) -> object:
        """The id of an organisation: its `id_field` where it is an object of the model, else what was given."""
        if not hasattr(organization, "_meta"):
            return organization
        return getattr(organization, self.conf.id_field or default_id_field(type(organization)))

    def name_of(self, organization: object) -> str:
        """The name of an organisation, for people."""
        field = self.conf.name_field or ("name" if hasattr(organization, "name") else "")
        return str(getattr(organization, field) if field else self.id_of(organization))

    # --- asking --------------------------------------------------------------------------------------------------

    def ask(self, organization: object, id: str | None, lease: Any, renew: bool, holder: str | None) -> Permit | None:
        """A permit, in one step on all limits. Raises LimitReached; in shadow mode returns None instead."""
        key = self.key(organization)
        try:
            return self._gate.acquire(key=key, timeout=0, id=id, lease=lease, renew=renew, holder=holder)
        except Denied as denied:
            self._refuse(denied, organization, key, id, self._look(key))
            return None
        except StoreUnavailable as error:
            raise raised("LimiterUnavailable", self.conf.code) from error

    async def aask(
        self, organization: object, id: str | None, lease: Any, renew: bool, holder: str | None
    ) -> AsyncPermit | None:
        """`ask` for asyncio."""
        key = self.key(organization)
        try:
            return await self.async_gate.acquire(key=key, timeout=0, id=id, lease=lease, renew=renew, holder=holder)
        except Denied as denied:
            try:
                usage: Usage | None = await self.async_gate.usage(key=key)
            except HeadgateError:
                usage = None
            self._refuse(denied, organization, key, id, usage)
            return None
        except StoreUnavailable as error:
            raise raised("LimiterUnavailable", self.conf.code) from error

    def _look(self, key: dict[str, str]) -> Usage | None:
        """How full the limits are, for the words of a refusal: it is decided, so a store that went away changes nothing."""
        try:
            return self._gate.usage(key=key)
        except HeadgateError:
            return None

    def refused(self, denied: Denied, organization: object, key: dict[str, str], usage: Usage | None) -> Refused:
        """A refusal in words. Where several limits are full, the first of them in the gate's order is told."""
        rows = {row.name: row for row in usage.limits} if usage is not None else {}
        full = [
            limit.name for limit in self.conf.limits if limit.name == denied.limit or _is_full(rows.get(limit.name))
        ]
        limit = full[0] if full and denied.limit is not None else None
        row = rows.get(limit or "")
        # A slot may have been released since the decision: it was full then, so that is what is told.
        used, value = (None, None) if row is None else (int(max(row.used, row.limit)), int(row.limit))
        # Slots are released when work ends, which nobody can foretell; and the total must not tell how full it is.
        exact = None if limit in self._leased else denied.retry_after
        wait = max(1, ceil(exact or self.conf.retry_after))
        text = {**conf.MESSAGES, **self.conf.messages}.get(limit or "global", conf.OTHER_MESSAGE)
        if row is None and limit not in self.conf.messages and "{used}" in text:
            text = conf.OTHER_MESSAGE
        shown = {"used": used, "limit": value, "organization": self.id_of(organization), "retry_after": wait}
        return Refused(
            limit, used, value, organization, key[self.conf.key], text.format(**shown), self.conf.code, wait,
            self.conf.shadow,
        )  # fmt: skip

    def _refuse(
        self, denied: Denied, organization: object, key: dict[str, str], id: str | None, usage: Usage | None
    ) -> None:
        refused = self.refused(denied, organization, key, usage)
        kind = "shadow_refused" if refused.shadow else "refused"
        emit(
            kind,
            self.conf.gate,
            limit=refused.limit or "pause",
            key=refused.key,
            used=refused.used,
            value=refused.value,
        )
        limit_reached.send_robust(sender=Tenants, refused=refused, execution_id=id)
        if not refused.shadow:
            raise raised("LimitReached", refused)

    # --- the value of one organisation ----------------------------------------------------------------------------

    def set_value(self, key: dict[str, str], value: int | None) -> None:
        """The value of one organisation from the next decision on, in every process; None: the default."""
        if value is None:
            self._gate.clear_limit(self.conf.limit, key=key)
        else:
            self._gate.set_limit(self.conf.limit, value, key=key)

    def values(self) -> dict[str, int]:
        """The values that the store has, by organisation."""
        return {
            override.key: int(override.value)
            for override in self._gate.overrides()
            if override.limit == self.conf.limit and override.key is not None
        }

    def figures(self, organization: object) -> Figures:
        """How full an organisation and the whole system are, in one look."""
        usage = self._gate.usage(key=self.key(organization))
        row, total = usage[self.conf.limit], None if self.total is None else usage[self.total]
        return Figures(
            int(row.used),
            int(row.limit),
            None if total is None else int(total.used),
            None if total is None else int(total.limit),
        )


@dataclass(frozen=True)
class Figures:
    """Usage and limit of one organisation and of all together; None where nothing limits all."""

    org_count: int
    org_limit: int
    global_count: int | None
    global_limit: int | None

    @property
    def percent(self) -> float:
        return self.org_count / self.org_limit * 100


def _is_full(row: LimitUsage | None) -> bool:
    return row is not None and row.free_in > 0


def default_id_field(model: Any) -> str:
    """`organization_id` where the model has that field, else its primary key."""
    names = {field.name for field in model._meta.get_fields()}
    return "organization_id" if "organization_id" in names else "pk"


_lock = threading.Lock()
_made: Tenants | None = None


def tenants() -> Tenants:
    """The tenants of the settings. Raises ImproperlyConfigured with the name of a setting that makes no sense."""
    global _made
    if _made is None:
        with _lock:
            if _made is None:
                _made = Tenants(conf.read())
    return _made


def forget(**changed: Any) -> None:
    """Settings have changed under a test: the next ask reads them again."""
    global _made
    if changed.get("setting", conf.STORE).startswith(("HEADGATE_", "API_DEPLOYMENT_", "BASE_DIR")):
        _made = None

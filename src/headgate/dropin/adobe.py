"""A drop-in for the limiter of an Adobe PDF Services container: change one import, and the code around it works.

    from headgate.dropin.adobe import acquire_slot, release_slot      # was: from rate_limiter import …

    if acquire_slot("autotag", filename="chunk_001.pdf"):
        try:
            call_adobe()
        finally:
            release_slot("autotag", "chunk_001.pdf")

All api types and all processes share one gate, `adobe`: at most `rpm` calls in any 60 s, and at most `in_flight` at once.
Its store is `$HEADGATE_STORE`, else the DynamoDB table `$RATE_LIMIT_TABLE`; without either every call is a `ConfigError`.
Where the table is the store, both values are read from the SSM parameters that `$ADOBE_API_RPM_PARAM` and
`$ADOBE_API_MAX_IN_FLIGHT_PARAM` name (with the names of the original as defaults), again every five minutes; with another
store, from those that are set. A read that fails keeps the last good value.

The slot of a process that dies is back after `LEASE`. New code is better served by `Gate`, whose permits are objects.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta

from headgate import Concurrency, ConfigError, Denied, Gate, HeadgateError, InvalidInput, Window
from headgate.config.sources import Refresher, SsmSource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from headgate import Permit
    from headgate.stores.base import Store

__all__ = [
    "acquire_slot",
    "acquire_token",
    "close",
    "configure",
    "get_current_in_flight",
    "get_current_usage",
    "get_in_flight_files",
    "rate_limited_call",
    "release_slot",
    "wait_for_token",
]

GATE = "adobe"
DEFAULT_RPM, DEFAULT_IN_FLIGHT = 190, 150
#: Where the values come from: limit → (variable with the parameter's name, the name that the original has, its default).
PARAMETERS = {
    "rpm": ("ADOBE_API_RPM_PARAM", "/pdf-processing/adobe-api-rpm", DEFAULT_RPM),
    "in_flight": ("ADOBE_API_MAX_IN_FLIGHT_PARAM", "/pdf-processing/adobe-api-max-in-flight", DEFAULT_IN_FLIGHT),
}
#: Seconds between two reads of a parameter, as the original cached it.
REFRESH = 300.0
#: For how long the slot of a task that was killed stays taken. A living one renews it every third of that.
LEASE = "60s"

#: Type and file in a holder's name.
_BETWEEN = ": "
_NO_FILE = "-"

logger = logging.getLogger(__name__)


class TakenSlot:
    """A slot that this process holds, until one of the release functions finds it."""

    __slots__ = ("api_type", "filename", "permit")

    def __init__(self, api_type: str, filename: str | None, permit: Permit) -> None:
        self.api_type = api_type
        self.filename = filename
        self.permit = permit


class Limiter:
    """The gates and the slots of this process. `start` reads the environment; a fork begins with no slots."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gate: Gate | None = None
        self._token_gates: dict[float, Gate] = {}
        self._sources: dict[str, Refresher] = {}
        #: Named in code, before the environment is asked.
        self.store: str | Store | None = None
        #: In the order in which they were taken.
        self._held: list[TakenSlot] = []

    def forget(self) -> None:
        """After a fork: the parent's slots are the parent's."""
        self._lock = threading.Lock()
        self._held = []

    def gate(self) -> Gate:
        """The gate, made on first use. ConfigError where no store is named."""
        with self._lock:
            if self._gate is None:
                store = self.store if self.store is not None else _store_url()
                self._sources = _sources(on_aws=self.store is None and not os.environ.get("HEADGATE_STORE", "").strip())
                limits = [
                    Window(DEFAULT_RPM, per="1m", name="rpm"),
                    Concurrency(DEFAULT_IN_FLIGHT, name="in_flight", lease=LEASE),
                ]
                self._gate = Gate(GATE, limits, store=store, sources=self._sources)
            return self._gate

    def token_gate(self, most: float) -> Gate:
        """The same window without the slots: what a token counts in. `most` caps it where it is less than the limit.

        A guard's gate is asked whole, with its limits: there a smaller `most` would count for nothing, and is refused.
        """
        whole = self.gate()
        if not 0 < most < float("inf"):
            raise InvalidInput(f"max_per_minute must be a number above nought, not {most!r}")
        if whole.store.capabilities.has_policies:
            if most < (rpm := whole.usage()["rpm"].limit):
                raise InvalidInput(
                    f"max_per_minute is {most:g}, and the guard's limit is {rpm:g}: lower it at the guard"
                )
            return whole
        source = self._sources.get("rpm")
        value = min(most, DEFAULT_RPM if source is None else source.current)
        with self._lock:
            gate = self._token_gates.get(value)
            if gate is None:
                gate = self._token_gates[value] = Gate(GATE, [Window(value, per="1m", name="rpm")], store=whole.store)
            return gate

    def keep(self, slot: TakenSlot) -> None:
        with self._lock:
            self._held.append(slot)
        _mine.set((*_mine.get(), slot))

    def take(self, api_type: str, filename: str | None) -> TakenSlot | None:
        """The slot that a release means, which is then no longer held: this context's last one, else the oldest.

        Where the release names a file, a slot that was taken for another file is never meant.
        """

        def is_meant(slot: TakenSlot) -> bool:
            return slot.api_type == api_type and (filename is None or slot.filename in (None, filename))

        with self._lock:
            candidates = [slot for slot in reversed(_mine.get()) if slot in self._held and is_meant(slot)]
            candidates += [slot for slot in self._held if is_meant(slot)]
            exact = [slot for slot in candidates if slot.filename == filename]
            for slot in [*exact, *candidates][:1]:
                self._held.remove(slot)
                _mine.set(tuple(one for one in _mine.get() if one in self._held))
                return slot
        return None

    def close(self) -> None:
        """Give everything back and forget the gate: the next call reads the environment again."""
        with self._lock:
            held, self._held = self._held, []
            gates = [gate for gate in (*self._token_gates.values(), self._gate) if gate is not None]
            self._gate, self._token_gates = None, {}
        for slot in held:
            slot.permit.release()
        for gate in gates:
            gate.close()


def _store_url() -> str:
    store, table = os.environ.get("HEADGATE_STORE", "").strip(), os.environ.get("RATE_LIMIT_TABLE", "").strip()
    if store:
        return store
    if table:
        return f"dynamodb://{table}"
    raise ConfigError(
        "headgate.dropin.adobe: no store is named, and without one every process would have a limit of its own; set "
        "RATE_LIMIT_TABLE to the DynamoDB table (adobe-api-in-flight-tracker), or HEADGATE_STORE to any store "
        "(redis://…, sqlite:///limits.db)"
    )


def _sources(on_aws: bool) -> dict[str, Refresher]:
    """Where the values come from: on AWS the parameters of the original, elsewhere those that a variable names."""
    found = {}
    for limit, (variable, usual, default) in PARAMETERS.items():
        name = os.environ.get(variable, usual if on_aws else "").strip()
        if name:
            found[limit] = Refresher(SsmSource(name), default, every=REFRESH, name=f"{limit} of {GATE}")
    return found


#: The slots that this thread or task has taken, the last at the end.
_mine: ContextVar[tuple[TakenSlot, ...]] = ContextVar("headgate_adobe_slots", default=())
_limiter = Limiter()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_limiter.forget)


def configure(store: str | Store) -> None:
    """Name the store in code, before the environment is asked: a URL, or a store that is there."""
    close()
    _limiter.store = store


def close() -> None:
    """Give back what this process holds, and begin anew with the next call, which reads the environment."""
    _limiter.store = None
    _limiter.close()


# --- slots ------------------------------------------------------------------------------------------------------------


def acquire_slot(api_type: str = "adobe_api", max_wait_seconds: float = 300, filename: str | None = None) -> bool:
    """Wait for a slot and for the rate, which are taken together. True with a slot; False after `max_wait_seconds`.

    A slot is held until `release_slot`, or until one lease after this process has died. Raises ConfigError where no store
    is named, and StoreUnavailable where it cannot be reached: a limiter that cannot count lets nothing through.
    """
    gate = _limiter.gate()
    holder = f"{api_type}{_BETWEEN}{filename or _NO_FILE}"
    try:
        permit = gate.acquire(timeout=0, holder=holder)
    except Denied as refusal:
        if not max_wait_seconds > 0:
            return False
        _tell_of_waiting(gate, api_type, refusal)
        try:
            permit = gate.acquire(timeout=max_wait_seconds, holder=holder)
        except Denied:
            return False
    _limiter.keep(TakenSlot(api_type, filename, permit))
    if logger.isEnabledFor(logging.INFO):
        try:
            usage = gate.usage()
        except HeadgateError:
            return True  # the slot is there; only the line of the log is not
        slots, rate = usage["in_flight"], usage["rpm"]
        logger.info(
            "[%s] Acquired slot: %d/%d in-flight, %d/%d RPM", api_type, slots.used, slots.limit, rate.used, rate.limit
        )
    return True


def _tell_of_waiting(gate: Gate, api_type: str, refusal: Denied) -> None:
    if not logger.isEnabledFor(logging.INFO):
        return
    try:
        usage = gate.usage()
    except HeadgateError:
        return
    wait = refusal.retry_after or 0.0
    if refusal.limit == "in_flight":
        slots = usage["in_flight"]
        message = "[%s] At in-flight capacity (%d/%d), waiting %.1fs (attempt 1)..."
        logger.info(message, api_type, slots.used, slots.limit, wait)
    else:
        rate = usage["rpm"]
        message = "[%s] RPM limit reached (%d/%d), waiting %.1fs for next minute window (attempt 1)..."
        logger.info(message, api_type, rate.used, rate.limit, wait)


def release_slot(api_type: str = "adobe_api", filename: str | None = None) -> bool:
    """Give a slot back. True if one was given back; never raises, and frees nobody else's slot.

    It is this thread's or task's last slot of that type, else the oldest of that type in this process. Called while an
    exception is on its way (`finally`), it reports that: a 429 of Adobe pauses the whole fleet.
    """
    try:
        slot = _limiter.take(api_type, filename)
        if slot is None:
            logger.warning("[%s] Nothing to release: this process holds no slot of that type", api_type)
            return False
        released = _end(slot.permit, sys.exc_info()[1])
        if logger.isEnabledFor(logging.INFO):
            logger.info("[%s] Released slot: %d now in-flight", api_type, get_current_in_flight())
        return released
    except Exception:  # the original promises it, and its callers stand in `finally`
        logger.exception("[%s] The slot could not be released; it ends with its lease", api_type)
        return False


def _end(permit: Permit, error: BaseException | None) -> bool:
    if error is None:
        return permit.release()
    try:
        outcome = permit.report(error).outcome
    except InvalidInput:  # it tells of no answer
        outcome = "error"
    return permit.release(outcome)


@contextmanager
def rate_limited_call(api_type: str = "adobe_api", max_wait_seconds: float = 300) -> Iterator[None]:
    """One call under a slot: `with rate_limited_call("autotag"): …`, or `@rate_limited_call("autotag")` on a function.

    Raises TimeoutError where no slot was had in time; then nothing was called.
    """
    if not acquire_slot(api_type, max_wait_seconds):
        raise TimeoutError(f"[{api_type}] no slot within {max_wait_seconds:g} s")
    try:
        yield
    finally:
        release_slot(api_type)


# --- what is going on -------------------------------------------------------------------------------------------------


def get_current_in_flight() -> int:
    """How many calls are under way, in all processes."""
    return int(_limiter.gate().usage()["in_flight"].used)


def get_current_usage() -> dict[str, float]:
    """Both limits in numbers. `window_seconds_remaining`: until nothing of what counts now counts any more."""
    usage = _limiter.gate().usage()
    slots, rate = usage["in_flight"], usage["rpm"]
    return {
        "in_flight": int(slots.used),
        "max_in_flight": int(slots.limit),
        "available": int(slots.available),
        "utilization_pct": round(100 * slots.utilisation, 1),
        "rpm_current": int(rate.used),
        "rpm_max": int(rate.limit),
        "rpm_available": int(rate.available),
        "rpm_utilization_pct": round(100 * rate.utilisation, 1),
        "window_seconds_remaining": round(rate.resets_in or 0.0, 1),
    }


def get_in_flight_files() -> list[dict[str, Any]]:
    """The calls that are under way, the oldest first: `filename`, `api_type`, `started_at` (ISO 8601) and `seconds`."""
    now = datetime.now(UTC)
    found = []
    for holder in sorted(_limiter.gate().holders(), key=lambda holder: -holder.held_for):
        api_type, between, filename = (holder.holder or "").partition(_BETWEEN)
        started = now - timedelta(seconds=holder.held_for)
        found.append(
            {
                "filename": None if not between or filename == _NO_FILE else filename,
                "api_type": api_type,
                "started_at": started.isoformat(timespec="seconds").replace("+00:00", "Z"),
                "seconds": round(holder.held_for, 1),
            }
        )
    return found


# --- tokens: the rate without the slots -------------------------------------------------------------------------------


def acquire_token(api_type: str, max_per_minute: float = 200) -> bool:
    """Count one call now, if the rate allows it; False says to wait. There is nothing to release.

    All api types count in one window, which is the gate's own: `max_per_minute` can only make it smaller.
    """
    permit = _limiter.token_gate(max_per_minute).try_acquire(holder=api_type)
    return permit is not None and _counted(permit)


def wait_for_token(api_type: str, max_per_minute: float = 200) -> None:
    """Wait until one call may go, and count it. Waiting calls go in the order in which they came."""
    _counted(_limiter.token_gate(max_per_minute).acquire(holder=api_type))


def _counted(permit: Permit) -> bool:
    permit.release("error")  # who takes a token does not say how its call ends; without a slot this sends nothing
    return True

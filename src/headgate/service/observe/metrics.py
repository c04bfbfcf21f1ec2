"""`GET /metrics`: what the guard counts by itself, and how full its gates are at the moment somebody asks.

Nothing is looked at between scrapes. What is counted on the way of an ask is two additions, from the first scrape on;
before that the guard's own tally goes on, and the first scrape begins with it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from time import monotonic

from ... import events
from ...errors import HeadgateError
from ...gate.served import decide_all
from ...kernel.commands import Peek
from ...kernel.limits import kind_of
from ...kernel.model import OUTCOMES, Snapshot
from ...sinks.prometheus import Prometheus

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...gate.served import ServedGate
    from ...kernel.model import LimitUsage, Usage
    from ..app import Guard
    from ..web import Request, Response

#: Of so many keys of a gate the limits are looked at: those that ask, wait or hold most.
KEYS = 32
#: So many keys of a gate are counted at most; then the rarest are forgotten.
COUNTED_KEYS = 512
#: Permits whose hold is timed at most. One whose release goes to another guard is among them until it is pushed out.
TIMED = 100_000

#: The label of gates that are not in the guard's file: what clients call theirs must not make series.
OTHER = "(other)"

CONTENT_TYPE = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]

#: Seconds for which a cost that was settled upwards excuses a rate: looks are one after the other, but not in step with it.
SETTLED = 60.0

#: Rounding of sums: nothing above this share of a limit is more than it allows.
DUST = 1e-6


class Metrics:
    """The metrics of one guard."""

    def __init__(self, guard: Guard) -> None:
        from ... import __version__

        self._guard = guard
        self._names = frozenset(guard.gates)
        self.values = Prometheus()
        self.values.set("headgate_info", 1.0, __version__)
        for gate in guard.gates:  # from 0 on: what appears with its first value has no rate until the second
            for outcome in ("granted", "refused"):
                self.values.add("headgate_permits_total", gate, outcome, amount=0.0)
            for outcome in OUTCOMES:
                self.values.add("headgate_upstream_total", gate, outcome, amount=0.0)
            self.values.add("headgate_store_errors_total", gate, amount=0.0)
        for gate, (granted, refused, _) in guard.state.get("tally", {}).items():
            self.values.add("headgate_permits_total", self._label(gate), "granted", amount=granted)
            self.values.add("headgate_permits_total", self._label(gate), "refused", amount=refused)
        #: When what is held was granted, by id.
        self._granted: dict[str, float] = {}
        self._asked: dict[str, Counter[str]] = {}
        #: (gate, limit) → what was used and allowed at the last look.
        self._before: dict[tuple[str, str], tuple[float, float]] = {}
        #: When something of a gate last turned out to cost more than was asked for: that may exceed a rate.
        self._settled: dict[str, float] = {}
        guard.answer_listeners.append(self.heard)
        guard.usage_listeners.append(self.seen)
        self._end = events.subscribe(self.values)

    def close(self) -> None:
        self._end()
        with suppress(ValueError):
            self._guard.answer_listeners.remove(self.heard)
            self._guard.usage_listeners.remove(self.seen)

    def _label(self, gate: str) -> str:
        return gate if gate in self._names else OTHER

    def heard(self, gate: str, what: str, waited: float, command: Any = None) -> None:
        """Something was answered: granted, refused, or released with an outcome."""
        label, values = self._label(gate), self.values
        if what in ("granted", "refused"):
            values.add("headgate_permits_total", label, what)
            if what == "granted":
                values.observe("headgate_wait_seconds", waited, label)
            plan = getattr(command, "plan", None)
            if plan is not None:
                if what == "granted" and plan.lease and len(self._granted) < TIMED:
                    self._granted[command.id] = monotonic()
                if plan.key:
                    self._count_key(gate, plan.lane)
        elif what in OUTCOMES:
            values.add("headgate_upstream_total", label, what)
            since = self._granted.pop(getattr(command, "id", ""), None)
            if since is not None:
                values.observe("headgate_hold_seconds", monotonic() - since, label)
        if getattr(command, "actual", None):
            self._settled[gate] = monotonic()

    def _count_key(self, gate: str, lane: str) -> None:
        asked = self._asked.get(gate)
        if asked is None:
            asked = self._asked[gate] = Counter()
        asked[lane] += 1
        if len(asked) > COUNTED_KEYS:
            self._asked[gate] = Counter(dict(asked.most_common(COUNTED_KEYS // 2)))

    # --- at a scrape ----------------------------------------------------------------------------------------------------

    async def scrape(self) -> str:
        guard, values = self._guard, self.values
        gates = [guard.served(name) for name in guard.gates]
        peeks = [(served, Peek(served.policy, leases=_slots_by_key(served))) for served in gates]
        asked: list[tuple[ServedGate, Any]] = []
        values.forget("headgate_key_utilisation_max")
        for (served, _), snapshot in zip(peeks, await decide_all(peeks), strict=True):
            if not isinstance(snapshot, Snapshot):
                values.add("headgate_store_errors_total", served.name)
                values.set("headgate_store_up", 0.0, served.name)
                continue
            values.set("headgate_store_up", 1.0, served.name)
            usage = served.usage_of(snapshot)
            values.look(guard.note_usage(usage))
            asked += [(served, peek) for peek in self._by_key(served, snapshot)]
        fullest: dict[tuple[str, str], float] = {}
        for (served, _), snapshot in zip(asked, await decide_all(asked), strict=True) if asked else ():
            for row in snapshot.limits if isinstance(snapshot, Snapshot) else ():
                if row.key is not None:
                    place = (served.name, row.name)
                    fullest[place] = max(fullest.get(place, 0.0), row.utilisation)
        for (gate, limit), utilisation in fullest.items():
            values.set("headgate_key_utilisation_max", utilisation, gate, limit)
        values.set("headgate_guard_waiters", float(guard.caps.waiters))
        values.set("headgate_guard_streams", float(len(guard.state.get("wakes", ()))))
        return values.text()

    def _by_key(self, served: ServedGate, snapshot: Snapshot) -> list[Peek]:
        """Looks at the keys that may be the fullest. What was asked long ago counts for less and less."""
        if not served.policy.keys:
            return []
        asked = self._asked.get(served.name, Counter())
        held = Counter(",".join(f"{by}={lease[2][by]}" for by in served.policy.keys) for lease in snapshot.leases)
        peeks = []
        for lane in {lane for counts in (asked, held) for lane, _ in counts.most_common(KEYS)}:
            key = dict(part.split("=", 1) for part in lane.split(","))
            with suppress(HeadgateError):  # of an ask that was made with another configuration
                peeks.append(served.peek_command(key))
        self._asked[served.name] = Counter({lane: count // 2 for lane, count in asked.items() if count > 1})
        return peeks

    def seen(self, usage: Usage) -> None:
        """A gate was looked at. More in use than before, and more than what was allowed then or is now, must never be.

        A limit that was lowered, or a cost that turned out to be higher, is no overshoot.
        """
        gate = usage.gate
        settled = monotonic() - self._settled.get(gate, -SETTLED) < SETTLED
        for row in usage.limits:
            if row.key is not None:
                continue  # a label for each key would be a series for each client
            place = (gate, row.name)
            before = self._before.get(place)
            self._before[place] = (row.used, row.limit)
            self.values.add("headgate_overshoot_total", *place, amount=0.0)
            if before is None or (settled and not kind_of(row.kind).leased):
                continue
            if row.used > _allowed(row, *before) * (1 + DUST):
                self.values.add("headgate_overshoot_total", *place)


def _allowed(row: LimitUsage, used: float, limit: float) -> float:
    return max(used, limit, row.limit, row.maximum or 0.0)


def _slots_by_key(served: ServedGate) -> bool:
    return any(limit.leased and limit.by is not None for limit in served.policy.limits)


def metrics_of(guard: Guard) -> Metrics:
    """Those of a guard, from the first time that somebody asks for them."""
    found: Metrics | None = guard.state.get("metrics")
    if found is None:
        found = guard.state["metrics"] = Metrics(guard)
    return found


async def metrics(guard: Guard, request: Request) -> Response:
    """`GET /metrics`."""
    return 200, CONTENT_TYPE, (await metrics_of(guard).scrape()).encode()

"""`GET /metrics`: what the guard counts, and how full its gates are at the moment of the scrape.

Gates are not looked at between scrapes. From the first scrape on an ask costs two additions more; before that only the
guard's own tally is kept, and the first scrape begins with it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from time import monotonic

from ... import events
from ...errors import HeadgateError
from ...gate.served import decide_all
from ...http.problems import NOSNIFF
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

#: The most keys of a gate whose limits are looked at: those that ask or hold most.
KEYS = 32
#: The most keys of a gate that are counted; beyond it the rarest half is forgotten.
COUNTED_KEYS = 512
#: The most permits whose hold is timed. One that is released at another guard stays among them.
TIMED = 100_000

#: The label of gates that are not in the guard's file: names that clients choose must not make series.
OTHER = "(other)"

CONTENT_TYPE = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8"), NOSNIFF]

#: Seconds for which a cost that was settled upwards explains a rate above its limit.
SETTLED = 60.0

#: Sums are rounded: an excess below this share of a limit is none.
DUST = 1e-6


class Metrics:
    """The metrics of one guard."""

    def __init__(self, guard: Guard) -> None:
        from ... import __version__

        self._guard = guard
        self._names = frozenset(guard.gates)
        counting = events.sinks_on().get("prometheus")
        #: Where a configuration has it on, the sink that has counted events since the start of the process.
        self.values = counting if isinstance(counting, Prometheus) else Prometheus()
        self.values.set("headgate_info", 1.0, __version__)
        for gate in guard.gates:  # a counter that begins at 0 has a rate from its first increase on
            for outcome in ("granted", "refused"):
                self.values.add("headgate_permits_total", gate, outcome, amount=0.0)
            for outcome in OUTCOMES:
                self.values.add("headgate_upstream_total", gate, outcome, amount=0.0)
            self.values.add("headgate_store_errors_total", gate, amount=0.0)
        for gate, (granted, refused, _, _) in guard.state.get("tally", {}).items():
            self.values.add("headgate_permits_total", self._label(gate), "granted", amount=granted)
            self.values.add("headgate_permits_total", self._label(gate), "refused", amount=refused)
        #: Permit id → when it was granted (monotonic seconds).
        self._granted: dict[str, float] = {}
        self._asked: dict[str, Counter[str]] = {}
        #: (gate, limit) → used and limit at the last look.
        self._before: dict[tuple[str, str], tuple[float, float]] = {}
        #: Gate → when a permit was last settled with its actual cost, which may exceed a rate (monotonic seconds).
        self._settled: dict[str, float] = {}
        guard.answer_listeners.append(self.on_answer)
        guard.usage_listeners.append(self.on_usage)
        self._end = events.subscribe(self.values) if counting is None else lambda: None

    def close(self) -> None:
        self._end()
        with suppress(ValueError):
            self._guard.answer_listeners.remove(self.on_answer)
            self._guard.usage_listeners.remove(self.on_usage)

    def _label(self, gate: str) -> str:
        return gate if gate in self._names else OTHER

    def on_answer(self, gate: str, result: str, waited: float, command: Any = None) -> None:
        """Count an answer: granted, refused, or a release with its outcome."""
        label, values = self._label(gate), self.values
        if result in ("granted", "refused"):
            values.add("headgate_permits_total", label, result)
            if result == "granted":
                values.observe("headgate_wait_seconds", waited, label)
            plan = getattr(command, "plan", None)
            if plan is not None:
                if result == "granted" and plan.lease and len(self._granted) < TIMED:
                    self._granted[command.id] = monotonic()
                if plan.key:
                    self._count_key(gate, plan.lane)
        elif result in OUTCOMES:
            values.add("headgate_upstream_total", label, result)
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
        """Peeks at the keys that may be the fullest. Asks count for half as much after each scrape."""
        if not served.policy.keys:
            return []
        asked = self._asked.get(served.name, Counter())
        held = Counter(",".join(f"{by}={lease.key[by]}" for by in served.policy.keys) for lease in snapshot.leases)
        peeks = []
        for lane in {lane for counts in (asked, held) for lane, _ in counts.most_common(KEYS)}:
            key = dict(part.split("=", 1) for part in lane.split(","))
            with suppress(HeadgateError):  # the key of an ask that was made with another configuration
                peeks.append(served.peek_command(key))
        self._asked[served.name] = Counter({lane: count // 2 for lane, count in asked.items() if count > 1})
        return peeks

    def on_usage(self, usage: Usage) -> None:
        """Count an overshoot: more in use than at the last look, and more than was allowed then or is allowed now.

        A limit that was lowered, or a cost that was settled upwards, is no overshoot.
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
    """The metrics of a guard, made at the first scrape."""
    found: Metrics | None = guard.state.get("metrics")
    if found is None:
        found = guard.state["metrics"] = Metrics(guard)
    return found


async def metrics(guard: Guard, request: Request) -> Response:
    """`GET /metrics`."""
    return 200, CONTENT_TYPE, (await metrics_of(guard).scrape()).encode()

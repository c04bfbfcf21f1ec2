"""`GET /v1/events`: server-sent events for the dashboard. One sampler serves all watchers.

    event: hello
    data: {"version": …, "may_change": …, "tokens": …, "history": {gate: [row, …]}, "minutes": {gate: [row, …]}}

    event: gates              every second
    data: {"sampled_at": …, "changes": …, "gates": [{"name": …, "limits": […], "waiters": […], "holders": […], …}]}

Times are seconds since 1970, lengths are seconds. A row is [time, granted, refused, limited, waiting, utilisation, waited].
Counts are of requests to this guard since the row before; `waiting` counts the tickets of all guards and processes,
`utilisation` is that of the fullest limit, `waited` the mean seconds of the asks that were granted; each is null where it
is not known. `history` has seconds, `minutes` has minutes (see `history.py`). `changes` grows with every change that the
guard has recorded. A client that is slower than the samples skips some.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from contextlib import suppress
from dataclasses import replace

from ...errors import HeadgateError
from ...gate.served import decide_all
from ...http.problems import Problem, shown
from ...kernel.commands import Peek
from ...kernel.limits import kind_of
from ...kernel.model import AS_GOOD_AS_NEVER, Override, Snapshot, plain
from ...kernel.overrides import in_force
from ...kernel.why import override_words
from ..log import log
from ..routes.gates import check_query
from ..web import EVENT_STREAM, encode
from .history import History

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ...gate.served import ServedGate
    from ...kernel.limits import Limit
    from ...kernel.model import Holder, LimitUsage, Waiter
    from ..app import Guard
    from ..web import Request, Response
    from .history import Row

#: Rows of counts that are kept: one per second.
KEPT = 600
#: Seconds between looks without a watcher: enough to draw how the line grew.
IDLE = 10
#: The most watchers, holders in an event, and keys of a gate whose limits are looked at.
WATCHERS, HOLDERS, KEYS = 64, 100, 12
#: Listing the holders walks over all leases: with more than so many, it is not done every second.
MANY = 500


class Watcher:
    """One client, and the latest sample that was not written to it yet."""

    __slots__ = ("latest", "news", "over")

    def __init__(self) -> None:
        self.news = asyncio.Event()
        self.latest: bytes | None = None
        self.over = False

    def offer(self, sample: bytes) -> None:
        self.latest = sample
        self.news.set()

    def end(self) -> None:
        self.over = True
        self.news.set()


class Sampler:
    """Looks at every gate once a second while there are watchers, and keeps the counts of the last ten minutes."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._rows: dict[str, deque[Row]] = {}
        self._before: dict[str, tuple[int, int, int, float]] = {}
        self.minutes = History(guard.history)
        #: Gate → its holders, and when they were listed (monotonic seconds).
        self._holders: dict[str, tuple[float, list[Holder]]] = {}
        self._watchers: set[Watcher] = set()
        self._task: asyncio.Task[None] | None = None
        self._joined = asyncio.Event()
        self._ticks = 0

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="headgate-sampler")

    def close(self) -> None:
        """End the sampler and every stream; clients reconnect by themselves."""
        if self._task is not None:
            self._task.cancel()
            self.minutes.write(self.minutes.end_minute())
        for watcher in self._watchers:
            watcher.end()

    def watch(self) -> Watcher:
        """Add a watcher, which its stream must `leave`. Raises Problem where there are too many."""
        if len(self._watchers) >= WATCHERS:
            raise Problem(503, "too-many-watchers", f"{WATCHERS} watch this guard already, and it takes no more")
        self.start()
        watcher = Watcher()
        self._watchers.add(watcher)
        self._joined.set()
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def history(self) -> dict[str, list[Row]]:
        return {name: list(rows) for name, rows in self._rows.items()}

    # --- looking ------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._joined.clear()
            watched = bool(self._watchers)
            try:
                await self._sample(watched)
            except Exception:  # a sample that fails must not be the last one
                log.exception("the dashboard's sampler failed")
            self._ticks += 1
            # Until the next full second, so that a row is a second; a new watcher need not wait for it.
            pause = 1.0 - time.time() % 1.0
            if watched:
                await asyncio.sleep(pause)
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._joined.wait(), pause)

    async def _sample(self, watched: bool) -> None:
        looked = await self._look(watched) if watched or self._ticks % IDLE == 0 else {}
        at = int(time.time())
        lines: list[str] = []
        for name in self._names():
            found = looked.get(name, {})
            granted, refused, limited, waited_s = self._count(name)
            full = [row["utilisation"] for row in (*found.get("limits", ()), *found.get("keys", ()))]
            waited = waited_s / granted if granted else None
            row = (at, granted, refused, limited, found.get("waiting"), max(full, default=None), waited)
            self._rows.setdefault(name, deque(maxlen=KEPT)).append(row)
            lines += self.minutes.add(name, row)
            if found:
                found["counts"] = row[1:]
        if lines:
            await asyncio.to_thread(self.minutes.write, lines)
        if watched:
            sample = (
                b"event: gates\ndata: %s\n\n"
                % encode(
                    {"sampled_at": at, "changes": self._guard.audit.count, "gates": list(looked.values())}
                ).encode()
            )
            for watcher in self._watchers:
                watcher.offer(sample)

    def _names(self) -> Iterable[str]:
        return self._guard.gates

    def _count(self, name: str) -> tuple[int, int, int, float]:
        """Since the row before: granted, refused, 429s that were reported, and the seconds that they waited together."""
        total = counts_of(self._guard, name)
        before = self._before.get(name, (0, 0, 0, 0.0))
        self._before[name] = total
        return total[0] - before[0], total[1] - before[1], total[2] - before[2], total[3] - before[3]

    async def _look(self, closely: bool) -> dict[str, Any]:
        """The event of each gate. One round trip per store, and one more where limits are by a key."""
        gates = [self._guard.served(name) for name in self._names()]
        peeks = []
        for served in gates:
            walk = len(self._held(served)[1]) // MANY + 1
            peeks.append((served, Peek(served.policy, leases=closely and self._ticks % walk == 0, waiters=closely)))
        found: dict[str, Any] = {}
        asked: list[tuple[ServedGate, Peek]] = []
        for (served, peek), snapshot in zip(peeks, await decide_all(peeks), strict=True):
            if not isinstance(snapshot, Snapshot):
                found[served.name] = {"name": served.name, "error": shown(str(snapshot))}
                continue
            if peek.leases:
                self._holders[served.name] = (time.monotonic(), served.holders_of(snapshot))
            found[served.name] = self._event_of(served, snapshot)
            if closely:
                asked += [(served, peek) for peek in self._by_key(served, served.waiters_of(snapshot))]
                asked += [
                    (served, Peek(served.policy, keys=limit.name, top=KEYS))
                    for limit in served.policy.limits
                    if limit.by
                ]
        for (served, _), snapshot in zip(asked, await decide_all(asked), strict=True) if asked else ():
            if isinstance(snapshot, Snapshot):
                add_keys(found[served.name], served, snapshot)
        for event in found.values():
            event.get("keys", []).sort(key=lambda row: row["key"])  # in a stable order, so that rows do not jump
        return found

    def _event_of(self, served: ServedGate, snapshot: Snapshot) -> dict[str, Any]:
        policy = served.policy
        usage = self._guard.note_usage(served.usage_of(snapshot))
        limits = {limit.name: limit for limit in policy.limits}
        overrides = snapshot.overrides
        listed, holders = self._held(served)
        age = time.monotonic() - listed
        slots = [row for row in usage.limits if kind_of(row.kind).leased and "@" not in row.name]
        return {
            "name": served.name,
            "mode": policy.waiting,
            "priorities": list(policy.priorities),
            "paused": None
            if usage.paused_for is None
            else {
                "paused_for": usage.paused_for if usage.paused_for < AS_GOOD_AS_NEVER else None,
                "reason": usage.pause_reason,
            },
            "waiting": usage.waiting,
            "why": served.why_of(snapshot),
            "holding": max([len(holders), *(int(row.used) for row in slots)]),
            "limits": [limit_row(row, limits, overrides) for row in usage.limits],
            "keyed": [traits(limit, overrides, None) for limit in policy.limits if limit.by is not None],
            "keys": [],
            "waiters": [waiter_row(waiter) for waiter in served.waiters_of(snapshot)],
            "holders": [
                person_row(holder)
                | {
                    "held_for": holder.held_for + age,
                    "expires_in": max(0.0, holder.expires_in - age),
                    "permit": permit_name(served, holder.id),
                }
                for holder in holders[:HOLDERS]
            ],
            "error": None,
        }

    def _held(self, served: ServedGate) -> tuple[float, list[Holder]]:
        return self._holders.get(served.name) or (time.monotonic(), [])

    def _by_key(self, served: ServedGate, waiters: list[Waiter]) -> list[Peek]:
        """Peeks at the keys with the most holders and waiters, for the limits by a key."""
        if not served.policy.keys:
            return []
        counts: Counter[tuple[tuple[str, str], ...]] = Counter()
        both: list[Holder | Waiter] = [*self._held(served)[1], *waiters]
        for one in both:
            counts[tuple(sorted(one.key.items()))] += 1
        peeks = []
        for key, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:KEYS]:
            with suppress(HeadgateError):  # the key of an ask that was made with another configuration
                peeks.append(served.peek_command(dict(key)))
        return peeks


# --- as JSON ------------------------------------------------------------------------------------------------------------


def traits(limit: Limit, overrides: Sequence[Override], key: str | None) -> dict[str, Any]:
    """A limit without its usage. `own` is its configured value, `value` the one in force, `override` that in words."""
    length = getattr(limit, "per", None)
    found = in_force(overrides, Override(limit.name, key, limit.limit))
    return {
        "name": limit.name,
        "kind": limit.kind,
        "unit": limit.unit,
        "by": limit.by,
        "own": limit.limit,
        "value": found.value,
        "overridden": any((one.limit, one.key, one.tightened) == (limit.name, key, False) for one in overrides),
        "override": override_words(found) if found in overrides and found.key == key else None,
        "per": length / 1_000_000 if isinstance(length, int) else length,
        "burst": getattr(limit, "burst", None),
    }


def limit_row(row: LimitUsage, limits: dict[str, Limit], overrides: Sequence[Override]) -> dict[str, Any]:
    """A limit with what is used of it: what it is, and the fields of its usage."""
    name, _, share = row.name.partition("@")
    # More than a century ahead is shown as never.
    soon = row if row.free_in < AS_GOOD_AS_NEVER else replace(row, free_in=float("inf"))
    return plain(soon) | traits(limits[name], overrides, row.key) | {"class": share or None}  # type: ignore[no-any-return]


def add_keys(event: dict[str, Any], served: ServedGate, snapshot: Snapshot) -> None:
    limits = {limit.name: limit for limit in served.policy.limits}
    overrides = snapshot.overrides
    known = {(row["name"], row["key"]) for row in event["keys"]}
    for row in (*snapshot.limits, *snapshot.keys):
        if row.key is not None and "@" not in row.name and (row.name, row.key) not in known:
            event["keys"].append(limit_row(row, limits, overrides))


def person_row(one: Holder | Waiter) -> dict[str, Any]:
    return {"id": one.id, "holder": one.holder, "key": dict(one.key), "priority": one.priority}


def waiter_row(waiter: Waiter) -> dict[str, Any]:
    asked = {"cost": dict(waiter.cost), "state": waiter.state, "limit": waiter.limit, "goes_in": waiter.goes_in}
    return person_row(waiter) | {"waiting_for": waiter.waiting_for} | asked


def permit_name(served: ServedGate, id: str) -> str:
    return f"{served.name}:{id}"


def counts_of(guard: Guard, name: str) -> tuple[int, int, int, float]:
    """Granted, refused and reported as rate limited since the guard began, and the seconds that they waited together."""
    found = guard.state.get("tally", {}).get(name, (0, 0, 0, 0.0))
    return found[0], found[1], found[2], found[3]


# --- the route ----------------------------------------------------------------------------------------------------------


def sampler_of(guard: Guard) -> Sampler:
    found: Sampler | None = guard.state.get("sampler")
    if found is None:
        found = guard.state["sampler"] = Sampler(guard)
    return found


async def events(guard: Guard, request: Request) -> Response | None:
    """Samples until the client hangs up or the guard closes."""
    check_query(request)
    if request.scope["method"] == "HEAD":
        return 200, EVENT_STREAM, b""
    sampler = sampler_of(guard)
    watcher = sampler.watch()
    watching = asyncio.get_running_loop().create_task(_end_when_disconnected(request, watcher))
    try:
        await request.send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
        await _write(request, b"event: hello\ndata: %s\n\n" % encode(_hello(guard, request, sampler)).encode())
        while not watcher.over and not guard.closing:
            await watcher.news.wait()
            watcher.news.clear()
            if watcher.latest is not None:
                sample, watcher.latest = watcher.latest, None
                await _write(request, sample)
        await request.send({"type": "http.response.body", "body": b""})
    finally:
        sampler.leave(watcher)
        watching.cancel()
    return None


async def _end_when_disconnected(request: Request, watcher: Watcher) -> None:
    await request.until_disconnected()
    watcher.end()


async def _write(request: Request, body: bytes) -> None:
    await request.send({"type": "http.response.body", "body": body, "more_body": True})


def _hello(guard: Guard, request: Request, sampler: Sampler) -> dict[str, Any]:
    from ... import __version__

    bearer = request.bearer
    return {
        "version": __version__,
        "tokens": guard.tokens is not None,
        "may_change": guard.tokens is None or (bearer is not None and "configure" in bearer.scopes),
        "history": sampler.history(),
        "minutes": sampler.minutes.rows(guard.gates),
    }

"""How far a run is, for people: a bar where there is a terminal and rich, lines where there is not.

What is told is a `RunProgress`, made by a pure function of the run's counts and of a look at its gate.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass

from ..kernel.why import FREE, amount, span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol, TextIO

    from ..kernel.limits import Limit
    from ..kernel.model import Usage
    from .result import RunTally

    class Shown(Protocol):
        """What shows the progress of a run."""

        #: Seconds between two looks.
        every_s: float

        def show(self, snapshot: RunProgress) -> None: ...
        def close(self, snapshot: RunProgress) -> None: ...


#: Seconds over which the rate is taken.
RECENT_S = 10.0


@dataclass(frozen=True, slots=True)
class RunProgress:
    """How far a run is. Times are seconds; `left_s` and `projected` are None where nobody can say."""

    done: int
    total: int | None
    successful: int
    failed: int
    skipped: int
    retries: int
    rate_limited: int
    #: Calls that are under way, those that wait for a permit not counted.
    calling: int
    asking: int
    seconds: float
    #: Items a second, of late.
    rate: float
    #: Until all is done, by what the gate allows in the long run and by the rate.
    left_s: float | None = None
    #: What the gate says that calls wait for; empty where none do.
    waits_for: str = ""
    cost: float = 0.0
    #: What all items will have cost, if the rest cost what those cost that are done.
    projected: float | None = None


def time_left(remaining: int, rate: float, allowed: float | None, paused_for: float = 0.0) -> float | None:
    """Seconds for the remaining items, at the slower of the rate of late and what is allowed (both items a second)."""
    if not remaining:
        return 0.0
    speeds = [speed for speed in (rate, allowed) if speed]
    return paused_for + remaining / min(speeds) if speeds else None


def allowed_rate(
    limits: tuple[Limit, ...], usage: Usage, costs: Mapping[str, float], call_s: float, workers: int
) -> float | None:
    """Calls a second that the limits in force let pass in the long run, and so many workers make; None: unlimited.

    Limits by a key are left out, and those of a unit of which nobody knows what a call costs.
    """
    in_force = {found.name: found.limit for found in usage.limits if found.key is None}
    rates = [workers / call_s] if call_s > 0 else []
    for limit in limits:
        if limit.by is not None or (limit.leased and call_s <= 0) or limit.unit not in costs:
            continue
        value = in_force.get(limit.name, limit.limit)
        found = limit.with_limit(value) if value > 0 and value != limit.limit else limit
        rates.append(found.per_minute(costs[limit.unit], call_s) / 60)
    return min(rates, default=None)


class Meter:
    """Makes snapshots of a run that is under way."""

    def __init__(self, total: int | None, now: float) -> None:
        self._total = total
        self._begun = now
        self._past: deque[tuple[float, int]] = deque([(now, 0)])

    def snapshot(
        self,
        tally: RunTally,
        now: float,
        *,
        calling: int,
        asking: int,
        allowed: float | None = None,
        paused_for: float = 0.0,
        waits_for: str = "",
        priced: bool = False,
    ) -> RunProgress:
        done = tally.done
        past = self._past
        past.append((now, done - tally.replayed - tally.skipped))
        while len(past) > 2 and past[0][0] < now - RECENT_S:
            past.popleft()
        (since, before), (_, latest) = past[0], past[-1]
        rate = (latest - before) / (now - since) if now > since else 0.0
        left = None if self._total is None else time_left(max(0, self._total - done), rate, allowed, paused_for)
        paid_for = tally.successful
        projected = None
        if priced and self._total is not None and paid_for:
            projected = tally.cost / paid_for * max(0, self._total - tally.failed - tally.skipped)
        return RunProgress(
            done=done,
            total=self._total,
            successful=tally.successful,
            failed=tally.failed,
            skipped=tally.skipped,
            retries=tally.retries,
            rate_limited=tally.rate_limited,
            calling=calling,
            asking=asking,
            seconds=now - self._begun,
            rate=rate,
            left_s=left,
            waits_for="" if waits_for == FREE or not asking else waits_for,
            cost=tally.cost,
            projected=projected,
        )


def words(snapshot: RunProgress) -> str:
    """A snapshot in one line."""
    total = "" if snapshot.total is None else f"/{snapshot.total:,}"
    share = f" ({snapshot.done / snapshot.total:.0%})" if snapshot.total else ""
    parts = [f"{snapshot.done:,}{total}{share}", f"{amount(snapshot.rate)}/s"]
    if snapshot.left_s is not None and snapshot.done != snapshot.total:
        parts.append(f"{span(snapshot.left_s)} left")
    parts += [
        f"{number:,} {what}"
        for number, what in (
            (snapshot.failed, "failed"),
            (snapshot.skipped, "skipped"),
            (snapshot.retries, "retries"),
            (snapshot.rate_limited, "rate-limited"),
        )
        if number
    ]
    if snapshot.cost:
        projected = "" if snapshot.projected is None else f" of about {snapshot.projected:.4g}"
        parts.append(f"cost {snapshot.cost:.4g}{projected}")
    return ", ".join(parts) + (f"; {snapshot.waits_for}" if snapshot.waits_for else "")


class ProgressLines:
    """A line now and then, for logs: the first after two seconds, then less and less often, until it is once a minute."""

    every_s = 1.0

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._next = 2.0

    def show(self, snapshot: RunProgress) -> None:
        if snapshot.seconds >= self._next:
            self._next = snapshot.seconds + min(60.0, max(2.0, snapshot.seconds / 2))
            self._tell(snapshot)

    def close(self, snapshot: RunProgress) -> None:
        self._tell(snapshot)

    def _tell(self, snapshot: RunProgress) -> None:
        self._stream.write(f"headgate batch: {words(snapshot)}\n")
        self._stream.flush()


class ProgressFunction:
    """Hands each snapshot to a function."""

    every_s = 0.5

    def __init__(self, tell: Callable[[RunProgress], object]) -> None:
        self._tell = tell

    def show(self, snapshot: RunProgress) -> None:
        self._tell(snapshot)

    def close(self, snapshot: RunProgress) -> None:
        self._tell(snapshot)


def shown_by(progress: Any) -> Shown | None:
    """What shows the progress as an argument of `run` asks for: True, False, or a function of a RunProgress."""
    if not progress:
        return None
    if callable(progress):
        return ProgressFunction(progress)
    if sys.stderr.isatty():
        try:
            from .bar import ProgressBar
        except ImportError:
            return ProgressLines()
        return ProgressBar()
    return ProgressLines()

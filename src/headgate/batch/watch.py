"""Looking at the gate while a run goes on: for pauses that others made, and for what the progress tells."""

from __future__ import annotations

import asyncio
from time import monotonic

from ..errors import HeadgateError
from .progress import Meter, allowed_rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .engine import BatchEngine
    from .options import Options
    from .progress import RunProgress

#: Seconds between two looks at the gate.
EVERY_S = 1.0


class GateWatch:
    """What a run sees of its gate and shows of itself."""

    def __init__(self, engine: BatchEngine, options: Options) -> None:
        self._engine = engine
        self._options = options
        self._meter = Meter(options.total, monotonic())
        self._allowed: float | None = None
        self._paused_for = 0.0
        self._waits_for = ""

    async def keep_looking(self) -> None:
        """Until it is cancelled."""
        shown = self._options.progress
        every = EVERY_S if shown is None else min(EVERY_S, shown.every_s)
        look_at = monotonic() + EVERY_S
        if shown is not None:
            await self._look()
        while True:
            await asyncio.sleep(every)
            if monotonic() >= look_at:
                await self._look()
                look_at = monotonic() + EVERY_S
            if shown is not None:
                shown.show(self._snapshot())

    def close(self) -> None:
        """The run is over: show how it ended."""
        if self._options.progress is not None:
            self._options.progress.close(self._snapshot())

    async def _look(self) -> None:
        engine, options = self._engine, self._options
        waiting = engine.ramping or any(worker.asking for worker in engine.workers)
        if not waiting and options.progress is None:
            return
        try:
            usage = await engine.gate.usage()
            if options.progress is not None:
                self._waits_for = await engine.gate.why() if waiting else ""
        except HeadgateError:  # the asks themselves find out, and do what the gate was told
            return
        self._paused_for = usage.paused_for or 0.0
        if options.progress is not None:
            tally = engine.tally
            call_s = tally.held_s / tally.ended if tally.ended else 0.0
            self._allowed = allowed_rate(engine.gate.policy.limits, usage, options.costs, call_s, options.workers)
        if usage.paused_for:
            engine.pause_seen(usage.paused_for)
        elif engine.ramping:
            engine.pause_over()

    def _snapshot(self) -> RunProgress:
        engine = self._engine
        asking = sum(worker.asking for worker in engine.workers)
        return self._meter.snapshot(
            engine.tally,
            monotonic(),
            calling=engine.under_way - asking,
            asking=asking,
            allowed=self._allowed,
            paused_for=self._paused_for,
            waits_for=self._waits_for,
            priced=self._options.price is not None,
        )

"""Looking at the gate while a run goes on."""

from __future__ import annotations

import asyncio

from ..errors import HeadgateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .engine import BatchEngine
    from .options import Options

#: Seconds between two looks.
EVERY_S = 1.0


async def watch(engine: BatchEngine, options: Options) -> None:
    """Until it is cancelled: notice pauses that others made or ended, while calls wait."""
    while True:
        await asyncio.sleep(EVERY_S)
        if not engine.ramping and not any(worker.asking for worker in engine.workers):
            continue
        try:
            usage = await engine.gate.usage()
        except HeadgateError:  # the asks themselves find out, and do what the gate was told
            continue
        if usage.paused_for:
            engine.pause_seen(usage.paused_for)
        elif engine.ramping:
            engine.pause_over()

"""`Worker`: takes permits and messages, runs handlers, and stops without losing anything."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import Counter
from contextlib import suppress

from ..background import start_daemon
from ..duration import parse
from ..errors import InvalidInput, StoreUnavailable
from ..events import sinks_on
from .outcomes import SECOND
from .runner import StageRunner
from .stage import Pipeline, Stage
from .threads import DaemonThreads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Self

    from .message import QueueStats

#: Seconds between two looks whether everything is done, with `until_empty`.
LOOK_S = 1.0
#: Seconds between two times that sinks are told how the queues stand.
METRICS_S = 10.0


class Worker:
    """Works on stages: `Worker(pipeline, concurrency=8).run()`. Any number of them may run, in any number of processes.

    `concurrency` is how many handlers each stage runs at a time, plain functions in threads and coroutine functions on the
    event loop. `stop_within` (seconds) is how long a stop waits for handlers; what is not done then goes back to its queue.
    """

    def __init__(
        self, of: Pipeline | Stage | Iterable[Stage], concurrency: int = 8, stop_within: str | float = "30s"
    ) -> None:
        if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
            raise InvalidInput(f"concurrency is a whole number of handlers from 1 on, not {concurrency!r}")
        self.stages = [of] if isinstance(of, Stage) else list(of)
        if not self.stages or not all(isinstance(stage, Stage) for stage in self.stages):
            raise InvalidInput(f"a worker works on a pipeline that has stages, a stage, or several, not on {of!r}")
        self.concurrency = concurrency
        self.stop_within_s = parse(stop_within, what="stop_within", zero=True) / SECOND
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stop_early = False
        self._runners: list[StageRunner] = []
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._on_progress: Callable[[Worker], None] | None = None

    # --- running --------------------------------------------------------------------------------------------------

    def run(
        self, until_empty: bool = False, signals: bool = True, on_progress: Callable[[Worker], None] | None = None
    ) -> dict[str, Counter[str]]:
        """Work until it is stopped; with `until_empty`, until no stage has a message, delayed and leased ones included.

        With `signals` and in the main thread, SIGTERM and SIGINT stop it. `on_progress` is called now and then, on the
        event loop. Returns how many messages ended how, by stage.
        """
        self._on_progress = on_progress
        in_main = threading.current_thread() is threading.main_thread()
        asyncio.run(self._main(until_empty, signals and in_main))
        return self.tally()

    def start(self) -> Self:
        """Work in a thread of its own, until `stop`."""
        if self._thread is not None:
            raise InvalidInput("this worker was started already; make another one")
        self._thread = start_daemon("headgate-worker", self._run_in_thread)
        return self

    def _run_in_thread(self) -> None:
        try:
            self.run(signals=False)
        except BaseException as error:
            self._error = error

    def stop(self, within: str | float | None = None) -> None:
        """Take no more messages, and end when those in work are done or handed back. From any thread; returns at once.

        `within` (seconds) overrides `stop_within`.
        """
        if within is not None:
            self.stop_within_s = parse(within, what="within", zero=True) / SECOND
        self._stop_early = True
        loop, stop = self._loop, self._stop
        if loop is not None and stop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until a started worker has ended. Raises what ended it, if that was an error."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()
        self.join()

    def tally(self) -> dict[str, Counter[str]]:
        """By stage, how many messages ended how in this worker: `done`, `failed`, `refused`, `dead` …"""
        return {runner.stage.name: runner.tally.copy() for runner in self._runners}

    def in_work(self) -> dict[str, int]:
        """By stage, how many messages this worker has in work."""
        return {runner.stage.name: runner.in_work for runner in self._runners}

    # --- on the event loop ----------------------------------------------------------------------------------------

    async def _main(self, until_empty: bool, signals: bool) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._stop = stop = asyncio.Event()
        if self._stop_early:
            stop.set()
        handled = []
        if signals:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._signalled)
                handled.append(number)
        threads = DaemonThreads("headgate-handler")
        try:
            self._runners = [StageRunner(stage, self.concurrency, threads) for stage in self.stages]
            feeders = [asyncio.ensure_future(runner.feed()) for runner in self._runners]
            metrics = asyncio.ensure_future(self._tell_metrics())
            try:
                await self._until_stopped(stop, until_empty, feeders)
            finally:
                metrics.cancel()
                for runner in self._runners:
                    runner.stop()
                for feeder in feeders:
                    feeder.cancel()
                await asyncio.gather(*feeders, return_exceptions=True)
                await asyncio.gather(*(runner.finish(self.stop_within_s) for runner in self._runners))
        finally:
            for number in handled:
                loop.remove_signal_handler(number)
            threads.close()

    def _signalled(self) -> None:
        """The first signal stops it gracefully; a second one hands back at once what is in work."""
        assert self._stop is not None
        if self._stop.is_set():
            self.stop_within_s = 0.0
            for runner in self._runners:
                runner.hand_back()
        self._stop.set()

    async def _tell_metrics(self) -> None:
        """Tell the sinks that keep gauges how the queues stand, for as long as the worker runs."""
        while True:
            gauges: list[Any] = [sink for sink in sinks_on().values() if hasattr(sink, "set")]
            for stage in self.stages if gauges else ():
                with suppress(StoreUnavailable):
                    _tell(gauges, await asyncio.to_thread(stage.queue.stats))
            await asyncio.sleep(METRICS_S)

    async def _until_stopped(self, stop: asyncio.Event, until_empty: bool, feeders: list[asyncio.Task[None]]) -> None:
        stopped = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set():
                pause_s = LOOK_S if until_empty or self._on_progress is not None else None
                if until_empty and all(runner.is_idle for runner in self._runners) and await self._is_empty():
                    return
                if self._on_progress is not None:
                    self._on_progress(self)
                signs = (
                    [asyncio.ensure_future(runner.progress.wait()) for runner in self._runners] if until_empty else []
                )
                try:
                    awaited: list[asyncio.Task[Any]] = [stopped, *feeders, *signs]
                    done, _ = await asyncio.wait(awaited, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for sign in signs:
                        sign.cancel()
                for runner in self._runners:
                    runner.progress.clear()
                for feeder in feeders:
                    if feeder in done:
                        feeder.result()  # a feeder ends by an error only
        finally:
            stopped.cancel()

    async def _is_empty(self) -> bool:
        """Whether no stage has a message. First to last: what moves meanwhile is seen in the next one."""
        try:
            for stage in self.stages:
                if (await asyncio.to_thread(stage.queue.stats)).waiting:
                    return False
        except StoreUnavailable:
            return False  # for all that is known: it is looked at again
        return True


def _tell(gauges: list[Any], stats: QueueStats) -> None:
    for sink in gauges:
        for state in ("ready", "delayed", "in_work"):
            sink.set("headgate_queue_messages", getattr(stats, state), stats.name, state)
        sink.set("headgate_dead_letters", stats.dead, stats.name)
        sink.set("headgate_queue_oldest_seconds", stats.oldest_for or 0.0, stats.name)
        sink.set("headgate_queue_done", stats.done, stats.name)
        sink.set("headgate_queue_failed", stats.failed, stats.name)

"""A run: every prompt under a permit, with the retries and the log lines that users of nanobanana know."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from headgate import AsyncGate, Concurrency, InvalidInput, Window
from headgate.batch import Retry, arun
from headgate.events import subscribe
from headgate.limits import RULES

from .google import ImageModel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from headgate.batch import AsyncAttempt, ItemResult, Statistics
    from headgate.events import Event

    from .prompts import Prompt

logger = logging.getLogger("nanobanana")

#: Retries, and the delays between them where the upstream names none: 2, 4, 8, 16, 32 s, less up to a quarter.
RETRIES = 5
RETRY = Retry(attempts=1 + RETRIES, base="2s", cap="32s", jitter=0.25)
START = 8


@dataclass(frozen=True)
class ImageSettings:
    """How a run is limited. `rule` is one of `headgate.limits.RULES`; `store` a URL that processes may share."""

    concurrent: int = 20
    rpm: int = 50
    rule: str = "aimd"
    store: str = "memory://"
    gate: str = "nanobanana"
    skip_existing: bool = False

    def gate_for_run(self) -> AsyncGate:
        """The gate: in flight and per minute, asked together. It starts with 8 in flight, or with all if that is less."""
        for what, number in (("concurrent", self.concurrent), ("rpm", self.rpm)):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise InvalidInput(f"{what} must be a whole number of at least 1, not {number!r}")
        if self.rule not in RULES:
            raise InvalidInput(f"there is no rule {self.rule!r}; there are {', '.join(RULES)}")
        start = min(self.concurrent, START)
        rule = RULES[self.rule](start=start, minimum=min(2, start))
        limits = [
            Concurrency(self.concurrent, lease="1m", adaptive=rule, name="in_flight"),
            Window(self.rpm, per="1m", name="rpm"),
        ]
        return AsyncGate(self.gate, limits, store=self.store)


@dataclass
class ImageRun:
    """What became of a run: its statistics, the working limit over time, and when images were made and calls refused.

    Times are seconds since its beginning.
    """

    statistics: Statistics
    maximum: int
    limits: list[tuple[float, float]] = field(default_factory=list)
    made_at: list[float] = field(default_factory=list)
    refused_at: list[float] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return self.statistics.failed == 0


async def generate(
    prompts: Sequence[Prompt],
    folder: Path,
    model: ImageModel,
    settings: ImageSettings,
    on_done: Callable[[ItemResult], object] | None = None,
) -> ImageRun:
    """Make the images of all prompts in `folder`, and return what became of them.

    A file appears whole or not at all. A 429 steps the working limit down and, where it names a delay, pauses every process
    that shares the gate; a 503 is retried and leaves the limit alone; other errors fail at once, and so does a quota that
    is spent for the day.
    """
    folder.mkdir(parents=True, exist_ok=True)
    gate = settings.gate_for_run()
    begun = time.monotonic()
    maker = _Maker(folder, model, begun)
    limits = [(0.0, (await gate.usage())["in_flight"].limit)]

    def moved(event: Event) -> None:
        if event.kind == "adapted" and event.gate == gate.name:
            limits.append((time.monotonic() - begun, float(event.facts["new"])))
            old, new = event.facts["old"], event.facts["new"]
            logger.info("%s concurrency: %g -> %g", "Increased" if new > old else "Decreased", old, new)

    def finished(result: ItemResult) -> None:
        maker.finished(result)
        if on_done is not None:
            on_done(result)

    stop = subscribe(moved)
    try:
        statistics = await arun(
            prompts,
            maker.make,
            gate=gate,
            workers=settings.concurrent,
            retry=RETRY,
            holder=lambda prompt: prompt.name,
            skip_existing=(lambda prompt: folder / prompt.name) if settings.skip_existing else None,
            on_result=finished,
        )
    finally:
        stop()
        await gate.aclose()
    logger.info(
        "Batch complete: %d/%d successful, %d failed, %d skipped, %d rate limited",
        *(statistics.successful, statistics.total, statistics.failed, statistics.skipped, statistics.rate_limited),
    )
    limits.append((time.monotonic() - begun, limits[-1][1]))
    return ImageRun(statistics, settings.concurrent, limits, maker.made_at, maker.refused_at, maker.failed)


class _Maker:
    """Makes one image at a time for a batch run, and tells of it."""

    def __init__(self, folder: Path, model: ImageModel, begun: float) -> None:
        self._folder = folder
        self._model = model
        self._begun = begun
        self.made_at: list[float] = []
        self.refused_at: list[float] = []
        self.failed: list[tuple[str, str]] = []

    async def make(self, prompt: Prompt, attempt: AsyncAttempt) -> str:
        await attempt.sent()
        try:
            data = await self._model.image(prompt.text)
        except Exception as error:
            await self._refused(prompt, attempt, error)
            raise
        target = self._folder / prompt.name
        partial = target.with_name(f".{target.name}.part")
        partial.write_bytes(data)
        os.replace(partial, target)
        self.made_at.append(time.monotonic() - self._begun)
        return str(target)

    async def _refused(self, prompt: Prompt, attempt: AsyncAttempt, error: Exception) -> None:
        code = getattr(error, "code", None)
        if code == 503:
            # The model is overloaded for everybody: come back later, but it says nothing about how many calls of ours fit.
            await attempt.permit.release("error")
        if code not in (429, 503):
            return
        report = await attempt.report(error)
        if code == 429:
            self.refused_at.append(time.monotonic() - self._begun)
        if report.permanent or attempt.number > RETRIES:
            return
        delay = report.retry_after or 2.0**attempt.number
        what = "Rate limited" if code == 429 else "Overloaded"
        logger.info("%s: %s, retry %d/%d in %gs", what, prompt.name, attempt.number, RETRIES, delay)

    def finished(self, result: Any) -> None:
        name = result.item.name
        if result.status == "skipped":
            logger.info("Skipped (exists): %s", name)
        elif result.status == "failed":
            words = str(result.error).partition("\n")[0][:300]
            self.failed.append((name, words))
            if result.attempts > RETRIES:
                logger.info("Failed after %d attempts: %s: %s", RETRIES, name, words)
            else:
                logger.info("Failed: %s: %s", name, words)

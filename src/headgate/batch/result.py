"""What a run gives back: a `ItemResult` per item, and the `Statistics` of all of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import HeadgateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Literal

    from ..kernel.limits import Limit

    Status = Literal["successful", "failed", "skipped"]


class CallFailed(HeadgateError):
    """A call was answered with a refusal or a fault, and is not tried again. `status` is that of the answer, 0 for none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class Interrupted(KeyboardInterrupt):
    """Ctrl-C ended a run: nothing is under way any more. `statistics` tells how far it came."""

    def __init__(self, statistics: Statistics) -> None:
        super().__init__(str(statistics))
        self.statistics = statistics


class ItemResult:
    """What became of one item.

    `index` is its place among the items, from 0; `value` what the call returned, `error` why it failed; `attempts` how many
    calls were made for it, in all runs of one journal. `replayed` says that an earlier run of the same journal made the
    call: its value is what JSON kept of it, and its error a `CallFailed` with the text of the one that there was.
    """

    __slots__ = ("attempts", "error", "index", "item", "price", "replayed", "status", "value")

    def __init__(
        self,
        index: int,
        item: Any,
        status: Status,
        value: Any = None,
        error: BaseException | None = None,
        attempts: int = 0,
        price: float = 0.0,
        replayed: bool = False,
    ) -> None:
        self.index = index
        self.item = item
        self.status: Status = status
        self.value = value
        self.error = error
        self.attempts = attempts
        self.price = price
        self.replayed = replayed

    @property
    def ok(self) -> bool:
        return self.status == "successful"

    def __repr__(self) -> str:
        about = f"value={self.value!r}" if self.error is None else f"error={self.error!r}"
        return f"<ItemResult {self.index} {self.status}, attempts={self.attempts}, {about}>"


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a run did. Items: `total` is how many there were, each of them successful, failed, skipped or unfinished."""

    total: int = 0
    successful: int = 0
    failed: int = 0
    skipped: int = 0
    #: Items that the run let go of when it was interrupted; a journal has none of them, and the next run makes them.
    unfinished: int = 0
    #: Items whose results are from an earlier run of the same journal; they are also counted by what became of them.
    replayed: int = 0
    #: Calls that this run made.
    calls: int = 0
    #: Calls that were made again for an item.
    retries: int = 0
    #: Calls that the upstream refused as too many.
    rate_limited: int = 0
    #: Seconds from the first item to the last result.
    seconds: float = 0.0
    #: The least time in which the gate would have let these calls pass, as a share of the time that they took.
    utilisation: float = 0.0
    #: The sum of prices, of all runs of one journal; 0 without a price function.
    cost: float = 0.0
    interrupted: bool = False
    #: In the order that was asked for, where they were to be kept.
    results: list[ItemResult] = field(default_factory=list, repr=False, compare=False)

    def __str__(self) -> str:
        text = f"{self.successful}/{self.total} successful"
        parts = [
            (self.failed, "failed"),
            (self.skipped, "skipped"),
            (self.unfinished, "unfinished"),
            (self.replayed, "from the journal"),
            (self.retries, "retries" if self.retries != 1 else "retry"),
            (self.rate_limited, "rate-limited"),
        ]
        told = ", ".join(f"{number:,} {what}" for number, what in parts if number)
        cost = f", cost {self.cost:.4g}" if self.cost else ""
        used = f", {self.utilisation:.0%} of what the gate allows" if self.utilisation >= 0.005 else ""
        return f"{text}{', ' + told if told else ''} in {self.seconds:.1f} s{used}{cost}"


class RunTally:
    """The statistics of a run that is under way."""

    def __init__(self) -> None:
        self.taken = self.successful = self.failed = self.skipped = self.replayed = 0
        self.calls = self.retries = self.rate_limited = 0
        self.cost = 0.0
        #: Calls that have ended, and the seconds for which their permits were held, all together.
        self.ended = 0
        self.held_s = 0.0

    @property
    def done(self) -> int:
        return self.successful + self.failed + self.skipped

    def count(self, result: ItemResult) -> None:
        if result.status == "successful":
            self.successful += 1
        elif result.status == "failed":
            self.failed += 1
        else:
            self.skipped += 1
        if result.replayed:
            self.replayed += 1
        self.cost += result.price

    def statistics(
        self, seconds: float, utilisation: float, interrupted: bool, results: list[ItemResult]
    ) -> Statistics:
        return Statistics(
            total=self.taken,
            successful=self.successful,
            failed=self.failed,
            skipped=self.skipped,
            unfinished=self.taken - self.done,
            replayed=self.replayed,
            calls=self.calls,
            retries=self.retries,
            rate_limited=self.rate_limited,
            seconds=seconds,
            utilisation=utilisation,
            cost=self.cost,
            interrupted=interrupted,
            results=results,
        )


def utilisation(
    limits: Iterable[Limit], calls: int, costs: Mapping[str, float], held_s: float, seconds: float
) -> float:
    """The least time that these calls take under the limits, as a share of the seconds that they took; at most 1.

    A rate lets its burst pass at once and the rest one after the other; slots are taken for as long as they were held.
    Limits by a key are left out, since each key has its own.
    """
    least = 0.0
    for limit in limits:
        if limit.by is not None:
            continue
        if limit.leased:
            least = max(least, held_s / limit.limit)
            continue
        at_once = getattr(limit, "burst", None) or limit.limit
        rest = calls * costs.get(limit.unit, 1.0) - at_once
        least = max(least, rest * limit.pace(limit.limit) / 1e6)
    return min(1.0, least / seconds) if seconds > 0 else 0.0

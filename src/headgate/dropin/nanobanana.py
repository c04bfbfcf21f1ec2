"""`AdaptiveSemaphore` and `RPMLimiter` of nanobanana's `rate_limit.py`: the same names and log lines, on gates.

    from headgate.dropin.nanobanana import AdaptiveSemaphore, RPMLimiter

What differs is what was wrong: the semaphore really shrinks, and never grows past its maximum; a burst of refusals is one
step down; no more than the limit starts in any 60 s; a slot is not occupied while its call waits for the rate; a call that
is cancelled gives back what it has. With `store="redis://…"` (any store URL) and one `name`, processes share both. For new
code use `AsyncGate` with `Concurrency(…, adaptive=…)`: one object for both limits, and one step for the whole fleet.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from weakref import WeakKeyDictionary

from headgate import Aimd, AsyncGate, Concurrency, Gate, InvalidInput, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator
    from typing import Any, Self

    from headgate import AsyncPermit

__all__ = ["AdaptiveSemaphore", "RPMLimiter"]

logger = logging.getLogger("nanobanana")

IN_FLIGHT, RPM = "in_flight", "rpm"
#: The reason of the value in force ends with when it last shrank: refusals of calls that were granted before are the same
#: congestion, in whichever process.
SHRANK = re.compile(r"rate limited at (\d+)\.(\d{6})$")

#: Later than any grant: not the same congestion as anything.
NEVER = 2**53

_numbers = itertools.count(1)


class Done:
    """The result of something that has been done already: it may be awaited, and need not be."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


class Number(int):
    """A whole number that may be awaited, as callers of either kind do."""

    def __await__(self) -> Generator[None, None, int]:
        return int(self)
        yield


class Amount(float):
    """An amount that may be awaited, as callers of either kind do."""

    def __await__(self) -> Generator[None, None, float]:
        return float(self)
        yield


class LendableSlot:
    """One acquire: its permit, or None while it is lent back or after it has ended."""

    def __init__(self, semaphore: AdaptiveSemaphore, permit: AsyncPermit) -> None:
        self.semaphore = semaphore
        self.permit: AsyncPermit | None = permit


#: Task → the slots it holds, the last one last; and when its last one was granted, in microseconds of the epoch.
_slots: WeakKeyDictionary[asyncio.Task[Any], list[LendableSlot]] = WeakKeyDictionary()
_granted: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()


def _microseconds() -> int:
    return time.time_ns() // 1000


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return None


def _whole(what: str, number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InvalidInput(f"{what} must be a whole number of at least 1, not {number!r}")
    return number


class AdaptiveSemaphore:
    """At most so many at once; a refusal takes 2 off, never below `min_value`; ten successes in a row add one.

    It starts with `initial_value`, or with `max_value` where that is less. `acquire` is awaited; all others may be. With a
    `store` the number in force is shared by all processes that use the same `name`: each counts its own successes, and
    two that move it in the same instant move it once.
    """

    def __init__(
        self,
        initial_value: int = 8,
        min_value: int = 2,
        max_value: int = 20,
        *,
        store: str | None = None,
        name: str = "nanobanana",
    ) -> None:
        self.max_value = _whole("max_value", max_value)
        self.min_value = min(_whole("min_value", min_value), max_value)
        start = max(self.min_value, min(_whole("initial_value", initial_value), max_value))
        self._rule = Aimd(start=start, minimum=self.min_value, decrease=2, increase_every=10)
        self._value, self._streak, self._shrunk, self._begun = start, 0, 0, False
        self._shared = store is not None
        gate = name if store else f"{name}-{next(_numbers)}"
        limits = [Concurrency(max_value, name=IN_FLIGHT)]
        self._gate = AsyncGate(gate, limits, store=store or "memory://")
        #: The same gate for what need not be awaited: one call each, and only where the number moves.
        self._now = Gate(gate, limits, store=self._gate.store)
        self._held: list[LendableSlot] = []
        self._endings: set[asyncio.Task[bool]] = set()

    # --- taking and giving back ---------------------------------------------------------------------------------------

    async def acquire(self) -> bool:
        """Wait for a slot. A cancelled wait holds nothing."""
        if not self._begun:
            self._look()
        slot = LendableSlot(self, await self._gate.acquire(holder="nanobanana"))
        self._held.append(slot)
        task = _task()
        if task is not None:
            _slots.setdefault(task, []).append(slot)
            _granted[task] = _microseconds()
        return True

    def release(self) -> Awaitable[object]:
        """Give back the slot of this task (of any task, where this one has none). One time too many is harmless."""
        task = _task()
        mine = _slots.get(task, []) if task is not None else []
        slot = next((one for one in reversed(mine) if one.semaphore is self), None)
        if slot is not None:
            mine.remove(slot)
        elif self._held:
            slot = self._held[0]
        if slot is None or slot not in self._held:
            return Done()
        self._held.remove(slot)
        permit, slot.permit = slot.permit, None
        if permit is None:
            return Done()  # it was lent, and its task is gone
        if task is None:
            permit.release_soon()
            return Done()
        ending = asyncio.get_running_loop().create_task(permit.release())
        self._endings.add(ending)  # a task that nothing refers to may vanish
        ending.add_done_callback(self._endings.discard)
        return ending

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def lend(self, slot: LendableSlot) -> None:
        """Let others have the slot while its task waits for something else."""
        permit, slot.permit = slot.permit, None
        if permit is not None:
            await permit.release("unsent")

    async def take_again(self, slot: LendableSlot) -> None:
        """Have the slot back that was lent."""
        permit = await self._gate.acquire(holder="nanobanana")
        if slot in self._held:
            slot.permit = permit
        else:  # it was released meanwhile
            await permit.release("unsent")

    # --- adapting -----------------------------------------------------------------------------------------------------

    def report_success(self) -> Done:
        """A call went well: every tenth in a row adds one."""
        self._streak += 1
        if self._streak >= self._rule.increase_every:
            self._move("ok", _microseconds(), self._rule.increase_every - 1)
        return Done()

    def report_rate_limit(self) -> Done:
        """A call was refused: 2 less, unless it was granted before the last step down: that is the same congestion."""
        task = _task()
        now = _microseconds()
        self._streak = 0
        self._move("rate_limited", now if task is None else _granted.get(task, now), 0)
        return Done()

    def increase_concurrency(self) -> Done:
        """One more, up to `max_value`."""
        self._move("ok", _microseconds(), self._rule.increase_every - 1)
        return Done()

    def decrease_concurrency(self) -> Done:
        """2 less, down to `min_value`."""
        self._move("rate_limited", NEVER, 0)
        return Done()

    def _look(self) -> None:
        """What is in force: the first look says what it starts with, where no process has yet."""
        if self._begun and not self._shared:
            return  # no other process moves it
        found = next((one for one in self._now.overrides() if one.limit == IN_FLIGHT and not one.tightened), None)
        if found is None:
            self._now.set_limit(IN_FLIGHT, self._value, reason="where it starts")
        else:
            self._value = int(found.value)
            told = SHRANK.search(found.reason)
            self._shrunk = int(told[1] + told[2]) if told else self._shrunk
        self._begun = True

    def _move(self, outcome: str, granted: int, streak: int) -> None:
        self._look()
        was, now = self._value, _microseconds()
        learned = (was, streak, self._shrunk, was)
        after, count, shrunk, _ = self._rule.next(learned, outcome, granted, now, was, self.max_value)
        self._streak = int(count)
        if shrunk != self._shrunk or after != was:
            self._shrunk = int(shrunk)
            ended = (
                f"rate limited at {self._shrunk // 10**6}.{self._shrunk % 10**6:06}" if self._shrunk else "successes"
            )
            self._now.set_limit(IN_FLIGHT, after, reason=ended)
        self._value = int(after)
        if after != was:
            logger.info("%s concurrency: %d -> %d", "Increased" if after > was else "Decreased", was, after)

    def get_current(self) -> Number:
        """The number in force."""
        self._look()
        return Number(self._value)

    @property
    def value(self) -> int:
        """The number in force, as this process knows it."""
        return self._value

    async def aclose(self) -> None:
        """Give back what is held, and close the gate."""
        for slot in list(self._held):
            await self.lend(slot)
        self._held.clear()
        self._now.close()
        await self._gate.aclose()


class RPMLimiter:
    """The first `max_per_minute` at once, and then never more than that in any 60 s.

    Counted where it matters, at the upstream: 0.6 s more than a minute lie between a call and the one that takes its place,
    since the two may take different times to arrive. With a `store`, all processes that use the same `name` share it.
    """

    def __init__(self, max_per_minute: int = 50, *, store: str | None = None, name: str = "nanobanana-rpm") -> None:
        self.max_per_minute = _whole("max_per_minute", max_per_minute)
        gate = name if store else f"{name}-{next(_numbers)}"
        limits = [Window(max_per_minute, per="1m", name=RPM)]
        self._gate = AsyncGate(gate, limits, store=store or "memory://")
        self._now = Gate(gate, limits, store=self._gate.store)

    async def acquire(self) -> None:
        """Wait until one more may start. Slots that this task holds of a semaphore are free for others until then."""
        if await self._gate.try_acquire() is not None:
            return
        task = _task()
        lent = [slot for slot in _slots.get(task, []) if slot.permit is not None] if task is not None else []
        for slot in lent:
            await slot.semaphore.lend(slot)
        permit = await self._gate.acquire()
        try:
            for slot in lent:
                await slot.semaphore.take_again(slot)
            if lent:
                await permit.sent()  # it counts from now on, not from before the wait for a slot
        except BaseException:
            permit.release_soon("unsent")
            raise

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None: ...

    def get_available(self) -> Amount:
        """How many could start now."""
        return Amount(self._now.usage()[RPM].available)

    async def aclose(self) -> None:
        """Close the gate."""
        self._now.close()
        await self._gate.aclose()

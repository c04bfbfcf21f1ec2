"""What a call is handed beside its item: the permit, as far as a call needs it."""

from __future__ import annotations

import asyncio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..gate import AsyncPermit
    from ..http.report import Report


class AsyncAttempt:
    """One attempt at an item, for an async call.

    `id` is the same for all attempts at an item, and after a restart with the same journal: send it as the idempotency key
    where the upstream takes one. `number` counts the attempts from 1.
    """

    __slots__ = ("id", "number", "permit", "reported")

    def __init__(self, permit: AsyncPermit, id: str, number: int) -> None:
        self.permit = permit
        self.id = id
        self.number = number
        #: The last report that the call made itself.
        self.reported: Report | None = None

    async def sent(self) -> None:
        """Say that the request is about to be written; see `Permit.sent`."""
        await self.permit.sent()

    async def report(self, response: Any) -> Report:
        """Read an answer of the upstream; see `Permit.report`. The item's retries follow it."""
        self.reported = report = await self.permit.report(response)
        return report

    async def settle(self, actual: Mapping[str, float]) -> None:
        """Charge what it really cost, by unit; see `Permit.settle`."""
        await self.permit.settle(actual)


class Attempt:
    """One attempt at an item, for a call that runs in a thread; see `AsyncAttempt`."""

    __slots__ = ("_attempt", "_loop")

    def __init__(self, attempt: AsyncAttempt, loop: asyncio.AbstractEventLoop) -> None:
        self._attempt = attempt
        self._loop = loop

    @property
    def id(self) -> str:
        return self._attempt.id

    @property
    def number(self) -> int:
        return self._attempt.number

    def sent(self) -> None:
        """Say that the request is about to be written; see `Permit.sent`."""
        asyncio.run_coroutine_threadsafe(self._attempt.sent(), self._loop).result()

    def report(self, response: Any) -> Report:
        """Read an answer of the upstream; see `Permit.report`. The item's retries follow it."""
        return asyncio.run_coroutine_threadsafe(self._attempt.report(response), self._loop).result()

    def settle(self, actual: Mapping[str, float]) -> None:
        """Charge what it really cost, by unit; see `Permit.settle`."""
        asyncio.run_coroutine_threadsafe(self._attempt.settle(actual), self._loop).result()

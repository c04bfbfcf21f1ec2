"""What a handler gets: the message, and what it can say about the call while it is under way."""

from __future__ import annotations

from time import time

from .outcomes import SECOND, outcome_of_response

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine, Mapping
    from typing import Any

    from ..gate import AsyncPermit
    from .message import Delivery
    from .stage import Stage


class BaseJob:
    """One delivery of a message. `id` is the same in every delivery: give it to the upstream as an idempotency key."""

    def __init__(self, stage: Stage, delivery: Delivery, body: dict[str, Any], permit: AsyncPermit | None) -> None:
        self.stage = stage
        self.id = delivery.id
        self.body = body
        self.delivery = delivery
        self._permit = permit
        #: The lease of the message ended before the handler did: another worker may have it, and no output counts.
        self.lost = False

    @property
    def attempt(self) -> int:
        """1 the first time, and one more for each failure. Refusals and waits do not count."""
        return self.delivery.history.attempts + 1

    @property
    def put_at(self) -> float:
        """When the message was put, in epoch seconds of the queue's clock."""
        return self.delivery.history.put_at_us / SECOND

    def __getitem__(self, field: str) -> Any:
        return self.body[field]

    def check(self, response: Any) -> Any:
        """The response, if it can be used; otherwise raises the outcome that it stands for (see `outcomes`)."""
        outcome = outcome_of_response(response, time())
        if outcome is not None:
            raise outcome
        return response

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.stage.place}, attempt {self.attempt}>"


class Job(BaseJob):
    """For a handler that is a plain function and runs in a thread."""

    def __init__(
        self,
        stage: Stage,
        delivery: Delivery,
        body: dict[str, Any],
        permit: AsyncPermit | None,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(stage, delivery, body, permit)
        self._loop = loop

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        import asyncio

        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def sent(self) -> None:
        """Say that the call is about to be written; see `Permit.sent`."""
        if self._permit is not None:
            self._run(self._permit.sent())

    def settle(self, actual: Mapping[str, float]) -> None:
        """Charge what the call really cost; see `Permit.settle`."""
        if self._permit is not None:
            self._run(self._permit.settle(actual))


class AsyncJob(BaseJob):
    """For a handler that is a coroutine function."""

    async def sent(self) -> None:
        """Say that the call is about to be written; see `Permit.sent`."""
        if self._permit is not None:
            await self._permit.sent()

    async def settle(self, actual: Mapping[str, float]) -> None:
        """Charge what the call really cost; see `Permit.settle`."""
        if self._permit is not None:
            await self._permit.settle(actual)

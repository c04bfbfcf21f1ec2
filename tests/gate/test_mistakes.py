"""Mistakes of people who write with asyncio: each is told, with what to write instead."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest

from headgate import AsyncGate, Concurrency, Denied
from headgate.stores.memory import MemoryStore


def gate_of(slots: int = 1) -> AsyncGate:
    return AsyncGate("adobe", [Concurrency(slots, name="slots")], store=MemoryStore())


def told_of(main: Any) -> list[str]:
    """The warnings of a program."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    return [str(warning.message) for warning in told if warning.category is RuntimeWarning]


def test_an_acquire_that_is_never_awaited_warns() -> None:
    gate = gate_of()

    async def main() -> None:
        gate.acquire()
        gate.acquire(holder="x", timeout=5)

    told = told_of(main)
    wanted = (
        "acquire() of AsyncGate 'adobe' was never awaited, so no permit was taken: write `async with gate.acquire()`"
    )
    assert len(told) == 2
    assert all(text.startswith(wanted) for text in told)


def test_an_acquire_that_is_awaited_in_any_way_does_not_warn() -> None:
    gate = gate_of()

    async def main() -> None:
        async with gate.acquire():
            with pytest.raises(Denied):
                await gate.acquire(timeout=0)
            cancelled = asyncio.create_task(gate.acquire())
            cancelled.cancel()  # before its first step
            await asyncio.gather(cancelled, return_exceptions=True)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(gate.acquire(), 0.01)
        await (await asyncio.create_task(gate.acquire())).release()
        for permit in await asyncio.gather(gate.acquire()):
            await permit.release()

    assert told_of(main) == []


def test_with_says_to_use_async_with() -> None:
    gate = gate_of()

    async def main() -> None:
        told = "AsyncGate 'adobe' is awaited: use `async with`, not `with`"
        with pytest.raises(TypeError, match=told), gate.acquire():
            pass
        assert await gate.holders() == []

    assert told_of(main) == []

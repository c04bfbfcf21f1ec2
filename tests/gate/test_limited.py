"""`@gate.limited`: a function that takes a permit with every call, and stays the function that it was."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Gate, InvalidInput
from headgate.stores.memory import MemoryStore


def limits() -> list[Any]:
    return [Concurrency(2, name="org", by="org"), Bucket(100, per="1h", unit="pages", name="pages")]


def gate_of() -> Gate:
    return Gate("limited", limits(), store=MemoryStore())


def test_cost_key_and_holder_are_functions_of_the_arguments() -> None:
    gate = gate_of()

    @gate.limited(
        key=lambda org, *_, **__: {"org": org},
        cost=lambda org, pages, **_: {"pages": pages},
        holder=lambda *_, name="nobody", **__: name,
    )
    def work(org: str, pages: int, *, name: str = "nobody") -> str:
        """What it does."""
        [holder] = gate.holders()
        assert holder.holder == name
        return org * pages

    assert work("a", 3, name="me") == "aaa"
    assert (work.__name__, work.__doc__) == ("work", "What it does.")
    assert gate.holders() == []
    assert round(gate.usage()["pages"].used) == 3


def test_an_error_in_such_a_function_is_the_callers_and_charges_nothing() -> None:
    gate = gate_of()

    @gate.limited(key={"org": "a"}, cost=lambda pages: {"pages": 1 / pages})
    def work(pages: int) -> int:
        return pages

    with pytest.raises(ZeroDivisionError):
        work(0)
    assert gate.usage()["pages"].used == 0
    assert gate.holders() == []


def test_the_permit_ends_with_the_call_also_when_that_raises() -> None:
    gate = gate_of()

    @gate.limited({"pages": 1}, key={"org": "a"})
    def work() -> None:
        assert len(gate.holders()) == 1
        raise KeyError("mine")

    with pytest.raises(KeyError):
        work()
    assert gate.holders() == []


def test_a_mistake_shows_where_it_is_written() -> None:
    gate = gate_of()
    with pytest.raises(TypeError, match="keey"):
        gate.limited(keey={"org": "a"})  # type: ignore[call-arg]
    with pytest.raises(InvalidInput):
        gate.limited({"pages": 1})  # it names no org
    with pytest.raises(InvalidInput):
        gate.limited({"words": 1}, key={"org": "a"})
    one = gate.limited({"pages": 1}, key={"org": "a"})

    async def awaited() -> None: ...

    def generator() -> Any:
        yield 1

    async def stream() -> Any:
        yield 1

    for wrong, told in ((awaited, "an AsyncGate"), (generator, "a generator"), (stream, "a generator")):
        with pytest.raises(InvalidInput, match=told):
            one(wrong)
    on_loop = AsyncGate("limited", limits(), store=MemoryStore()).limited({"pages": 1}, key={"org": "a"})
    with pytest.raises(InvalidInput, match="from a Gate"):
        on_loop(lambda: None)  # type: ignore[arg-type, return-value]


def test_a_coroutine_function_does_the_same_with_an_async_gate() -> None:
    async def main() -> None:
        gate = AsyncGate("limited", limits(), store=MemoryStore())

        @gate.limited(key=lambda org, *_: {"org": org}, cost=lambda org, pages: {"pages": pages}, timeout=5)
        async def work(org: str, pages: int) -> int:
            assert len(await gate.holders()) == 1
            await asyncio.sleep(0)
            return pages

        assert await work("a", 7) == 7
        assert await gate.holders() == []
        assert round((await gate.usage())["pages"].used) == 7

    asyncio.run(main())

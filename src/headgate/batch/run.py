"""`run` and `arun`: the two doors of a run, and Ctrl-C while one is going on."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import contextmanager

from ..errors import InvalidInput
from ..gate import Gate
from .engine import BatchEngine
from .options import Options
from .result import Interrupted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator, Mapping
    from os import PathLike
    from typing import Any

    from ..clients.retry import Retry
    from ..gate import AsyncGate
    from .journal import Journal
    from .progress import RunProgress
    from .result import ItemResult, Statistics

    Cost = float | Mapping[str, float]
    Key = Mapping[str, str]


def run(
    items: Iterable[Any],
    call: Callable[..., Any],
    *,
    gate: Gate | AsyncGate,
    workers: int | None = None,
    retry: Retry | None = None,
    cost: Cost | Callable[[Any], Cost] = 1,
    key: Key | Callable[[Any], Key] | None = None,
    priority: str | None = None,
    holder: str | Callable[[Any], str] | None = None,
    skip_existing: Callable[[Any], bool | str | PathLike[str]] | None = None,
    on_result: Callable[[ItemResult], object] | None = None,
    in_order: bool = False,
    keep: bool = False,
    price: Callable[[Any, Any], float] | None = None,
    total: int | None = None,
    journal: Journal | str | PathLike[str] | None = None,
    progress: bool | Callable[[RunProgress], object] = False,
) -> Statistics:
    """Call `call(item)` for every item under a permit of the gate, and return what became of them.

    `call` is a plain function, which is called in one of `workers` threads (the gate's slots, or 64), or a coroutine
    function; with a second parameter it is handed its `Attempt`. `items` are read, and results delivered, in the caller's
    thread, and no faster than calls are made: memory does not grow with their number. `on_result` is called with each
    `ItemResult` as it comes, or with `in_order` in the order of the items; `keep` has them all in `statistics.results`.

    What the upstream refuses is tried again as `retry` says, what fails is a failed result and the run goes on.
    `skip_existing(item)` tells that an item needs no call: a truth value, or the path of a file that may be there. `cost`,
    `key` and `holder` are for `acquire`, or functions of the item. `price(item, value)` is what a call cost in money.

    `journal` is the path of a file in which finished items are kept, or a `Journal`: the same run again, after whatever
    ended it, calls for no item that is finished, and delivers all results. Items and values are then JSON values.
    `progress=True` shows a bar on standard error, or lines where that is no terminal; a function is handed a `RunProgress`
    twice a second.

    Ctrl-C lets the calls that are under way finish, gives back what waits, and raises `Interrupted` with the statistics; a
    second one does not wait for calls. Raises InvalidInput where the arguments make no sense, StoreUnavailable where the
    gate cannot be asked, and what `items` or `on_result` raise; nothing is under way then. On an event loop use `arun`.
    """
    if _on_a_loop():
        raise InvalidInput(
            "run() would block the event loop that runs here: use `await arun(…)` with the same arguments"
        )
    options = Options(
        items,
        call,
        gate,
        workers=workers,
        retry=retry,
        cost=cost,
        key=key,
        priority=priority,
        holder=holder,
        skip_existing=skip_existing,
        on_result=on_result,
        in_order=in_order,
        keep=keep,
        price=price,
        total=total,
        journal=journal,
        progress=progress,
    )
    return asyncio.run(_run(options, gate))


async def arun(
    items: Iterable[Any] | AsyncIterable[Any],
    call: Callable[..., Any],
    *,
    gate: Gate | AsyncGate,
    workers: int | None = None,
    retry: Retry | None = None,
    cost: Cost | Callable[[Any], Cost] = 1,
    key: Key | Callable[[Any], Key] | None = None,
    priority: str | None = None,
    holder: str | Callable[[Any], str] | None = None,
    skip_existing: Callable[[Any], bool | str | PathLike[str]] | None = None,
    on_result: Callable[[ItemResult], Awaitable[object] | object] | None = None,
    in_order: bool = False,
    keep: bool = False,
    price: Callable[[Any, Any], float] | None = None,
    total: int | None = None,
    journal: Journal | str | PathLike[str] | None = None,
    progress: bool | Callable[[RunProgress], object] = False,
) -> Statistics:
    """The same as `run` on the running event loop. `items` may be an async iterable, and `on_result` a coroutine function.

    Cancelling it cancels the calls that are under way and leaves no permit held.
    """
    options = Options(
        items,
        call,
        gate,
        workers=workers,
        retry=retry,
        cost=cost,
        key=key,
        priority=priority,
        holder=holder,
        skip_existing=skip_existing,
        on_result=on_result,
        in_order=in_order,
        keep=keep,
        price=price,
        total=total,
        journal=journal,
        progress=progress,
    )
    return await _run(options, gate)


async def _run(options: Options, gate: Gate | AsyncGate) -> Statistics:
    asked = gate.as_async() if isinstance(gate, Gate) else gate
    journal = options.journal
    try:
        if journal is not None:
            journal.open()
        engine = BatchEngine(options, asked)
        with interrupts(engine):
            await engine.run()
        statistics = engine.statistics()
    finally:
        if journal is not None:
            journal.close()
        if asked is not gate:
            await asked.aclose()
    if engine.interrupted:
        raise Interrupted(statistics)
    return statistics


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def interrupts(engine: BatchEngine) -> Iterator[None]:
    """Ctrl-C stops the run while this lasts; in a thread other than the first, which no signal reaches, nothing changes."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before in (None, signal.SIG_IGN):
        yield
        return
    loop = asyncio.get_running_loop()
    signal.signal(signal.SIGINT, lambda number, frame: loop.call_soon_threadsafe(engine.interrupt))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

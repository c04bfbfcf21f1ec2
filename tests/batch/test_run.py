"""Batch runs through their two doors, in threads and on an event loop: results, retries, statistics, bad input."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Denied, Gate, InvalidInput, Report, StoreUnavailable, Window
from headgate.batch import AsyncAttempt, Attempt, CallFailed, Interrupted, ItemResult, Retry, Statistics, arun, run
from headgate.stores.memory import MemoryStore
from headgate.testing import UnreachableStore
from tests.support.gates import nothing_left
from tests.support.waiting import until

#: Retries without a wait.
SOON = Retry(attempts=3, base="1ms", cap="1ms")


class Answer:
    """What an HTTP library returns, as far as a report reads it."""

    def __init__(self, status: int, **headers: str) -> None:
        self.status_code = status
        self.headers = headers


class Refused(Exception):
    """What an HTTP library raises for it."""

    def __init__(self, response: Answer) -> None:
        super().__init__(f"{response.status_code}")
        self.response = response


def slots(number: int = 8, **options: Any) -> Gate:
    return Gate("g", [Concurrency(number, name="slots")], store=MemoryStore(), **options)


def of_both_kinds(call: Callable[[Any], Any]) -> list[Any]:
    """The call as a plain function and as a coroutine function."""

    async def on_the_loop(item: Any) -> Any:
        await asyncio.sleep(0)
        return call(item)

    return [call, on_the_loop]


@pytest.fixture(params=["run", "arun"])
def start(request: pytest.FixtureRequest) -> Callable[..., Statistics]:
    """Makes a run through either door."""
    if request.param == "run":
        return run
    return lambda *args, **kwargs: asyncio.run(arun(*args, **kwargs))


@pytest.mark.parametrize("number", [0, 1])
def test_every_item_is_called_once_and_its_result_is_delivered_once(
    start: Callable[..., Statistics], number: int
) -> None:
    gate, called = slots(), []

    def double(item: int) -> int:
        called.append(item)
        return 2 * item

    statistics = start(range(500), of_both_kinds(double)[number], gate=gate, keep=True)
    assert sorted(called) == list(range(500))
    assert sorted((result.index, result.item, result.value) for result in statistics.results) == [
        (n, n, 2 * n) for n in range(500)
    ]
    assert (statistics.total, statistics.successful, statistics.failed, statistics.calls) == (500, 500, 0, 500)
    assert not statistics.interrupted
    nothing_left(gate)


def test_an_async_gate_and_a_gate_count_on_the_same_state(start: Callable[..., Statistics]) -> None:
    gate = Gate("g", [Bucket(100, per="1h", name="b")], store=MemoryStore(), priorities={"live": 1.0, "batch": 0.5})
    start(range(7), lambda item: item, gate=gate, priority="batch")
    assert gate.usage()["b"].used == pytest.approx(7, abs=0.1)
    twin = AsyncGate("g", [Bucket(100, per="1h", name="b")], store=gate.store, priorities={"live": 1.0, "batch": 0.5})
    start(range(5), lambda item: item, gate=twin, priority="batch")
    assert gate.usage()["b"].used == pytest.approx(12, abs=0.1)


@pytest.mark.parametrize("workers", [1, 3, 20])
def test_no_more_calls_are_under_way_than_the_gate_and_the_workers_allow(workers: int) -> None:
    gate = slots(5)
    lock, now, most = threading.Lock(), 0, 0

    def call(item: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.001)
        with lock:
            now -= 1

    run(range(100), call, gate=gate, workers=workers)
    assert most <= min(workers, 5)
    assert most > min(workers, 5) // 2
    nothing_left(gate)


def test_results_come_in_the_order_of_the_items_where_that_is_asked_for(start: Callable[..., Statistics]) -> None:
    order: list[int] = []

    async def late(item: int) -> int:
        await asyncio.sleep((item * 7919 % 13) / 2000)
        return item

    start(range(300), late, gate=slots(16), in_order=True, on_result=lambda result: order.append(result.index))
    assert order == list(range(300))


def test_in_order_no_result_overtakes_one_whose_handler_waits() -> None:
    order: list[int] = []

    async def handle(result: ItemResult) -> None:
        await asyncio.sleep(0.002 if result.index % 3 == 0 else 0)
        order.append(result.index)

    async def call(item: int) -> int:
        await asyncio.sleep(0)
        return item

    asyncio.run(arun(range(60), call, gate=slots(16), in_order=True, on_result=handle))
    assert order == list(range(60))


def test_items_of_an_async_iterable_are_taken_one_by_one() -> None:
    async def items() -> AsyncIterator[int]:
        for number in range(50):
            await asyncio.sleep(0)
            yield number

    async def call(item: int) -> int:
        return item

    statistics = asyncio.run(arun(items(), call, gate=slots(), keep=True))
    assert sorted(result.value for result in statistics.results) == list(range(50))


def test_items_are_read_in_the_callers_thread_and_no_faster_than_calls_are_made() -> None:
    connection = sqlite3.connect(":memory:")  # which refuses to be used by another thread
    connection.executescript("CREATE TABLE t (n); INSERT INTO t VALUES (1), (2), (3)")
    statistics = run(
        (row for row in connection.execute("SELECT n FROM t")), lambda row: row[0], gate=slots(), keep=True
    )
    assert sorted(result.value for result in statistics.results) == [1, 2, 3]
    connection.close()

    taken, finished = 0, 0

    def items() -> Iterator[int]:
        nonlocal taken
        for number in range(200):
            taken += 1
            assert taken - finished <= 4 + 1
            yield number

    def count(result: ItemResult) -> None:
        nonlocal finished
        finished += 1

    run(items(), lambda item: item, gate=slots(4), on_result=count)


def test_memory_does_not_grow_with_the_number_of_items() -> None:
    async def call(item: int) -> int:
        return item

    async def peak(number: int) -> int:
        gate = AsyncGate("g", [Concurrency(16)], store=MemoryStore())
        tracemalloc.start()
        try:
            await arun(iter(range(number)), call, gate=gate, on_result=lambda result: None, in_order=True)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    asyncio.run(peak(500))  # what is made once
    few, many = asyncio.run(peak(1000)), asyncio.run(peak(10_000))
    assert many < few + 200_000, "ten times the items, and not even 25 bytes more for each"


# --- retries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raises", [False, True])
def test_a_refused_call_is_made_again_and_counted(start: Callable[..., Statistics], raises: bool) -> None:
    gate, tries = slots(), dict.fromkeys(range(20), 0)

    def call(item: int) -> Answer:
        tries[item] += 1
        answer = Answer(429 if item % 2 and tries[item] == 1 else 503 if item % 2 and tries[item] == 2 else 200)
        if raises and answer.status_code != 200:
            raise Refused(answer)
        return answer

    statistics = start(range(20), call, gate=gate, retry=SOON, keep=True)
    assert tries == {n: 3 if n % 2 else 1 for n in range(20)}
    assert (statistics.successful, statistics.retries, statistics.rate_limited, statistics.calls) == (20, 20, 10, 40)
    assert {result.attempts for result in statistics.results if result.item % 2} == {3}
    nothing_left(gate)


def test_a_call_that_is_refused_every_time_fails_after_its_attempts(start: Callable[..., Statistics]) -> None:
    statistics = start([1, 2], lambda item: Answer(503), gate=slots(), retry=SOON, keep=True)
    assert (statistics.successful, statistics.failed, statistics.calls, statistics.retries) == (0, 2, 6, 4)
    for result in statistics.results:
        assert isinstance(result.error, CallFailed)
        assert "503" in str(result.error)
        assert not result.ok


def test_what_fails_for_another_reason_is_called_once_and_the_run_goes_on(start: Callable[..., Statistics]) -> None:
    def call(item: int) -> int:
        if item == 3:
            raise RuntimeError("broken")
        return item

    gate = slots()
    statistics = start(range(10), call, gate=gate, retry=SOON, keep=True)
    [failed] = [result for result in statistics.results if not result.ok]
    assert (statistics.successful, statistics.failed, statistics.calls) == (9, 1, 10)
    assert isinstance(failed.error, RuntimeError)
    nothing_left(gate)


def test_a_worker_does_not_stand_by_while_an_item_backs_off() -> None:
    order = []

    async def call(item: int) -> Answer:
        order.append(item)
        return Answer(503 if order.count(item) == 1 and item == 0 else 200)

    statistics = run(range(30), call, gate=slots(1), retry=Retry(2, base="50ms", jitter=0))
    assert statistics.successful == 30
    assert order[0] == 0
    assert order.index(1) == 1, "the next item, while the first one waits"


def test_items_that_wait_for_another_try_do_not_pile_up() -> None:
    taken, finished, most = 0, 0, 0

    def items() -> Iterator[int]:
        nonlocal taken, most
        for number in range(200):
            taken += 1
            most = max(most, taken - finished)
            yield number

    def count(result: ItemResult) -> None:
        nonlocal finished
        finished += 1

    run(items(), lambda item: Answer(503), gate=slots(4), retry=Retry(2, base="5ms"), on_result=count)
    assert finished == 200
    assert most <= 4 + 2 * 4 + 1


def test_a_call_is_handed_its_attempt_and_what_it_reports_counts() -> None:
    gate = Gate("g", [Bucket(1000, per="1h", unit="tokens", name="t")], store=MemoryStore())
    seen: list[tuple[str, int]] = []

    def call(item: int, attempt: Attempt) -> str:
        seen.append((attempt.id, attempt.number))
        attempt.sent()
        attempt.report(Answer(503 if attempt.number == 1 else 200))
        attempt.settle({"tokens": 5})
        return "fine"

    statistics = run([1], call, gate=gate, cost={"tokens": 100}, retry=SOON)
    assert (statistics.successful, statistics.retries) == (1, 1)
    assert [number for _, number in seen] == [1, 2]
    assert seen[0][0] == seen[1][0]
    assert gate.usage()["t"].used == pytest.approx(10, abs=0.5)


def test_an_async_call_is_handed_its_attempt_too() -> None:
    async def call(item: int, attempt: AsyncAttempt) -> str:
        await attempt.sent()
        report = await attempt.report(Answer(200))
        assert isinstance(report, Report)
        return attempt.id

    statistics = run(range(3), call, gate=slots(), keep=True)
    assert len({result.value for result in statistics.results}) == 3


# --- what needs no call ----------------------------------------------------------------------------------------------


def test_what_exists_is_skipped_without_a_permit(start: Callable[..., Statistics], tmp_path: Path) -> None:
    (tmp_path / "1.png").touch()
    gate = Gate("g", [Bucket(2, per="1h", burst=2, slack=0)], store=MemoryStore())
    made = []
    statistics = start(range(3), made.append, gate=gate, skip_existing=lambda item: tmp_path / f"{item}.png", keep=True)
    assert sorted(made) == [0, 2]
    assert (statistics.skipped, statistics.successful, statistics.total) == (1, 2, 3)
    assert {result.index: result.status for result in statistics.results}[1] == "skipped"


def test_a_skip_function_that_raises_fails_its_item_alone() -> None:
    statistics = run([1, 0, 2], lambda item: item, gate=slots(), skip_existing=lambda item: 1 / item > 2, keep=True)
    assert (statistics.successful, statistics.failed) == (2, 1)
    assert isinstance(next(result.error for result in statistics.results if result.item == 0), ZeroDivisionError)


# --- cost, keys, prices ----------------------------------------------------------------------------------------------


def test_costs_keys_and_holders_by_function_reach_the_gate() -> None:
    gate = Gate(
        "g", [Bucket(100, per="1h", unit="pu", by="org", name="b"), Concurrency(4, by="org")], store=MemoryStore()
    )
    holders: set[str | None] = set()

    def call(item: tuple[str, int]) -> None:
        holders.update(holder.holder for holder in gate.holders())

    run(
        [("a", 10), ("b", 20), ("a", 30)],
        call,
        gate=gate,
        cost=lambda item: {"pu": item[1]},
        key=lambda item: {"org": item[0]},
        holder=lambda item: f"{item[0]}-{item[1]}",
    )
    assert gate.usage({"org": "a"})["b"].used == pytest.approx(40, abs=0.1)
    assert gate.usage({"org": "b"})["b"].used == pytest.approx(20, abs=0.1)
    assert holders <= {"a-10", "b-20", "a-30"}
    assert holders


def test_one_tenant_whose_limit_is_full_does_not_hold_up_the_others() -> None:
    gate = Gate("g", [Concurrency(1, by="org", name="org")], store=MemoryStore())
    held = gate.acquire(key={"org": "a"})
    done: list[str] = []

    def call(item: str) -> None:
        done.append(item)
        if done.count("b") == 20:
            held.release()

    run(["a", *["b"] * 20, "a"], call, gate=gate, key=lambda item: {"org": item}, workers=4)
    assert done == ["b"] * 20 + ["a"] * 2


@pytest.mark.parametrize("cost", [lambda item: 1 / item, lambda item: -item, lambda item: "x", lambda item: {"pu": 1}])
def test_a_cost_that_makes_no_sense_fails_its_item_and_charges_nothing(cost: Any) -> None:
    gate = Gate("g", [Bucket(100, per="1h", name="b")], store=MemoryStore())
    called: list[int] = []
    statistics = run([0], called.append, gate=gate, cost=cost, keep=True)
    assert statistics.failed == (1 if called == [] else 0)
    if statistics.failed:
        assert gate.usage()["b"].used == 0
        assert isinstance(statistics.results[0].error, (InvalidInput, ZeroDivisionError))


def test_a_cost_that_can_never_fit_fails_its_item_and_the_rest_goes_on() -> None:
    gate = Gate("g", [Bucket(10, per="1s", name="b")], store=MemoryStore())
    statistics = run([1, 500, 2], lambda item: item, gate=gate, cost=lambda item: item, keep=True)
    assert (statistics.successful, statistics.failed) == (2, 1)
    assert isinstance(next(r.error for r in statistics.results if r.item == 500), Denied)


def test_prices_are_added_up() -> None:
    statistics = run(range(10), lambda item: item, gate=slots(), price=lambda item, value: 0.5 * value)
    assert statistics.cost == pytest.approx(22.5)


@pytest.mark.parametrize("price", [lambda item, value: 1 / 0, lambda item, value: "free", lambda item, value: -1.0])
def test_a_price_that_makes_no_sense_stops_the_run_and_keeps_what_was_paid_for(price: Any) -> None:
    gate, delivered = slots(2), []
    with pytest.raises(InvalidInput, match=r"price\(\).*item"):
        run(range(100), lambda item: item, gate=gate, price=price, on_result=delivered.append)
    assert 1 <= len(delivered) <= 2
    nothing_left(gate)


# --- what cannot be run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"items": 5}, "items is an iterable"),
        ({"items": "abc"}, "items is an iterable"),
        ({"call": 5}, "cannot be called"),
        ({"call": lambda: 0}, r"call\(item\)"),
        ({"call": lambda a, b, c: 0}, r"call\(item\)"),
        ({"call": lambda a, *, b: 0}, r"call\(item\)"),
        ({"gate": "adobe"}, "gate is a Gate"),
        ({"workers": 0}, "workers"),
        ({"workers": True}, "workers"),
        ({"retry": 5}, "retry is a Retry"),
        ({"cost": -1}, "cost"),
        ({"cost": {"pu": 1}}, "pu"),
        ({"key": {"org": "a"}}, "org"),
        ({"priority": "batch"}, "batch"),
        ({"skip_existing": "path"}, "skip_existing is a function"),
        ({"on_result": 1}, "on_result is a function"),
        ({"price": 0.5}, "price is a function"),
        ({"total": -1}, "total"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_before_anything_is_called(wrong: dict[str, Any], says: str) -> None:
    called: list[int] = []
    arguments: dict[str, Any] = {"items": [1], "call": called.append, "gate": slots()} | wrong
    with pytest.raises(InvalidInput, match=says):
        run(**arguments)
    assert called == []


def test_run_on_an_event_loop_says_what_to_use_instead() -> None:
    async def main() -> None:
        with pytest.raises(InvalidInput, match="await arun"):
            run([1], print, gate=slots())

    asyncio.run(main())


def test_a_store_that_is_away_ends_the_run_and_not_one_item_after_the_other() -> None:
    gate = Gate("g", [Concurrency(2)], store=UnreachableStore())
    called: list[int] = []
    failed: list[ItemResult] = []
    with pytest.raises(StoreUnavailable):
        run(range(1000), called.append, gate=gate, on_result=failed.append)
    assert called == []
    assert failed == []


@pytest.mark.parametrize("what", ["items", "on_result"])
def test_an_error_of_the_items_or_of_the_handler_ends_the_run_with_nothing_held(what: str) -> None:
    def items() -> Iterator[int]:
        yield from range(20)
        if what == "items":
            raise OSError("the disk")
        yield from range(1000)

    def handle(result: ItemResult) -> None:
        if what == "on_result" and result.index == 10:
            raise OSError("the disk")

    gate = slots(4)
    with pytest.raises(OSError, match="the disk"):
        run(items(), lambda item: item, gate=gate, on_result=handle)
    nothing_left(gate)


# --- pauses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["the answer", "somebody else"])
def test_in_a_pause_nothing_is_sent_and_after_it_there_is_no_burst(by: str) -> None:
    # There is room for all at once, if the run took it.
    gate = Gate("g", [Window(1000, per="1s", slack=0), Concurrency(20, name="slots")], store=MemoryStore())
    under_way, answered, paused = 0, 0, asyncio.Event()
    since_then: list[tuple[int, int]] = []
    sent_in_pause, paused_until = 0, 0.0

    async def call(item: int) -> Answer:
        nonlocal under_way, answered, sent_in_pause, paused_until
        under_way += 1
        if paused.is_set():
            since_then.append((under_way, answered))
            sent_in_pause += time.monotonic() < paused_until
            await asyncio.sleep(0.01)
            answered += 1
        elif item == 0:
            while under_way < 20:
                await asyncio.sleep(0.001)
            under_way = 0
            paused.set()
            paused_until = time.monotonic() + (2 if by == "the answer" else 3600)
            if by == "the answer":
                return Answer(429, **{"retry-after": "2"})
            gate.pause(3600)
            return Answer(503)
        else:
            await paused.wait()
            return Answer(200)
        under_way -= 1
        return Answer(200)

    def resume() -> None:
        nonlocal paused_until
        until(lambda: gate.usage().paused_for is not None and gate.usage().waiting > 0)
        until(lambda: gate.usage().waiting == 0)
        paused_until = time.monotonic()
        gate.resume()

    helper = threading.Thread(target=resume, daemon=True)
    if by == "somebody else":
        helper.start()
    statistics = run(range(60), call, gate=gate, workers=21, retry=SOON)
    if by == "somebody else":
        helper.join(60)
    assert statistics.successful == 60
    assert sent_in_pause == 0
    assert len(since_then) == 41
    assert since_then[0] == (1, 0), "one call shows whether the upstream answers again"
    for calls, answers in since_then:
        assert calls <= answers + 1, "and each answer lets one more be under way"
    nothing_left(gate)


# --- ending early ----------------------------------------------------------------------------------------------------


def test_cancelling_a_run_cancels_its_calls_and_leaves_nothing_held() -> None:
    gate = slots(4)

    async def main() -> int:
        begun, cancelled = 0, 0

        async def call(item: int) -> None:
            nonlocal begun, cancelled
            begun += 1
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled += 1
                raise

        task = asyncio.create_task(arun(range(100), call, gate=gate, workers=10))
        while begun < 4:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return cancelled

    assert asyncio.run(main()) == 4
    nothing_left(gate)


def test_one_ctrl_c_finishes_what_is_under_way_and_gives_back_what_waits() -> None:
    gate = slots(2)
    begun, go = [], threading.Event()

    def call(item: int) -> int:
        begun.append(item)
        assert go.wait(60)
        return item

    def interrupt() -> None:
        until(lambda: len(begun) == 2 and gate.usage().waiting == 3)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: gate.usage().waiting == 0)
        go.set()

    helper = threading.Thread(target=interrupt)
    helper.start()
    delivered: list[ItemResult] = []
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted) as stopped:
        run(range(100), call, gate=gate, workers=5, on_result=delivered.append)
    helper.join(60)
    assert signal.getsignal(signal.SIGINT) is before
    statistics = stopped.value.statistics
    assert statistics.interrupted
    assert (statistics.successful, statistics.total, statistics.unfinished) == (2, 5, 3)
    assert sorted(result.item for result in delivered) == sorted(begun)
    assert isinstance(stopped.value, KeyboardInterrupt)
    nothing_left(gate)


@pytest.mark.parametrize("kind", ["threads", "loop"])
def test_a_second_ctrl_c_does_not_wait_for_calls(kind: str) -> None:
    gate = slots(2)
    begun, never = [], threading.Event()

    def block(item: int) -> None:
        begun.append(item)
        never.wait(60)

    async def wait(item: int) -> None:
        begun.append(item)
        await asyncio.sleep(3600)

    def interrupt() -> None:
        until(lambda: len(begun) == 2 and gate.usage().waiting == 3)
        os.kill(os.getpid(), signal.SIGINT)
        until(lambda: gate.usage().waiting == 0)
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(Interrupted) as stopped:
        run(range(100), block if kind == "threads" else wait, gate=gate, workers=5)
    assert not never.is_set()
    never.set()
    helper.join(60)
    assert stopped.value.statistics.successful == 0
    assert stopped.value.statistics.unfinished == 5
    nothing_left(gate)


def test_statistics_say_in_one_line_what_became_of_the_items() -> None:
    text = str(
        Statistics(
            total=10, successful=7, failed=2, skipped=1, retries=1, rate_limited=3, seconds=2.5, utilisation=0.97
        )
    )
    assert text == "7/10 successful, 2 failed, 1 skipped, 1 retry, 3 rate-limited in 2.5 s, 97% of what the gate allows"

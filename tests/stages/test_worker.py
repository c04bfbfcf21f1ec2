"""Workers: permit first, message second; typed outcomes; nothing lost, nothing paid twice."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import Concurrency, Gate, InvalidInput, Window, events
from headgate.stages import (
    AttemptFailed,
    BadMessage,
    DeadFilter,
    Limited,
    Pipeline,
    Poison,
    QuotaSpent,
    RetryPolicy,
    Stage,
    UpstreamRefused,
    Worker,
)
from headgate.stages.message import NewMessage
from headgate.stages.queues.database import QueueDatabase
from headgate.stores.memory import MemoryStore
from tests.support.waiting import until

QUICK = RetryPolicy(attempts=3, first=0.01, longest=0.02)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://{tmp_path.name}"
    return f"sqlite:///{tmp_path}/queues.db"


@pytest.fixture
def told() -> Iterator[list[events.Event]]:
    """The events of the test."""
    found: list[events.Event] = []
    end = events.subscribe(found.append)
    yield found
    end()


def new_gate(*limits: Any) -> Gate:
    return Gate("upstream", limits or [Concurrency(4)], store=MemoryStore())


def letters(stage: Stage) -> list[tuple[str, str]]:
    return [(letter.reason, letter.error) for letter in stage.queue.dead_letters(DeadFilter(), 100)]


# --- what a pipeline does -------------------------------------------------------------------------------------------


def test_every_message_goes_through_all_stages_once_in_threads_and_on_the_loop(url: str) -> None:
    results: list[int] = []
    pipeline = Pipeline("p", queues=url)

    @pipeline.stage(gate=new_gate(), schema={"n": int})
    def double(job: Any) -> dict[str, int]:
        return {"n": 2 * job["n"]}

    @pipeline.stage()
    async def split(job: Any) -> list[dict[str, int]]:
        await asyncio.sleep(0)
        return [{"n": job["n"]}, {"n": job["n"] + 1}]

    @pipeline.stage()
    def collect(job: Any) -> None:
        results.append(job["n"])

    pipeline.put(*({"n": number} for number in range(50)))
    tally = Worker(pipeline, concurrency=4).run(until_empty=True)
    assert sorted(results) == list(range(100))
    assert [tally[name]["done"] for name in ("double", "split", "collect")] == [50, 50, 100]
    assert all(stats.waiting == stats.dead == 0 for stats in pipeline.stats().values())
    pipeline.close()


def test_ids_stay_with_a_message_and_its_outputs_through_the_stages(url: str) -> None:
    ids: list[str] = []
    pipeline = Pipeline("p", queues=url)
    pipeline.add(Stage("one", lambda job: {"n": 1}))
    pipeline.add(Stage("two", lambda job: [{"n": 1}, {"n": 2}]))
    pipeline.add(Stage("three", lambda job: ids.append(job.id)))
    assert pipeline.put({}, id="job-7")[0].is_new
    Worker(pipeline).run(until_empty=True)
    assert sorted(ids) == ["job-7.0", "job-7.1"]
    assert not pipeline.put({}, id="job-7")[0].is_new
    pipeline.close()


def test_more_is_in_work_at_a_time_than_one_but_never_more_than_the_concurrency(url: str) -> None:
    now, most = 0, 0
    lock = threading.Lock()
    both = threading.Barrier(3, timeout=60)
    pipeline = Pipeline("p", queues=url)

    @pipeline.stage()
    def work(job: Any) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        both.wait()
        with lock:
            now -= 1

    pipeline.put(*({} for _ in range(12)))
    Worker(pipeline, concurrency=3).run(until_empty=True)
    assert most == 3
    pipeline.close()


# --- permit first ---------------------------------------------------------------------------------------------------


def test_while_the_gate_is_full_no_message_is_leased_and_none_is_received_twice(url: str) -> None:
    gate = new_gate(Concurrency(1))
    held = gate.acquire()
    receives: list[int] = []
    pipeline = Pipeline("p", queues=url)
    pipeline.add(Stage("work", lambda job: receives.append(job.delivery.history.receives), gate=gate))
    pipeline.put(*({"n": number} for number in range(100)))
    with Worker(pipeline, concurrency=20) as worker:
        until(lambda: gate.usage().waiting)
        assert pipeline.stats()["work"].in_work == 0
        assert all(history.receives == 0 for *_, history in pipeline["work"].queue.peek(100))
        held.release()
        until(lambda: len(receives) == 100)
    assert receives == [1] * 100
    assert worker.tally()["work"]["done"] == 100
    pipeline.close()


def test_an_idle_stage_asks_its_gate_nothing_and_its_queue_hardly_anything(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = new_gate()
    pipeline = Pipeline("p", [Stage("work", lambda job: None, gate=gate)], queues=url)
    with Worker(pipeline):
        pipeline.put({})
        until(lambda: pipeline.stats()["work"].done == 1)
        time.sleep(0.3)  # nothing is judged by it: it looks once more after its last message
        transactions = 0
        write = QueueDatabase.write

        def counted(self: Any, *args: Any, **more: Any) -> Any:
            nonlocal transactions
            transactions += 1
            return write(self, *args, **more)

        monkeypatch.setattr(QueueDatabase, "write", counted)
        asked = gate.usage().seq
        time.sleep(1.0)
        assert transactions <= 1
        assert gate.usage().seq == asked
        monkeypatch.undo()
    pipeline.close()


def test_a_permit_without_a_message_is_given_back(url: str) -> None:
    gate = new_gate(Window(5, per="1h"))
    pipeline = Pipeline("p", [Stage("work", lambda job: None, gate=gate)], queues=url)
    pipeline.put({}, {})
    Worker(pipeline).run(until_empty=True)
    assert gate.usage().limits[0].used == 2
    pipeline.close()


def test_one_full_key_does_not_block_the_others(url: str) -> None:
    gate = new_gate(Concurrency(1, by="org", name="org"), Concurrency(10, name="all"))
    held = gate.acquire(key={"org": "full"})
    done: list[str] = []
    stage = Stage(
        "work", lambda job: done.append(job["org"]), gate=gate, ask=lambda body: {"key": {"org": body["org"]}}
    )
    pipeline = Pipeline("p", [stage], queues=url)
    pipeline.put(*({"org": "full"} for _ in range(5)))
    pipeline.put({"org": "a"}, {"org": "b"})
    with Worker(pipeline, concurrency=1):
        until(lambda: sorted(done) == ["a", "b"])
        pipeline.put({"org": "c"})
        until(lambda: "c" in done)
        held.release()
        until(lambda: done.count("full") == 5)
    pipeline.close()


def test_costs_by_message_are_asked_for_and_one_that_can_never_fit_is_buried(url: str) -> None:
    gate = new_gate(Window(10, per="1h", unit="pages", name="pages"))
    stage = Stage("work", lambda job: None, gate=gate, ask=lambda body: {"cost": {"pages": body["pages"]}})
    pipeline = Pipeline("p", [stage], queues=url)
    pipeline.put({"pages": 3}, {"pages": 11}, {"pages": 4})
    Worker(pipeline).run(until_empty=True)
    assert gate.usage().limits[0].used == 7
    [(reason, error)] = letters(stage)
    assert reason == "poison"
    assert "never" in error
    pipeline.close()


# --- outcomes -------------------------------------------------------------------------------------------------------


def test_a_failure_is_tried_again_and_the_last_one_is_a_dead_letter_with_its_error(url: str) -> None:
    attempts: list[int] = []

    def work(job: Any) -> None:
        attempts.append(job.attempt)
        raise ConnectionError("no route")

    stage = Stage("work", work, retry=QUICK)
    pipeline = Pipeline("p", [stage], queues=url)
    pipeline.put({"n": 1})
    tally = Worker(pipeline).run(until_empty=True)
    assert attempts == [1, 2, 3]
    assert tally["work"] == {"failed": 3, "dead": 1}
    [letter] = stage.queue.dead_letters(DeadFilter(), 10)
    assert (letter.reason, letter.history.attempts, json.loads(letter.body)) == ("failed", 3, {"n": 1})
    assert "ConnectionError: no route" in letter.error
    pipeline.close()


def test_poison_goes_straight_to_the_dead_letters_and_holds_nobody_up(url: str) -> None:
    done: list[int] = []

    def work(job: Any) -> None:
        if job["n"] == 1:
            raise Poison("page 3 is no page")
        done.append(job["n"])

    stage = Stage("work", work)
    pipeline = Pipeline("p", [stage], queues=url)
    pipeline.put(*({"n": number} for number in range(3)))
    Worker(pipeline).run(until_empty=True)
    assert sorted(done) == [0, 2]
    assert letters(stage) == [("poison", "page 3 is no page")]
    pipeline.close()


def test_a_refusal_burns_no_attempt_logs_no_error_and_pauses_the_gate_for_all(
    url: str, told: list[events.Event]
) -> None:
    gate = new_gate(Concurrency(1))
    attempts: list[int] = []

    def work(job: Any) -> None:
        attempts.append(job.attempt)
        if len(attempts) == 1:
            raise UpstreamRefused("429", retry_after=0.5)

    stage = Stage("work", work, gate=gate)
    pipeline = Pipeline("p", [stage], queues=url)
    pipeline.put({}, {}, {})
    with Worker(pipeline) as worker:
        until(lambda: gate.usage().paused_for)
        assert len(attempts) == 1
        until(lambda: len(attempts) == 4)
    assert attempts == [1, 1, 1, 1]
    assert worker.tally()["work"] == {"done": 3, "refused": 1}
    assert {event.kind for event in told} == {"rate_limited"}, "a warning of the gate, and no error"
    pipeline.close()


def test_a_limit_inside_a_handler_is_waited_for_without_an_attempt(url: str) -> None:
    attempts: list[int] = []

    def work(job: Any) -> None:
        attempts.append(job.attempt)
        if len(attempts) < 8:
            raise Limited("another gate is full", retry_after=0.01)

    pipeline = Pipeline("p", [Stage("work", work, retry=QUICK)], queues=url)
    pipeline.put({})
    tally = Worker(pipeline).run(until_empty=True)
    assert attempts == [1] * 8
    assert tally["work"] == {"limited": 7, "done": 1}
    pipeline.close()


def test_a_spent_quota_pauses_the_gate_until_the_reset_keeps_the_messages_and_is_said_once(
    url: str, told: list[events.Event]
) -> None:
    gate = new_gate(Concurrency(8))
    together = threading.Barrier(4, timeout=60)

    def work(job: Any) -> None:
        together.wait()
        raise QuotaSpent("monthly quota of 500", retry_after=3600)

    stage = Stage("work", work, gate=gate)
    pipeline = Pipeline("p", [stage], queues=url)
    pipeline.put(*({"n": number} for number in range(10)))
    with Worker(pipeline, concurrency=4):
        until(lambda: pipeline.stats()["work"].delayed == 4)
        usage = gate.usage()
    assert usage.paused_for is not None
    assert 3500 < usage.paused_for <= 3600
    assert "monthly quota of 500" in usage.pause_reason
    stats = pipeline.stats()["work"]
    assert (stats.waiting, stats.dead) == (10, 0)
    assert all(history.attempts == 0 for *_, history in stage.queue.peek(10))
    assert [event.kind for event in told if event.kind != "rate_limited"] == ["quota_spent"]
    pipeline.close()


def test_a_message_that_is_not_json_or_of_another_schema_is_buried_and_costs_the_gate_nothing(url: str) -> None:
    gate = new_gate(Window(5, per="1h"))
    stage = Stage("work", lambda job: None, gate=gate, schema={"key": str})
    pipeline = Pipeline("p", [stage], queues=url)
    with pytest.raises(BadMessage, match="'key'"):
        pipeline.put({"key": "good"}, {"kye": "a"})
    assert pipeline.stats()["work"].waiting == 0, "all of them are put, or none"
    stage.queue.put([NewMessage("no json"), NewMessage('{"key": 7}'), NewMessage('{"key": "a"}')])
    Worker(pipeline).run(until_empty=True)
    assert [reason for reason, _ in letters(stage)] == ["poison", "poison"]
    assert {"not JSON" in error for _, error in letters(stage)} == {True, False}
    assert gate.usage().limits[0].used == 1
    pipeline.close()


def test_a_handler_that_returns_what_cannot_be_handed_on_is_not_called_again(url: str) -> None:
    calls: list[str] = []
    pipeline = Pipeline("p", queues=url)
    pipeline.add(Stage("one", lambda job: calls.append(job.id) or {"kye": 1}))
    pipeline.add(Stage("two", lambda job: None, schema={"key": str}))
    pipeline.put({})
    Worker(pipeline).run(until_empty=True)
    assert len(calls) == 1
    [(reason, error)] = letters(pipeline["one"])
    assert reason == "poison"
    assert "'key'" in error
    pipeline.close()


def test_a_handler_that_hangs_ends_at_its_deadline_and_holds_nobody_up(url: str) -> None:
    hang = threading.Event()
    done: list[int] = []

    def work(job: Any) -> None:
        if job["n"] == 0:
            hang.wait()
        done.append(job["n"])

    async def work_on_the_loop(job: Any) -> None:
        if job["n"] == 0:
            await asyncio.sleep(3600)
        done.append(job["n"])

    for handler in (work, work_on_the_loop):
        done.clear()
        stage = Stage("work", handler, deadline=0.2, retry=RetryPolicy(attempts=2, first=0.01, longest=0.01))
        pipeline = Pipeline(handler.__name__, [stage], queues=url)
        pipeline.put(*({"n": number} for number in range(4)))
        tally = Worker(pipeline, concurrency=1).run(until_empty=True)
        assert done == [1, 2, 3]
        assert tally["work"]["failed"] == 2
        [(reason, error)] = letters(stage)
        assert reason == "failed"
        assert "deadline" in error
        pipeline.close()
    hang.set()


def test_work_that_takes_longer_than_the_visibility_is_not_delivered_twice(url: str) -> None:
    receives: list[int] = []

    def work(job: Any) -> None:
        time.sleep(1.0)
        receives.append(job.delivery.history.receives)

    pipeline = Pipeline("p", [Stage("work", work, visibility=0.6)], queues=url)
    pipeline.put({})
    Worker(pipeline).run(until_empty=True)
    assert receives == [1]
    pipeline.close()


def test_a_message_whose_output_was_recorded_is_handed_on_without_calling_its_handler(tmp_path: Path) -> None:
    calls: list[str] = []
    results: list[int] = []
    pipeline = Pipeline("p", queues=f"sqlite:///{tmp_path}/one.db")
    pipeline.add(Stage("one", lambda job: calls.append(job.id)))
    pipeline.add(Stage("two", lambda job: results.append(job["n"]), queues=f"sqlite:///{tmp_path}/two.db"))
    pipeline.put({})
    queue = pipeline["one"].queue
    [delivery] = queue.lease(1, 1)
    queue.record(delivery, ('{"n":7}',))
    Worker(pipeline).run(until_empty=True)
    assert (calls, results) == ([], [7])
    pipeline.close()


# --- stopping -------------------------------------------------------------------------------------------------------


def test_a_stop_waits_for_work_and_hands_back_what_is_not_done_in_time(url: str) -> None:
    release, started = threading.Event(), threading.Semaphore(0)
    done: list[int] = []

    def work(job: Any) -> None:
        started.release()
        if job["n"] == 0:
            release.wait()
        done.append(job["n"])

    gate = new_gate(Concurrency(2))
    pipeline = Pipeline("p", [Stage("work", work, gate=gate)], queues=url)
    pipeline.put({"n": 0})
    worker = Worker(pipeline, concurrency=2).start()
    assert started.acquire(timeout=60)
    worker.stop(within=0)
    worker.join(60)
    stats = pipeline.stats()["work"]
    assert (stats.ready, stats.in_work) == (1, 0), "it can be taken at once, not after its visibility"
    assert gate.usage().limits[0].used == 0
    [(_, _, _, history)] = pipeline["work"].queue.peek(1)
    assert (history.attempts, history.deaths) == (0, 0)
    release.set()
    until(lambda: done == [0])  # the handler that was left behind: its outcome counts no more
    done.clear()
    Worker(pipeline).run(until_empty=True)
    assert done == [0]
    pipeline.close()


def test_a_stopped_worker_leaves_no_ask_in_line(url: str) -> None:
    gate = new_gate(Concurrency(1))
    held = gate.acquire()
    pipeline = Pipeline("p", [Stage("work", lambda job: None, gate=gate)], queues=url)
    pipeline.put({})
    worker = Worker(pipeline).start()
    until(lambda: gate.usage().waiting == 1)
    worker.stop()
    worker.join(60)
    assert gate.usage().waiting == 0
    held.release()
    pipeline.close()


@pytest.mark.parametrize("concurrency", [0, -1, True, 1.5, "8"])
def test_a_concurrency_that_is_none_is_refused(concurrency: Any) -> None:
    with pytest.raises(InvalidInput, match="concurrency"):
        Worker(Pipeline("p", [Stage("work", print)]), concurrency=concurrency)


def test_mistakes_in_a_pipeline_are_said_where_they_are_made() -> None:
    stage = Stage("work", print)
    Pipeline("p", [stage])
    for mistake, says in (
        (lambda: Pipeline("q", [stage]), "in pipeline 'p' already"),
        (lambda: Pipeline("q", [Stage("a", print), Stage("a", print)]), "has a stage 'a' already"),
        (lambda: Stage("work", "print"), "a handler is a function"),  # type: ignore[arg-type]
        (lambda: Stage("work", print, gate="g"), "a Gate or an AsyncGate"),  # type: ignore[arg-type]
        (lambda: Stage("work", print, visibility=0), "visibility"),
        (lambda: Worker(Pipeline("q")), "has stages"),
        (lambda: Pipeline("q")["x"], "no stage 'x'"),
        (lambda: stage.put({}, {}, id="a"), "for one message"),
        (lambda: Stage("lonely", print).queue, "in no pipeline"),
    ):
        with pytest.raises(InvalidInput, match=says):
            mistake()


def test_an_attempt_that_failed_by_an_overloaded_upstream_pauses_the_gate_for_its_delay(url: str) -> None:
    gate = new_gate()

    def work(job: Any) -> None:
        raise AttemptFailed("503", retry_after=900, release="overloaded")

    pipeline = Pipeline("p", [Stage("work", work, gate=gate)], queues=url)
    pipeline.put({})
    with Worker(pipeline):
        until(lambda: pipeline.stats()["work"].delayed == 1)
    paused = gate.usage().paused_for
    assert paused is not None
    assert 800 < paused <= 900
    pipeline.close()


def test_queues_and_dead_letters_are_in_the_metrics_of_the_process_that_works_on_them(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.stages.worker.METRICS_S", 0.01)

    def work(job: Any) -> None:
        raise Poison("bad")

    pipeline = Pipeline("p", [Stage("work", work)], queues=url)
    pipeline.put({}, {})
    pipeline["work"].put({}, delay=3600)
    events.switch_on("prometheus")
    try:
        metrics: Any = events.sinks_on()["prometheus"]
        with Worker(pipeline):
            until(lambda: 'headgate_dead_letters{queue="p.work"} 2' in metrics.text())
            until(lambda: 'headgate_queue_messages{queue="p.work",state="delayed"} 1' in metrics.text())
    finally:
        events.switch_on("log")
    pipeline.close()

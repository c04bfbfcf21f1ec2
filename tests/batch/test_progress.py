"""What a run shows of itself: rate, time left by what the gate allows, what it waits for, and what it costs."""

from __future__ import annotations

import io

import pytest

from headgate import Bucket, Concurrency, Gate, InvalidInput, Window
from headgate.batch import RunProgress, run
from headgate.batch.progress import Meter, ProgressLines, allowed_rate, time_left, words
from headgate.batch.result import RunTally
from headgate.stores.memory import MemoryStore


def test_time_left_is_by_the_slower_of_what_is_made_and_what_is_allowed() -> None:
    assert time_left(100, 50.0, 2.0) == 50.0, "a burst at the beginning does not last"
    assert time_left(100, 1.0, 2.0) == 100.0, "the upstream is slower than the gate"
    assert time_left(100, 0.0, 2.0, paused_for=30.0) == 80.0
    assert time_left(100, 0.0, None) is None
    assert time_left(0, 5.0, 2.0) == 0.0


def test_what_is_allowed_follows_the_tightest_limit_and_its_value_in_force() -> None:
    gate = Gate("g", [Window(60, per="1m", slack=0, name="rpm"), Concurrency(4, name="slots")], store=MemoryStore())
    limits, costs = gate.policy.limits, {"requests": 1.0}
    assert allowed_rate(limits, gate.usage(), costs, 0.1, 64) == pytest.approx(1.0)
    assert allowed_rate(limits, gate.usage(), costs, 8.0, 64) == pytest.approx(0.5), (
        "four at a time, eight seconds each"
    )
    assert allowed_rate(limits, gate.usage(), costs, 8.0, 2) == pytest.approx(0.25), "two workers"
    gate.set_limit("rpm", 6)
    assert allowed_rate(limits, gate.usage(), costs, 0.1, 64) == pytest.approx(0.1)
    tokens = Gate("t", [Bucket(600, per="1m", unit="tokens", slack=0)], store=MemoryStore())
    assert allowed_rate(tokens.policy.limits, tokens.usage(), {"tokens": 5.0}, 0.0, 64) == pytest.approx(2.0)
    assert allowed_rate(tokens.policy.limits, tokens.usage(), {}, 0.0, 64) is None


def test_the_rate_is_of_late_and_results_of_an_earlier_run_are_no_part_of_it() -> None:
    tally, meter = RunTally(), Meter(1000, 0.0)
    tally.successful, tally.replayed = 500, 500
    assert meter.snapshot(tally, 1.0, calling=0, asking=0).rate == 0.0
    tally.successful = 600
    assert meter.snapshot(tally, 11.0, calling=0, asking=0).rate == pytest.approx(10.0)
    tally.successful = 610
    shown = meter.snapshot(tally, 21.0, calling=3, asking=2, allowed=5.0, waits_for="rpm is full")
    assert shown.rate == pytest.approx(1.0)
    assert shown.left_s == pytest.approx(390.0)


def test_cost_is_projected_over_the_items_that_will_be_paid_for() -> None:
    tally, meter = RunTally(), Meter(110, 0.0)
    tally.successful, tally.failed, tally.skipped, tally.cost = 40, 5, 5, 8.0
    assert meter.snapshot(tally, 1.0, calling=0, asking=0, priced=True).projected == pytest.approx(20.0)
    assert meter.snapshot(tally, 1.0, calling=0, asking=0).projected is None
    assert Meter(None, 0.0).snapshot(tally, 1.0, calling=0, asking=0, priced=True).projected is None


def test_a_line_says_how_far_it_is_how_long_it_takes_and_what_it_waits_for() -> None:
    shown = RunProgress(
        done=1234,
        total=5000,
        successful=1200,
        failed=4,
        skipped=30,
        retries=7,
        rate_limited=2,
        calling=3,
        asking=9,
        seconds=60.0,
        rate=19.8,
        left_s=190.0,
        waits_for="rpm is full (190/190); the first goes in 0.3 s",
        cost=12.0,
        projected=48.6,
    )
    assert words(shown) == (
        "1,234/5,000 (25%), 19.8/s, 3m10s left, 4 failed, 30 skipped, 7 retries, 2 rate-limited, "
        "cost 12 of about 48.6; rpm is full (190/190); the first goes in 0.3 s"
    )


def test_lines_come_less_and_less_often() -> None:
    stream = io.StringIO()
    lines = ProgressLines(stream)
    for second in range(600):
        lines.show(RunProgress(second, None, second, 0, 0, 0, 0, 1, 0, float(second), 1.0))
    told = stream.getvalue().splitlines()
    assert 10 < len(told) < 25
    assert told[0] == "headgate batch: 2, 1/s"


def test_a_function_is_told_how_far_a_run_is_and_what_it_waits_for() -> None:
    gate = Gate("g", [Concurrency(1, name="slots")], store=MemoryStore())
    held = gate.acquire(holder="somebody else")
    told: list[RunProgress] = []

    def look(progress: RunProgress) -> None:
        told.append(progress)
        if progress.waits_for:
            held.release()

    run(range(5), lambda item: item, gate=gate, progress=look, price=lambda item, value: 1.0)
    assert any("slots" in shown.waits_for and shown.asking == 1 for shown in told)
    assert (told[-1].done, told[-1].total, told[-1].left_s, told[-1].cost) == (5, 5, 0.0, 5.0)


def test_progress_is_a_truth_value_or_a_function() -> None:
    with pytest.raises(InvalidInput, match="progress is True, False or a function"):
        run([1], print, gate=Gate("g", [Concurrency(1)], store=MemoryStore()), progress="yes")  # type: ignore[arg-type]


def test_where_there_is_no_terminal_the_last_line_says_how_it_ended(capfd: pytest.CaptureFixture[str]) -> None:
    run(range(5), lambda item: item, gate=Gate("g", [Concurrency(1)], store=MemoryStore()), progress=True)
    assert capfd.readouterr().err.splitlines()[-1].startswith("headgate batch: 5/5 (100%)")


def test_in_a_terminal_there_is_a_bar() -> None:
    from rich.console import Console

    from headgate.batch.bar import ProgressBar

    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    bar = ProgressBar(console)
    bar.show(RunProgress(1, 4, 1, 0, 0, 0, 0, 1, 0, 1.0, 1.0, 3.0, "[rpm] is full"))
    bar.close(RunProgress(4, 4, 4, 0, 0, 0, 0, 0, 0, 4.0, 1.0, 0.0))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "1/4 (25%), 1/s, 3.0 s left; [rpm] is full" in shown
    assert "4/4 (100%)" in shown
    assert "━" in shown

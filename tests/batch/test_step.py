"""What to do next with an item, and how a run goes on after a pause: pure functions of history and time."""

from __future__ import annotations

from itertools import pairwise
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Bucket, Concurrency, Report, Window
from headgate.batch import CallFailed, Retry
from headgate.batch.ramp import Ramp, ramp_for
from headgate.batch.result import utilisation
from headgate.batch.step import PLAIN_OK, Again, Answered, Finished, looks_like_response, next_step

REPORTS = st.builds(
    Report,
    st.sampled_from(["ok", "rate_limited", "overloaded", "error"]),
    st.none() | st.floats(0, 100),
    st.booleans(),
    st.sampled_from([0, 200, 404, 429, 500, 503]),
)


@given(
    REPORTS,
    st.none() | st.just(ValueError("x")),
    st.integers(1, 10),
    st.floats(0, 1000),
    st.integers(1, 6),
    st.none() | st.floats(0.1, 500),
    st.floats(0, 1),
)
def test_an_item_ends_after_its_attempts_and_no_next_attempt_begins_after_its_deadline(
    report: Report,
    error: Exception | None,
    attempts: int,
    elapsed: float,
    most: int,
    deadline: float | None,
    chance: float,
) -> None:
    step = next_step(Answered(report, None, error), attempts, elapsed, Retry(most, deadline=deadline), chance)
    if isinstance(step, Again):
        assert attempts < most
        assert report in ("rate_limited", "overloaded")
        assert not report.permanent
        assert deadline is None or elapsed + step.wait_s < deadline
    else:
        # It is successful where, and only where, the call returned and the answer is no refusal and no fault.
        fine = error is None and report == "ok" and report.status < 400
        assert (step.error is None) == fine


@pytest.mark.parametrize(
    ("report", "words"),
    [
        (Report("ok", status=404), "answered 404"),
        (Report("error", status=500), "answered 500"),
        (Report("rate_limited", 5.0, permanent=True, status=429), "quota is spent"),
    ],
)
def test_an_answer_that_is_not_worth_another_try_fails_and_says_what_it_was(report: Report, words: str) -> None:
    step = next_step(Answered(report), 1, 0.0, Retry(), 0.5)
    assert isinstance(step, Finished)
    assert isinstance(step.error, CallFailed)
    assert words in str(step.error)
    assert step.error.status == report.status


def test_the_error_of_the_call_is_the_error_of_the_item() -> None:
    error = ValueError("mine")
    assert next_step(Answered(PLAIN_OK, None, error), 1, 0.0, Retry(), 0.5) == Finished(error)


class Response:
    status_code = 200

    def __init__(self) -> None:
        self.headers = {"a": "b"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Response(), True),
        ({"status": 429, "headers": {}}, True),
        ({"status": "done", "headers": {}}, False),
        ({"status": 1}, False),
        (None, False),
        ("x", False),
        ([1], False),
        (object(), False),
        (type("Page", (), {"headers": {}})(), False),
    ],
)
def test_only_what_has_a_status_and_headers_is_taken_for_a_response(value: object, expected: bool) -> None:
    assert looks_like_response(value) is expected


# --- after a pause ---------------------------------------------------------------------------------------------------


def calls_after_pause(ramp: Ramp, workers: int, latency: float, seconds: float) -> list[float]:
    """When a run with so many workers asks, from the end of a pause of 10 s on: each call takes `latency`."""
    assert ramp.paused(0.0, 10.0)
    now, asked, ends = 0.0, [], []
    while now < 10.0 + seconds:
        for end in [end for end in ends if end <= now]:
            ends.remove(end)
            ramp.answered(end - latency)
        wait = 0.0 if ramp.is_over(now) else ramp.wait(now, len(ends))
        if wait == 0 and len(ends) < workers:
            ramp.gone(now)
            asked.append(now)
            ends.append(now + latency)
            continue
        moments = [*ends, now + wait if 0 < wait < inf else inf]
        now = max(now + 1e-6, min(moments))
    return asked


@given(st.integers(1, 64), st.floats(0.01, 5), st.integers(1, 100))
def test_after_a_pause_no_more_go_in_any_time_than_the_gate_lets_pass_in_the_long_run(
    workers: int, latency: float, per_second: int
) -> None:
    ramp = ramp_for([Window(per_second * 10, per="10s", slack=0)], workers, {"requests": 1.0})
    asked = calls_after_pause(ramp, workers, latency, 9.0)
    assert asked[0] >= 10.0
    for first, later in pairwise(asked):
        assert later - first >= 1 / per_second - 1e-6


def test_after_a_pause_a_gate_of_slots_alone_begins_with_one_call_and_doubles_with_each_round() -> None:
    ramp = ramp_for([Concurrency(64)], 64, {"requests": 1.0})
    asked = calls_after_pause(ramp, 64, 1.0, 3.5)
    rounds = [sum(10 + n <= at < 10.5 + n for at in asked) for n in range(4)]
    assert rounds == [1, 2, 4, 8]


def test_a_pause_that_is_known_is_not_news_and_a_longer_one_is() -> None:
    ramp = Ramp(8)
    assert ramp.is_over(0.0)
    assert ramp.paused(0.0, 28.0)
    assert not ramp.paused(1.0, 27.0)
    assert not ramp.paused(2.0, 0.0)
    assert ramp.wait(27.0, 0) == pytest.approx(1.0)
    assert ramp.paused(20.0, 28.0)
    assert ramp.wait(28.0, 0) == pytest.approx(20.0)
    assert not ramp.is_over(48.0)
    for _ in range(7):
        ramp.answered(47.0)
    assert not ramp.is_over(48.0), "they were sent before the pause"
    for _ in range(7):
        ramp.answered(48.0)
    assert ramp.is_over(48.0)


def test_a_pause_that_ends_before_its_time_is_not_waited_for() -> None:
    ramp = Ramp(8)
    ramp.paused(0.0, 3600.0)
    ramp.resumed(5.0)
    assert ramp.wait(5.0, 0) == 0.0
    assert ramp.wait(5.0, 1) == inf
    ramp.resumed(6.0)
    assert not ramp.is_over(6.0)


# --- utilisation -----------------------------------------------------------------------------------------------------


def test_utilisation_is_the_least_time_of_the_tightest_limit_over_the_time_that_it_took() -> None:
    window = Window(100, per="10s", slack=0)
    assert utilisation([window], 300, {"requests": 1.0}, 0.0, 20.0) == pytest.approx(1.0)
    assert utilisation([window], 300, {"requests": 1.0}, 0.0, 40.0) == pytest.approx(0.5)
    assert utilisation([window], 50, {"requests": 1.0}, 0.0, 40.0) == 0.0
    bucket = Bucket(10, per="1s", burst=5, slack=0)
    assert utilisation([window, bucket], 105, {"requests": 1.0}, 0.0, 20.0) == pytest.approx(0.5)
    assert utilisation([Concurrency(4)], 105, {"requests": 1.0}, 60.0, 20.0) == pytest.approx(0.75)
    assert utilisation([Concurrency(4, by="org")], 105, {"requests": 1.0}, 60.0, 20.0) == 0.0

"""The planner, against the figures of the designs that Headgate replaces: right where they are, and only there."""

import pytest

from headgate import Bucket, Concurrency, Quota, Window
from headgate.errors import InvalidInput
from headgate.simulate.planning import forecast, published_figures, size_shared_limit, slack_costs

BOTH = [Window(190, per="1m", name="rpm"), Concurrency(150, name="in_flight")]


def test_short_calls_are_bound_by_the_rate_and_would_be_1800_a_minute_without_it() -> None:
    plan = forecast(BOTH, 5)
    assert (plan.binding.name, plan.per_minute, plan.without) == ("rpm", 190, 1800)


def test_calls_of_30_seconds_are_still_bound_by_the_rate() -> None:
    plan = forecast(BOTH, 30)
    assert (plan.binding.name, plan.per_minute, plan.without) == ("rpm", 190, 300)


def test_calls_of_a_minute_are_bound_by_what_may_be_in_flight() -> None:
    plan = forecast(BOTH, 60)
    assert (plan.binding.name, plan.per_minute) == ("in_flight", 150)


@pytest.mark.parametrize("seconds", [1, 30, 47, 48, 300])
def test_the_two_limits_cross_at_47_seconds_whatever_the_call_takes(seconds: float) -> None:
    plan = forecast(BOTH, seconds)
    assert plan.crossover == pytest.approx(150 * 60 / 190)
    assert (plan.binding.name == "rpm") == (seconds < 47.4)


def test_a_rate_alone_crosses_nothing() -> None:
    assert forecast([Window(200, per="1m")], 5).crossover is None


def test_a_million_chunks_of_two_calls_take_almost_seven_days() -> None:
    plan = forecast([Window(200, per="1m")], 10, calls=2, items=1_000_000)
    assert (plan.items_per_minute, plan.items_per_hour, plan.items_per_day) == (100, 6000, 144_000)
    assert plan.takes is not None
    assert plan.takes / 86_400 == pytest.approx(6.944, abs=0.001)


def test_fifty_and_fifty_workers_at_ten_seconds_are_600_calls_a_minute() -> None:
    assert forecast([], 10, workers=50 + 50).per_minute == 600


def test_too_few_workers_bind_before_any_limit() -> None:
    plan = forecast(BOTH, 5, workers=10)
    assert (plan.binding.name, plan.per_minute, plan.in_flight) == ("workers", 120, 10)


def test_ten_organisations_of_twenty_are_200_expected_and_250_to_300_advised() -> None:
    sizing = size_shared_limit(10, 20)
    assert (sizing.expected, sizing.low, sizing.high) == (200, 250, 300)


def test_a_limit_in_another_unit_binds_by_what_a_call_costs() -> None:
    limits = [Bucket(1000, per="1m", name="requests"), Bucket(1000, per="1m", name="pu", unit="pu")]
    plan = forecast(limits, 2, cost={"pu": 4})
    assert (plan.binding.name, plan.per_minute) == ("pu", 250)


def test_a_daily_quota_binds_in_the_long_run() -> None:
    plan = forecast([Window(100, per="1m"), Quota(14_400, per="day", name="daily")], 1)
    assert (plan.binding.name, plan.per_minute) == ("daily", pytest.approx(10))


def test_what_slack_costs_shrinks_to_the_round_trip_with_confirmation() -> None:
    window = Window(200, per="1m", slack="2s")
    assert slack_costs(window) == pytest.approx(2 / 62)
    assert slack_costs(window, round_trip=0.24) == pytest.approx(0.24 / 60.24)


def test_of_the_seeds_figures_two_are_wrong_and_it_says_which() -> None:
    wrong = {(claim.seed, claim.about): claim.figure for claim in published_figures() if not claim.right}
    assert wrong == {
        ("S0", "150 slots and 190/min, calls of 30 s"): 190,
        ("S1", "50 + 50 workers, calls of 10 s"): 600,
    }


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"duration": 0}, "duration of a call"),
        ({"duration": float("nan")}, "duration of a call"),
        ({"duration": 5, "calls": 0}, "calls per item"),
        ({"duration": 5, "items": -1}, "items"),
        ({"duration": 5, "workers": 1.5}, "workers"),
    ],
)
def test_a_senseless_number_is_refused_by_name(arguments: dict[str, float], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        forecast(BOTH, **arguments)  # type: ignore[arg-type]


def test_a_unit_without_a_cost_and_a_plan_without_limits_are_refused() -> None:
    with pytest.raises(InvalidInput, match="say what a call costs"):
        forecast([Bucket(10, per="1m", unit="pu")], 5)
    with pytest.raises(InvalidInput, match="at least one limit"):
        forecast([], 5)

"""Quotas by the calendar: days of 23 and 25 hours, months, leap years, and the slack around midnight."""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Denied, Gate, Quota
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock, FakeUpstream
from tests.support.oracle import Charge, QuotaOracle
from tests.support.stores import examples

S = 1_000_000
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "America/Havana",
]


def moment(text: str, zone: str = "UTC") -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * S


def gate_at(text: str, zone: str, **quota: Any) -> tuple[Gate, FakeClock]:
    clock = FakeClock(moment(text, zone))
    return Gate("g", [Quota(1, zone=zone, name="q", **quota)], store=MemoryStore(clock=clock)), clock


@pytest.mark.parametrize(
    ("begins", "zone", "per", "hours"),
    [
        ("2024-03-31T00:00", "Europe/Berlin", "day", 23),
        ("2024-10-27T00:00", "Europe/Berlin", "day", 25),
        ("2024-06-01T00:00", "Europe/Berlin", "day", 24),
        ("2024-03-25T00:00", "Europe/Berlin", "week", 7 * 24 - 1),
        ("2024-10-01T00:00", "Europe/Berlin", "month", 31 * 24 + 1),
        ("2024-02-01T00:00", "UTC", "month", 29 * 24),
        ("2023-02-01T00:00", "UTC", "month", 28 * 24),
        ("2024-01-01T00:00", "America/New_York", "year", 366 * 24),
        ("2024-11-03T01:00", "America/New_York", "hour", 1),
        ("2024-05-05T05:00", "Asia/Kolkata", "hour", 1),
        ("2024-05-05T05:00", "Asia/Kolkata", "minute", 1 / 60),
        ("2011-12-29T00:00", "Pacific/Apia", "day", 24),  # the 30th did not happen
    ],
)
def test_a_period_is_as_long_as_it_is_in_its_zone(begins: str, zone: str, per: str, hours: float) -> None:
    gate, clock = gate_at(begins, zone, per=per, slack=0)
    assert gate.try_acquire() is not None
    length = round(hours * 3600 * S)
    with pytest.raises(Denied) as denied:
        gate.acquire(timeout=0)
    assert round((denied.value.retry_after or 0) * S) == length
    assert gate.usage()["q"].resets_in == length / S
    clock.advance(microseconds=length - 1)
    assert gate.try_acquire() is None
    clock.advance(microseconds=1)
    assert gate.try_acquire() is not None


def test_around_a_reset_both_periods_bind() -> None:
    gate, clock = gate_at("2024-05-05T23:59:59", "UTC", per="day", slack="1s")
    assert gate.try_acquire() is not None
    # It may be counted after midnight: so it counts today and tomorrow, and tomorrow's slack is over a second later.
    with pytest.raises(Denied) as denied:
        gate.acquire(timeout=0)
    assert denied.value.retry_after == 1 + 86_400 + 1
    clock.set(moment("2024-05-06T12:00"))
    assert gate.try_acquire() is None


def test_before_the_slack_of_a_reset_only_today_binds() -> None:
    gate, _ = gate_at("2024-05-05T23:59:58", "UTC", per="day", slack="1s")
    assert gate.try_acquire() is not None
    with pytest.raises(Denied) as denied:
        gate.acquire(timeout=0)
    assert denied.value.retry_after == 2 + 1


@pytest.mark.parametrize("per", ["hour", "day", "week", "month"])
@pytest.mark.parametrize("zone", ZONES)
def test_wherever_and_whenever_the_upstreams_calendar_agrees(zone: str, per: str) -> None:
    @examples("memory", 12)
    @given(
        st.integers(moment("2022-01-01"), moment("2026-12-31")),
        st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 3), st.integers(0, 1000)), min_size=5, max_size=25),
    )
    def histories(start: int, calls: list[tuple[int, int, int]]) -> None:
        clock = FakeClock(start)
        gate = Gate("g", [Quota(5, per, zone, slack="1s", name="q")], store=MemoryStore(clock=clock))
        oracle = QuotaOracle(5, per, zone, S)
        longest = {"hour": 3600, "day": 86_400, "week": 7 * 86_400, "month": 31 * 86_400}[per] * S
        arrivals = []
        for pause, cost, delay in calls:
            clock.advance(microseconds=longest * pause // 2500)
            wanted = oracle.earliest(clock(), clock(), cost)
            why = gate.explain(cost)
            assert why.goes_in is not None
            assert clock() + round(why.goes_in * S) == wanted
            if wanted - clock() < longest // 3:
                clock.set(wanted)
            if gate.try_acquire(cost) is not None:
                oracle.charges.append(Charge(clock(), cost))
                arrivals.append((clock() + S * delay // 1000, float(cost)))
        assert FakeUpstream(5, per, "calendar", zone=zone).judge(arrivals) == []

    histories()


def test_the_oracle_and_the_upstream_name_the_same_days() -> None:
    at = round(datetime(2024, 10, 27, 0, 30, tzinfo=UTC).timestamp()) * S
    assert QuotaOracle(1, "day", "Europe/Berlin", 0).period(at) == "2024-10-27"

"""Durations: what is read, what is written back, and what is refused with which words."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.duration import LONGEST, UNITS, parse, render
from headgate.errors import HeadgateError, InvalidInput

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

durations = st.integers(min_value=1, max_value=LONGEST) | st.integers(min_value=1, max_value=10 * SECOND)


@pytest.mark.parametrize(
    ("written", "us"),
    [
        ("1m", MINUTE),
        ("250ms", 250_000),
        ("6h", 6 * HOUR),
        ("1.5s", 1_500_000),
        ("2d", 2 * DAY),
        ("1w", 7 * DAY),
        ("7us", 7),
        ("1h30m", HOUR + 30 * MINUTE),
        ("1d2h3m4s5ms6us", DAY + 2 * HOUR + 3 * MINUTE + 4 * SECOND + 5_006),
        ("0.1s", 100_000),
        (" 1m ", MINUTE),
        ("744h", 31 * DAY),
        ("PT1M", MINUTE),
        ("PT744H", 744 * HOUR),
        ("P1DT2H", 26 * HOUR),
        ("P2W", 14 * DAY),
        ("PT0.25S", 250_000),
        (60, MINUTE),
        (0.25, 250_000),
        (0.1, 100_000),
        (timedelta(minutes=1), MINUTE),
        (timedelta(days=-1, hours=25), HOUR),
        (timedelta(days=100_000, microseconds=1), 100_000 * DAY + 1),
    ],
)
def test_a_duration_is_read_as_whole_microseconds(written: Any, us: int) -> None:
    assert parse(written) == us


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (MINUTE, "1m"),
        (250_000, "250ms"),
        (1_500_000, "1.5s"),
        (1_500, "1.5ms"),
        (7, "7us"),
        (90 * MINUTE, "1h30m"),
        (2 * DAY, "2d"),
        (14 * DAY, "14d"),
        (MINUTE + 250_000, "1m250ms"),
        (HOUR + 1, "1h1us"),
        (0, "0s"),
        (-MINUTE, "-1m"),
    ],
)
def test_a_duration_is_written_in_its_short_form(us: int, text: str) -> None:
    assert render(us) == text


@given(durations)
def test_what_is_written_is_read_back_unchanged(us: int) -> None:
    assert parse(render(us)) == us


@given(durations)
def test_whole_seconds_and_timedeltas_and_text_agree(us: int) -> None:
    seconds = us // SECOND or 1
    assert parse(seconds) == parse(f"{seconds}s") == parse(f"PT{seconds}S") == parse(timedelta(seconds=seconds))
    assert parse(timedelta(microseconds=us)) == us


@given(st.integers(min_value=1, max_value=10**9), st.sampled_from(list(UNITS)))
def test_every_unit_counts_what_the_table_says(count: int, unit: str) -> None:
    us = count * UNITS[unit]
    if us <= LONGEST:
        assert parse(f"{count}{unit}") == us
    else:
        with pytest.raises(InvalidInput, match="285 years"):
            parse(f"{count}{unit}")


@given(st.floats(min_value=1e-6, max_value=1e6))
def test_seconds_are_rounded_to_the_nearest_microsecond(seconds: float) -> None:
    assert abs(parse(seconds) - seconds * SECOND) <= 0.500001


@given(st.text(max_size=12) | st.floats() | st.integers() | st.timedeltas() | st.none() | st.booleans())
def test_anything_at_all_is_a_positive_duration_or_a_clear_error(value: Any) -> None:
    try:
        us = parse(value)
    except InvalidInput:
        with pytest.raises(InvalidInput, match=r"^per of window 'rpm': "):
            parse(value, what="per of window 'rpm'")
    else:
        assert type(us) is int
        assert 0 < us <= LONGEST


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, "True is not a duration"),
        (False, "False is not a duration"),
        (None, "None is not a duration"),
        ([60], "[60] is not a duration"),
        (date(2024, 1, 1), "is not a duration"),
        (float("nan"), "nan is not a finite number of seconds"),
        (float("inf"), "inf is not a finite number of seconds"),
        (-1, "-1 is negative"),
        (-0.5, "-0.5 is negative"),
        ("-1m", "'-1m' is negative"),
        ("-PT1M", "'-PT1M' is negative"),
        (timedelta(seconds=-1), "is negative"),
        (0, "0 is no time at all"),
        ("0s", "'0s' is no time at all"),
        ("PT0S", "'PT0S' is no time at all"),
        ("0.0001ms", "shorter than a microsecond"),
        (1e-9, "shorter than a microsecond"),
        ("300000d", "longer than 285 years"),
        (1e300, "longer than 285 years"),
        pytest.param(10**5000, "longer than 285 years", id="a number too long to print"),
        pytest.param(-(10**5000), "is negative", id="a negative number too long to print"),
        pytest.param("9" * 5000 + "s", "is not a duration", id="a text of thousands of digits"),
        ("", "is not a duration"),
        (" ", "is not a duration"),
        ("soon", "'soon' is not a duration"),
        ("1 m", "is not a duration"),
        ("1M", "is not a duration"),
        ("30m1h", "is not a duration"),
        ("1h1h", "is not a duration"),
        ("1.s", "is not a duration"),
        (".5s", "is not a duration"),
        ("1e3s", "is not a duration"),
        ("٣s", "is not a duration"),
        ("60", "'60' is not a duration"),
        ("P", "is not a duration"),
        ("PT", "is not a duration"),
        ("P1DT", "is not a duration"),
        ("P1H", "is not a duration"),
        ("pt1m", "is not a duration"),
    ],
)
def test_what_is_no_duration_is_refused_with_what_would_be_right(value: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        parse(value)
    assert words in str(refusal.value)
    assert '"1m"' in str(refusal.value)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("value", ["P1M", "P1Y", "P1Y6M", "P1M2D", "P1MT1H"])
def test_months_and_years_are_refused_because_they_have_no_fixed_length(value: str) -> None:
    with pytest.raises(InvalidInput, match=r"no fixed length.*P30D"):
        parse(value)


def test_a_number_in_quotes_is_refused_with_the_unit_it_lacks() -> None:
    with pytest.raises(InvalidInput, match='"60s", if seconds are meant'):
        parse("60")


@pytest.mark.parametrize("nought", [0, 0.0, "0s", "PT0S", timedelta()])
def test_nought_is_a_duration_only_where_it_is_allowed(nought: Any) -> None:
    assert parse(nought, zero=True) == 0
    with pytest.raises(InvalidInput):
        parse(nought)


def test_a_refusal_is_a_value_error_and_one_of_ours() -> None:
    with pytest.raises(ValueError, match="lease: "):
        parse("soon", what="lease")
    assert issubclass(InvalidInput, HeadgateError)

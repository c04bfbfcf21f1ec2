"""A kind of limit answers for itself: its fields, its slack, what calls hold of it, and what it lets pass."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import Aimd, Bucket, Concurrency, InvalidInput, Quota, Window
from headgate.kernel.limits import KINDS, Limit, kind_of
from headgate.kernel.limits.base import NO_LEASE
from headgate.kernel.model import OUTCOMES, SECOND
from headgate.kernel.plan import Policy
from headgate.kernel.records import DictRecords
from headgate.service.store_protocol.execute import differences

LIMITS: list[Limit] = [
    Window(30, per="1m", slack="2s", name="w", unit="pu", by="org"),
    Bucket(30, per="1m", burst=5, slack="2s", name="b", unit="pu", by="org"),
    Quota(30, per="hour", zone="Europe/Paris", slack="2s", name="q", unit="pu", by="org"),
    Concurrency(30, lease="10s", adaptive=Aimd(), name="c", by="org"),
]
EACH = pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.kind)


def plain(value: Any) -> Any:
    return value.spec() if hasattr(value, "spec") else value


def test_every_kind_is_here() -> None:
    assert {limit.kind for limit in LIMITS} == set(KINDS)


@EACH
def test_its_fields_are_what_stands_in_its_spec_after_the_kind(limit: Limit) -> None:
    assert limit.spec() == (limit.kind, *(plain(getattr(limit, field)) for field in limit.fields))
    assert set(limit.moving) <= set(limit.fields)
    for field in limit.fields:
        assert limit.replaced(field, plain(getattr(limit, field))) is limit
    assert limit.replaced("name", "other").name == "other"
    assert limit.replaced("name", "other") == limit.from_spec(
        [*limit.spec()[: 1 + limit.fields.index("name")], "other", *limit.spec()[2 + limit.fields.index("name") :]]
    )


def test_at_the_boundary_it_has_no_slack() -> None:
    for limit in LIMITS[:3]:
        bare = limit.with_slack(0)
        assert (type(bare), getattr(bare, "slack", None)) == (type(limit), 0)
        assert bare.with_slack(2 * SECOND) == limit
        assert bare.with_slack(0) is bare
    assert LIMITS[3].with_slack(0) is LIMITS[3]


def test_for_clocks_that_are_apart_a_window_counts_longer_and_others_have_more_slack() -> None:
    window, bucket, quota, slots = (limit.widened(SECOND // 2) for limit in LIMITS)
    assert window == Window(30, per="60.5s", slack="2s", name="w", unit="pu", by="org")
    assert bucket == Bucket(30, per="1m", burst=5, slack="2.5s", name="b", unit="pu", by="org")
    assert quota == Quota(30, per="hour", zone="Europe/Paris", slack="2.5s", name="q", unit="pu", by="org")
    assert slots is LIMITS[3]
    assert all(limit.widened(0) is limit for limit in LIMITS)


@EACH
def test_what_a_called_ticket_holds_is_found_in_its_state(limit: Limit) -> None:
    records = DictRecords("g")
    now = 1_700_000_000 * SECOND
    limit.hold(records, now, "m", 2.0, ("id", now + SECOND, (None, now, 1, None)))
    state = records.states.get("m")
    assert limit.held(state) == (0.0 if limit.leased else 2.0)
    limit.hold(records, now, "m", -2.0, ("id", now + SECOND, None))
    assert limit.held(records.states.get("m")) == 0.0
    assert limit.feedback(records, now, "m", limit.limit, "error", now) is None


def test_a_bucket_whose_rate_was_overridden_is_remembered_for_longer_than_its_state_says() -> None:
    records, now = DictRecords("g"), 1_700_000_000 * SECOND
    for limit in LIMITS[:3]:
        limit.charge(records, now, "m", 1.0, limit.limit, now, NO_LEASE)
        state = records.states.get("m")
        until = limit.until(records, "m", state)
        assert (limit.until_overridden(state, until) > until) == (limit.kind == "bucket")
        records.states.delete("m")


def test_how_much_passes_a_minute_and_for_how_long_it_remembers() -> None:
    assert [limit.per_minute(2.0, 5.0) for limit in LIMITS] == [15, 15, 0.25, 360]
    assert [limit.window_s() for limit in LIMITS] == [60, 60, None, None]
    assert [limit.remembers() // SECOND for limit in LIMITS] == [62, 62, 3602, 86_400]
    assert Bucket(10, per="1m", burst=30, slack=0).remembers() == 180 * SECOND
    assert [limit.numbers() for limit in LIMITS] == [
        (60 * SECOND, 2 * SECOND),
        (60 * SECOND, 5, 2 * SECOND),
        ("hour", "Europe/Paris", 2 * SECOND),
        (10 * SECOND, (8, 2, 2, 10)),
    ]


def test_an_override_of_slots_is_whole_and_of_a_rate_above_nought() -> None:
    assert Window(5, per="1m").checked_value("g", 2.5) == 2.5
    with pytest.raises(InvalidInput, match=r"gate 'g': limit 'concurrency' is a whole number of slots, not 2\.5"):
        Concurrency(5).checked_value("g", 2.5)
    for limit in LIMITS:
        with pytest.raises(InvalidInput, match=f"gate 'g': the limit '{limit.name}' must be a finite number above 0"):
            limit.checked_value("g", 0)


def test_a_kind_that_says_less_is_still_one() -> None:
    class Bare(Limit):
        kind = "bare"

        def spec(self) -> tuple[Any, ...]:
            return (self.kind, self.limit, self.name)

    bare, other = Bare(5, None, "requests", None), Bare(6, None, "requests", None)
    assert (bare.with_slack(0), bare.widened(5), bare.window_s()) == (bare, bare, None)
    assert kind_of("bare") is Limit
    with pytest.raises(InvalidInput, match=r"of the kind 'bare', which does not say how many calls a minute"):
        bare.per_minute(1.0, 1.0)
    found = differences(Policy("g", [bare]), Policy("g", [other]), (other,), set())
    assert found == (["limit 'bare' is (5, 'bare') there and (6, 'bare') here"], [])


def test_what_differs_between_two_versions_of_a_limit_is_told_in_words() -> None:
    ours, theirs = Policy("g", [LIMITS[1].replaced("by", None)]), LIMITS[1].replaced("by", None)
    for field, value, words in (
        ("limit", 31, "limit 'b' has limit 30 there and 31 here"),
        ("slack", SECOND, "limit 'b' has slack 2 s there and 1 s here"),
        ("burst", 6.5, "limit 'b' has burst 5 there and 6.5 here"),
        ("by", "org", "limit 'b' has by None there and 'org' here"),
    ):
        other = theirs.replaced(field, value)
        found = differences(ours, Policy("g", [other]), (other,), set())
        assert found == (([words], []) if field == "by" else ([], [words]))
        moved = differences(ours, Policy("g", [other]), (other,), {"b"})
        assert any(moved) == (field not in ("limit", "burst"))


def test_every_outcome_says_what_follows_from_it() -> None:
    told = {name: (one.answered, one.pauses, one.refunds, one.adapts) for name, one in OUTCOMES.items()}
    assert told == {
        "ok": (True, False, False, 1),
        "rate_limited": (True, True, False, -1),
        "overloaded": (True, True, False, -1),
        "error": (False, False, False, 0),
        "unsent": (False, False, True, 0),
    }


@pytest.mark.parametrize(
    ("limit", "shown"),
    [
        (Window(3, per="1m"), "Window(3, per=60, name='window')"),
        (
            Window(1234567.5, per="250ms", name="w", unit="pu", by="org"),
            "Window(1234567.5, per=0.25, name='w', unit='pu', by='org')",
        ),
        (Bucket(10, per="744h", name="b"), "Bucket(10, per=2678400, name='b')"),
        (Quota(5, per="month"), "Quota(5, per='month', name='quota')"),
        (Concurrency(7), "Concurrency(7, name='concurrency')"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_limit_shows_what_it_is_and_can_be_made_again_from_that(limit: Limit, shown: str) -> None:
    assert repr(limit) == shown
    assert eval(shown) == limit

"""What becomes of a message is a function of its history and the outcome."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Denied, InvalidInput
from headgate.stages import (
    AttemptFailed,
    BadMessage,
    Limited,
    MessageHistory,
    MessageSchema,
    Poison,
    QuotaSpent,
    RetryPolicy,
    StageOutcome,
    UpstreamRefused,
)
from headgate.stages.message import checked_id, child_id, decode, encode
from headgate.stages.outcomes import Bury, Return, on_receipt, outcome_of, outcome_of_response, what_becomes

POLICY = RetryPolicy(attempts=3, first=1.0, longest=10.0)

HISTORIES = st.builds(
    MessageHistory,
    attempts=st.integers(0, 2),
    refusals=st.integers(0, 60),
    deaths=st.integers(0, 2),
    receives=st.integers(1, 99),
)
WAITS = st.one_of(st.none(), st.floats(0.001, 100_000))


@given(HISTORIES, WAITS, st.floats(0, 1), st.sampled_from([Limited, UpstreamRefused, QuotaSpent]))
def test_limits_refusals_and_quotas_burn_no_attempt_and_never_bury(
    history: MessageHistory, after: float | None, chance: float, kind: type[StageOutcome]
) -> None:
    verdict = what_becomes(history, kind("x", after), POLICY, chance)
    assert isinstance(verdict, Return)
    assert not verdict.failed
    assert (verdict.history.attempts, verdict.history.deaths) == (history.attempts, history.deaths)
    assert verdict.delay_us > 0
    if after is not None:
        assert verdict.delay_us == round(after * 1_000_000)


@given(HISTORIES, WAITS, st.floats(0, 1))
def test_a_failure_costs_one_attempt_and_the_last_one_buries(
    history: MessageHistory, after: float | None, chance: float
) -> None:
    verdict = what_becomes(history, AttemptFailed("boom", after), POLICY, chance)
    assert verdict.failed
    assert verdict.history.attempts == history.attempts + 1
    if verdict.history.attempts == POLICY.attempts:
        assert isinstance(verdict, Bury)
        assert (verdict.reason, verdict.error) == ("failed", "boom")
    else:
        assert isinstance(verdict, Return)
        assert verdict.delay_us >= round((after or 0) * 1_000_000)
        most = min(2 ** (verdict.history.attempts - 1), 10) * 1_000_000
        assert most // 2 <= verdict.delay_us <= max(most, round((after or 0) * 1_000_000))


@given(HISTORIES)
def test_poison_is_buried_at_once_with_its_text(history: MessageHistory) -> None:
    assert what_becomes(history, Poison("no pages"), POLICY, 0.5) == Bury("poison", "no pages", history)


def test_waits_are_longer_each_time_up_to_the_longest_and_spread() -> None:
    waits = [POLICY.wait_us(failures, 1.0) / 1_000_000 for failures in range(1, 7)]
    assert waits == [1, 2, 4, 8, 10, 10]
    assert POLICY.wait_us(10_000, 0.0) == 5_000_000


def test_a_message_that_killed_its_worker_three_times_is_buried_before_its_handler_sees_it() -> None:
    history = MessageHistory(receives=4)
    assert on_receipt(replace(history, deaths=2), POLICY) is None
    verdict = on_receipt(replace(history, deaths=3), POLICY)
    assert verdict is not None
    assert verdict.reason == "killed"
    assert "3 of 4 deliveries" in verdict.error


@dataclass
class Response:
    status_code: int
    headers: dict[str, str] = field(default_factory=dict)
    body: Any = None


class StatusError(Exception):
    def __init__(self, response: Response) -> None:
        super().__init__(f"status {response.status_code}")
        self.response = response


QUOTA = {"error": {"code": "INSUFFICIENT_QUOTA"}}


@pytest.mark.parametrize(
    ("response", "kind", "after"),
    [
        (Response(200), None, None),
        (Response(302), None, None),
        (Response(429, {"Retry-After": "7"}), UpstreamRefused, 7.0),
        (Response(429), UpstreamRefused, None),
        (Response(429, {"Retry-After": "60"}, QUOTA), QuotaSpent, 60.0),
        (Response(500), AttemptFailed, None),
        (Response(503, {"Retry-After": "3"}), AttemptFailed, 3.0),
        (Response(401), AttemptFailed, None),
        (Response(400), Poison, None),
        (Response(413), Poison, None),
        (Response(422), Poison, None),
    ],
)
def test_an_answer_and_an_exception_that_carries_it_stand_for_the_same_outcome(
    response: Response, kind: type[StageOutcome] | None, after: float | None
) -> None:
    outcome = outcome_of_response(response, 0.0)
    assert type(outcome) is (kind or type(None))
    if kind is not None and outcome is not None:
        raised = outcome_of(StatusError(response), 0.0)
        assert (type(raised), raised.retry_after) == (kind, after)
        assert outcome.retry_after == after


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError(), AttemptFailed),
        (ValueError("429 in a text is no refusal"), AttemptFailed),
        (Denied("full", retry_after=4.0), Limited),
        (BadMessage("field x"), Poison),
        (Poison("x"), Poison),
    ],
)
def test_exceptions_stand_for_outcomes_by_their_type_never_by_their_text(
    error: Exception, kind: type[StageOutcome]
) -> None:
    assert type(outcome_of(error, 0.0)) is kind


@pytest.mark.parametrize("bad", [{"attempts": 0}, {"attempts": True}, {"deaths": 0}, {"first": 0}, {"first": 900}])
def test_a_retry_policy_that_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        RetryPolicy(**bad)


def test_a_retry_delay_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput):
        UpstreamRefused("x", -1)


# --- messages -------------------------------------------------------------------------------------------------------

SCHEMA = MessageSchema({"key": str, "pages": int | None, "size": float}, {"tags": list})


@pytest.mark.parametrize(
    ("body", "field_name", "says"),
    [
        ({"pages": 1, "size": 1}, "key", "is missing (a text)"),
        ({"key": 7, "pages": 1, "size": 1}, "key", "must be a text, not 7"),
        ({"key": "a", "pages": True, "size": 1}, "pages", "must be a whole number or null, not True"),
        ({"key": "a", "pages": 1, "size": "1"}, "size", "must be a number, not '1'"),
        ({"key": "a", "pages": 1, "size": 1, "tags": {}}, "tags", "must be a list"),
    ],
)
def test_a_message_of_another_schema_names_the_field(body: Any, field_name: str, says: str) -> None:
    with pytest.raises(BadMessage) as caught:
        SCHEMA.check(body, "stage a")
    assert caught.value.field == field_name
    assert says in str(caught.value)


def test_a_message_with_unknown_fields_passes_and_keeps_them() -> None:
    body = {"key": "a", "pages": None, "size": 2, "new": {"x": [1]}}
    SCHEMA.check(body, "stage a")
    assert decode(encode(body, "stage a"), "stage a") == body


def test_a_type_that_json_has_not_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidInput, match="'when'"):
        MessageSchema({"when": bytes})


@pytest.mark.parametrize("body", [None, [], "text", {"x": float("nan")}, {"x": object()}, {"x": "\ud800"}])
def test_what_is_no_json_object_is_refused(body: Any) -> None:
    with pytest.raises(BadMessage):
        encode(body, "stage a")


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '"x"', "null"])
def test_a_text_that_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(BadMessage):
        decode(text, "stage a")


@given(st.text(min_size=1, max_size=100), st.integers(0, 10**6), st.integers(1, 5))
def test_the_ids_of_outputs_are_the_same_again_and_can_be_kept(id: str, number: int, of: int) -> None:
    made = child_id(id, number, of)
    assert made == child_id(id, number, of)
    assert len(made) <= 100
    assert (made == id) == (of == 1)


@pytest.mark.parametrize("id", ["", " a", "a\n", "x" * 101, 7])
def test_an_id_that_cannot_be_kept_is_refused(id: Any) -> None:
    with pytest.raises(BadMessage):
        checked_id(id)

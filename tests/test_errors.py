"""Errors: what they say, and that they survive the way back from another process."""

from __future__ import annotations

import inspect
import pickle

import pytest

from headgate import errors
from headgate.errors import ConfigError, Denied, HeadgateError, InvalidInput, KindChanged, UnknownGate

CLASSES = [item for _, item in inspect.getmembers(errors, inspect.isclass) if issubclass(item, Exception)]


@pytest.mark.parametrize("error", CLASSES, ids=lambda error: error.__name__)
def test_every_error_is_one_of_ours_and_says_what_it_was_given(error: type[Exception]) -> None:
    assert issubclass(error, HeadgateError)
    assert str(error("the disk is full")) == "the disk is full"
    assert inspect.getdoc(error)


@pytest.mark.parametrize(
    "error",
    [
        *(error("the disk is full") for error in CLASSES),
        Denied("out of time", gate="adobe", limit="rpm", retry_after=1.5, position=3),
        ConfigError("it is a number", file="headgate.toml", path="gates.g", remedy="it must be a table"),
        UnknownGate("there is no gate 'g'", file="headgate.toml", path="gates", remedy="it has adobe"),
        KindChanged(gate="adobe", limit="rpm", was="bucket", now="window"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_from_another_process_with_all_it_knows(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_denial_says_which_limit_when_to_come_back_and_the_place_in_line() -> None:
    denied = Denied("out of time", gate="adobe", limit="rpm", retry_after=1.25, position=3)
    assert str(denied) == "gate 'adobe': out of time (limit 'rpm', retry after 1.25 s, position 3 in line)"
    assert str(Denied("paused")) == "paused"
    assert (denied.reason, denied.gate, denied.limit, denied.retry_after, denied.position) == (
        *("out of time", "adobe", "rpm", 1.25, 3),
    )


def test_a_changed_kind_names_the_remedy() -> None:
    error = KindChanged(gate="adobe", limit="rpm", was="bucket", now="window")
    assert "limit 'rpm' is now a window, but the store holds a bucket" in str(error)
    assert "`headgate reset adobe`" in str(error)


def test_bad_input_is_a_value_error_for_code_that_knows_nothing_of_us() -> None:
    assert issubclass(InvalidInput, ValueError)
    assert issubclass(ConfigError, InvalidInput)
    assert issubclass(UnknownGate, KeyError)


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (29.9996, "30"),
        (0.123456, "0.123"),
        (1.23456, "1.23"),
        (123.456, "123"),
        (3600, "3600"),
        (1234567.0, "1234567"),
        (0, "0"),
    ],
)
def test_numbers_in_messages_have_three_digits_that_count(number: float, shown: str) -> None:
    assert errors.figure(number) == shown
    assert str(Denied("not now", gate="g", retry_after=number)) == f"gate 'g': not now (retry after {shown} s)"

"""How long a process keeps the write lock of a file in one go, and when it lets others go first."""

from __future__ import annotations

import time

import pytest

from headgate.sqlite_file import Turn, turns

#: A transaction that began so long ago took much longer than a turn; one that begins later took no time.
LONG_AGO, LATER = -1.0, 1.0


def end_of_a_transaction(turn: Turn, began_in: float, more: bool = True, contended: bool = True) -> None:
    turn.ended(time.monotonic() + began_in, more, contended)


@pytest.fixture(autouse=True)
def _long_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "GAP", 60.0)  # a busy machine takes its time between two lines of a test


def test_a_process_with_more_to_write_leaves_a_gap_after_its_turn() -> None:
    turn = Turn()
    assert turn.gap_s() == 0
    end_of_a_transaction(turn, LATER)
    assert turn.gap_s() == 0, "its turn is not over"
    end_of_a_transaction(turn, LONG_AGO - LATER)
    assert turn.gap_s() > 0


def test_a_process_that_has_written_all_leaves_no_gap() -> None:
    turn = Turn()
    end_of_a_transaction(turn, LONG_AGO, more=False)
    assert turn.gap_s() == 0


def test_while_no_other_process_writes_few_turns_end_with_a_gap() -> None:
    turn = Turn()
    gaps = []
    for _ in range(3 * turns.PROBE_EVERY):
        end_of_a_transaction(turn, LONG_AGO, contended=False)
        gaps.append(turn.gap_s() > 0)
    assert sum(gaps) == 3


def test_a_transaction_that_took_too_long_makes_the_next_smaller_until_they_are_short_again() -> None:
    turn = Turn()
    for batch in (256, 128):
        end_of_a_transaction(turn, LONG_AGO)
        assert turn.batch == batch
    for _ in range(20):
        end_of_a_transaction(turn, LONG_AGO)
    assert turn.batch == 1
    for _ in range(20):
        end_of_a_transaction(turn, LATER)
    assert turn.batch == turns.LARGEST_BATCH

"""The results page: measuring takes half an hour in all, so it can be written in parts."""

from __future__ import annotations

from benchmarks.__main__ import page
from benchmarks.measure import Table


def test_a_page_is_written_anew_or_in_parts_and_keeps_the_tables_that_were_not_measured_again() -> None:
    first, second = Table("First", ["", "ns"], [["a", "1"]], "A note."), Table("Second", ["", "ns"], [["b", "2"]])
    whole = page([first, second])
    assert "## First\n\n|  | ns |\n| --- | ---: |\n| a | 1 |\n\nA note.\n\n## Second" in whole
    again, new = Table("Second", ["", "ns"], [["b", "3"]]), Table("Third", ["", "ns"], [["c", "4"]])
    parts = page([again, new], whole)
    assert [line for line in parts.splitlines() if line.startswith("## ")] == ["## First", "## Second", "## Third"]
    assert "| a | 1 |\n\nA note." in parts
    assert "| b | 3 |" in parts
    assert "| b | 2 |" not in parts
    assert page([first, second], parts).count("# Benchmarks\n") == 1

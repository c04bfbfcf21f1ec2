"""What is shipped for the tests of others: the plugin's fixtures, the clock, the upstream that keeps its own books."""

import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from headgate.testing import FakeClock, FakeUpstream
from tests.support import ROOT


def test_the_fixtures_are_there_for_whoever_has_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        """
from headgate import Gate, Window

def test_a_minute_later(headgate_clock, headgate_memory_store):
    gate = Gate("api", [Window(1, per="1m", slack=0)], store=headgate_memory_store)
    assert gate.try_acquire() and not gate.try_acquire()
    headgate_clock.advance("1m")
    assert gate.try_acquire()
""",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:headgate"]
    done = subprocess.run(
        [*command, "-p", "headgate.testing.plugin", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plugin_is_declared_where_pytest_looks_for_it() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        [target] = tomllib.load(file)["project"]["entry-points"]["pytest11"].values()
    assert hasattr(import_module(target), "headgate_clock")


@pytest.mark.parametrize("module", ["headgate.testing", "headgate.testing.store_suite", "headgate.testing.limit_suite"])
def test_only_the_plugin_needs_pytest(module: str) -> None:
    code = f"import sys, {module}; assert not {{'pytest', 'hypothesis'}} & set(sys.modules), 'it does'"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_clock_moves_by_hand_only() -> None:
    clock = FakeClock(5)
    assert (clock(), clock()) == (5, 5)
    assert clock.advance(1) == 1_000_005
    clock.advance("250ms", microseconds=-5)
    assert clock() == 1_250_000
    clock.set(3)
    assert clock() == 3


def test_a_sliding_window_has_no_calendar() -> None:
    upstream = FakeUpstream(2, "1s")
    assert [upstream.arrive(at) for at in (900_000, 950_000, 1_899_999, 1_900_000, 1_949_999, 1_950_000)] == [
        *(True, True, False),
        *(True, False, True),
    ]
    assert len(upstream.refused) == 2


def test_a_bucket_starts_full_and_fills_at_its_rate() -> None:
    upstream = FakeUpstream(10, "1s", "bucket", burst=2)
    assert [upstream.arrive(at) for at in (0, 0, 0, 99_999, 100_000, 100_001)] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_a_calendar_day_ends_at_midnight_where_the_upstream_is() -> None:
    upstream = FakeUpstream(1, "day", "calendar", zone="America/New_York")
    midnight = 1_704_085_200_000_000  # 2024-01-01 05:00 UTC
    assert [upstream.arrive(at) for at in (midnight - 2, midnight - 1, midnight)] == [True, False, True]


def test_arrivals_out_of_order_are_an_error_and_judge_sorts_them() -> None:
    upstream = FakeUpstream(1, "1s")
    assert upstream.judge([(1_000_000, 1.0), (0, 1.0)]) == []
    with pytest.raises(ValueError, match="in order"):
        upstream.arrive(5)

"""Values of limits from outside: the last good one is kept, whatever the source does."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from headgate.config.file import GateSpec, parse
from headgate.config.sources import SOURCES, EnvSource, FileSource, Refresher, open_source
from headgate.errors import InvalidInput


class FakeSource:
    """Gives what it is told to, or raises it."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.reads = 0

    def read(self) -> float | str:
        self.reads += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]


class Ticking:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_first_good_read_replaces_the_configured_value() -> None:
    source = FakeSource("120")
    refresher = Refresher(source, 190, every=60, clock=Ticking())
    assert (refresher.current, refresher.good, source.reads) == (190, False, 0)
    assert refresher.value() == 120
    assert (refresher.current, refresher.good) == (120, True)


def test_a_source_is_asked_once_per_interval() -> None:
    source, clock = FakeSource(100, 110, 120), Ticking()
    refresher = Refresher(source, 190, every=60, clock=clock)
    assert [refresher.value(), refresher.value()] == [100, 100]
    clock.now += 59.9
    assert not refresher.due()
    assert refresher.value() == 100
    clock.now += 0.1
    assert refresher.due()
    assert refresher.value() == 110
    assert refresher.value(now=clock.now + 60) == 120
    assert source.reads == 3


NONSENSE: list[Any] = [
    *(float("nan"), float("inf"), -5, 0, 0.0, True, None, [], b"190"),
    *("nan", "inf", "-5", "0", "", "lots", "190 rpm", "1_000", "٣", "9" * 500, "0x10"),
    *(OSError("unreachable"), KeyError("gone"), RuntimeError(), InvalidInput("no"), TimeoutError()),
]


@pytest.mark.parametrize("nonsense", NONSENSE, ids=lambda value: repr(value)[:24])
def test_a_failed_or_senseless_read_keeps_the_last_good_value_and_never_the_configured_one(
    nonsense: Any, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Ticking()
    refresher = Refresher(FakeSource(60, nonsense), 190, every=10, name="adobe/rpm", clock=clock)
    assert refresher.value() == 60
    with caplog.at_level(logging.WARNING, "headgate.config.sources"):
        for failures in (1, 2, 3):
            clock.now += 10
            assert refresher.value() == 60
            assert refresher.failures == failures
    assert refresher.last_error
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3
    assert "adobe/rpm stays 60, the last good value: " in caplog.text


def test_until_a_good_read_the_configured_value_stands_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    refresher = Refresher(FakeSource(OSError("unreachable")), 190, every=10, clock=Ticking())
    assert refresher.value() == 190
    assert "stays 190, the configured value; its source was never read well: OSError: unreachable" in caplog.text
    assert not refresher.good


def test_a_source_that_recovers_is_followed_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = Ticking()
    refresher = Refresher(FakeSource(60, OSError("unreachable"), 80), 190, every=10, name="rpm", clock=clock)
    with caplog.at_level(logging.INFO, "headgate.config.sources"):
        values = []
        for _ in range(3):
            values.append(refresher.value())
            clock.now += 10
    assert values == [60, 60, 80]
    assert (refresher.failures, refresher.last_error) == (1, None)
    assert "rpm is 80 (was 60), read from its source" in caplog.text


def test_a_failed_read_is_not_tried_again_on_every_ask() -> None:
    source = FakeSource(OSError("unreachable"))
    refresher = Refresher(source, 190, every=10, clock=Ticking())
    for _ in range(100):
        refresher.value()
    assert source.reads == 1


def test_a_clock_that_was_set_back_does_not_stop_the_refreshing() -> None:
    clock = Ticking()
    refresher = Refresher(FakeSource(60, 70), 190, every=10, clock=clock)
    assert refresher.value() == 60
    clock.now -= 3600
    assert refresher.value() == 70


def test_a_slow_read_blocks_nobody_else_and_its_late_answer_changes_nothing() -> None:
    clock = Ticking()
    seen = []

    class Slow:
        reads = 0

        def read(self) -> float:
            self.reads += 1
            if self.reads == 1:
                seen.append(refresher.value())  # somebody else's ask while this read hangs
                clock.now += 10
                seen.append(refresher.value())  # and a later one, which reads anew and is answered first
                return 60
            return 80

    refresher = Refresher(Slow(), 190, every=10, clock=clock)
    assert refresher.value() == 80
    assert seen == [190, 80]


def test_a_source_slower_than_its_interval_still_gets_through() -> None:
    clock = Ticking()

    class Slower:
        def read(self) -> float:
            clock.now += 25
            return 60

    refresher = Refresher(Slower(), 190, every=10, clock=clock)
    assert [refresher.value(), refresher.value()] == [60, 60]


def test_an_interrupt_during_a_read_is_passed_on() -> None:
    refresher = Refresher(FakeSource(KeyboardInterrupt()), 190, every=10, clock=Ticking())
    with pytest.raises(KeyboardInterrupt):
        refresher.value()


def test_whole_numbers_stay_whole_and_others_do_not() -> None:
    values = [Refresher(FakeSource(answer), 1, every=1).value() for answer in ("150", 150.0, " 2.5\n", "1e3")]
    assert values == [150, 150, 2.5, 1000]
    assert [type(value) for value in values] == [int, int, float, int]


def test_the_table_of_sources_says_which_there_are() -> None:
    assert {"env": EnvSource, "file": FileSource}.items() <= SOURCES.items()
    for scheme in SOURCES:
        with pytest.raises(InvalidInput):
            open_source(f"{scheme}:")


def gate(limit: str) -> GateSpec:
    return parse(f"[gates.g]\nlimits = [{limit}]")["g"]


def sourced(limit: str) -> tuple[str, Refresher]:
    ((name, refresher),) = gate(limit).sources.items()
    return name, refresher


@pytest.fixture
def rpm(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.delenv("ADOBE_RPM", raising=False)
    return monkeypatch


def test_a_limit_may_take_its_value_from_a_variable(rpm: pytest.MonkeyPatch) -> None:
    table = '{ window = 190, per = "1m", name = "rpm", source = "env:ADOBE_RPM", refresh = "5m" }'
    name, refresher = sourced(table)
    assert (name, refresher.every, refresher.name) == ("rpm", 300.0, "g/rpm")
    assert refresher.value(0) == 190  # not set: the configured value
    rpm.setenv("ADOBE_RPM", "120")
    assert refresher.value(299) == 190
    assert refresher.value(300) == 120
    rpm.delenv("ADOBE_RPM")
    assert refresher.value(600) == 120
    assert "ADOBE_RPM is not set" in (refresher.last_error or "")
    assert gate(table).arguments()["sources"].keys() == {"rpm"}


def test_a_limit_may_take_its_value_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rpm"
    file.write_text("120\n", encoding="utf-8")
    _, refresher = sourced(f'{{ window = 190, per = "1m", source = "file:{file}" }}')
    assert (refresher.every, refresher.value(0)) == (60.0, 120)
    file.write_bytes(b"\xff\xfe")
    assert refresher.value(60) == 120
    file.unlink()
    assert refresher.value(120) == 120
    file.write_text("130", encoding="utf-8")
    assert refresher.value(180) == 130
    assert refresher.failures == 2


def test_loading_asks_no_source(tmp_path: Path) -> None:
    _, refresher = sourced(f'{{ window = 190, per = "1m", source = "file:{tmp_path / "missing"}" }}')
    assert (refresher.failures, refresher.current) == (0, 190)


def test_a_value_that_the_limit_itself_would_refuse_is_kept_out(rpm: pytest.MonkeyPatch) -> None:
    _, refresher = sourced('{ concurrency = 150, source = "env:ADOBE_RPM" }')
    rpm.setenv("ADOBE_RPM", "2.5")
    assert refresher.value(0) == 150
    assert "whole number" in (refresher.last_error or "")
    rpm.setenv("ADOBE_RPM", "75")
    assert refresher.value(60) == 75

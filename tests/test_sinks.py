"""Sinks: which are on, by default and by configuration, and what each is told."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import headgate
from headgate import ConfigError, InvalidInput, events
from headgate.config.file import parse
from headgate.service.observe.metrics import metrics_of
from headgate.sinks import DEFAULT, SINKS, make_sink
from headgate.sinks.prometheus import Prometheus
from headgate.stores.memory import MemoryStore
from tests.support import ROOT
from tests.support.guards import GuardThread

GATES = '[gates.api]\nlimits = [{ window = 5, per = "1m", name = "rpm" }]\n'


@pytest.fixture(autouse=True)
def sinks_as_before() -> Iterator[None]:
    before = events._on
    events._on = None
    yield
    events._on = before


def emitted() -> None:
    events.emit("store_down", "api", error="gone", mode="closed")


def loaded(tmp_path: Path, text: str) -> headgate.gate.gates.Gates:
    file = tmp_path / "headgate.toml"
    file.write_text(text + GATES, encoding="utf-8")
    return headgate.load(file)


def test_without_a_word_events_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert list(events.sinks_on()) == list(DEFAULT) == ["log"]
    emitted()
    [record] = caplog.records
    assert (record.name, record.levelno) == ("headgate", logging.ERROR)
    assert record.headgate.gate == "api"  # type: ignore[attr-defined]
    assert record.getMessage() == str(record.headgate)  # type: ignore[attr-defined]


def test_a_file_that_names_no_sinks_leaves_them_as_they_are(tmp_path: Path) -> None:
    events.switch_on("prometheus")
    loaded(tmp_path, "")
    assert list(events.sinks_on()) == ["prometheus"]


def test_a_file_switches_on_the_sinks_that_it_names_and_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded(tmp_path, 'sinks = ["prometheus"]\n')
    emitted()
    assert caplog.records == []
    metrics = events.sinks_on()["prometheus"]
    assert isinstance(metrics, Prometheus)
    assert metrics.value("headgate_store_errors_total", "api") == 1
    loaded(tmp_path, 'sinks = ["log", "prometheus"]\n')
    emitted()
    assert len(caplog.records) == 1
    assert events.sinks_on()["prometheus"] is metrics, "what it has counted is kept"
    assert metrics.value("headgate_store_errors_total", "api") == 2


def test_a_file_with_no_sinks_leaves_events_to_subscribers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded(tmp_path, "sinks = []\n")
    told: list[events.Event] = []
    end = events.subscribe(told.append)
    emitted()
    end()
    emitted()
    assert [event.kind for event in told] == ["store_down"]
    assert caplog.records == []


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ('"log"', "sinks: it is a string; it must be an array of names: log and prometheus"),
        ("[1]", "sinks[0]: it is a number; it must be an array of names"),
        ('["log", "prometeus"]', "sinks[1]: there is no sink 'prometeus'; did you mean 'prometheus'?"),
        ('["log", "log"]', "sinks[1]: 'log' is there twice"),
    ],
)
def test_a_file_with_senseless_sinks_is_refused_with_what_would_be_right(wrong: str, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(f"sinks = {wrong}\n{GATES}")
    assert problem in str(refused.value)


def test_a_sink_that_is_not_there_is_refused_and_nothing_changes() -> None:
    with pytest.raises(InvalidInput, match="there is no sink 'syslog'; there are log, prometheus"):
        events.switch_on("log", "syslog")
    assert list(events.sinks_on()) == ["log"]


def test_an_error_in_a_sink_is_logged_and_the_others_are_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    events.switch_on("prometheus", "log")
    monkeypatch.setattr(Prometheus, "__call__", lambda self, event: 1 / 0)
    emitted()
    assert [record.getMessage().partition(" on ")[0] for record in caplog.records[:1]] == ["a sink failed"]
    assert "the store cannot be reached" in caplog.records[1].getMessage()


def test_a_guard_tells_the_metrics_of_the_sink_that_is_on_and_of_its_own_otherwise() -> None:
    events.switch_on("log", "prometheus")
    emitted()
    guard = GuardThread(MemoryStore(), GATES)
    subscribed = len(events._sinks)
    try:
        metrics = metrics_of(guard.guard)
        assert metrics.values is events.sinks_on()["prometheus"]
        emitted()
        assert 'headgate_store_errors_total{gate="api"} 2\n' in asyncio.run(metrics.scrape())
        assert len(events._sinks) == subscribed, "it is on, and not told twice"
        metrics.close()
        events.switch_on("log")
        guard.guard.state.pop("metrics")
        assert metrics_of(guard.guard).values is not metrics.values
        metrics_of(guard.guard).close()
    finally:
        guard.stop()


@pytest.mark.parametrize("name", SINKS)
def test_every_sink_is_made_by_its_name_and_takes_an_event(name: str) -> None:
    sink = make_sink(name)
    sink(events.Event("store_up", "api", {"down_for": 1.0}))


def test_every_sink_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
    section = page.partition("## Sinks")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE) == list(SINKS)

"""A gate that tightens itself when the upstream refuses what was granted: how far, how visibly, and how it comes back."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Bucket, Gate, InvalidInput, events, load
from headgate.config import file as config_file
from headgate.config.tighten import RUNGS, TightenRule
from headgate.errors import ConfigError
from headgate.gate.tightening import Tightening
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock

NUMBERS = itertools.count()


def gate_of(clock: FakeClock) -> Gate:
    limits = [Bucket(1000, per="1m", name="requests"), Bucket(1000, per="1m", name="pu", unit="pu")]
    return Gate(f"hub-{next(NUMBERS)}", limits, store=MemoryStore(clock=clock), waiting="promise")


@given(
    configured=st.floats(1, 1e6),
    share=st.floats(0.3, 1.0),
    step=st.floats(0.001, 0.5),
    least=st.floats(0.1, 0.9),
)
def test_a_step_never_raises_and_never_goes_below_its_least(
    configured: float, share: float, step: float, least: float
) -> None:
    rule = TightenRule(step=step, least=least)
    value = rule.lowered(configured, configured * share)
    assert value >= least * configured
    assert value <= max(configured * share, least * configured)
    rungs = rule.rungs(configured, value, 60.0)
    assert len(rungs) <= RUNGS
    assert [value for value, _ in rungs] == sorted(value for value, _ in rungs)
    assert [seconds for _, seconds in rungs] == [60.0 * (at + 1) for at in range(len(rungs))]
    assert all(value <= rung < configured for rung, _ in rungs)


def test_a_congestion_is_one_step_however_many_refusals_it_has() -> None:
    clock = FakeClock()
    gate = gate_of(clock)
    gate.reserve({"requests": 10, "pu": 1})
    tightening = Tightening(gate)
    found = tightening.step()
    assert found is not None
    assert (found.limit, found.value, found.tightened) == ("requests", 950, True)
    assert found.reason == "429 although there was room: 95% of 1000"
    assert tightening.step() is None  # the same congestion
    clock.advance(5)
    again = tightening.step()
    assert again is not None
    assert again.value == pytest.approx(902.5)
    tightening.close()


def test_it_comes_back_by_itself_in_rungs_and_never_above_what_is_configured() -> None:
    clock = FakeClock()
    gate = gate_of(clock)
    gate.reserve({"requests": 10, "pu": 1})
    tightening = Tightening(gate, TightenRule(step=0.1, least=0.6, hold="1m"))
    for _ in range(20):
        tightening.step()
        clock.advance(5)
    seen = [gate.usage()["requests"].limit]
    assert seen == [600]
    for _ in range(12):
        clock.advance(60)
        seen.append(gate.usage()["requests"].limit)
    assert seen == sorted(seen)
    assert len(set(seen)) > 3
    assert seen[-1] == 1000
    assert gate.overrides() == []
    assert gate.usage()["pu"].limit == 1000
    tightening.close()


def test_a_refused_permit_is_told_once_and_tightens_in_the_background() -> None:
    told: list[events.Event] = []
    end = events.subscribe(told.append)
    gate = gate_of(FakeClock())
    tightening = Tightening(gate)
    try:
        permit = gate.acquire({"requests": 5, "pu": 1})
        permit.report({"status": 429, "headers": {}})
        permit.release("rate_limited")
        patience = time.monotonic() + 60
        while not gate.overrides():
            assert time.monotonic() < patience
            time.sleep(0.01)
        assert gate.overrides()[0].value == 950
        assert [event.kind for event in told if event.gate == gate.name][:1] == ["rate_limited"]
    finally:
        tightening.close()
        end()


def test_a_gate_by_configuration_tightens_itself(tmp_path: Any) -> None:
    file = tmp_path / "headgate.toml"
    file.write_text(
        f"""
        store = "sqlite:///{tmp_path}/s.db"
        [gates.hub]
        waiting = "promise"
        tighten = {{ step = 0.2, least = 0.5, hold = "5m" }}
        limits = [{{ bucket = 100, per = "1m", name = "requests" }}]
        """
    )
    with load(file) as gates:
        gates["hub"].acquire().release("rate_limited")
        patience = time.monotonic() + 60
        while not gates["hub"].overrides():
            assert time.monotonic() < patience
            time.sleep(0.01)
        assert gates["hub"].overrides()[0].value == 80


@pytest.mark.parametrize("wrong", ['"yes"', "3", "{ step = 2 }", "{ least = 0 }", "{ hold = 'soon' }", "{ speed = 1 }"])
def test_a_rule_that_makes_no_sense_is_refused_at_load(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"gates\.hub\.tighten"):
        config_file.parse(f"[gates.hub]\ntighten = {wrong}\nlimits = [{{ bucket = 1, per = '1s' }}]")
    with pytest.raises(InvalidInput):
        TightenRule(step=-1)

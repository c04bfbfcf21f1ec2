"""Changes while a gate runs: overrides, other kinds, pauses, resets, limits that adapt."""

from __future__ import annotations

from ...errors import KindChanged
from ...kernel.limits import Aimd, Bucket, Concurrency, Window
from ...kernel.model import SECOND
from .base import StoreHarness


class ChangeTests(StoreHarness):
    # --- live changes ------------------------------------------------------------------------------------------------

    def test_an_override_holds_from_the_next_decision_on_for_every_gate_of_the_name(self) -> None:
        gate = self.gate(Window(10, per="1m", name="w"))
        other = self.gate(Window(10, per="1m", name="w"))
        self.take(gate, 4)
        other.set_limit("w", 5)
        assert self.count(gate) == 1
        gate.set_limit("w", 20)
        assert self.count(other) == 15
        gate.clear_limit("w")
        assert other.try_acquire() is None
        assert gate.overrides() == []

    def test_an_override_for_one_key_is_for_that_key_alone(self) -> None:
        gate = self.gate(Concurrency(2, name="org", by="org"))
        gate.set_limit("org", 4, key={"org": "big"})
        gate.set_limit("org", 1)
        assert self.count(gate, key={"org": "big"}) == 4
        assert self.count(gate, key={"org": "small"}) == 1
        assert [(found.limit, found.key, found.value) for found in gate.overrides()] == [
            ("org", None, 1),
            ("org", "big", 4),
        ]
        gate.clear_limit("org")
        assert self.count(gate, key={"org": "other"}) == 2
        assert gate.usage(key={"org": "big"})["org"].limit == 4

    def test_another_kind_under_an_old_name_is_an_error_that_names_reset(self) -> None:
        self.take(self.gate(Window(10, per="1m", name="x")))
        gate = self.gate(Bucket(10, per="1m", name="x"))
        assert "reset" in str(self.raises(KindChanged, gate.try_acquire))
        gate.reset()
        self.take(gate)

    def test_a_paused_gate_grants_nothing_before_its_time_or_until_it_is_resumed(self) -> None:
        gate = self.gate(Bucket(100, per="1s"))
        gate.pause(5, "maintenance")
        assert gate.try_acquire() is None
        assert self.retry(gate) == 5 * SECOND
        assert gate.usage().paused_for == 5.0
        assert gate.usage().pause_reason == "maintenance"
        self.clock.advance(microseconds=5 * SECOND - 1)
        assert gate.try_acquire() is None
        self.clock.advance(microseconds=1)
        self.take(gate)
        gate.pause(5)
        gate.resume()
        self.take(gate)

    def test_a_refusal_with_a_delay_pauses_everybody(self) -> None:
        gate = self.gate(Window(100, per="1s"))
        other = self.gate(Window(100, per="1s"))
        self.take(gate)[0].release("rate_limited", retry_after=3)
        assert self.retry(other) == 3 * SECOND

    def test_reset_forgets_one_limit_or_all_and_late_releases_change_nothing(self) -> None:
        gate = self.gate(Window(2, per="1m", name="w"), Concurrency(2, name="c"))
        old = self.take(gate, 2)
        gate.reset("w")
        assert self.denial(gate).limit == "c"
        gate.reset()
        self.take(gate, 2)
        assert [permit.release() for permit in old] == [False, False]
        assert [limit.used for limit in gate.usage().limits] == [2, 2]

    # --- adapting ----------------------------------------------------------------------------------------------------

    def test_many_refusals_of_one_congestion_shrink_once(self) -> None:
        gate = self.gate(Concurrency(40, name="c", adaptive=Aimd(start=30, minimum=2, decrease=2)))
        permits = self.take(gate, 30)
        self.clock.advance("1s")
        for permit in permits[:26]:
            permit.release("rate_limited")
        assert gate.usage()["c"].limit == 28
        assert gate.usage()["c"].maximum == 40

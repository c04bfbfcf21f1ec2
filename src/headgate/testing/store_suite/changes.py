"""Changes while a gate runs: overrides, other kinds, pauses, resets, limits that adapt."""

from __future__ import annotations

import threading
import time

from ...errors import KindChanged
from ...kernel.limits import Aimd, Bucket, Concurrency, Window
from ...kernel.model import SECOND, Wait
from .base import PATIENCE, StoreHarness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ...gate import Gate


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

    def test_an_override_says_why_and_ends_by_itself_at_the_time_of_the_store(self) -> None:
        gate = self.gate(Window(10, per="1h", name="w"))
        gate.set_limit("w", 3, reason="maintenance", expires_in="90s")
        [found] = gate.overrides()
        assert (found.value, found.reason, found.expires_in, found.tightened) == (3, "maintenance", 90.0, False)
        assert self.count(gate) == 3
        self.clock.advance(microseconds=90 * SECOND - 1)
        assert gate.overrides()[0].expires_in == 1e-6
        assert gate.try_acquire() is None
        self.clock.advance(microseconds=1)
        assert gate.overrides() == []
        assert gate.usage()["w"].limit == 10
        assert self.count(gate) == 7
        gate.set_limit("w", 20, expires_in="1m")
        gate.set_limit("w", 15)  # what is set without an end has none, whatever was set before it
        self.clock.advance("1d")
        assert gate.usage()["w"].limit == 15

    def test_a_tightening_lowers_what_is_in_force_and_raises_nothing(self) -> None:
        gate = self.gate(Window(10, per="1h", name="w"))
        other = self.gate(Window(10, per="1h", name="w"))
        assert gate.tighten("w", 20, expires_in="1m").value == 10
        assert gate.overrides() == []
        found = gate.tighten("w", 4, expires_in="1m", reason="the upstream says 4")
        assert (found.value, found.reason, found.expires_in, found.tightened) == (4, "the upstream says 4", 60.0, True)
        assert self.count(other) == 4
        assert other.tighten("w", 6, expires_in="30s").value == 4
        gate.set_limit("w", 8)
        assert other.usage()["w"].limit == 4
        gate.set_limit("w", 2)  # an operator's that is lower is in force
        assert other.tighten("w", 3, expires_in="1s").value == 2
        assert {(one.value, one.tightened) for one in gate.overrides()} == {(2, False), (3, True)}
        gate.set_limit("w", 8)
        self.clock.advance("2s")
        assert gate.usage()["w"].limit == 4  # the one for a minute still holds, though a lower one came and went
        self.clock.advance("58s")
        assert [(one.value, one.tightened) for one in gate.overrides()] == [(8, False)]
        assert self.count(gate) == 4

    def test_a_tightening_is_for_one_key_or_for_all_and_is_taken_back_apart_from_what_was_set(self) -> None:
        gate = self.gate(Concurrency(4, name="org", by="org"))
        gate.set_limit("org", 8, key={"org": "big"})
        gate.tighten("org", 2, key={"org": "big"}, expires_in="1h")
        gate.tighten("org", 3, expires_in="1h")
        assert self.count(gate, key={"org": "big"}) == 2
        assert self.count(gate, key={"org": "small"}) == 3
        gate.clear_limit("org", key={"org": "big"}, tightened=True)
        assert self.count(gate, key={"org": "big"}) == 1  # three in all: the tightening of every key holds for it, too
        gate.clear_limit("org", tightened=True)
        assert self.count(gate, key={"org": "big"}) == 5
        gate.clear_limit("org", key={"org": "big"})
        assert gate.overrides() == []

    def test_a_waiter_goes_when_what_lowered_the_limit_ends(self) -> None:
        gate = self.gate(Window(4, per="1h", name="w"))
        self.take(gate, 2)
        gate.tighten("w", 2, expires_in="10s")
        told = self.stand(gate, "a", "p1")
        assert isinstance(told, Wait)
        assert told.check_at is not None
        assert told.check_at - told.now == 10 * SECOND  # it is the first, and keeps the timer
        self.clock.advance("10s")
        assert isinstance(self.stand(gate, "a", "p1"), tuple)

    def test_what_fits_only_after_a_tightening_is_refused_until_it_ends(self) -> None:
        gate = self.gate(Window(10, per="1h", name="w"))
        gate.tighten("w", 3, expires_in="30s")
        denied = self.denial(gate, cost=5)
        assert denied.limit == "w"
        assert denied.retry_after == 30.0
        assert self.denial(gate, cost=11).retry_after is None
        self.clock.advance("30s")
        self.take(gate, cost=5)

    def test_many_tightenings_leave_a_bounded_record_that_is_never_weaker(self) -> None:
        gate = self.gate(Window(100, per="1h", name="w"))
        ends = {value: 10 * value for value in range(1, 60)}  # seconds: the lower, the sooner it ends
        for value in (*range(2, 60, 3), *range(1, 60, 3), *range(3, 60, 3)):
            gate.tighten("w", value, expires_in=ends[value])
        before = 0.0
        for second in range(0, 600, 7):
            value = gate.usage()["w"].limit
            assert value <= min([value for value, end in ends.items() if end > second], default=100)
            assert value >= before
            before = value
            self.clock.advance("7s")
        assert gate.usage()["w"].limit == 100

    def test_another_kind_under_an_old_name_is_an_error_that_names_reset(self) -> None:
        self.take(self.gate(Window(10, per="1m", name="x")))
        gate = self.gate(Bucket(10, per="1m", name="x"))
        assert "reset" in str(self.raises(KindChanged, gate.try_acquire))
        gate.reset()
        self.take(gate)

    def test_an_ask_of_another_kind_is_refused_at_once_and_nobody_else_notices(self) -> None:
        gate = self.gate(Window(1, per="1m", name="x"))
        other = self.gate(Bucket(1, per="1m", name="x"))
        self.take(gate)
        assert isinstance(self.stand(gate, "first", "p1"), Wait)
        for ask in (other.try_acquire, other.acquire, lambda: self.stand(other, "wrong", "p2")):
            self.raises(KindChanged, ask)
        assert gate.usage().waiting == 1
        assert gate.try_acquire() is None
        assert isinstance(self.stand(gate, "second", "p1"), Wait)
        gate.pause(5)
        self.raises(KindChanged, other.acquire)
        gate.resume()
        self.clock.advance("2m")
        assert isinstance(self.stand(gate, "first", "p1"), tuple)
        assert isinstance(self.stand(gate, "second", "p1"), Wait)

    def test_a_ticket_that_has_become_another_kind_leaves_the_line_and_its_waiter_alone_is_told(self) -> None:
        slots = Concurrency(1, lease="1h", name="c")
        gate = self.gate(Window(9, per="1m", name="x"), slots)
        other = self.gate(Bucket(9, per="1m", name="x"), slots)
        [held] = self.take(gate)
        gate.reset("x")  # as for the new configuration, while the old one still asks
        heard = threading.Event()
        self.store.listen("new", lambda delay: heard.set() if delay is None else None)
        mine = self.store.session
        assert isinstance(self.stand(gate, "old", "p1"), Wait)
        assert isinstance(self.stand(other, "new", mine), Wait)
        assert isinstance(self.stand(gate, "last", "p1"), Wait)
        held.release("error")
        assert isinstance(self.stand(gate, "old", "p1"), tuple)  # it was called first, so it is a window again
        assert gate.release("old")
        assert "last" in self.beat(gate, "p1", "last").called
        assert heard.wait(PATIENCE), "its waiter was not woken"
        self.store.unlisten("new")
        assert self.beat(gate, mine, "new").unknown == ("new",)
        self.raises(KindChanged, lambda: self.stand(other, "new", mine))
        assert isinstance(self.stand(gate, "last", "p1"), tuple)
        assert gate.usage().waiting == 0

    def test_a_thread_that_waits_with_what_has_become_another_kind_is_told(self) -> None:
        slots = Concurrency(2, lease="1h", name="c")
        gate = self.gate(Window(9, per="1m", name="x"), slots)
        other = self.gate(Bucket(9, per="1m", name="x"), slots)
        held = self.take(gate, 2)
        gate.reset("x")
        told: dict[str, Any] = {}

        def wait(name: str, waits: Gate) -> None:
            try:
                told[name] = waits.acquire(timeout=PATIENCE)
            except KindChanged as error:
                told[name] = error

        threads = []
        for name, waits in (("old", gate), ("new", other)):
            threads.append(threading.Thread(target=wait, args=(name, waits), daemon=True))
            threads[-1].start()
            while gate.usage().waiting < len(threads):
                time.sleep(0.001)
        for permit in held:
            permit.release("error")
        for thread in threads:
            thread.join(PATIENCE)
        assert isinstance(told["new"], KindChanged)
        assert told["old"].release()
        assert gate.usage().waiting == 0

    def test_a_call_is_not_taken_with_another_kind(self) -> None:
        slots = Concurrency(1, lease="1h", name="c")
        gate = self.gate(Window(9, per="1m", name="x"), slots)
        other = self.gate(Bucket(9, per="1m", name="x"), slots)
        [held] = self.take(gate)
        self.stand(gate, "a", "p1")
        held.release()
        self.raises(KindChanged, lambda: self.stand(other, "a", "p1"))
        assert isinstance(self.stand(gate, "a", "p1"), tuple)
        assert [limit.used for limit in gate.usage().limits] == [2, 1]

    def test_what_is_settled_late_changes_nothing_for_another_kind(self) -> None:
        gate = self.gate(Window(9, per="1m", name="x"))
        other = self.gate(Bucket(9, per="1m", name="x"))
        settled, ended = self.take(gate, 2)
        gate.reset("x")
        self.take(other)
        settled.settle({"requests": 5})
        ended.release("unsent")
        assert other.usage()["x"].used == 1

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

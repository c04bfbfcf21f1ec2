"""State that a store has lost, and that was made anew before the processes that knew it came back."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager

from ... import events
from ...errors import LeaseLost
from ...gate import Gate
from ...kernel.limits import Concurrency, Window
from .base import StoreHarness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

#: More decisions than any process of these tests has seen before the loss.
MANY = 40


class LossTests(StoreHarness):
    LIMITS = (Concurrency(3, lease="10m", name="slots"), Window(100, per="10s", slack=0, name="rate"))

    @contextmanager
    def processes(self, count: int, *limits: Any) -> Iterator[list[Gate]]:
        """The gate as so many other processes have it, which were told nothing yet."""
        with ExitStack() as closing:
            stores = [self.another_process(self.store) for _ in range(count)]
            for store in stores:
                closing.callback(store.close)
            yield [Gate("suite", limits or self.LIMITS, store=store) for store in stores]

    @contextmanager
    def losses(self, *gates: Gate) -> Iterator[list[str]]:
        """The names of the gates of which these processes report lost state, meanwhile."""
        told: list[str] = []
        reports = [gate.store.on_loss for gate in gates]
        for gate in gates:
            gate.store.on_loss = told.append
        try:
            yield told
        finally:
            for gate, report in zip(gates, reports, strict=True):
                gate.store.on_loss = report

    def grow(self, gate: Gate) -> None:
        """Have the gate come further than any process has seen it before."""
        for _ in range(MANY):
            [permit] = self.take(gate)
            permit.release("unsent")

    def test_a_holder_keeps_its_slot_however_far_new_state_has_grown(self) -> None:
        gate = Gate("suite", self.LIMITS, store=self.store)
        [held] = self.take(gate)
        self.clock.advance("1s")
        told: list[events.Event] = []
        with self.processes(1) as [fresh]:
            self.lose_state(self.store, gate.name)
            self.grow(fresh)
            stop = events.subscribe(told.append)
            try:
                held.renew()
            finally:
                stop()
            assert not held.lost
            assert "state_lost" in {event.kind for event in told if event.gate == gate.name}
            assert held.id in {holder.id for holder in gate.holders()}
            self.clock.advance("10s")
            assert self.count(fresh) == 2, "of three slots one is held"
            assert held.release()

    def test_rates_come_back_in_proportion_however_far_new_state_has_grown(self) -> None:
        gate = self.gate(Window(100, per="10s", slack=0, name="rate"))
        self.take(gate, 3)
        with self.processes(1, *gate.policy.limits) as [fresh]:
            self.lose_state(self.store, gate.name)
            self.grow(fresh)
            self.clock.advance("1s")
            assert gate.try_acquire() is None, "what was used before the loss is not known"
            granted = 0
            for second in range(1, 11):
                self.clock.advance("1s")
                granted += self.count(fresh if second % 2 else gate)
                assert granted <= 10 * second
            assert granted >= 90

    def test_a_loss_is_made_up_for_once_and_each_process_reports_its_own(self) -> None:
        first = Gate("suite", self.LIMITS, store=self.store)
        with self.processes(2) as [late, fresh], self.losses(first, late, fresh) as told:
            [held], [also] = self.take(first), self.take(late)
            self.clock.advance("1s")
            self.lose_state(self.store, first.name)
            self.grow(fresh)
            held.renew()
            assert told == ["suite"]
            held.renew()
            self.clock.advance("10s")
            [short] = self.take(fresh)
            assert told == ["suite"], "a process reports it once, and one that has lost nothing does not"
            self.clock.advance("5m")
            short.release()
            [short] = self.take(fresh)  # the loss is made up for by now
            short.release()
            also.renew()
            assert told == ["suite", "suite"]
            assert not held.lost
            assert not also.lost, "it has not stopped, and only comes late"
            assert fresh.usage()["rate"].available > 95, "rates were held back once"
            assert fresh.usage()["slots"].used == 2

    def test_fences_keep_growing_when_new_state_is_noticed(self) -> None:
        gate = Gate("suite", self.LIMITS, store=self.store)
        self.grow(gate)
        [held] = self.take(gate)
        self.clock.advance("1s")
        with self.processes(1) as [fresh]:
            self.lose_state(self.store, gate.name)
            [young] = self.take(fresh)
            self.clock.advance("1s")
            held.renew()
            self.clock.advance("10s")
            [after] = self.take(fresh)
            assert after.fence > max(held.fence, young.fence)

    def test_a_lease_that_ended_in_the_new_state_does_not_return(self) -> None:
        gate = Gate("suite", self.LIMITS, store=self.store)
        [held] = self.take(gate)
        self.clock.advance("1s")
        with self.processes(1) as [fresh]:
            self.lose_state(self.store, gate.name)
            self.grow(fresh)
            self.clock.advance("1s")
            [ended] = self.take(fresh)
            fresh.release(ended.id)
            self.clock.advance("1s")
            held.renew()
            self.raises(LeaseLost, ended.renew)
            assert not held.lost
            assert {holder.id for holder in gate.holders()} == {held.id}

    def test_a_reset_is_no_loss(self) -> None:
        gate = Gate("suite", self.LIMITS, store=self.store)
        with self.processes(1) as [other], self.losses(gate, other) as told:
            [held] = self.take(other)
            self.clock.advance("1s")
            gate.reset()
            self.grow(gate)
            self.raises(LeaseLost, held.renew)
            self.take(other)
            assert told == []
            assert gate.usage()["rate"].used == 1

"""Ids: the same permit while it lives, a new admission after its end, and nothing by a request that comes late."""

from __future__ import annotations

from ...errors import AttemptOver, Denied, IdConflict, LeaseLost
from ...kernel.commands import Cancel, Stand
from ...kernel.limits import Bucket, Concurrency, Window
from ...kernel.model import SECOND, Grant, Wait
from .base import StoreHarness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ...gate import Gate


class IdTests(StoreHarness):
    def slots(self, limit: int = 1) -> Gate:
        return self.gate(Concurrency(limit, lease="10s", name="c"), Window(100, per="1s", slack=0, name="w"))

    def ask(self, gate: Gate, attempt: str, id: str = "job-1", waits: bool = False) -> Stand:
        plan = gate.policy.plan()
        return Stand(
            plan, id, None, plan.lease, remembered=True, waits=waits, session="one" if waits else "", attempt=attempt
        )

    def is_over(self, ask: Stand) -> None:
        """It is answered so, and admits nothing."""
        self.raises(AttemptOver, lambda: self.store.decide(ask))

    def used(self, gate: Gate) -> tuple[float, int]:
        usage = gate.usage()
        return usage["c"].used, usage.waiting

    # --- while it lives -----------------------------------------------------------------------------------------------

    def test_the_same_id_twice_is_one_admission(self) -> None:
        gate = self.gate(Window(5, per="1m", name="w"), Concurrency(5, lease="10s", name="c"))
        one = gate.acquire(id="job-1", timeout=0, renew=False)
        two = gate.acquire(id="job-1", timeout=0, renew=False)
        assert one.fence == two.fence
        assert (gate.usage()["w"].used, gate.usage()["c"].used) == (1, 1)
        two.release()
        one.release()
        assert gate.usage()["c"].used == 0

    def test_another_ask_under_an_id_is_an_error_and_charges_nothing(self) -> None:
        gate = self.gate(Window(5, per="1m", name="w"))
        gate.acquire(id="job-1", timeout=0)
        self.raises(IdConflict, lambda: gate.acquire(2, id="job-1", timeout=0))
        assert gate.usage()["w"].used == 1

    # --- after its end ------------------------------------------------------------------------------------------------

    def test_an_id_whose_permit_has_ended_is_a_new_admission(self) -> None:
        for outcome in ("ok", "error", "unsent"):
            gate = self.slots()
            before = gate.acquire(id="job-1", timeout=0, renew=False)
            before.release(outcome)
            again = gate.acquire(id="job-1", timeout=0, renew=False)
            assert again.fence > before.fence
            assert [holder.id for holder in gate.holders()] == ["job-1"]
            assert gate.try_acquire() is None
            assert again.release() is True
            assert self.used(gate) == (0, 0)

    def test_a_redelivered_message_never_works_beside_more_than_the_limit(self) -> None:
        gate = self.slots(2)
        works = {name: gate.acquire(id=name, timeout=0, renew=False) for name in ("m-1", "m-2")}
        self.raises(Denied, lambda: gate.acquire(id="m-3", timeout=0))
        works.pop("m-1").release()
        works["m-3"] = gate.acquire(id="m-3", timeout=0, renew=False)
        self.raises(Denied, lambda: gate.acquire(id="m-1", timeout=0))  # redelivered: both slots are taken
        works.pop("m-2").release()
        works["m-1"] = gate.acquire(id="m-1", timeout=0, renew=False)
        assert {holder.id for holder in gate.holders()} == works.keys()
        assert gate.try_acquire() is None

    def test_an_id_whose_lease_has_expired_is_a_new_admission_that_its_late_holder_cannot_touch(self) -> None:
        gate = self.slots()
        late = gate.acquire(id="job-1", timeout=0, renew=False)
        self.clock.advance("10s")
        again = gate.acquire(id="job-1", timeout=0, renew=False, holder="again")
        assert again.fence > late.fence
        self.clock.advance("5s")
        self.raises(LeaseLost, late.renew)
        late.confirm()
        assert late.release() is False
        [holder] = gate.holders()
        assert (holder.holder, holder.expires_in) == ("again", 5)
        assert again.release() is True

    def test_what_has_ended_on_a_gate_of_rates_is_charged_again(self) -> None:
        for limit in (Bucket(10, per="1h", slack=0, name="b"), Window(10, per="1h", name="b")):
            gate = self.gate(limit, waiting="line")
            gate.reset()
            gate.acquire(id="job-1", timeout=0).release()
            gate.acquire(id="job-1", timeout=0).release("error")
            permit = gate.acquire(id="job-1", timeout=0)
            assert gate.acquire(id="job-1", timeout=0).fence == permit.fence
            assert round(gate.usage()["b"].used) == 3

    def test_an_id_that_ended_may_stand_for_another_ask(self) -> None:
        gate = self.gate(Window(5, per="1m", name="w"))
        gate.acquire(id="job-1", timeout=0).release()
        gate.acquire(2, id="job-1", timeout=0)
        assert gate.usage()["w"].used == 3

    def test_a_promise_is_the_same_while_it_is_outstanding_and_a_new_one_after_it_ended(self) -> None:
        gate = self.gate(Window(1, per="10s", slack=0, name="w"), waiting="promise")
        gate.reserve()
        place = gate.reserve(id="job-1")
        assert round(gate.reserve(id="job-1").delay * SECOND) == round(place.delay * SECOND) == 10 * SECOND
        place.cancel()
        again = gate.reserve(id="job-1")
        assert round(again.delay * SECOND) == 10 * SECOND
        self.clock.advance("10s")
        again.permit.release()
        assert round(gate.reserve(id="job-1").delay * SECOND) == 10 * SECOND
        assert round(gate.reserve().delay * SECOND) == 20 * SECOND

    # --- requests that come late --------------------------------------------------------------------------------------

    def test_a_request_that_arrives_again_after_its_permit_ended_admits_nothing(self) -> None:
        gate = self.slots()
        first, second = self.ask(gate, "a-1"), self.ask(gate, "a-2")
        made = Stand(gate.policy.plan(), "made", None, gate.policy.plan().lease, remembered=True)
        granted = self.store.decide(first)
        assert self.store.decide(first) == granted
        gate.release("job-1")
        self.is_over(first)
        assert isinstance(self.store.decide(second), Grant)
        self.is_over(first)
        assert self.used(gate) == (1, 0)
        gate.release("job-1")
        for late in (first, second):
            self.is_over(late)
        assert isinstance(self.store.decide(made), Grant)
        gate.release("made")
        self.is_over(made)
        assert self.used(gate) == (0, 0)

    def test_a_late_request_is_known_for_a_minute_after_the_end(self) -> None:
        gate = self.slots()
        first, second = self.ask(gate, "a-1"), self.ask(gate, "a-2")
        self.store.decide(first)
        gate.release("job-1")
        self.store.decide(second)
        gate.release("job-1")
        self.clock.advance("59s")
        for late in (first, second):
            self.is_over(late)
        self.clock.advance("1s")
        assert isinstance(self.store.decide(first), Grant)

    def test_a_request_that_arrives_after_its_lease_expired_admits_nothing(self) -> None:
        gate = self.slots()
        late = self.ask(gate, "a-1")
        self.store.decide(late)
        self.clock.advance("10s")
        self.is_over(late)
        assert gate.holders() == []

    def test_a_cancel_that_overtakes_its_ask_wins(self) -> None:
        gate = self.slots()
        for ask in (self.ask(gate, "a-1"), self.ask(gate, "a-2", waits=True), self.ask(gate, "", "made")):
            self.store.decide(Cancel(gate.policy, ask.id, ask.attempt))
            self.is_over(ask)
            self.store.decide(Cancel(gate.policy, ask.id, ask.attempt))
        assert self.used(gate) == (0, 0)
        held = gate.acquire(id="job-1", timeout=0, renew=False)  # another ask under the same id
        waits = self.ask(gate, "a-3", "other", waits=True)
        self.store.decide(Cancel(gate.policy, "other", "a-3"))
        self.is_over(waits)
        assert self.used(gate) == (1, 0)
        assert held.release() is True

    def test_a_ticket_that_was_cancelled_does_not_stand_again(self) -> None:
        gate = self.slots()
        self.take(gate)
        for ask in (self.ask(gate, "a-1", waits=True), self.ask(gate, "", "made", waits=True)):
            assert isinstance(self.store.decide(ask), Wait)
            self.store.decide(Cancel(gate.policy, ask.id, ask.attempt))
            self.is_over(ask)
        assert self.used(gate) == (1, 0)

    def test_a_cancel_takes_nothing_from_another_ask_under_the_same_id(self) -> None:
        gate = self.slots()
        first, second = self.ask(gate, "a-1", waits=True), self.ask(gate, "a-2", waits=True)
        granted = self.store.decide(first)
        assert self.store.decide(second) == granted
        self.store.decide(Cancel(gate.policy, "job-1", "a-1"))
        assert self.used(gate) == (1, 0)
        self.is_over(first)
        assert self.store.decide(second) == granted
        self.store.decide(Cancel(gate.policy, "job-1", "a-2"))  # and no ask is left that it is for
        assert self.used(gate) == (0, 0)
        [held] = self.take(gate)
        first, second = self.ask(gate, "a-3", waits=True), self.ask(gate, "a-4", waits=True)
        assert isinstance(self.store.decide(first), Wait)
        assert isinstance(self.store.decide(second), Wait)
        self.store.decide(Cancel(gate.policy, "job-1", "a-3"))
        assert self.used(gate) == (1, 1)
        held.release()
        assert isinstance(self.store.decide(second), Grant)

    def test_however_many_ask_under_an_id_no_cancel_takes_the_permit_from_the_others(self) -> None:
        gate = self.slots()
        permit = gate.acquire(id="job-1", timeout=0, renew=False)
        asks = [self.ask(gate, f"a-{number}") for number in range(20)]
        assert {self.store.decide(ask).fence for ask in asks} == {permit.fence}
        for ask in asks:
            self.store.decide(Cancel(gate.policy, ask.id, ask.attempt))
        assert self.used(gate) == (1, 0)
        assert permit.release() is True
        for ask in asks:
            self.is_over(ask)
        assert self.used(gate) == (0, 0)

"""One ask: all of its limits or none, under its id once, and never more than its class's share."""

from __future__ import annotations

from ...errors import Denied, InvalidInput
from ...gate import Gate
from ...kernel.commands import Cancel, Stand
from ...kernel.limits import Concurrency, Window
from .base import StoreHarness
from .rates import rates


class AskTests(StoreHarness):
    # --- together or not at all --------------------------------------------------------------------------------------

    def test_all_limits_of_an_ask_are_taken_together_or_none(self) -> None:
        gate = self.gate(
            *rates(100),
            Concurrency(100, name="mine", by="org"),
            Concurrency(3, lease="1m", name="all"),
        )
        self.take(gate, 3, key={"org": "acme"})
        for _ in range(50):
            assert self.denial(gate, key={"org": "acme"}).limit == "all"
        used = {limit.name: limit.used for limit in gate.usage(key={"org": "acme"}).limits}
        assert used == {"w": 3, "b": 3, "q": 3, "mine": 3, "all": 3}

    def test_a_cost_that_can_never_fit_is_denied_at_once(self) -> None:
        gate = self.gate(Window(10, per="1m", unit="pu", name="pu"), Concurrency(5))
        denied = self.raises(Denied, lambda: gate.acquire({"pu": 11}))
        assert denied.retry_after is None
        assert denied.limit == "pu"
        assert [limit.used for limit in gate.usage().limits] == [0, 0]

    def test_keys_have_states_of_their_own_and_share_the_rest(self) -> None:
        gate = self.gate(Concurrency(2, name="org", by="org"), Concurrency(3, name="all"))
        self.take(gate, 2, key={"org": "a"})
        assert self.denial(gate, key={"org": "a"}).limit == "org"
        self.take(gate, 1, key={"org": "b"})
        assert self.denial(gate, key={"org": "b"}).limit == "all"

    # --- ids ---------------------------------------------------------------------------------------------------------

    def test_an_ask_whose_reply_was_lost_is_undone_by_its_id(self) -> None:
        gate = self.gate(Window(1, per="1m"), Concurrency(1))
        plan = gate.policy.plan()
        asked = Stand(plan, "lost", None, plan.lease, remembered=True)
        assert isinstance(self.store.decide(asked), tuple)
        self.store.decide(Cancel(gate.policy, "lost"))
        assert self.count(gate) == 1

    # --- priorities --------------------------------------------------------------------------------------------------

    def test_a_class_leaves_the_rest_to_those_above_it(self) -> None:
        for limit in (*rates(10), Concurrency(10)):
            gate = Gate(f"share-{limit.kind}", [limit], store=self.store, priorities={"live": 1.0, "batch": 0.8})
            assert self.count(gate, priority="batch") == 8
            assert self.count(gate, priority="live") == 2
            assert gate.try_acquire(priority="batch") is None

    def test_what_the_higher_class_uses_is_not_taken_from_the_share_of_the_lower(self) -> None:
        gate = self.gate(Concurrency(10), priorities={"live": 1.0, "batch": 0.5})
        self.take(gate, 4, priority="live")
        assert self.count(gate, priority="batch") == 5
        assert self.count(gate) == 1

    def test_a_share_below_one_for_everybody_is_a_safety_margin(self) -> None:
        gate = self.gate(Window(10, per="1m"), Concurrency(20), priorities={"all": 0.8})
        assert self.count(gate) == 8
        assert gate.try_acquire(priority="all") is None

    def test_an_unknown_class_is_an_error(self) -> None:
        gate = self.gate(Concurrency(10), priorities={"live": 1.0, "batch": 0.5})
        self.raises(InvalidInput, lambda: gate.try_acquire(priority="vip"))

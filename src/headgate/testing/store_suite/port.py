"""The store as a port: batches, looks that change nothing, time that goes backwards, state that is lost."""

from __future__ import annotations

import threading

from ...errors import HeadgateError, KindChanged
from ...gate import Gate
from ...kernel.commands import Admit, Peek, Release
from ...kernel.limits import Bucket, Concurrency, Window
from ...kernel.model import SECOND, Grant, Refusal, Wait
from .base import PATIENCE, StoreHarness


class PortTests(StoreHarness):
    # --- batches -----------------------------------------------------------------------------------------------------

    def test_a_batch_is_decided_in_order_and_one_error_spoils_nothing(self) -> None:
        gate = self.gate(Window(2, per="1m", name="w"))
        other = Gate("other", [Concurrency(1)], store=self.store)
        clash = self.gate(Bucket(2, per="1m", name="w"))
        admit = Admit(gate.policy.plan())
        slot = other.policy.plan()
        replies = self.store.execute(
            [
                admit,
                Admit(slot, "a", None, slot.lease),
                Admit(clash.policy.plan()),
                admit,
                admit,
                Admit(slot, "b", None, slot.lease),
                Release(other.policy, "a", "ok"),
                Admit(slot, "c", None, slot.lease),
                Peek(gate.policy),
            ]
        )
        assert [isinstance(reply, Grant) for reply in replies[:6]] == [True, True, False, True, False, False]
        assert isinstance(replies[2], KindChanged)
        assert isinstance(replies[4], Wait)
        assert isinstance(replies[7], tuple)
        assert replies[8].limits[0].used == 2
        assert not any(isinstance(reply, HeadgateError) for at, reply in enumerate(replies) if at != 2)

    def test_an_empty_batch_is_no_error(self) -> None:
        assert self.store.execute([]) == []

    # --- time and loss -----------------------------------------------------------------------------------------------

    def test_time_that_goes_backwards_lets_nobody_in_early(self) -> None:
        gate = self.gate(Bucket(10, per="1s", burst=1, slack=0))
        self.take(gate)
        now = self.clock()
        self.clock.set(now - 3600 * SECOND)
        assert gate.try_acquire() is None
        self.clock.set(now + 100_000)
        self.take(gate)

    def test_lost_state_is_noticed_and_rates_come_back_in_proportion_to_the_time(self) -> None:
        gate = self.gate(Window(100, per="10s", slack=0, name="w"), Bucket(50, per="10s", slack=0, name="b"))
        self.count(gate)
        self.clock.advance("1s")
        self.lose_state(self.store, gate.name)
        assert gate.try_acquire() is None
        granted = 0
        for second in range(1, 11):
            self.clock.advance("1s")
            granted += self.count(gate)
            assert granted <= 5 * second
        assert granted >= 45

    def test_a_holder_registers_again_after_state_was_lost(self) -> None:
        gate = self.gate(Concurrency(1, lease="10s"))
        [permit] = self.take(gate)
        self.clock.advance("1s")
        self.lose_state(self.store, gate.name)
        permit.renew()
        assert gate.try_acquire() is None
        assert permit.release()
        self.take(gate)

    # --- the port ----------------------------------------------------------------------------------------------------

    def test_looking_leaves_no_trace(self) -> None:
        gate = self.gate(Window(3, per="10s", name="w"), Concurrency(3, lease="10s"))
        self.take(gate, 2)
        before = gate.usage()
        for _ in range(100):
            gate.usage()
            gate.explain()
            gate.holders()
        assert gate.usage() == before

    def test_explain_names_what_blocks_and_who_holds_it(self) -> None:
        gate = self.gate(Concurrency(1, lease="30s", name="slots"), Window(10, per="1m", name="w"))
        gate.try_acquire(holder="chunk_001.pdf", renew=False)
        self.clock.advance("5s")
        why = gate.explain()
        assert (why.granted, why.limit, why.goes_in) == (False, "slots", 25.0)
        assert [(holder.holder, holder.held_for) for holder in why.holders] == [("chunk_001.pdf", 5.0)]

    def test_threads_never_get_more_than_the_limit_together(self) -> None:
        gate = self.gate(Window(150, per="1h", name="w"))
        granted: list[int] = []

        def ask() -> None:
            granted.append(sum(gate.try_acquire() is not None for _ in range(50)))

        threads = [threading.Thread(target=ask, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert sum(granted) == 150
        assert gate.usage()["w"].used == 150

    def test_a_refusal_is_a_value_that_says_why(self) -> None:
        gate = self.gate(Window(5, per="1m", name="w"))
        reply = self.store.decide(Admit(gate.policy.plan(6)))
        assert isinstance(reply, Refusal)
        assert reply.limit == "w"
        assert "never fit" in reply.reason

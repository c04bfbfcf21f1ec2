"""Leases: never more than the limit, back after one lease, fenced, released once."""

from __future__ import annotations

from ...errors import LeaseLost
from ...kernel.limits import Concurrency, Window
from ...kernel.model import SECOND
from .base import StoreHarness


class LeaseTests(StoreHarness):
    def test_a_clock_that_is_set_back_and_forward_again_ends_no_lease_before_its_time(self) -> None:
        gate = self.gate(Concurrency(2, lease="30s"))
        began = self.clock()
        self.take(gate, id="before")
        self.clock.set(began - 3600 * SECOND)
        self.take(gate, id="meanwhile")
        self.clock.set(began + SECOND)
        assert gate.usage()["concurrency"].used == 2
        assert gate.try_acquire(id="third") is None

    def test_live_leases_are_never_more_than_the_limit(self) -> None:
        gate = self.gate(Concurrency(3, lease="10s", name="slots"))
        permits = self.take(gate, 3)
        assert gate.try_acquire() is None
        assert len(gate.holders()) == 3
        permits[1].release()
        self.take(gate)
        assert gate.try_acquire() is None

    def test_the_slot_of_a_dead_holder_is_back_after_exactly_one_lease(self) -> None:
        gate = self.gate(Concurrency(1, lease="10s"))
        self.take(gate)
        assert self.retry(gate) == 10 * SECOND
        self.clock.advance(microseconds=10 * SECOND - 1)
        assert gate.try_acquire() is None
        self.clock.advance(microseconds=1)
        self.take(gate)

    def test_a_renewed_lease_lives_on(self) -> None:
        gate = self.gate(Concurrency(1, lease="10s"))
        [permit] = self.take(gate)
        for _ in range(5):
            self.clock.advance("9s")
            expires = permit.renew()
            assert round(expires * SECOND) == self.clock() + 10 * SECOND
        assert gate.try_acquire() is None

    def test_a_permit_is_released_exactly_once(self) -> None:
        gate = self.gate(Concurrency(2, lease="10s"))
        first, _ = self.take(gate, 2)
        assert first.release()
        assert first.release()
        assert self.count(gate) == 1

    def test_a_late_release_frees_nobody_elses_slot_and_says_so(self) -> None:
        gate = self.gate(Concurrency(1, lease="10s"))
        [late] = self.take(gate)
        self.clock.advance("10s")
        self.take(gate)
        assert late.release() is False
        assert late.lost
        assert gate.try_acquire() is None

    def test_a_late_renewal_brings_nothing_back_and_says_so(self) -> None:
        gate = self.gate(Concurrency(1, lease="10s"))
        [late] = self.take(gate)
        self.clock.advance("10s")
        [other] = self.take(gate)
        self.raises(LeaseLost, late.renew)
        assert [holder.id for holder in gate.holders()] == [other.id]

    def test_fences_grow_with_every_grant(self) -> None:
        gate = self.gate(Concurrency(5), Window(5, per="1m"))
        fences = [permit.fence for permit in self.take(gate, 5)]
        assert fences == sorted(set(fences))

    def test_a_permit_is_released_by_its_id_from_anywhere_and_only_once(self) -> None:
        gate = self.gate(Concurrency(1, lease="10s"), Window(10, per="1m"))
        elsewhere = self.gate(Concurrency(1, lease="10s"), Window(10, per="1m"))
        [permit] = self.take(gate)
        assert elsewhere.release(permit.id)
        assert not elsewhere.release(permit.id)
        [other] = self.take(gate)
        assert permit.release() is False
        assert [holder.id for holder in gate.holders()] == [other.id]

    def test_holders_are_told_with_their_names_keys_and_times(self) -> None:
        gate = self.gate(Concurrency(2, lease="30s", by="org"))
        permit = gate.try_acquire(key={"org": "acme"}, holder="chunk_001.pdf", renew=False)
        self.clock.advance("4s")
        [holder] = gate.holders()
        assert permit is not None
        assert (holder.id, holder.holder, holder.key) == (permit.id, "chunk_001.pdf", {"org": "acme"})
        assert (holder.held_for, holder.expires_in) == (4.0, 26.0)

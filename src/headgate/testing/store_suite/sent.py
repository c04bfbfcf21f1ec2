"""The sent stamp: a call that is written late counts from then on, and never takes the upstream over its limit."""

from __future__ import annotations

from ...errors import LeaseLost
from ...gate import Gate
from ...kernel.commands import Cancel, Stamp, Stand
from ...kernel.limits import Bucket, Concurrency, Window
from ...kernel.model import Wait
from ..upstream import FakeUpstream
from .base import StoreHarness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...gate import Permit

    #: When a call arrives at the upstream, and what it costs there.
    Arrival = tuple[int, float]


class SentTests(StoreHarness):
    # An ask under an id of its own has the store say whether its grant is fresh: here only the store's clock is moved.

    def late_calls(self, gate: Gate, lags: Iterable[int], network: int) -> list[Arrival]:
        """The arrivals of calls that are written so many microseconds after their grants, each stamped just before.

        Every ask is made as soon as there is room; the network takes up to `network` microseconds, in an order of its own.
        """
        arrivals: list[Arrival] = []
        ready: list[tuple[int, Permit]] = []
        for number, lag in enumerate(lags):
            while (permit := gate.try_acquire(id=f"call-{number}", renew=False)) is None:
                self.write(gate, ready, arrivals, network)
            ready.append((self.clock() + lag, permit))
        while ready:
            self.write(gate, ready, arrivals, network)
        return arrivals

    def write(self, gate: Gate, ready: list[tuple[int, Permit]], arrivals: list[Arrival], network: int) -> None:
        """Let a little time pass, and write the calls whose time has come."""
        self.clock.advance(microseconds=9_973)
        for moment, permit in [one for one in ready if one[0] <= self.clock()]:
            ready.remove((moment, permit))
            self.stamp(gate, permit)
            arrivals.append((self.clock() + len(arrivals) * 37_717 % network, 1.0))

    def stamp(self, gate: Gate, permit: Permit) -> int:
        """`permit.sent()`. Where it would sleep, time passes first. Returns for how many microseconds."""
        waited = 0
        while isinstance(reply := self.store.decide(Stamp(gate.policy, permit.id)), Wait):
            self.clock.advance(microseconds=reply.at - reply.now)
            waited += reply.at - reply.now
        permit.sent()
        return waited

    def test_calls_that_are_written_late_and_stamped_are_never_over_a_window_at_the_upstream(self) -> None:
        gate = self.gate(Window(5, per="1s", slack="100ms"))
        arrivals = self.late_calls(gate, [number * 61_803 % 900_000 for number in range(60)], 75_000)
        assert len(arrivals) == 60
        assert FakeUpstream(5, "1s").judge(sorted(arrivals)) == []

    def test_calls_that_are_written_late_and_stamped_are_never_over_a_bucket_at_the_upstream(self) -> None:
        gate = self.gate(Bucket(20, per="1s", burst=5, slack="100ms"))
        arrivals = self.late_calls(gate, [number * 61_803 % 400_000 for number in range(60)], 75_000)
        assert len(arrivals) == 60
        assert FakeUpstream(20, "1s", "bucket", burst=5).judge(sorted(arrivals)) == []

    def test_a_stamped_call_counts_from_when_it_was_sent_and_not_from_its_grant(self) -> None:
        gate = self.gate(Window(1, per="4s", slack="100ms"))
        [permit] = self.take(gate, id="late")
        self.clock.advance("800ms")
        permit.sent()
        assert self.retry(gate) == 4_100_000

    def test_an_answer_soon_after_the_stamp_confirms_it_and_one_long_after_it_changes_nothing(self) -> None:
        gate = self.gate(Window(1, per="4s", slack="100ms"))
        [permit] = self.take(gate, id="late")
        self.clock.advance("700ms")
        permit.sent()
        self.clock.advance("48ms")
        permit.confirm()
        assert self.retry(gate) == 4_000_000
        self.clock.advance("4s")
        [permit] = self.take(gate, id="slow")
        self.clock.advance("800ms")
        permit.release()  # nobody knows whether it was written late or worked on for long
        assert self.retry(gate) == 3_300_000

    def test_a_fresh_grant_stays_where_it_is(self) -> None:
        gate = self.gate(Window(1, per="4s", slack="100ms"))
        [permit] = self.take(gate, id="fresh")
        self.clock.advance("25ms")
        permit.sent()
        assert self.retry(gate) == 4_075_000

    def test_a_stamped_charge_that_is_given_back_is_gone_and_no_other_with_it(self) -> None:
        gate = self.gate(Window(2, per="4s", slack=0), Bucket(2, per="4s", slack=0))
        late, other = self.take(gate, 2)
        self.clock.advance("1s")
        late.sent()
        late.release("unsent")
        assert gate.usage()["window"].used == 1
        other.release("unsent")
        assert gate.usage()["window"].used == 0

    def test_a_stamped_permit_that_is_ended_by_its_id_alone_gives_back_what_it_is_charged_now(self) -> None:
        for limits in ([], [Concurrency(9, lease="1h")]):
            gate = Gate(f"by-id-{len(limits)}", [Window(9, per="4s", slack=0), *limits], store=self.store)
            [late] = self.take(gate, id="late")
            self.clock.advance("1s")
            late.sent()
            assert gate.release("late", "unsent")
            assert gate.usage()["window"].used == 0

    def test_a_bucket_that_others_have_filled_makes_a_late_call_wait_and_later_asks_behind_it(self) -> None:
        gate = self.gate(Bucket(10, per="1s", burst=1, slack=0))
        [late] = self.take(gate, id="late")
        self.clock.advance("100ms")
        self.take(gate)
        assert self.stamp(gate, late) == 100_000
        assert self.retry(gate) == 100_000  # it has what has come in meanwhile

    def test_a_permit_that_has_lost_its_lease_must_not_be_sent(self) -> None:
        gate = self.gate(Window(9, per="1m", slack=0), Concurrency(1, lease="5s"))
        [permit] = self.take(gate)
        self.clock.advance("6s")
        self.raises(LeaseLost, permit.sent)
        [other] = self.take(gate)
        self.clock.advance("1s")
        other.sent()
        self.clock.advance("1s")
        assert [round(holder.held_for) for holder in gate.holders()] == [2]  # since its grant
        assert other.release()

    def test_a_permit_that_another_process_has_released_must_not_be_sent(self) -> None:
        gate = self.gate(Window(9, per="1m", slack=0))
        [permit] = self.take(gate, id="mine")
        self.clock.advance("1s")
        assert gate.release("mine", "unsent")
        self.raises(LeaseLost, permit.sent)

    def test_a_release_can_tell_when_its_call_was_written(self) -> None:
        gate = self.gate(Window(1, per="4s", slack="100ms"))
        [permit] = self.take(gate, id="late")
        self.clock.advance("3s")
        permit.release(sent_for=1.0)
        assert self.retry(gate) == 3_100_000

    def test_a_promise_that_is_stamped_late_gets_another_time_that_breaks_no_other(self) -> None:
        gate = self.gate(Bucket(10, per="1s", burst=1, slack=0), waiting="promise")
        late, _, _ = (gate.reserve(id=f"place-{number}") for number in range(3))
        self.clock.advance("50ms")
        assert self.stamp(gate, late.permit) == 250_000  # after those of 100 and 200 ms
        assert gate.reserve().delay == 0.1

    def test_a_promise_that_is_stamped_late_has_its_new_time_for_whoever_asks_under_its_id(self) -> None:
        gate = self.gate(Bucket(10, per="1s", burst=1, slack=0), waiting="promise")
        for number in range(3):
            gate.reserve(id=f"place-{number}")
        self.clock.advance("50ms")
        assert isinstance(self.store.decide(Stamp(gate.policy, "place-0")), Wait)
        assert gate.reserve(id="place-0").delay == 0.25

    # --- under an id that is asked again --------------------------------------------------------------------------------

    def test_the_stamp_of_a_permit_that_has_ended_moves_no_other_under_its_id(self) -> None:
        for limits in ([], [Concurrency(9, lease="1h")]):
            gate = Gate(f"again-{len(limits)}", [Window(9, per="4s", slack=0), *limits], store=self.store)
            [before] = self.take(gate, id="job-1")
            assert gate.release("job-1", "unsent")
            [again] = self.take(gate, id="job-1")
            self.clock.advance("1s")
            self.raises(LeaseLost, before.sent)
            self.clock.advance("3s")
            assert gate.usage()["window"].used == 0  # it counts from its grant still
            again.sent()
            assert gate.usage()["window"].used == 1

    def test_a_stamped_permit_ends_when_all_attempts_that_share_it_are_cancelled(self) -> None:
        gate = self.gate(Window(9, per="4s", slack=0))
        plan = gate.policy.plan()
        self.store.decide(Stand(plan, "job-1", remembered=True, attempt="a-1"))
        self.clock.advance("1s")
        self.store.decide(Stamp(gate.policy, "job-1"))
        self.store.decide(Stand(plan, "job-1", remembered=True, attempt="a-2"))
        self.store.decide(Cancel(gate.policy, "job-1", "a-1"))
        assert gate.usage()["window"].used == 1
        self.store.decide(Cancel(gate.policy, "job-1", "a-2"))
        assert gate.usage()["window"].used == 0  # given back where the stamp had moved it

    def test_an_ask_that_was_cancelled_before_it_came_has_nothing_to_stamp(self) -> None:
        gate = self.gate(Window(9, per="4s", slack=0))
        self.store.decide(Cancel(gate.policy, "job-1"))
        assert self.store.decide(Stamp(gate.policy, "job-1")).lost

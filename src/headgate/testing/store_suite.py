"""What every store must pass, run through `Gate` and commands on that store with a clock that stands still."""

from __future__ import annotations

import threading
from unittest import SkipTest

from ..errors import Denied, HeadgateError, IdConflict, InvalidInput, KindChanged, LeaseLost
from ..gate import Gate
from ..kernel.commands import Admit, Cancel, Pause, Peek, Release, Renew, Settle, Stand
from ..kernel.limits import Aimd, Bucket, Concurrency, Quota, Window
from ..kernel.model import SECOND, Refusal, Wait
from .clock import FakeClock
from .upstream import FakeUpstream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..clock import Clock
    from ..gate import Permit
    from ..stores.base import Store

#: Real seconds after which a waiter that was woken must have noticed.
PATIENCE = 20.0


class StoreSuite:
    """Subclass it, name the class `Test…`, and make a new, empty store on a clock in `make_store`; pytest does the rest.

    `lose_state` may be given as well: it makes the store forget a gate, as a restart without its data would. The clock is
    in microseconds; a store that has a clock of its own cannot use this suite's exact times, and needs its server faked.
    """

    def make_store(self, clock: Clock) -> Store:
        raise NotImplementedError("make_store(clock) returns a new, empty store")

    def lose_state(self, store: Store, gate: str) -> None:
        """Have the store forget a gate, while this process remembers what it had been told."""
        raise SkipTest("this store cannot lose its state while a process lives")

    def setup_method(self, method: Any = None) -> None:
        self.clock = FakeClock()
        self.store = self.make_store(self.clock)

    def teardown_method(self, method: Any = None) -> None:
        self.store.close()

    # --- what the tests are made of ------------------------------------------------------------------------------

    def gate(self, *limits: Any, **more: Any) -> Gate:
        return Gate("suite", limits, store=self.store, **more)

    def take(self, gate: Gate, count: int = 1, **ask: Any) -> list[Permit]:
        """So many permits, which must all be granted at once."""
        permits = [gate.try_acquire(renew=False, **ask) for _ in range(count)]
        assert None not in permits, f"only {count - permits.count(None)} of {count} were granted"
        return [permit for permit in permits if permit is not None]

    def count(self, gate: Gate, **ask: Any) -> int:
        """How many are granted until one is refused."""
        granted = 0
        while gate.try_acquire(renew=False, **ask) is not None:
            granted += 1
            assert granted < 10_000, "nothing stops it"
        return granted

    def retry(self, gate: Gate, **ask: Any) -> int:
        """Microseconds after which a refused ask may come again."""
        return round((self.denial(gate, **ask).retry_after or 0) * SECOND)

    def denial(self, gate: Gate, **ask: Any) -> Denied:
        denied: Denied = self.raises(Denied, lambda: gate.acquire(timeout=0, **ask))
        return denied

    def stand(self, gate: Gate, id: str, session: str = "one", **ask: Any) -> Any:
        """Stand in line as another process would, or look again: a grant (a tuple) or a `Wait`."""
        plan = gate._policy.plan(**ask)
        return self.store.decide(Stand(plan, id, None, plan.lease, waits=True, session=session))

    def beat(self, gate: Gate, session: str, *tickets: str) -> Any:
        return self.store.decide(Renew(gate.name, (), session, tickets))

    def raises(self, kind: type[BaseException], call: Callable[[], Any]) -> Any:
        """The error that a call raises, which must be of this kind."""
        try:
            call()
        except kind as error:
            return error
        raise AssertionError(f"{kind.__name__} was not raised")

    # --- 1 and 5: leases -----------------------------------------------------------------------------------------

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
        assert (holder.since, holder.expires) == (4.0, 26.0)

    # --- 2 and 4: rates ------------------------------------------------------------------------------------------

    def test_a_window_never_lets_more_arrive_in_any_window_whatever_the_delay(self) -> None:
        gate = self.gate(Window(7, per="1s", slack="100ms"))
        arrivals = []
        for step in range(400):
            for permit in iter(lambda: gate.try_acquire(), None):
                # Between no delay and all the slack there is, in an order of its own.
                arrivals.append((self.clock() + step * 37_717 % 100_000, 1.0))
                permit.release("error")
            self.clock.advance(microseconds=13_337)
        assert FakeUpstream(7, "1s").judge(arrivals) == []
        assert len(arrivals) >= 7 * (400 * 13_337 // 1_101_000)

    def test_a_bucket_never_lets_more_arrive_than_its_burst_and_rate_whatever_the_delay(self) -> None:
        gate = self.gate(Bucket(10, per="1s", burst=5, slack="100ms"))
        arrivals = []
        for step in range(400):
            for _ in iter(lambda: gate.try_acquire(0.5), None):
                arrivals.append((self.clock() + step * 37_717 % 100_000, 0.5))
            self.clock.advance(microseconds=13_337)
        assert FakeUpstream(10, "1s", "bucket", burst=5).judge(arrivals) == []
        assert len(arrivals) >= 2 * 10 * (400 * 13_337 / 1e6)

    def test_a_quota_never_lets_more_arrive_in_a_day_whatever_the_delay(self) -> None:
        gate = self.gate(Quota(40, per="day", zone="America/New_York", slack="1s"))
        arrivals = []
        for step in range(200):
            while gate.try_acquire(7) is not None:
                arrivals.append((self.clock() + step * 377_717 % 1_000_000, 7.0))
            self.clock.advance(microseconds=1_800_000_001)
        assert FakeUpstream(40, "day", "calendar", zone="America/New_York").judge(arrivals) == []
        assert len(arrivals) == 5 * 5

    def test_a_refused_ask_is_granted_exactly_when_it_was_told(self) -> None:
        for limit in (
            Window(3, per="10s", name="w"),
            Bucket(30, per="10s", burst=3, name="b"),
            Quota(3, per="hour", name="q"),
            Concurrency(3, lease="10s", name="c"),
        ):
            gate = Gate(f"exact-{limit.kind}", [limit], store=self.store)
            self.count(gate)
            wait = self.retry(gate)
            assert wait > 0
            self.clock.advance(microseconds=wait - 1)
            assert gate.try_acquire(renew=False) is None
            assert self.retry(gate) == 1
            self.clock.advance(microseconds=1)
            assert gate.try_acquire(renew=False) is not None

    def test_a_confirmed_grant_counts_for_per_after_the_answer(self) -> None:
        gate = self.gate(Window(1, per="10s", slack="1s"))
        [permit] = self.take(gate)
        self.clock.advance("200ms")
        permit.confirm()
        assert self.retry(gate) == 10 * SECOND
        permit.release()
        assert self.retry(gate) == 10 * SECOND

    def test_a_promise_whose_time_has_come_runs_off_like_any_charge(self) -> None:
        gate = self.gate(Bucket(10, per="10s", burst=1, slack=0), waiting="promise")
        places = [gate.reserve() for _ in range(3)]
        assert [round(place.delay) for place in places] == [0, 1, 2]
        self.clock.advance("2500ms")
        assert gate.usage().limits[0].used == 0.5
        assert gate.usage().limits[0].next_free == 0.5

    def test_an_id_that_was_taken_back_is_a_new_ask_and_is_charged(self) -> None:
        gate = self.gate(Window(1, per="10s", slack=0))
        [permit] = self.take(gate, id="job")
        permit.release("unsent")
        [again] = self.take(gate, id="job")
        assert gate.usage().limits[0].used == 1
        assert gate.try_acquire(id="other") is None
        permit.release("unsent")  # it has ended, and ends nothing of the second
        assert gate.usage().limits[0].used == 1
        again.release("unsent")
        assert gate.usage().limits[0].used == 0

    def test_what_a_call_holds_is_not_forgotten_however_long_the_limit_was_idle(self) -> None:
        gate = self.gate(Window(1, per="1s", slack=0, name="w"), Concurrency(1, lease="1h", name="c"))
        [holder] = self.take(gate)
        plan = holder._plan
        waiting = Stand(plan, "waits", None, plan.lease, waits=True, session="one")
        assert isinstance(self.store.execute([waiting])[0], Wait)
        self.clock.advance("5s")  # the window is empty again
        holder.release("error")  # the slot is free: the waiter is called, and the window held for it
        for _ in range(600):  # more commands than after which state that has run off is forgotten
            self.store.execute([Pause("suite", 0)])
        assert gate.usage()["w"].used == 1
        assert isinstance(self.store.execute([waiting])[0], tuple)
        assert gate.usage()["w"].used == 1

    def test_a_bucket_under_a_lower_override_is_not_forgotten_before_it_has_run_off(self) -> None:
        gate = self.gate(Bucket(100, per="1s", slack=0, name="b"))
        self.take(gate, cost=100)
        gate.set_limit("b", 1)
        self.clock.advance("10s")  # at the limit's own rate it would have run off long ago; now it takes 100 s
        for _ in range(600):
            self.store.execute([Pause("suite", 0)])
        assert gate.try_acquire(renew=False) is None
        self.clock.advance("90s")
        self.take(gate)

    def test_a_confirmation_said_twice_shortens_nobody_elses_count(self) -> None:
        gate = self.gate(Window(2, per="10s", slack="5s"))
        [first] = self.take(gate, id="first")
        self.take(gate, id="second")
        self.clock.advance("1s")
        again = Settle(first._plan, first._grant[0], "first", None)  # as sent when the reply to it was lost
        replies = [*self.store.execute([again]), *self.store.execute([again])]
        assert replies[0] == replies[1]
        self.clock.advance("10s")
        assert self.count(gate) == 1

    def test_an_answer_at_the_end_confirms_and_an_error_does_not(self) -> None:
        gate = self.gate(Window(1, per="10s", slack="1s"))
        [permit] = self.take(gate)
        self.clock.advance("200ms")
        permit.release("error")
        assert self.retry(gate) == 10_800_000
        self.clock.advance(microseconds=10_800_000)
        [permit] = self.take(gate)
        self.clock.advance("200ms")
        permit.release("ok")
        assert self.retry(gate) == 10_000_000

    def test_what_was_not_sent_is_given_back(self) -> None:
        gate = self.gate(
            Window(2, per="1m", name="w"), Bucket(2, per="1m", burst=3, name="b"), Quota(2, per="day", name="q")
        )
        first, second = self.take(gate, 2)
        assert gate.try_acquire() is None
        second.release("unsent")
        assert [limit.used for limit in gate.usage().limits] == [1, 1, 1]
        first.release("unsent")
        assert [limit.used for limit in gate.usage().limits] == [0, 0, 0]
        assert self.count(gate) == 2

    def test_settling_charges_the_difference_and_upwards_beyond_the_limit(self) -> None:
        gate = self.gate(Window(10, per="10s", slack=0, unit="pu", name="w"))
        [permit] = self.take(gate, cost={"pu": 8})
        permit.settle({"pu": 3})
        assert gate.usage()["w"].used == 3
        permit.settle({"pu": 14})
        assert gate.usage()["w"].used == 14
        assert self.retry(gate, cost={"pu": 1}) == 10 * SECOND
        permit.release()
        self.clock.advance("10s")
        self.take(gate, cost={"pu": 10})

    # --- 3: together or not at all -------------------------------------------------------------------------------

    def test_all_limits_of_an_ask_are_taken_together_or_none(self) -> None:
        gate = self.gate(
            Window(100, per="1m", name="w"),
            Bucket(100, per="1m", name="b"),
            Quota(100, per="day", name="q"),
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

    # --- 6: ids --------------------------------------------------------------------------------------------------

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

    def test_an_id_is_remembered_for_a_minute_after_its_permit_ended(self) -> None:
        gate = self.gate(Concurrency(5, lease="10s", name="c"), Window(100, per="1s", name="w"))
        permit = gate.acquire(id="job-1", timeout=0, renew=False)
        permit.release()
        self.clock.advance("59s")
        assert gate.acquire(id="job-1", timeout=0, renew=False).fence == permit.fence
        assert gate.usage()["c"].used == 0
        self.clock.advance("2s")
        assert gate.acquire(id="job-1", timeout=0, renew=False).fence != permit.fence

    def test_an_ask_whose_reply_was_lost_is_undone_by_its_id(self) -> None:
        gate = self.gate(Window(1, per="1m"), Concurrency(1))
        plan = gate._policy.plan()
        asked = Stand(plan, "lost", None, plan.lease, remembered=True)
        assert isinstance(self.store.decide(asked), tuple)
        self.store.decide(Cancel(gate._policy, "lost"))
        assert self.count(gate) == 1

    # --- live changes --------------------------------------------------------------------------------------------

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
        assert gate.usage().paused_until == 5.0
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

    # --- priorities ----------------------------------------------------------------------------------------------

    def test_a_class_leaves_the_rest_to_those_above_it(self) -> None:
        for limit in (Window(10, per="1m"), Bucket(10, per="1m", slack=0), Quota(10), Concurrency(10)):
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

    # --- promises ------------------------------------------------------------------------------------------------

    def test_a_promise_gate_gives_each_ask_its_time_at_once(self) -> None:
        gate = self.gate(Bucket(10, per="1s", burst=1, slack=0), waiting="promise")
        assert [round(gate.reserve().delay * SECOND) for _ in range(4)] == [0, 100_000, 200_000, 300_000]
        self.clock.advance("250ms")
        assert round(gate.reserve().delay * SECOND) == 150_000

    def test_a_cancelled_promise_is_given_back(self) -> None:
        gate = self.gate(Window(1, per="1s", slack=0), waiting="promise")
        places = [gate.reserve() for _ in range(3)]
        assert round(places[2].delay * SECOND) == 2 * SECOND
        places[1].cancel()
        assert round(gate.reserve().delay * SECOND) == 1 * SECOND
        assert round(gate.reserve().delay * SECOND) == 3 * SECOND

    def test_a_promise_holds_on_all_limits_at_the_time_it_goes(self) -> None:
        gate = self.gate(
            Window(2, per="1s", slack=0, name="w"),
            Bucket(2, per="10s", burst=4, slack=0, unit="pu", name="pu"),
            waiting="promise",
        )
        grants: list[int] = []
        for _ in range(8):
            grants.append(self.clock() + round(gate.reserve({"pu": 2}).delay * SECOND))
        assert FakeUpstream(2, "1s").judge([(at, 1.0) for at in grants]) == []
        assert FakeUpstream(2, "10s", "bucket", burst=4).judge([(at, 2.0) for at in grants]) == []

    def test_a_time_beyond_max_delay_is_denied_and_charges_nothing(self) -> None:
        gate = self.gate(Bucket(10, per="1s", burst=1, slack=0), waiting="promise", max_delay="250ms")
        assert [round(gate.reserve().delay * SECOND) for _ in range(3)] == [0, 100_000, 200_000]
        for _ in range(20):
            self.raises(Denied, gate.reserve)
        self.clock.advance("100ms")
        assert round(gate.reserve().delay * SECOND) == 200_000

    def test_the_same_id_is_one_promise(self) -> None:
        gate = self.gate(Bucket(10, per="1s", burst=1, slack=0), waiting="promise")
        gate.reserve()
        assert gate.reserve(id="job").delay == gate.reserve(id="job").delay == 0.1
        assert round(gate.reserve().delay * SECOND) == 200_000

    # --- batches -------------------------------------------------------------------------------------------------

    def test_a_batch_is_decided_in_order_and_one_error_spoils_nothing(self) -> None:
        gate = self.gate(Window(2, per="1m", name="w"))
        other = Gate("other", [Concurrency(1)], store=self.store)
        clash = self.gate(Bucket(2, per="1m", name="w"))
        admit = Admit(gate._policy.plan())
        slot = other._policy.plan()
        replies = self.store.execute(
            [
                admit,
                Admit(slot, "a", None, slot.lease),
                Admit(clash._policy.plan()),
                admit,
                admit,
                Admit(slot, "b", None, slot.lease),
                Release(other._policy, "a", "ok"),
                Admit(slot, "c", None, slot.lease),
                Peek(gate._policy),
            ]
        )
        assert [isinstance(reply, tuple) for reply in replies[:6]] == [True, True, False, True, False, False]
        assert isinstance(replies[2], KindChanged)
        assert isinstance(replies[4], Wait)
        assert isinstance(replies[7], tuple)
        assert replies[8].limits[0].used == 2
        assert not any(isinstance(reply, HeadgateError) for at, reply in enumerate(replies) if at != 2)

    def test_an_empty_batch_is_no_error(self) -> None:
        assert self.store.execute([]) == []

    # --- the line ------------------------------------------------------------------------------------------------

    def test_a_release_wakes_the_first_waiter_and_nobody_else(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"))
        [permit] = self.take(gate)
        told: dict[str, list[int | None]] = {name: [] for name in ("first", "second", "third")}
        heard = threading.Event()

        def listener(name: str) -> Callable[[int | None], None]:
            def tell(delay: int | None) -> None:
                told[name].append(delay)
                if delay is None:
                    heard.set()

            return tell

        for name in told:
            self.store.listen(name, listener(name))
            assert isinstance(self.stand(gate, name, self.store.session), Wait)
        permit.release()
        assert heard.wait(PATIENCE), "nobody was woken"
        assert [name for name, delays in told.items() if None in delays] == ["first"]
        assert isinstance(self.stand(gate, "first", self.store.session), tuple)
        for name in told:
            self.store.unlisten(name)

    def test_a_thread_that_waits_goes_when_the_slot_is_released(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"))
        [permit] = self.take(gate)
        granted: list[Any] = []
        waiter = threading.Thread(target=lambda: granted.append(gate.acquire(timeout=PATIENCE)), daemon=True)
        waiter.start()
        for _ in range(10_000):
            if gate.usage().waiting:
                break
        permit.release()
        waiter.join(PATIENCE)
        assert len(granted) == 1
        assert gate.usage().waiting == 0
        granted[0].release()

    def test_those_who_wait_go_in_order_of_arrival(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"))
        [permit] = self.take(gate)
        for name in ("a", "b", "c"):
            assert isinstance(self.stand(gate, name, name), Wait)
        assert gate.try_acquire() is None
        order = []
        permit.release()
        for _ in range(3):
            [name] = [name for name in ("a", "b", "c") if name in self.beat(gate, name, name).called]
            assert isinstance(self.stand(gate, name, name), tuple)
            order.append(name)
            gate.release(name)
        assert order == ["a", "b", "c"]

    def test_a_call_that_nobody_takes_is_given_back_after_its_claim(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"), claim="1s")
        [permit] = self.take(gate)
        self.stand(gate, "asleep", "p1")
        self.stand(gate, "awake", "p2")
        permit.release()
        assert isinstance(self.stand(gate, "awake", "p2"), Wait)
        self.clock.advance("1s")
        assert isinstance(self.stand(gate, "awake", "p2"), tuple)
        assert isinstance(self.stand(gate, "asleep", "p1"), Wait)

    def test_the_tickets_of_a_dead_process_leave_the_line(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"))
        self.take(gate)
        for number in range(5):
            self.stand(gate, f"dead-{number}", "dead")
        self.stand(gate, "alive", "alive")
        assert gate.usage().waiting == 6
        for _ in range(4):
            self.clock.advance("3s")
            self.beat(gate, "alive", "alive")
        assert gate.usage().waiting == 1

    def test_who_waits_is_told_oldest_first_and_of_no_more_than_fifty(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"))
        assert gate.waiters() == []
        self.take(gate)
        for number in range(60):
            self.clock.advance("10ms")
            self.stand(gate, f"t-{number}", f"p{number % 3}")
        waiters = gate.waiters()
        assert [waiter.id for waiter in waiters] == [f"t-{number}" for number in range(50)]
        assert [waiter.since for waiter in waiters[:2]] == [0.59, 0.58]
        assert gate.usage().waiting == 60

    def test_one_who_gives_up_leaves_nothing_behind(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"), Window(10, per="1m", name="w"))
        [permit] = self.take(gate)
        self.stand(gate, "a", "p1")
        self.store.decide(Cancel(gate._policy, "a"))
        assert gate.usage().waiting == 0
        self.stand(gate, "b", "p1")
        permit.release()  # b is called
        self.store.decide(Cancel(gate._policy, "b"))
        self.take(gate)
        assert gate.usage()["w"].used == 2

    def test_an_acquire_that_runs_out_of_time_leaves_nothing_behind(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"))
        [permit] = self.take(gate)
        assert self.raises(Denied, lambda: gate.acquire(timeout=0.01)).position == 1
        assert gate.usage().waiting == 0
        permit.release()
        self.take(gate)

    # --- adapting ------------------------------------------------------------------------------------------------

    def test_many_refusals_of_one_congestion_shrink_once(self) -> None:
        gate = self.gate(Concurrency(40, name="c", adaptive=Aimd(start=30, minimum=2, decrease=2)))
        permits = self.take(gate, 30)
        self.clock.advance("1s")
        for permit in permits[:26]:
            permit.release("rate_limited")
        assert gate.usage()["c"].limit == 28
        assert gate.usage()["c"].maximum == 40

    # --- 10 and 11: time and loss --------------------------------------------------------------------------------

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

    # --- the port ------------------------------------------------------------------------------------------------

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
        assert (why.granted, why.limit, why.after) == (False, "slots", 25.0)
        assert [(holder.holder, holder.since) for holder in why.holders] == [("chunk_001.pdf", 5.0)]

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
        reply = self.store.decide(Admit(gate._policy.plan(6)))
        assert isinstance(reply, Refusal)
        assert reply.limit == "w"
        assert "never fit" in reply.reason

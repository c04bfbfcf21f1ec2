"""Windows, buckets and quotas: what may arrive, when a refused ask goes, what is given back or settled."""

from __future__ import annotations

from ...errors import Denied
from ...gate import Gate
from ...kernel.commands import Pause, Settle, Stand
from ...kernel.limits import Bucket, Concurrency, Quota, Window
from ...kernel.model import SECOND, Wait
from ..upstream import FakeUpstream
from .base import StoreHarness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...kernel.limits import Limit


def rates(limit: int) -> list[Limit]:
    """A limit of this value of every kind that is no concurrency, without slack."""
    return [
        Window(limit, per="1m", slack=0, name="w"),
        Bucket(limit, per="1m", slack=0, name="b"),
        Quota(limit, per="day", slack=0, name="q"),
    ]


class RateTests(StoreHarness):
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

    def test_a_budget_never_comes_back_and_what_exceeds_it_is_denied_for_good(self) -> None:
        gate = self.gate(Quota(10, per="ever", name="budget"), waiting="promise")
        gate.reserve(8)
        self.clock.advance(40 * 365 * 86_400)
        error = self.raises(Denied, lambda: gate.reserve(3))
        assert (error.limit, error.retry_after) == ("budget", None)
        row = gate.usage()["budget"]
        assert (row.used, row.available) == (8, 2)
        assert gate.reserve(2).delay == 0

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

    def test_a_quota_counts_a_late_call_on_the_day_on_which_it_is_sent(self) -> None:
        gate = self.gate(Quota(3, per="day", slack=0))
        midnight = 86_400 * SECOND - self.clock() % (86_400 * SECOND)
        self.clock.advance(microseconds=midnight - SECOND)
        [late] = self.take(gate)
        self.clock.advance("2s")
        late.sent()
        assert gate.usage()["quota"].used == 1
        assert self.count(gate) == 2

    def test_a_promise_whose_time_has_come_runs_off_like_any_charge(self) -> None:
        gate = self.gate(Bucket(10, per="10s", burst=1, slack=0), waiting="promise")
        places = [gate.reserve() for _ in range(3)]
        assert [round(place.delay) for place in places] == [0, 1, 2]
        self.clock.advance("2500ms")
        assert gate.usage().limits[0].used == 0.5
        assert gate.usage().limits[0].free_in == 0.5

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
        plan = gate.policy.plan()
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
        self._runs_off_slowly(lambda gate: gate.set_limit("b", 1))

    def test_a_bucket_that_was_tightened_is_not_forgotten_before_it_has_run_off(self) -> None:
        self._runs_off_slowly(lambda gate: gate.tighten("b", 1, expires_in="1h"))

    def _runs_off_slowly(self, lower: Callable[[Gate], object]) -> None:
        gate = self.gate(Bucket(100, per="1s", slack=0, name="b"))
        self.take(gate, cost=100)
        lower(gate)
        self.clock.advance("10s")  # at the limit's own rate it would have run off long ago; now it takes 100 s
        for _ in range(600):
            self.store.execute([Pause("suite", 0)])
        assert gate.try_acquire(renew=False) is None
        self.clock.advance("90s")
        self.take(gate)

    def test_a_confirmation_said_twice_shortens_nobody_elses_count(self) -> None:
        gate = self.gate(Window(2, per="10s", slack="5s"))
        plan = gate.policy.plan()
        [first] = self.store.execute([Stand(plan, "first", remembered=True)])
        self.take(gate, id="second")
        self.clock.advance("1s")
        again = Settle(plan, first.at, "first", None)  # as sent when the reply to it was lost
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

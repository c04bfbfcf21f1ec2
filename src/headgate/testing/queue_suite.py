"""`QueueSuite`: what every queue must pass, by what it declares in its `semantics`."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from unittest import SkipTest

from ..stages.message import BadMessage, NewMessage
from ..stages.outcomes import Bury, Finish, Return
from ..stages.queues.base import DeadFilter, Ending, HandOff, WaitHandle, settle_handing_on
from .clock import FakeClock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..clock import Clock
    from ..stages.message import Delivery
    from ..stages.queues.base import Queue

SECOND = 1_000_000

#: Real seconds after which a thread that was woken must have noticed.
PATIENCE_S = 60.0


class QueueSuite:
    """A new pair of queues for each test. Subclass it in a test module and say how to make yours.

    Queues whose clock cannot be set override `later`, and are given real seconds.
    """

    #: Seconds for which the tests lease: as short as the queue can.
    lease_s = 10.0

    def make_queue(self, name: str, clock: Clock) -> Queue:
        """A new, empty queue. Two of one test can hand over to each other."""
        raise NotImplementedError("make_queue(name, clock) returns a new, empty queue")

    def again(self, queue: Queue, clock: Clock) -> Queue:
        """The same queue as another process has it."""
        raise SkipTest("this queue lives in one process")

    def later(self, seconds: float) -> None:
        """Let so much time pass for the queue."""
        self.clock.advance(seconds)

    def setup_method(self, method: Any = None) -> None:
        self.clock = FakeClock()
        self.queue = self.make_queue("first", self.clock)

    def teardown_method(self, method: Any = None) -> None:
        self.queue.close()

    # --- steps ----------------------------------------------------------------------------------------------------

    def put(self, *numbers: int, **more: Any) -> list[Any]:
        return self.queue.put([NewMessage(json.dumps({"n": number}), **more) for number in numbers])

    def lease(self, most: int = 1, **more: Any) -> list[Delivery]:
        """Lease up to so many: a queue that is spread over machines may need more than one look."""
        found: list[Delivery] = []
        for _ in range(1 if self.queue.semantics.ordered else 5):
            found += self.queue.lease(most - len(found), round(self.lease_s * SECOND), **more)
            if len(found) == most:
                break
        return found

    def one(self, **more: Any) -> Delivery:
        [delivery] = self.lease(**more)
        return delivery

    def numbers(self, deliveries: list[Delivery]) -> list[int]:
        return [json.loads(delivery.body)["n"] for delivery in deliveries]

    def settle(self, delivery: Delivery, verdict: Any, hand_off: HandOff | None = None) -> bool:
        return self.queue.settle([Ending(delivery, verdict, hand_off)])[0]

    def needs(self, promise: str) -> None:
        if not getattr(self.queue.semantics, promise):
            raise SkipTest(f"this queue does not declare {promise!r}")

    # --- leasing --------------------------------------------------------------------------------------------------

    def test_what_is_put_is_leased_once_with_its_body_and_history(self) -> None:
        [result] = self.put(1)
        assert result.is_new
        delivery = self.one()
        assert (delivery.id, json.loads(delivery.body)) == (result.id, {"n": 1})
        assert (delivery.history.receives, delivery.history.attempts, delivery.history.deaths) == (1, 0, 0)
        assert delivery.history.put_at_us > 0
        assert self.lease() == []

    def test_the_oldest_message_is_leased_first(self) -> None:
        self.needs("ordered")
        self.put(1, 2, 3)
        self.put(4)
        assert self.numbers(self.lease(3)) == [1, 2, 3]
        assert self.numbers(self.lease(3)) == [4]

    def test_a_lease_says_whether_more_are_ready(self) -> None:
        self.needs("lanes")
        self.put(1, 2, 3)
        assert self.lease(2)[-1].more
        assert not self.lease(1)[-1].more

    def test_a_batch_of_any_size_is_put_and_leased(self) -> None:
        self.put(*range(25))
        assert sorted(self.numbers(self.lease(25))) == list(range(25))

    def test_a_message_that_goes_back_keeps_its_place_and_its_history(self) -> None:
        self.put(1, 2)
        first = self.one()
        assert self.settle(first, Return(replace(first.history, attempts=2, refusals=3)))
        again = {delivery.id: delivery for delivery in self.lease(2)}[first.id]
        assert (again.history.attempts, again.history.refusals, again.history.receives) == (2, 3, 2)
        assert again.history.put_at_us == first.history.put_at_us

    def test_a_message_that_goes_back_is_before_younger_ones(self) -> None:
        self.needs("ordered")
        self.put(1, 2, 3)
        first = self.one()
        self.settle(first, Return(first.history, SECOND))
        self.later(1)
        assert self.numbers(self.lease(3)) == [1, 2, 3]

    def test_a_message_that_goes_back_with_a_delay_is_not_leased_before_it(self) -> None:
        self.put(1)
        delivery = self.one()
        self.settle(delivery, Return(delivery.history, 3 * SECOND))
        assert self.lease() == []
        self.later(3)
        assert self.numbers(self.lease()) == [1]

    def test_a_message_that_is_put_with_a_delay_comes_after_it(self) -> None:
        self.put(1, delay_us=3 * SECOND)
        assert self.lease() == []
        self.later(3)
        assert self.numbers(self.lease()) == [1]

    def test_a_lease_that_runs_out_counts_as_a_death_and_frees_the_message(self) -> None:
        self.put(1)
        first = self.one()
        self.later(self.lease_s)
        second = self.one()
        assert second.id == first.id
        assert (second.history.deaths, second.history.receives) == (1, 2)

    def test_an_extended_lease_does_not_run_out(self) -> None:
        self.put(1)
        delivery = self.one()
        for _ in range(2):
            self.later(self.lease_s * 0.6)
            assert self.queue.extend([delivery], round(self.lease_s * SECOND)) == [True]
        assert self.lease() == []

    # --- settling -------------------------------------------------------------------------------------------------

    def test_a_message_that_is_done_is_gone(self) -> None:
        self.put(1)
        assert self.settle(self.one(), Finish())
        self.later(self.lease_s)
        assert self.lease() == []
        assert self.queue.stats().done == 1

    def test_an_older_lease_can_change_nothing(self) -> None:
        self.put(1)
        old = self.one()
        self.later(self.lease_s)
        new = self.one()
        assert not self.settle(old, Finish())
        assert not self.settle(old, Return(old.history))
        assert not self.settle(old, Bury("poison", "x", old.history))
        assert self.queue.extend([old], SECOND) == [False]
        assert self.settle(new, Finish())
        assert self.queue.stats().dead == 0

    def test_settling_twice_changes_nothing(self) -> None:
        self.put(1)
        delivery = self.one()
        assert self.settle(delivery, Finish())
        assert not self.settle(delivery, Return(delivery.history))
        assert self.lease() == []

    def test_one_lost_lease_in_a_batch_does_not_touch_the_others(self) -> None:
        self.put(1, 2)
        first, second = self.lease(2)
        self.settle(first, Finish())
        endings = [Ending(first, Finish()), Ending(second, Finish())]
        assert self.queue.settle(endings) == [False, True]

    def test_a_hand_off_arrives_with_the_acknowledgement_and_once(self) -> None:
        following = self.make_queue("second", self.clock)
        self.put(1)
        delivery = self.one()
        hand_off = HandOff(following.name, (NewMessage('{"n":10}', delivery.id),))
        ending = Ending(delivery, Finish(('{"n":10}',)), hand_off)
        assert settle_handing_on(self.queue, following, [ending]) == [True]
        assert settle_handing_on(self.queue, following, [ending]) == [False]
        [arrived] = following.lease(5, SECOND)
        assert (arrived.id, json.loads(arrived.body)) == (delivery.id, {"n": 10})
        assert self.lease() == []

    def test_a_lost_lease_hands_nothing_on(self) -> None:
        following = self.make_queue("second", self.clock)
        self.put(1)
        old = self.one()
        self.later(self.lease_s)
        self.one()
        hand_off = HandOff(following.name, (NewMessage('{"n":10}', old.id),))
        assert settle_handing_on(self.queue, following, [Ending(old, Finish(('{"n":10}',)), hand_off)]) == [False]
        assert following.lease(1, SECOND) == []

    def test_outputs_that_were_recorded_come_with_the_next_delivery(self) -> None:
        self.put(1)
        delivery = self.one()
        assert self.queue.record(delivery, ('{"n":10}', '{"n":11}'))
        self.later(self.lease_s)
        again = self.one()
        assert again.recorded == ('{"n":10}', '{"n":11}')
        assert not self.queue.record(delivery, ())

    # --- duplicates -----------------------------------------------------------------------------------------------

    def test_a_message_is_put_once_under_its_id_while_it_waits_is_in_work_done_or_dead(self) -> None:
        self.needs("deduplicates")
        assert self.put(1, id="a")[0].is_new
        assert not self.put(1, id="a")[0].is_new
        delivery = self.one()
        assert not self.put(1, id="a")[0].is_new
        self.settle(delivery, Finish())
        assert not self.put(1, id="a")[0].is_new
        self.put(2, id="b")
        other = self.one()
        self.settle(other, Bury("poison", "x", other.history))
        assert not self.put(2, id="b")[0].is_new
        assert self.lease(5) == []

    # --- lanes ----------------------------------------------------------------------------------------------------

    def test_a_lease_of_one_lane_takes_no_message_of_another(self) -> None:
        self.needs("lanes")
        self.put(1, 2, lane="a")
        self.put(3, lane="b")
        assert sorted(self.queue.lanes(10)) == ["a", "b"]
        assert self.numbers(self.lease(5, lane="b")) == [3]
        assert self.queue.lanes(10) == ["a"]
        assert sorted(self.numbers(self.lease(5))) == [1, 2]

    def test_every_lane_is_listed_sooner_or_later(self) -> None:
        self.needs("lanes")
        for number in range(10):
            self.put(number, lane=f"lane-{number}")
        seen = {lane for _ in range(5) for lane in self.queue.lanes(3)}
        assert len(seen) == 10

    # --- dead letters ---------------------------------------------------------------------------------------------

    def test_a_dead_letter_has_its_reason_error_body_and_history(self) -> None:
        self.put(1)
        delivery = self.one()
        history = replace(delivery.history, attempts=5)
        assert self.settle(delivery, Bury("failed", "503 from upstream", history))
        [letter] = self.queue.dead_letters(DeadFilter(), 10)
        assert (letter.id, letter.reason, letter.error) == (delivery.id, "failed", "503 from upstream")
        assert (json.loads(letter.body), letter.history.attempts) == ({"n": 1}, 5)
        assert letter.buried_at_us > 0
        assert self.lease() == []
        assert self.queue.stats().dead == 1

    def test_dead_letters_are_found_by_reason_text_age_and_id(self) -> None:
        self.put(1, 2)
        for reason, delivery in zip(("poison", "failed"), self.lease(2), strict=True):
            self.settle(delivery, Bury(reason, f"because of {reason}", delivery.history))
        [poison] = self.queue.dead_letters(DeadFilter(reason="poison"), 10)
        [failed] = self.queue.dead_letters(DeadFilter(text="because of failed"), 10)
        assert {poison.reason, failed.reason} == {"poison", "failed"}
        assert self.queue.dead_letters(DeadFilter(ids=(poison.id,)), 10) == [poison]
        assert self.queue.dead_letters(DeadFilter(older_for=3600), 10) == []
        assert len(self.queue.dead_letters(DeadFilter(), 1)) == 1

    def test_a_redriven_letter_is_a_message_again_with_a_new_history(self) -> None:
        self.put(1)
        delivery = self.one()
        self.settle(delivery, Bury("failed", "x", replace(delivery.history, attempts=5, deaths=2)))
        assert self.queue.redrive([delivery.id, "nobody"]) == 1
        again = self.one()
        assert (again.id, json.loads(again.body)) == (delivery.id, {"n": 1})
        assert (again.history.attempts, again.history.deaths) == (0, 0)
        assert self.queue.stats().dead == 0

    def test_a_dropped_letter_is_gone(self) -> None:
        self.put(1)
        delivery = self.one()
        self.settle(delivery, Bury("failed", "x", delivery.history))
        assert self.queue.drop([delivery.id]) == 1
        assert self.queue.drop([delivery.id]) == 0
        assert self.queue.dead_letters(DeadFilter(), 10) == []

    # --- operators ------------------------------------------------------------------------------------------------

    def test_stats_count_what_is_ready_delayed_in_work_dead_and_done(self) -> None:
        self.put(1, 2, 3, 4)
        self.put(5, delay_us=100 * SECOND)
        first, second, _ = self.lease(3)
        self.settle(first, Finish())
        self.settle(second, Bury("poison", "x", second.history))
        stats = self.queue.stats()
        assert (stats.ready, stats.delayed, stats.in_work, stats.dead, stats.done) == (1, 1, 1, 1, 1)
        assert stats.waiting == 3

    def test_a_paused_queue_takes_messages_and_gives_none(self) -> None:
        self.queue.pause("deploy")
        self.put(1)
        assert self.lease() == []
        assert self.queue.stats().paused == "deploy"
        self.queue.resume()
        assert self.numbers(self.lease()) == [1]

    def test_a_purge_deletes_all_but_what_is_in_work(self) -> None:
        self.put(1, 2, 3)
        delivery = self.one()
        assert self.queue.purge() == 2
        assert self.lease() == []
        assert self.settle(delivery, Finish())

    def test_peek_shows_messages_and_leases_none(self) -> None:
        self.put(1, 2)
        seen = self.queue.peek(10)
        assert sorted(json.loads(body)["n"] for _, _, body, _ in seen) == [1, 2]
        assert {state for _, state, _, _ in seen} == {"ready"}
        assert all(delivery.history.receives == 1 for delivery in self.lease(2))

    def test_a_body_that_is_too_large_is_refused_in_words_and_nothing_is_put(self) -> None:
        large = "x" * (self.queue.semantics.largest_body + 1)
        said = ""
        try:
            self.queue.put([NewMessage('{"n":1}'), NewMessage(json.dumps({"text": large}))])
        except BadMessage as error:
            said = str(error)
        assert "bytes" in said
        assert self.lease() == []

    # --- waiting --------------------------------------------------------------------------------------------------

    def test_a_waiter_is_woken_by_a_put_and_by_an_interrupt(self) -> None:
        self.needs("wakes")
        for act, expected in ((lambda handle: self.put(1), True), (lambda handle: handle.interrupt(), False)):
            self.queue.purge()
            found: list[bool] = []
            handle = WaitHandle()

            def wait(found: list[bool] = found, handle: WaitHandle = handle) -> None:
                found.append(self.queue.wait(handle, PATIENCE_S, SECOND).is_ready)

            thread = threading.Thread(target=wait)
            thread.start()
            while thread.is_alive() and not found:
                act(handle)
                thread.join(0.05)
            assert found == [expected]

    def test_a_waiter_in_another_process_is_woken_by_a_put(self) -> None:
        self.needs("wakes")
        other = self.again(self.queue, self.clock)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(other.wait(WaitHandle(), PATIENCE_S, SECOND).is_ready))
        thread.start()
        while thread.is_alive() and not found:
            self.put(1)
            thread.join(0.05)
        assert found == [True]
        other.close()

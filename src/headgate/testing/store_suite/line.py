"""The line: who is woken and called in which order, and what those who leave it leave behind."""

from __future__ import annotations

import threading
import time

from ...errors import Denied
from ...kernel.commands import Cancel, Peek, Stand
from ...kernel.limits import Concurrency, Window
from ...kernel.model import Grant, Wait
from .base import PATIENCE, StoreHarness

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class LineTests(StoreHarness):
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

    def test_a_dead_crowd_leaves_the_line_by_a_look_without_an_ask_of_anybody(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"))
        self.take(gate)
        plan = gate.policy.plan()
        crowd = [Stand(plan, f"dead-{number}", None, plan.lease, waits=True, session="dead") for number in range(600)]
        for at in range(0, len(crowd), 100):
            self.store.execute(crowd[at : at + 100])
        assert gate.usage().waiting == 600
        self.clock.advance("11s")
        gate.usage()  # it changes nothing itself: what it shows has the keeper serve the line
        end = time.monotonic() + PATIENCE
        while self.store.decide(Peek(gate.policy)).overdue:
            assert time.monotonic() < end, "they still stand in line"
            time.sleep(0.001)
        assert gate.usage().waiting == 0
        assert self.beat(gate, "dead", "dead-0", "dead-599").unknown == ("dead-0", "dead-599")

    def test_a_heartbeat_of_a_lease_serves_the_line_as_well(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"))
        [permit] = self.take(gate)
        self.stand(gate, "dead", "dead")
        self.clock.advance("11s")
        assert self.store.decide(Peek(gate.policy)).overdue
        permit.renew()
        found = self.store.decide(Peek(gate.policy))
        assert (found.waiting, found.overdue) == (0, 0)

    def test_who_waits_behind_a_dead_crowd_goes_and_no_call_is_made_to_the_dead(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"), claim="1h")
        [permit] = self.take(gate)
        plan = gate.policy.plan()
        crowd = [Stand(plan, f"dead-{number}", None, plan.lease, waits=True, session="dead") for number in range(600)]
        for at in range(0, len(crowd), 100):
            self.store.execute(crowd[at : at + 100])
        self.stand(gate, "alive", "alive")
        self.clock.advance("6s")
        self.beat(gate, "alive", "alive")
        self.clock.advance("5s")
        permit.release()  # a call to one of the dead would last for an hour
        asks = 1
        while type(self.stand(gate, "alive", "alive")) is not Grant:
            asks += 1
            assert asks <= 3, "it does not go"
        assert gate.usage().waiting == 0

    def test_who_waits_is_told_oldest_first_and_of_no_more_than_fifty(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"))
        assert gate.waiters() == []
        self.take(gate)
        for number in range(60):
            self.clock.advance("10ms")
            self.stand(gate, f"t-{number}", f"p{number % 3}")
        waiters = gate.waiters()
        assert [waiter.id for waiter in waiters] == [f"t-{number}" for number in range(50)]
        assert [waiter.waiting_for for waiter in waiters[:2]] == [0.59, 0.58]
        assert gate.usage().waiting == 60

    def test_one_who_gives_up_leaves_nothing_behind(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"), Window(10, per="1m", name="w"))
        [permit] = self.take(gate)
        self.stand(gate, "a", "p1")
        self.store.decide(Cancel(gate.policy, "a"))
        assert gate.usage().waiting == 0
        self.stand(gate, "b", "p1")
        permit.release()  # b is called
        self.store.decide(Cancel(gate.policy, "b"))
        self.take(gate)
        assert gate.usage()["w"].used == 2

    def test_an_acquire_that_runs_out_of_time_leaves_nothing_behind(self) -> None:
        gate = self.gate(Concurrency(1, lease="1h"))
        [permit] = self.take(gate)
        assert self.raises(Denied, lambda: gate.acquire(timeout=0.01)).position == 1
        assert gate.usage().waiting == 0
        permit.release()
        self.take(gate)

"""Promise gates: each ask is given its time at once."""

from __future__ import annotations

from ...errors import Denied
from ...kernel.limits import Bucket, Window
from ...kernel.model import SECOND
from ..upstream import FakeUpstream
from .base import StoreHarness


class PromiseTests(StoreHarness):
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

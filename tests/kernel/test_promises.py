"""Generated histories on promise gates: each time is the earliest at which nothing is broken, then or later."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Bucket, Denied, Gate, Window
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock, FakeUpstream
from tests.kernel.test_limits import MS, Config, S, bucket, quota, window
from tests.support.oracle import GateOracle
from tests.support.stores import STORES, examples

CONFIGS = {
    "bucket": Config([bucket("b", 1000, 1_024_000, 40, 8192)], (1, 4.5, 30, 0.125, 40), longest=60 * MS),
    "two-buckets": Config(
        [
            bucket("fast", 1000, 1_024_000, 16, 0),
            bucket("slow", 1000, 8 * 1_024_000, 64, 16384, unit="pu"),
        ],
        (1, 4, 15.5),
        pu=(0.5, 8, 60),
        longest=100 * MS,
    ),
    "window": Config([window("w", 4, S, 100 * MS)], (1, 0.5, 2, 4)),
    "window-and-quota": Config(
        [window("w", 3, 2 * S, 0), quota("q", 8, "minute", "UTC", 100 * MS)], (1, 2, 3), longest=20 * S
    ),
    "window-and-bucket": Config(
        [window("w", 3, 64 * MS, 1920), bucket("pu", 1000, 1_024_000, 40, 0, unit="pu")],
        (1, 2),
        pu=(4.5, 24, 40),
        longest=60 * MS,
    ),
    "two-windows": Config([window("w", 2, S, 0), window("long", 5, 5 * S, 50 * MS)], (1, 2), longest=3 * S),
    "by-key": Config([window("w", 2, S, 0, by="org"), bucket("b", 1000, 8 * 1_024_000, 3, 0)], (1, 2)),
    "shares": Config(
        [bucket("b", 1000, 1_024_000, 40, 0)],
        (1, 9.5, 20),
        shares=(("live", 1.0), ("batch", 0.5)),
        longest=60 * MS,
    ),
}

EVENT = st.tuples(st.sampled_from("rrrrrcct"), st.integers(0, 1000), st.integers(0, 11))


class Promises:
    """One promise gate and its oracle, through the same events."""

    def __init__(self, config: Config, store: Any, clock: FakeClock) -> None:
        self.config, self.clock = config, clock
        shares = dict(config.shares)
        limits = [limit for limit, _ in config.limits]
        self.gate = Gate("gate", limits, store=store, waiting="promise", priorities=shares)
        self.oracle = GateOracle([rule for _, rule in config.limits], list(shares.values()), promise=True)
        self.places: list[tuple[int, Any, Any]] = []

    def reserve(self, one: int, two: int) -> None:
        config = self.config
        costs: dict[str, float] = {"requests": config.costs[one % len(config.costs)]}
        if config.pu:
            costs["pu"] = config.pu[two % len(config.pu)]
        key = {"org": "ab"[two % 2]} if config.by else {}
        names = [None, *(name for name, _ in config.shares)]
        priority = names[two % len(names)]
        rank = max(0, names.index(priority) - 1)
        now = self.clock()
        wanted = self.oracle.earliest(now, now, costs, key, rank)
        place = self.gate.reserve(costs, key or None, priority)
        given = now + round(place.delay * S)
        assert given == wanted, f"promised in {given - now}, the earliest is in {wanted - now}"
        self.places.append((given, place, self.oracle.charge(given, costs, key, rank)))
        self.check()

    def cancel(self, one: int, two: int) -> None:
        """Before its time: as if it had never been asked for."""
        ahead = [held for held in self.places if held[0] > self.clock()]
        if not ahead:
            return
        held = ahead[one % len(ahead)]
        self.places.remove(held)
        held[1].cancel()
        held[1].cancel()
        for _, limit, charge in held[2]:
            limit.charges.remove(charge)
        self.check()

    def time_passes(self, one: int, two: int) -> None:
        self.clock.advance(microseconds=one if two % 4 == 0 else self.config.longest * one // 1000)

    def check(self) -> None:
        assert self.oracle.holds()


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("store", STORES)
def test_every_promise_is_the_earliest_that_breaks_nothing(store: str, config: str) -> None:
    @examples(store, 200)
    @given(st.lists(EVENT, min_size=1, max_size=25))
    def histories(events: list[tuple[str, int, int]]) -> None:
        clock = FakeClock()
        with STORES[store](clock) as made:
            promises = Promises(CONFIGS[config], made, clock)
            for event, one, two in events:
                {"r": promises.reserve, "c": promises.cancel, "t": promises.time_passes}[event](one, two)

    histories()


@pytest.mark.parametrize("store", STORES)
def test_promised_calls_are_all_accepted_by_an_upstream_with_books_of_its_own(store: str) -> None:
    clock = FakeClock()
    with STORES[store](clock) as made:
        gate = Gate(
            "sentinel",
            [
                Bucket(70, per="1m", burst=7, slack="100ms", name="requests"),
                Bucket(130, per="1m", burst=31, slack="100ms", unit="pu", name="pu"),
                Window(40, per="30s", slack="100ms", name="half-minute"),
            ],
            store=made,
            waiting="promise",
        )
        calls = []
        for number in range(400):
            pu = (number * 37 % 50 + 1) / 7
            at = clock() + round(gate.reserve({"pu": pu}).delay * S)
            jitter = number * 37_717 % 100_000
            calls.append((at + jitter, pu))
            clock.advance(microseconds=number * 71_993 % 2_000_000)
    # Amounts are doubles: by 400 roundings, and no more, the books may differ.
    assert FakeUpstream(70, "1m", "bucket", burst=7).judge([(at, 1.0) for at, _ in calls]) == []
    assert FakeUpstream(130, "1m", "bucket", burst=31 + 1e-9).judge(calls) == []
    assert FakeUpstream(40, "30s").judge([(at, 1.0) for at, _ in calls]) == []


@pytest.mark.parametrize("store", STORES)
def test_a_small_ask_goes_before_a_large_promise_only_where_it_does_not_break_it(store: str) -> None:
    clock = FakeClock()
    with STORES[store](clock) as made:
        gate = Gate("g", [Bucket(10, per="10s", burst=10, slack=0)], store=made, waiting="promise")
        assert gate.reserve(6).delay == 0
        assert gate.reserve(10).delay == 6
        # Four are left now, but whoever takes one moves the promise of ten; after it there is room again.
        assert gate.reserve(1).delay == 7
        assert gate.reserve(4).delay == 11


@pytest.mark.parametrize("store", STORES)
def test_what_was_cancelled_can_be_had_again_at_the_same_time(store: str) -> None:
    clock = FakeClock()
    with STORES[store](clock) as made:
        gate = Gate("g", [Window(1, per="1s", slack=0)], store=made, waiting="promise", max_delay=5)
        places = [gate.reserve() for _ in range(6)]
        with pytest.raises(Denied, match="too late"):
            gate.reserve()
        for place in places[2:4]:
            place.cancel()
        assert [gate.reserve().delay for _ in range(2)] == [2, 3]


def test_a_promise_bucket_of_an_idle_key_is_forgotten_once_its_promises_are_long_past() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    gate = Gate("g", [Bucket(1, per="1s", slack=0, by="org")], store=store, waiting="promise")
    for number in range(20):
        for _ in range(3):
            gate.reserve(key={"org": f"idle-{number}"})
    assert len(store._gates["g"].states) == 20
    clock.advance("3h")
    for _ in range(600):
        gate.reserve(key={"org": "busy"})
        clock.advance("1s")
    assert len(store._gates["g"].states) == 1


@pytest.mark.parametrize("store", STORES)
def test_usage_tells_what_counts_and_what_is_promised_apart(store: str) -> None:
    clock = FakeClock()
    with STORES[store](clock) as opened:
        limits = [
            Bucket(1, per="1s", burst=1, slack=0, name="pace"),
            Bucket(10, per="1h", burst=10, slack=0, name="bucket"),
            Window(10, per="1h", slack=0, name="window"),
        ]
        gate = Gate("g", limits, store=opened, waiting="promise")
        for _ in range(8):
            gate.reserve()
        usage = gate.usage()
        assert [row.utilisation <= 1 for row in usage.limits] == [True] * 3
        assert (usage["pace"].used, usage["pace"].promised) == (1, 7)
        assert (usage["bucket"].used, usage["bucket"].promised) == (1, 7)
        assert (usage["window"].used, usage["window"].promised, usage["window"].available) == (1, 7, 2)
        assert gate.explain().goes_in == pytest.approx(8 * 3.6)  # a promise lies on the window's grid
        clock.advance("4s")
        usage = gate.usage()
        assert (usage["window"].used, usage["window"].promised) == (2, 6)

"""The line: who goes when, driven by the commands of many processes on a clock that stands still."""

from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Bucket, Concurrency, Gate, Window
from headgate.kernel import line
from headgate.kernel.commands import Admit, Cancel, Renew, Settle, Stand
from headgate.kernel.model import Grant, Wait
from headgate.kernel.plan import Policy
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.kernel.test_limits import MS, S, bucket, slots, window
from tests.support.oracle import BucketOracle, GateOracle
from tests.support.stores import STORES, examples


class Fleet:
    """Processes that stand in one line. A ticket's id is its name; its process is `session`."""

    def __init__(self, store: Any, clock: FakeClock, *limits: Any, **more: Any) -> None:
        self.store, self.clock = store, clock
        self.gate = Gate("line", limits, store=store, **more)
        self.policy = self.gate._policy
        self.asks: dict[str, Any] = {}
        self.granted: dict[str, Any] = {}
        self.order: list[str] = []

    def stand(self, id: str, session: str = "p", **ask: Any) -> bool:
        """Stand in line, or look again. True when granted."""
        if ask or id not in self.asks:
            self.asks[id] = (self.policy.plan(**ask), session)
        plan, session = self.asks[id]
        reply = self.store.decide(Stand(plan, id, None, plan.lease, waits=True, session=session))
        if isinstance(reply, Wait):
            return False
        assert isinstance(reply, Grant), reply
        self.granted[id] = reply
        self.order.append(id)
        return True

    def end(self, id: str, outcome: str = "ok") -> None:
        plan, _ = self.asks[id]
        self.store.decide(Settle(plan, self.granted.pop(id)[0], id, outcome, False))

    def cancel(self, id: str) -> None:
        self.store.decide(Cancel(self.policy, id))

    def beat(self, session: str, *ids: str) -> Any:
        return self.store.decide(Renew("line", (), session, ids))

    def called(self, *ids: str) -> list[str]:
        """Those of these tickets that are called, asked by the heartbeats of their own processes."""
        by_session: dict[str, list[str]] = {}
        for id in ids:
            by_session.setdefault(self.asks[id][1], []).append(id)
        return [id for session, mine in by_session.items() for id in self.beat(session, *mine).called]

    def run(self, *ids: str, rounds: int = 1, step: int = 0, hold: int = 0) -> list[str]:
        """Every waiter looks again, round after round; who is granted lets go at once. Returns who went, in order."""
        before = len(self.order)
        waiting = [id for id in ids if id not in self.order]
        for _ in range(rounds):
            for id in [id for id in self.called(*waiting) if id in waiting]:
                if self.stand(id):
                    waiting.remove(id)
                    if self.asks[id][0].lease:
                        self.end(id)
            self.clock.advance(microseconds=step)
        return self.order[before:]


@pytest.fixture(params=STORES)
def made(request: pytest.FixtureRequest) -> Any:
    clock = FakeClock()
    with STORES[request.param](clock) as store:
        yield store, clock


# --- generated histories ------------------------------------------------------------------------------------------

CONFIGS: dict[str, tuple[list[Any], tuple[str, ...], dict[str, float]]] = {
    "shared": ([slots("c", 2, 5 * S), window("w", 4, S, 0)], (), {}),
    "bucket": ([bucket("b", 1000, 1_024_000, 4, 1024), slots("c", 3, 5 * S)], (), {}),
    "keyed-buckets": ([bucket("b", 1, 1_024_000, 2, 0, by="org"), slots("all", 3, 5 * S)], ("org",), {}),
    "keyed": ([slots("org", 1, 5 * S, by="org"), slots("all", 2, 5 * S)], ("org",), {}),
    "two-keys": (
        [slots("org", 1, 5 * S, by="org"), slots("user", 1, 5 * S, by="user"), slots("all", 3, 5 * S)],
        ("org", "user"),
        {},
    ),
    "keyed-rates": ([window("org", 2, S, 0, by="org"), window("user", 1, S, 0, by="user")], ("org", "user"), {}),
    "classes": ([slots("c", 2, 5 * S), window("w", 4, S, 0)], (), {"live": 1.0, "batch": 0.5}),
    "keyed-classes": (
        [slots("org", 1, 5 * S, by="org"), slots("all", 2, 5 * S)],
        ("org",),
        {"live": 1.0, "batch": 1.0},
    ),
}

EVENT = st.tuples(st.sampled_from("ssssslllleeecbbtttn"), st.integers(0, 1000), st.integers(0, 17))


def room(limit: Any) -> Any:
    """How much of it can be used at once."""
    return limit.usable if isinstance(limit, BucketOracle) else limit.limit


class History:
    """A line that is told what happens, and lists that say what should be so."""

    def __init__(self, config: str, stack: ExitStack, mirrors: list[str]) -> None:
        limits, self.keys, shares = CONFIGS[config]
        self.clock = FakeClock()
        self.fleets = [
            Fleet(
                stack.enter_context(STORES[name](self.clock)),
                self.clock,
                *(real for real, _ in limits),
                priorities=shares,
                claim="1s",  # every store has one of its own otherwise
            )
            for name in ["memory", *mirrors]
        ]
        self.names = list(shares)
        self.oracle = GateOracle([rule for _, rule in limits], list(shares.values()))
        self.waiting: dict[str, tuple[dict[str, str], int]] = {}
        self.put: dict[str, Any] = {}
        self.number = 0
        self.told = False
        #: A bucket may keep some of what is given back, and then no longer has the room that the lists say.
        self.exact = not any(isinstance(limit, Bucket) for limit, _ in limits)

    def all(self, do: Any) -> Any:
        """The same on every store: their answers must not differ."""
        self.told = True
        answers = [do(fleet) for fleet in self.fleets]
        # But for the fence of a grant: a store that writes no refusal down does not number it either.
        seen = [answer._replace(fence=0) if isinstance(answer, Grant) else answer for answer in answers]
        assert all(answer == seen[0] for answer in seen), answers
        return answers[0]

    def ask(self, one: int, two: int) -> tuple[dict[str, Any], dict[str, str], int]:
        key = {by: "ab"[(one >> at) & 1] for at, by in enumerate(self.keys)}
        rank = two % len(self.names) if self.names else 0
        return {"key": key or None, "priority": self.names[rank] if self.names else None}, key, rank

    def s(self, one: int, two: int) -> None:
        ask, key, rank = self.ask(one, two)
        self.number += 1
        id = f"t{self.number}"
        self.waiting[id] = (key, rank)
        if self.all(lambda fleet: fleet.stand(id, f"p{two % 3}", **ask)):
            self.charge(id)

    def l(self, one: int, two: int) -> None:  # noqa: E743
        if self.waiting:
            id = list(self.waiting)[one % len(self.waiting)]
            if self.all(lambda fleet: fleet.stand(id)):
                self.charge(id)

    def n(self, one: int, two: int) -> None:
        """Somebody who does not wait: granted only where nobody who waits could have gone."""
        ask, key, rank = self.ask(one, two)
        plan = self.fleets[0].policy.plan(**ask)
        self.number += 1
        id = f"t{self.number}"
        command = Stand(plan, id, None, plan.lease)
        reply = self.all(lambda fleet: fleet.store.decide(command))
        if isinstance(reply, Grant):
            self.waiting[id] = (key, rank)
            for fleet in self.fleets:
                fleet.asks[id], fleet.granted[id] = (plan, ""), reply
            self.charge(id)

    def charge(self, id: str) -> None:
        key, rank = self.waiting.pop(id)
        now = self.clock()
        for rule, _, limit in self.oracle.limits(key, rank):
            assert limit.used(now) + 1 <= room(limit), f"{id} was granted beyond {rule.name}"
        self.put[id] = self.oracle.charge(now, {"requests": 1}, key, rank, id, now + 5 * S)

    def e(self, one: int, two: int) -> None:
        if self.put:
            id = list(self.put)[one % len(self.put)]
            outcome = ("ok", "error", "unsent" if self.exact else "error")[two % 3]
            self.all(lambda fleet: fleet.end(id, outcome))
            put = self.put.pop(id)
            lost = any(rule.slots and charge.expires <= self.clock() for rule, _, charge in put)
            for rule, limit, charge in put:
                if rule.slots:
                    charge.expires = min(charge.expires, self.clock())
                elif outcome == "unsent" and not lost:
                    limit.charges.remove(charge)

    def c(self, one: int, two: int) -> None:
        if self.waiting:
            id = list(self.waiting)[one % len(self.waiting)]
            self.waiting.pop(id)
            self.all(lambda fleet: fleet.cancel(id))

    def b(self, one: int, two: int) -> None:
        mine = [id for id in self.waiting if self.fleets[0].asks[id][1] == f"p{two % 3}"]
        if mine:
            pulse = self.all(lambda fleet: fleet.beat(f"p{two % 3}", *mine))
            for id in pulse.unknown:
                del self.waiting[id]

    def t(self, one: int, two: int) -> None:
        self.clock.advance(microseconds=[one, one * MS, 500 * MS, 100 * MS, S, 3 * S][two % 6])

    def check(self) -> None:
        """Whoever could go has been called: with equal costs, no ticket that stands in line fits."""
        records = self.fleets[0].store._gates.get("line")
        if records is None:
            return
        tickets = [records.space("tickets").get(id) for id in list(records.space("tickets"))]
        held: Counter[int] = Counter()
        for ticket in tickets:
            if ticket[13]:
                for _, _, limit in self.oracle.limits(dict(ticket[2][3]), ticket[4]):
                    held[id(limit)] += 1
        now = max(self.clock(), records.head.now)
        for _, _, limit in [row for ticket in tickets for row in self.oracle.limits(dict(ticket[2][3]), ticket[4])]:
            assert limit.used(now) + held[id(limit)] <= room(limit), "more was called than there is room for"
        for ticket in tickets:
            if not ticket[13] and not ticket[14]:
                free = [
                    limit.used(now) + held[id(limit)] + 1 <= room(limit)
                    for _, _, limit in self.oracle.limits(dict(ticket[2][3]), ticket[4])
                ]
                assert not all(free), f"{ticket[0]} could go and was not called"


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("store", STORES)
def test_no_capacity_idles_while_somebody_could_use_it(store: str, config: str) -> None:
    @examples(store, 150)
    @given(st.lists(EVENT, min_size=1, max_size=40))
    def histories(events: list[tuple[str, int, int]]) -> None:
        with ExitStack() as stack:
            history = History(config, stack, [] if store == "memory" else [store])
            for event, one, two in events:
                history.told = False
                getattr(history, event)(one, two)
                if history.told:
                    history.check()

    histories()


# --- turns --------------------------------------------------------------------------------------------------------


def test_ten_thousand_asks_of_one_tenant_delay_anothers_first_by_one_turn() -> None:
    clock = FakeClock()
    fleet = Fleet(
        MemoryStore(clock=clock), clock, Concurrency(1, lease="1h", name="all"), Concurrency(1000, name="org", by="org")
    )
    fleet.stand("holder", key={"org": "big"})
    for number in range(10_000):
        assert not fleet.stand(f"big-{number}", "big", key={"org": "big"})
    fleet.stand("small", "small", key={"org": "small"})
    fleet.end("holder")
    went = []
    for _ in range(3):
        [next_one] = (
            fleet.beat("big", *(f"big-{number}" for number in range(3))).called + fleet.beat("small", "small").called
        )
        assert fleet.stand(next_one)
        went.append(next_one)
        fleet.end(next_one)
    assert went.index("small") <= 1


def test_lanes_take_turns_by_what_they_take_and_not_by_how_often_they_ask(made: Any) -> None:
    fleet = Fleet(*made, Window(10, per="1s", slack=0, name="w"), Concurrency(100, name="org", by="org"))
    assert fleet.stand("first", cost=10, key={"org": "x"})
    for number in range(12):
        fleet.stand(f"large-{number}", "a", cost=4, key={"org": "large"})
        fleet.stand(f"small-{number}", "b", cost=1, key={"org": "small"})
    went = fleet.run(*fleet.asks, rounds=10, step=S)
    units = Counter({"large": 0, "small": 0})
    for id in went:
        units[id.partition("-")[0]] += 4 if id.startswith("large") else 1
        if units["small"] < 12:
            assert abs(units["large"] - units["small"]) <= 8


def test_a_large_ask_is_waited_for_and_not_starved_by_small_ones(made: Any) -> None:
    fleet = Fleet(*made, Bucket(10, per="1s", burst=10, slack=0))
    fleet.stand("start", cost=10)
    fleet.stand("large", "a", cost=9)
    for number in range(30):
        fleet.clock.advance("50ms")
        assert not fleet.stand(f"small-{number}", "b", cost=1) or "large" in fleet.order
        if fleet.called("large") and fleet.stand("large"):
            break
    assert "large" in fleet.order
    assert fleet.clock() - FakeClock().now <= 900 * MS


def test_one_tenant_is_not_starved_by_ever_new_tenants(made: Any) -> None:
    fleet = Fleet(*made, Concurrency(1, lease="1h", name="all"), Concurrency(5, name="org", by="org"))
    fleet.stand("holder", key={"org": "first"})
    fleet.stand("last-by-name", "p1", key={"org": "zzz"})
    holder = "holder"
    for number in range(10):
        for twin in "ab":
            fleet.stand(f"new-{number}{twin}", "p2", key={"org": f"a{number}{twin}"})
        fleet.end(holder)
        [holder] = fleet.called(*(id for id in fleet.asks if id not in fleet.order))
        assert fleet.stand(holder)
        if holder == "last-by-name":
            break
    assert fleet.order.index("last-by-name") == 1


def test_a_parked_lane_delays_nobody_else(made: Any) -> None:
    fleet = Fleet(*made, Concurrency(1, lease="1h", name="org", by="org"), Concurrency(10, name="all"))
    fleet.stand("a0", key={"org": "a"})
    for number in range(5):
        assert not fleet.stand(f"a{number + 1}", "a", key={"org": "a"})
    assert fleet.stand("b0", "b", key={"org": "b"})
    assert fleet.gate.try_acquire(key={"org": "c"}, renew=False) is not None
    assert fleet.gate.try_acquire(key={"org": "a"}, renew=False) is None
    fleet.end("a0")
    assert fleet.run("a1", "a2", rounds=2) == ["a1", "a2"]


def test_a_large_ask_of_a_key_is_not_starved_by_small_ones_of_the_same_key(made: Any) -> None:
    fleet = Fleet(
        *made,
        Bucket(10, per="1s", burst=10, slack=0, name="org", by="org"),
        Concurrency(100, name="user", by="user"),
        priorities={"live": 1.0, "batch": 1.0},
    )
    key = {"org": "a", "user": "x"}
    fleet.stand("start", cost=10, key=key)
    fleet.stand("large", "p1", cost=9, key=key)
    for number in range(30):
        fleet.clock.advance("50ms")
        other = {"org": "a", "user": f"u{number}"}
        fleet.stand(f"other-{number}", "p2", cost=0.5, key=other)
        fleet.stand(f"lower-{number}", "p3", cost=0.5, key=key, priority="batch")
        fleet.gate.try_acquire(0.5, key={"org": "a", "user": f"v{number}"}, renew=False)
        for id in fleet.called(*(id for id in fleet.asks if id not in fleet.order)):
            fleet.stand(id)
        if "large" in fleet.order:
            break
    assert "large" in fleet.order, "small asks overtook it for ever"
    assert fleet.clock() - FakeClock().now <= 900 * MS


def test_a_higher_class_goes_first(made: Any) -> None:
    fleet = Fleet(*made, Concurrency(1, lease="1h"), priorities={"live": 1.0, "batch": 1.0})
    fleet.stand("holder")
    for number in range(3):
        fleet.stand(f"batch-{number}", "p1", priority="batch")
    for number in range(3):
        fleet.stand(f"live-{number}", "p2", priority="live")
    fleet.end("holder")
    assert fleet.run(*fleet.asks, rounds=6) == [f"{name}-{number}" for name in ("live", "batch") for number in range(3)]


def test_a_higher_class_goes_first_within_one_key_too(made: Any) -> None:
    fleet = Fleet(
        *made, Concurrency(1, lease="1h", name="org", by="org"), Concurrency(10), priorities={"live": 1.0, "batch": 1.0}
    )
    key = {"org": "a"}
    fleet.stand("holder", key=key)
    for number in range(3):
        fleet.stand(f"batch-{number}", "p1", priority="batch", key=key)
    for number in range(4):
        fleet.stand(f"live-{number}", "p2", priority="live", key=key)
    fleet.end("holder")
    went = fleet.run(*fleet.asks, rounds=7)
    assert went == [*(f"live-{number}" for number in range(4)), *(f"batch-{number}" for number in range(3))]


def test_patience_bounds_starvation(made: Any) -> None:
    fleet = Fleet(*made, Concurrency(1, lease="1h"), priorities={"live": 1.0, "batch": 1.0}, patience="10s")
    fleet.stand("holder")
    fleet.stand("old", "p1", priority="batch")
    went: list[str] = []
    holder = "holder"
    for number in range(40):
        fleet.stand(f"live-{number}", "p2", priority="live")
        fleet.clock.advance("500ms")
        fleet.end(holder)
        [holder] = fleet.called("old", f"live-{number}") or [""]
        assert fleet.stand(holder)
        went.append(holder)
        if holder == "old":
            break
        # The one of this round went; nobody but the patient one is left over.
    waited = fleet.clock() - FakeClock().now
    assert "old" in went
    assert 9 * S <= waited <= 11 * S


def test_a_lower_class_that_waits_for_its_share_does_not_hold_back_a_higher_one(made: Any) -> None:
    fleet = Fleet(*made, Concurrency(4, lease="1h"), priorities={"live": 1.0, "batch": 0.5})
    for number in range(2):
        assert fleet.stand(f"batch-{number}", priority="batch")
    assert not fleet.stand("batch-2", priority="batch")
    assert fleet.stand("live-0", "p2", priority="live")
    assert fleet.gate.try_acquire(priority="live", renew=False) is not None


# --- calls and sessions -------------------------------------------------------------------------------------------


def test_a_call_that_is_not_taken_goes_to_another_process_after_one_claim(made: Any) -> None:
    fleet = Fleet(*made, Concurrency(1, lease="1h"), Window(10, per="1m", slack=0, name="w"), claim="1s")
    fleet.stand("holder")
    for name in ("dead-1", "dead-2", "dead-3"):
        fleet.stand(name, "dead")
    fleet.stand("alive", "alive")
    fleet.end("holder")
    fleet.clock.advance(microseconds=S - 1)
    assert fleet.called("alive") == []
    fleet.clock.advance(microseconds=1)
    # One claim for the whole process, not one for each of its tickets.
    assert fleet.called("alive") == ["alive"]
    assert fleet.stand("alive")
    assert fleet.gate.usage()["w"].used == 2


def test_a_sleeping_process_is_skipped_and_comes_back_to_its_place(made: Any) -> None:
    fleet = Fleet(*made, Concurrency(1, lease="1h"), claim="1s")
    fleet.stand("holder")
    for name, process in (("s1", "sleepy"), ("s2", "sleepy"), ("a1", "awake"), ("a2", "awake")):
        fleet.stand(name, process)
    fleet.end("holder")
    fleet.clock.advance("1s")
    assert fleet.called("a1", "a2") == ["a1"]
    assert fleet.stand("a1")
    assert not fleet.stand("s1")
    fleet.end("a1")
    assert fleet.run("s1", "s2", "a2", rounds=3) == ["s1", "s2", "a2"]


def test_a_call_is_stamped_when_it_is_taken(made: Any) -> None:
    fleet = Fleet(*made, Window(1, per="10s", slack=0, name="w"))
    fleet.stand("first")
    fleet.stand("second")
    fleet.clock.advance("10s")
    assert fleet.called("second") == ["second"]
    fleet.clock.advance("700ms")
    assert fleet.stand("second")
    assert fleet.granted["second"].at == fleet.clock()
    assert round(fleet.gate.explain().goes_in * S) == 10 * S


def test_tickets_of_a_process_that_died_leave_and_what_they_held_is_back(made: Any) -> None:
    fleet = Fleet(*made, Concurrency(2, lease="1h"), claim="1m")
    fleet.stand("one")
    fleet.stand("two")
    fleet.stand("dead-1", "dead")
    fleet.stand("dead-2", "dead")
    fleet.end("one")  # dead-1 is called
    for _ in range(4):
        fleet.stand("alive", "alive")
        fleet.clock.advance("3s")
    assert fleet.stand("alive")
    assert fleet.gate.usage().waiting == 0
    assert fleet.beat("dead", "dead-1", "dead-2").unknown == ("dead-1", "dead-2")


def test_a_paused_line_calls_nobody_and_goes_on_in_order(made: Any) -> None:
    fleet = Fleet(*made, Concurrency(1, lease="1h"))
    fleet.stand("holder")
    fleet.stand("a", "p1")
    fleet.stand("b", "p2")
    fleet.gate.pause(5)
    fleet.end("holder")
    fleet.clock.advance("4s")
    assert fleet.called("a", "b") == []
    fleet.clock.advance("1s")
    assert fleet.run("a", "b", rounds=2) == ["a", "b"]


def test_raising_a_limit_calls_those_who_fit_now(made: Any) -> None:
    fleet = Fleet(*made, Concurrency(1, lease="1h", name="c", by="org"), Concurrency(10, name="all"))
    fleet.stand("holder", key={"org": "a"})
    for number in range(4):
        fleet.stand(f"w{number}", key={"org": "a"})
    fleet.gate.set_limit("c", 3, key={"org": "a"})
    assert sorted(fleet.called("w0", "w1", "w2", "w3")) == ["w0", "w1"]


def test_lowering_a_limit_below_a_waiting_cost_sends_the_waiter_away(made: Any) -> None:
    fleet = Fleet(*made, Window(10, per="1s", slack=0, name="w"))
    fleet.stand("first", cost=10)
    fleet.stand("large", "p1", cost=8)
    fleet.stand("small", "p2", cost=2)
    fleet.gate.set_limit("w", 5)
    fleet.clock.advance("1s")
    assert fleet.run("small") == ["small"]
    assert fleet.beat("p1", "large").unknown == ("large",)


@pytest.mark.parametrize("limits", [[Window(1, per="1m", slack=0, name="w")], [Bucket(1, per="1m", slack=0, name="w")]])
@pytest.mark.parametrize("order", ["ab", "ba"])
def test_after_a_reset_calls_that_were_out_do_not_add_to_what_is_called_anew(
    made: Any, order: str, limits: list[Any]
) -> None:
    fleet = Fleet(*made, *limits)
    fleet.stand("first")
    fleet.stand("a", "p1")
    fleet.stand("b", "p2")
    fleet.clock.advance("1m")
    assert fleet.called("a", "b") == ["a"]
    fleet.gate.reset()
    granted = [id for id in order if fleet.stand(id)]
    assert granted == ["a"]
    assert fleet.gate.usage()["w"].used == 1


def test_a_ticket_that_gives_up_makes_way_for_those_behind_it(made: Any) -> None:
    fleet = Fleet(*made, Bucket(10, per="1s", burst=10, slack=0))
    fleet.stand("start", cost=8)
    fleet.stand("large", "p1", cost=10)
    fleet.stand("small", "p2", cost=2)
    assert fleet.called("small") == []
    fleet.cancel("large")
    assert fleet.called("small") == ["small"]


def test_a_pause_is_slept_through_and_not_asked_through(made: Any) -> None:
    fleet = Fleet(*made, Concurrency(1, lease="1h", name="org", by="org"), Concurrency(10, name="all"))
    fleet.stand("holder", key={"org": "a"})
    fleet.stand("a", "p1", key={"org": "a"})
    fleet.gate.pause(5)
    fleet.end("holder")
    pulse = fleet.beat("p1", "a")
    assert pulse.timer == "a"
    assert pulse.timer_at - pulse.now == 5 * S


@pytest.mark.parametrize("limit", [Bucket(10, per="1m", slack="1s"), Window(10, per="1m"), Concurrency(10, lease="1h")])
def test_after_a_long_pause_no_more_are_called_than_there_is_room_for(made: Any, limit: Any) -> None:
    fleet = Fleet(*made, limit)
    fleet.stand("before")
    fleet.gate.pause("10m")
    waiting = [f"w{number}" for number in range(30)]
    for id in waiting:
        fleet.stand(id, "p1")
    for _ in range(100):
        fleet.clock.advance("6s")
        fleet.beat("p1", *waiting)
    called = fleet.called(*waiting)
    assert len(called) == (9 if limit.leased or limit.kind == "bucket" else 10)
    assert all(fleet.stand(id) for id in called)
    assert fleet.gate.usage().limits[0].used == (10 if limit.leased else len(called))


def test_so_many_of_a_dead_crowd_leave_at_a_time_and_none_of_them_is_called() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    policy = Policy("g", [Concurrency(1, lease="1h", name="c")])
    plan = policy.plan()

    def stand(id: str, session: str) -> Any:
        return store.decide(Stand(plan, id, None, plan.lease, waits=True, session=session))

    held = stand("held", "holder")
    for number in range(1200):
        stand(f"dead-{number}", "dead")
    stand("alive", "alive")
    records = store._gates["g"]
    woken: list[int | None] = []
    store.listen("dead-1199", woken.append)
    clock.advance("6s")
    store.decide(Renew("g", (), "alive", ("alive",)))
    clock.advance("5s")
    store.decide(Settle(plan, held.at, "held", "ok"))
    assert (len(records.tickets), len(records.calls)) == (1201 - line.BURIED, 0)
    assert isinstance(store.decide(Admit(plan, "other", None, plan.lease)), Wait)  # not before those who are alive
    assert (len(records.tickets), len(records.calls)) == (1201 - 2 * line.BURIED, 0)
    assert line.line_state(records).timer == "alive"
    assert woken == []
    store.decide(Renew("g"))
    assert (len(records.tickets), [id for _, id in records.calls.scan()]) == (1, ["alive"])
    assert woken == [None]  # should it live after all: it asks again
    assert isinstance(stand("alive", "alive"), Grant)


def test_a_process_that_is_heard_of_while_its_tickets_leave_keeps_those_that_are_left() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    policy = Policy("g", [Concurrency(1, lease="1h", name="c")])
    plan = policy.plan()

    def stand(id: str) -> Any:
        return store.decide(Stand(plan, id, None, plan.lease, waits=True, session="slow"))

    held = stand("held")
    for number in range(line.BURIED + 2):
        stand(f"slow-{number}")
    clock.advance("11s")
    store.decide(Renew("g"))
    pulse = store.decide(Renew("g", (), "slow", ("slow-0", f"slow-{line.BURIED}")))
    assert pulse.unknown == ("slow-0",)
    store.decide(Settle(plan, held.at, "held", "ok"))
    assert isinstance(stand(f"slow-{line.BURIED}"), Grant)
    assert isinstance(stand(f"slow-{line.BURIED + 1}"), Wait)

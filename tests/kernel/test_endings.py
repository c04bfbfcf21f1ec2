"""How permits end: what is confirmed, settled, given back and lost, and that it happens once."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Bucket, Concurrency, Gate, IdConflict, InvalidInput, LeaseLost, Quota, Window
from headgate.testing import FakeClock, FakeUpstream
from tests.support.stores import STORES, examples

S = 1_000_000


@pytest.fixture(params=STORES)
def made(request: pytest.FixtureRequest) -> Any:
    clock = FakeClock()
    with STORES[request.param](clock) as store:
        yield store, clock


def take(gate: Gate, **ask: Any) -> Any:
    permit = gate.try_acquire(renew=False, **ask)
    assert permit is not None
    return permit


def wait(gate: Gate, **ask: Any) -> int:
    """Microseconds until it would go."""
    after = gate.explain(**ask).goes_in
    assert after is not None
    return round(after * S)


# --- confirming ---------------------------------------------------------------------------------------------------


def test_confirming_twice_is_confirming_once(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Window(2, per="10s", slack="1s", name="w")], store=store)
    first, _ = take(gate), take(gate)
    clock.advance("100ms")
    first.confirm()
    clock.advance("100ms")
    first.confirm()
    first.release()
    # The first counts until 10.1 s; the second was never confirmed, and counts until 11 s.
    assert wait(gate) == 9_900_000
    clock.advance("9.9s")
    take(gate)
    assert wait(gate) == 900_000


def test_an_answer_after_the_slack_confirms_nothing_that_was_not_so_before(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Window(1, per="10s", slack="1s")], store=store)
    permit = take(gate)
    clock.advance("3s")
    permit.release("ok")
    assert wait(gate) == 8 * S


def test_what_was_confirmed_cannot_be_unsent(made: Any) -> None:
    store, _ = made
    gate = Gate("g", [Window(1, per="10s", slack="1s")], store=store)
    permit = take(gate)
    permit.confirm()
    with pytest.raises(InvalidInput, match="confirmed"):
        permit.release("unsent")
    assert gate.try_acquire() is None


@pytest.mark.parametrize("store", STORES)
def test_confirmed_or_not_the_upstream_never_sees_more_than_its_limit(store: str) -> None:
    @examples(store, 150)
    @given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300), st.booleans()), min_size=20, max_size=60))
    def histories(calls: list[tuple[int, int, bool]]) -> None:
        clock = FakeClock()
        with STORES[store](clock) as opened:
            gate = Gate("g", [Window(4, per="1s", slack="300ms")], store=opened)
            arrivals: list[tuple[int, float]] = []
            answers: list[tuple[int, Any]] = []
            for pause, delay, answered in calls:
                clock.advance(microseconds=pause * 1000)
                for at, permit in [answer for answer in answers if answer[0] <= clock()]:
                    answers.remove((at, permit))
                    permit.release("ok")
                permit = gate.try_acquire()
                if permit is not None:
                    # It arrives within the slack, and is answered once it has arrived.
                    arrivals.append((clock() + delay * 1000, 1.0))
                    if answered:
                        answers.append((clock() + delay * 1000, permit))
            assert FakeUpstream(4, "1s").judge(arrivals) == []

    histories()


# --- settling and giving back -------------------------------------------------------------------------------------


def test_settling_after_a_confirmation_gives_back_from_where_it_counts(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Window(10, per="10s", slack="1s", unit="pu", name="w")], store=store)
    permit = take(gate, cost={"pu": 8})
    clock.advance("500ms")
    permit.confirm()
    permit.settle({"pu": 3})
    assert gate.usage()["w"].used == 3
    permit.settle({"pu": 5})
    assert gate.usage()["w"].used == 5
    permit.release()
    clock.advance("10.5s")
    assert gate.usage()["w"].used == 0


def test_settling_to_nothing_leaves_nothing(made: Any) -> None:
    store, _ = made
    limits = [
        Window(10, per="10s", unit="pu", name="w"),
        Bucket(10, per="10s", unit="pu", name="b"),
        Quota(10, unit="pu", name="q"),
    ]
    gate = Gate("g", limits, store=store)
    permit = take(gate, cost={"pu": 8})
    permit.settle({"pu": 0})
    assert [limit.used for limit in gate.usage().limits] == [0, 0, 0]
    permit.release()
    assert [limit.used for limit in gate.usage().limits] == [0, 0, 0]


def test_settling_upwards_holds_back_those_who_come_later(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Bucket(10, per="10s", burst=10, slack=0, unit="pu", name="b")], store=store)
    permit = take(gate, cost={"pu": 1})
    permit.settle({"pu": 25})
    assert gate.usage()["b"].used == 25
    assert wait(gate, cost={"pu": 5}) == 20 * S
    clock.advance("20s")
    take(gate, cost={"pu": 5})


def test_settling_a_unit_that_the_gate_does_not_know_is_an_error_and_charges_nothing(made: Any) -> None:
    store, _ = made
    gate = Gate("g", [Window(10, per="10s", name="w")], store=store)
    permit = take(gate)
    for wrong in ({"pu": 1}, {"requests": -1}, {"requests": float("nan")}):
        with pytest.raises(InvalidInput):
            permit.settle(wrong)
    assert gate.usage()["w"].used == 1


def test_what_is_unsent_after_it_stopped_counting_takes_nothing_from_anybody(made: Any) -> None:
    store, clock = made
    limits = [Window(2, per="10s", slack=0, name="w"), Quota(2, "minute", slack=0, name="q")]
    gate = Gate("g", limits, store=store)
    old = [take(gate), take(gate)]
    clock.advance("1m")
    take(gate)
    take(gate)
    for permit in old:
        permit.release("unsent")
    assert gate.try_acquire() is None
    assert [limit.used for limit in gate.usage().limits] == [2, 2]


def test_a_bucket_gives_back_no_more_than_what_still_counts_of_a_charge(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Bucket(10, per="10s", burst=10, slack=0, name="b")], store=store)
    old = take(gate, cost=8)
    clock.advance("8s")  # all of it has run off
    take(gate, cost=10)
    old.release("unsent")
    assert gate.usage()["b"].used == 10
    assert gate.try_acquire() is None


def test_a_busy_bucket_uses_nearly_all_of_its_rate_though_every_second_call_is_not_sent(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Bucket(100, per="10s", burst=100, slack=0)], store=store)
    under_way: list[tuple[int, Any]] = []
    asked = sent = 0
    for step in range(600):
        clock.advance("50ms")
        while under_way and under_way[0][0] <= clock():
            under_way.pop(0)[1].release("unsent")
        while (permit := gate.try_acquire()) is not None:
            asked += 1
            if asked % 2:
                under_way.append((clock() + 300_000, permit))
            elif step >= 100:
                sent += 1
    # 25 s at 10 a second.
    assert 0.93 * 250 <= sent <= 250


@pytest.mark.parametrize("store", STORES)
def test_whatever_is_given_back_the_upstream_bucket_never_overflows(store: str) -> None:
    event = st.tuples(st.sampled_from("aaatue"), st.integers(0, 60), st.integers(0, 20))

    @examples(store, 300)
    @given(st.lists(event, min_size=5, max_size=40))
    def histories(events: list[tuple[str, int, int]]) -> None:
        clock = FakeClock()
        with STORES[store](clock) as opened:
            gate = Gate("g", [Bucket(1000, per=1.024, burst=40, slack=0, name="b")], store=opened)
            held: list[tuple[int, int, Any]] = []
            sent: list[tuple[int, float]] = []
            for what, one, two in events:
                if what == "t":
                    clock.advance(microseconds=one * 1024)
                elif what == "a":
                    permit = gate.try_acquire(one % 40 + 1)
                    if permit is not None:
                        held.append((clock(), one % 40 + 1, permit))
                elif held:
                    at, cost, permit = held.pop(two % len(held))
                    if what == "u":
                        permit.release("unsent")
                    else:
                        sent.append((at, cost))
            sent += [(at, cost) for at, cost, _ in held]
        assert FakeUpstream(1000, 1.024, "bucket", burst=40).judge(sent) == []

    histories()


# --- once ---------------------------------------------------------------------------------------------------------


def test_released_by_id_and_by_its_holder_it_is_given_back_once(made: Any) -> None:
    store, _ = made
    gate = Gate("g", [Concurrency(5, name="c"), Window(5, per="1m", name="w")], store=store)
    permit, _ = take(gate), take(gate)
    assert gate.release(permit.id, "unsent")
    assert permit.release("unsent") is False
    assert (gate.usage()["c"].used, gate.usage()["w"].used) == (1, 1)


def test_released_by_id_and_by_its_holder_it_is_confirmed_once(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Concurrency(5, lease="1m"), Window(2, per="10s", slack="1s", name="w")], store=store)
    permit, _ = take(gate), take(gate)
    clock.advance("100ms")
    assert gate.release(permit.id)
    clock.advance("100ms")
    assert permit.release() is False
    clock.advance("9.9s")
    take(gate)
    assert wait(gate) == 900_000


def test_a_late_release_of_an_expired_lease_changes_nothing_for_anybody(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Concurrency(1, lease="1s", name="c"), Window(9, per="1m", slack=0, name="w")], store=store)
    late = take(gate)
    clock.advance("1s")
    other = take(gate)
    assert late.release("unsent") is False
    with pytest.raises(LeaseLost):
        late.renew()
    assert [holder.id for holder in gate.holders()] == [other.id]
    assert gate.usage()["w"].used == 2
    assert other.release()


def test_an_expired_lease_is_not_shown_as_used(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Concurrency(3, lease="1s", name="c")], store=store)
    take(gate)
    clock.advance("1s")
    assert gate.usage()["c"].used == 0
    assert gate.holders() == []


# --- ids ----------------------------------------------------------------------------------------------------------


def test_an_id_stands_for_one_ask_on_a_line_a_promise_and_a_lease(made: Any) -> None:
    store, _ = made
    for name, limits, waiting in (
        ("rates", [Window(9, per="1m", name="x")], "line"),
        ("slots", [Concurrency(9, name="x")], "line"),
        ("promises", [Bucket(9, per="1m", burst=1, name="x")], "promise"),
    ):
        gate = Gate(name, limits, store=store, waiting=waiting)
        ask = gate.reserve if waiting == "promise" else lambda gate=gate, **a: gate.acquire(timeout=0, renew=False, **a)
        first = ask(id="job")
        again = ask(id="job")
        assert getattr(first, "delay", 0) == getattr(again, "delay", 0)
        assert gate.usage()["x"].used == 1
        if waiting == "line" and name == "rates":
            with pytest.raises(IdConflict):
                ask(id="job", cost=2)
        assert gate.usage()["x"].used == 1


def test_an_id_that_is_forgotten_stands_for_a_new_ask(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Window(5, per="1s", name="w")], store=store)
    gate.acquire(id="nightly", timeout=0)
    clock.advance("1d")
    gate.acquire(id="nightly", timeout=0)
    assert gate.usage()["w"].used == 1


# --- overrides ----------------------------------------------------------------------------------------------------


def test_the_override_of_a_key_wins_over_that_of_the_limit_and_classes_get_their_share_of_it(made: Any) -> None:
    store, _ = made
    gate = Gate("g", [Concurrency(4, name="org", by="org")], store=store, priorities={"live": 1.0, "batch": 0.5})
    gate.set_limit("org", 10)
    gate.set_limit("org", 20, key={"org": "vip"})

    def count(org: str, priority: str) -> int:
        granted = 0
        while gate.try_acquire(key={"org": org}, priority=priority, renew=False) is not None:
            granted += 1
        return granted

    assert [count("a", "batch"), count("a", "live")] == [5, 5]
    assert [count("vip", "batch"), count("vip", "live")] == [10, 10]


def test_a_cost_above_an_override_is_denied_at_once_and_goes_again_when_it_ends(made: Any) -> None:
    store, _ = made
    gate = Gate("g", [Window(10, per="1m", name="w")], store=store)
    gate.set_limit("w", 3)
    why = gate.explain(5)
    assert not why.granted
    assert why.goes_in is None
    gate.clear_limit("w")
    take(gate, cost=5)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "5", None, True])
def test_an_override_that_makes_no_sense_is_refused_and_changes_nothing(made: Any, wrong: Any) -> None:
    store, _ = made
    gate = Gate("g", [Window(10, per="1m", name="w")], store=store)
    if wrong is not None:
        with pytest.raises(InvalidInput):
            gate.set_limit("w", wrong)
    with pytest.raises(InvalidInput):
        gate.set_limit("nothing", 5)
    assert gate.overrides() == []

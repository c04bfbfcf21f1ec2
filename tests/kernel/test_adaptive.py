"""Adaptive concurrency: one working limit for everybody, moved by how calls end."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Aimd, Concurrency, Gate, Window
from headgate.events import Event, subscribe
from headgate.testing import FakeClock
from tests.support.stores import STORES, examples


@pytest.fixture(params=STORES)
def made(request: pytest.FixtureRequest) -> Any:
    clock = FakeClock()
    with STORES[request.param](clock) as store:
        yield store, clock


def adaptive(store: Any, limit: int = 40, **aimd: int) -> Gate:
    return Gate("g", [Concurrency(limit, lease="1h", name="c", adaptive=Aimd(**aimd))], store=store)


def fill(gate: Gate) -> list[Any]:
    return list(iter(lambda: gate.try_acquire(renew=False), None))


def working(gate: Gate) -> float:
    return gate.usage()["c"].limit


def test_it_starts_where_it_was_told_and_grants_no_more(made: Any) -> None:
    gate = adaptive(made[0], start=8)
    assert len(fill(gate)) == 8


def test_twenty_six_refusals_of_one_congestion_are_one_shrink(made: Any) -> None:
    store, clock = made
    gate = adaptive(store, start=30, decrease=2)
    permits = fill(gate)
    for permit in permits[:26]:
        clock.advance("10ms")
        permit.release("overloaded")
    assert working(gate) == 28


def test_a_refusal_of_what_was_granted_after_the_shrink_shrinks_again(made: Any) -> None:
    store, clock = made
    gate = adaptive(store, start=10, decrease=3)
    old = fill(gate)
    clock.advance("1s")
    old.pop().release("rate_limited")
    assert working(gate) == 7
    for permit in old:
        permit.release("error")
    clock.advance("1s")
    fresh = fill(gate)
    clock.advance("1s")
    fresh[0].release("rate_limited")
    assert working(gate) == 4


def test_a_shrink_takes_nothing_away_and_lets_nobody_in_until_there_is_room(made: Any) -> None:
    store, clock = made
    gate = adaptive(store, start=8, decrease=4)
    permits = fill(gate)
    clock.advance("1s")
    permits.pop().release("rate_limited")
    assert len(gate.holders()) == 7
    for _ in range(3):
        assert gate.try_acquire() is None
        permits.pop().release("error")
    assert gate.try_acquire() is None
    permits.pop().release("error")
    assert len(fill(gate)) == 1


def test_it_never_falls_below_its_minimum(made: Any) -> None:
    store, clock = made
    gate = adaptive(store, start=5, minimum=3, decrease=4)
    for _ in range(4):
        clock.advance("1s")
        permit = gate.try_acquire(renew=False)
        assert permit is not None
        clock.advance("1s")
        permit.release("rate_limited")
    assert working(gate) == 3


def test_so_many_successes_in_a_row_add_one_and_a_refusal_starts_the_count_again(made: Any) -> None:
    store, clock = made
    gate = adaptive(store, start=4, increase_every=5, decrease=1)
    held = fill(gate)
    held.pop().release("error")

    def one(outcome: str) -> None:
        held.pop(0).release(outcome)
        clock.advance("1s")
        held.append(gate.try_acquire(renew=False))

    for _ in range(4):
        one("ok")
    one("rate_limited")
    assert working(gate) == 3
    for _ in range(4):
        one("ok")
    assert working(gate) == 3
    one("ok")
    assert working(gate) == 4


def test_an_error_neither_counts_nor_breaks_a_row(made: Any) -> None:
    store, _ = made
    gate = adaptive(store, start=4, increase_every=4)
    for outcome in ("ok", "ok", "error", "ok", "unsent", "ok"):
        permits = fill(gate)
        permits.pop().release(outcome)
        for permit in permits:
            permit.release("error")
    assert working(gate) == 5


def test_successes_while_less_than_half_is_in_use_add_nothing(made: Any) -> None:
    store, _ = made
    gate = adaptive(store, start=10, increase_every=5)
    for _ in range(50):
        permit = gate.try_acquire(renew=False)
        assert permit is not None
        permit.release("ok")
    assert working(gate) == 10


def test_a_fleet_that_takes_all_slots_in_batches_grows(made: Any) -> None:
    gate = adaptive(made[0], start=5, increase_every=10)
    for _ in range(20):  # the tenth success ends the last call of its batch, when one slot of five is in use
        for permit in fill(gate):
            permit.release("ok")
    assert working(gate) > 5


def test_what_was_in_use_before_the_last_move_does_not_count(made: Any) -> None:
    store, clock = made
    gate = adaptive(store, start=8, decrease=1, increase_every=2)
    held = fill(gate)
    held.pop().release("error")
    for permit in held:
        permit.release("error")  # eight were in use, and then none
    clock.advance("1s")
    gate.try_acquire(renew=False).release("overloaded")
    assert working(gate) == 7
    for _ in range(10):
        gate.try_acquire(renew=False).release("ok")
    assert working(gate) == 7


def test_it_never_grows_above_the_limit_nor_above_an_override_of_it(made: Any) -> None:
    store, _ = made
    gate = adaptive(store, limit=6, start=4, increase_every=1)
    for _ in range(10):
        permits = fill(gate)
        assert len(permits) <= 6
        for permit in permits:
            permit.release("ok")
    assert working(gate) == 6
    gate.set_limit("c", 3)
    assert len(fill(gate)) == 3


@pytest.fixture
def moves() -> Iterator[list[tuple[Any, ...]]]:
    """The limit, key, old and new value and outcome of each `adapted` event."""
    told: list[tuple[Any, ...]] = []

    def sink(event: Event) -> None:
        if event.kind == "adapted":
            told.append(tuple(event.facts[name] for name in ("limit", "key", "old", "new", "outcome")))

    stop = subscribe(sink)
    yield told
    stop()


def test_a_limit_that_grows_is_told_with_its_old_and_new_value(made: Any, moves: list[Any]) -> None:
    gate = adaptive(made[0], start=2, increase_every=2)
    for permit in fill(gate):
        permit.release("ok")
    assert moves == [("c", None, 2, 3, "ok")]


def test_a_limit_that_shrinks_is_told_with_its_old_and_new_value(made: Any, moves: list[Any]) -> None:
    store, clock = made
    gate = Gate("g", [Concurrency(40, lease="1h", name="c", adaptive=Aimd(start=8), by="org")], store=store)
    permit = gate.try_acquire(key={"org": "acme"}, renew=False)
    clock.advance("1s")
    permit.release("overloaded")
    assert moves == [("c", "acme", 8, 6, "overloaded")]


def test_a_release_by_id_tells_of_the_move_too(made: Any, moves: list[Any]) -> None:
    gate = adaptive(made[0], start=1, minimum=1, increase_every=1)
    assert gate.release(gate.try_acquire(renew=False).id)
    assert moves == [("c", None, 1, 2, "ok")]


def test_two_gates_of_one_name_share_one_working_limit(made: Any) -> None:
    store, clock = made
    one, two = adaptive(store, start=8), adaptive(store, start=8)
    permits = fill(one)
    clock.advance("1s")
    permits[0].release("rate_limited")
    assert working(two) == 6


def classes(store: Any, limit: int = 40, by: str | None = None, **aimd: int) -> Gate:
    limits = [Concurrency(limit, lease="1h", name="c", adaptive=Aimd(**aimd), by=by)]
    return Gate("g", limits, store=store, priorities={"live": 1.0, "batch": 0.8, "idle": 0.25})


def test_a_class_gets_its_share_of_the_working_limit_and_leaves_the_rest_to_those_above(made: Any) -> None:
    gate = classes(made[0], start=10)
    batch = list(iter(lambda: gate.try_acquire(priority="batch", renew=False), None))
    assert len(batch) == 8
    assert (gate.usage()["c@batch"].limit, gate.usage()["c@batch"].maximum) == (8, 32)
    live = list(iter(lambda: gate.try_acquire(priority="live", renew=False), None))
    assert len(live) == 2


def test_a_share_moves_with_the_working_limit(made: Any) -> None:
    store, clock = made
    gate = classes(store, start=10, decrease=5, minimum=5, by="org")
    acme = {"org": "acme"}
    held = [gate.try_acquire(key=acme, renew=False) for _ in range(3)]
    clock.advance("1s")
    held[0].release("overloaded")
    assert gate.usage(key=acme)["c"].limit == 5
    for permit in held[1:]:
        permit.release("error")
    mine = list(iter(lambda: gate.try_acquire(key=acme, priority="batch", renew=False), None))
    assert len(mine) == 4  # 0.8 of five
    other = list(iter(lambda: gate.try_acquire(key={"org": "b"}, priority="batch", renew=False), None))
    assert len(other) == 8  # 0.8 of ten: another key has a working limit of its own


def test_a_class_keeps_one_slot_however_low_the_working_limit_is(made: Any) -> None:
    gate = classes(made[0], start=2)
    for _ in range(2):  # a quarter of two slots is half of one
        gate.try_acquire(priority="idle", renew=False).release("error")
    assert gate.try_acquire(priority="idle", renew=False) is not None
    assert gate.try_acquire(priority="idle", renew=False) is None
    assert gate.try_acquire(priority="live", renew=False) is not None


@pytest.mark.parametrize("store", STORES)
def test_whatever_happens_it_moves_by_the_rules(store: str) -> None:
    event = st.tuples(
        st.sampled_from(["ask", "ask", "ask", "ok", "ok", "rate_limited", "overloaded", "error"]), st.integers(0, 9)
    )

    @examples(store, 150)
    @given(st.lists(event, max_size=80))
    def histories(events: list[tuple[str, int]]) -> None:
        clock = FakeClock()
        with STORES[store](clock) as opened:
            gate = adaptive(opened, limit=7, start=4, minimum=2, decrease=2, increase_every=3)
            limit, row, shrunk, most = 4, 0, -1, 0
            held: list[tuple[int, Any]] = []
            for what, number in events:
                clock.advance(microseconds=1)
                if what == "ask":
                    permit = gate.try_acquire(renew=False)
                    assert (permit is not None) == (len(held) < limit)
                    if permit is not None:
                        held.append((clock(), permit))
                    most = max(most, len(held))
                elif held:
                    granted, permit = held.pop(number % len(held))
                    permit.release(what)
                    if what in ("rate_limited", "overloaded"):
                        row = 0
                        if granted > shrunk:
                            limit, shrunk, most = max(2, limit - 2), clock(), len(held)
                    elif what == "ok":
                        row += 1
                        if row == 3:
                            row = 0
                            if 2 * most >= limit and limit < 7:
                                limit, most = limit + 1, len(held)
                assert working(gate) == limit

    histories()


def test_a_429_that_says_28_s_stops_every_process_for_28_s_and_then_no_more_go_than_the_working_limit(
    made: Any,
) -> None:
    store, clock = made
    limits = [Concurrency(20, lease="1h", name="c", adaptive=Aimd()), Window(50, per="1m", slack=0, name="rpm")]
    fleet = [Gate("g", limits, store=store) for _ in range(3)]
    first = [gate.try_acquire(renew=False) for gate in fleet]
    clock.advance("1s")
    retry = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "28s"}
    error = {"code": 429, "status": "RESOURCE_EXHAUSTED", "details": [retry]}
    report = first[0].report({"status": 429, "headers": {}, "body": {"error": error}})
    first[0].release(report.outcome)
    for permit in first[1:]:
        permit.release("ok")
    for _ in range(27):
        assert [gate.try_acquire(renew=False) for gate in fleet] == [None] * 3
        clock.advance("1s")
    clock.advance("999ms")
    assert [gate.try_acquire(renew=False) for gate in fleet] == [None] * 3
    clock.advance("1ms")
    granted = [gate.try_acquire(renew=False) for _ in range(20) for gate in fleet]
    assert sum(permit is not None for permit in granted) == 6

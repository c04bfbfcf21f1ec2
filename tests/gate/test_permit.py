"""The life of a permit, from settling what it cost to losing its lease; and promises, which are permits for later."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from headgate import Aimd, Bucket, Concurrency, Denied, InvalidInput, LeaseLost, Window
from headgate.stores.memory import MemoryStore
from tests.support.gates import HandClock, slots
from tests.support.waiting import until

# --- the life of a permit ---------------------------------------------------------------------------------------------


def test_settle_charges_the_difference_either_way(make: Any, store: str) -> None:
    gate = make("g", [Bucket(10, per="1h", unit="pu", name="pu")], store=store)
    permit = gate.acquire(cost={"pu": 4})
    permit.settle({"pu": 1.5})
    assert gate.usage()["pu"].used == pytest.approx(1.5, abs=0.01)
    permit.settle({"pu": 9})
    assert gate.usage()["pu"].used == pytest.approx(9, abs=0.01)
    permit.release()
    assert gate.usage()["pu"].used == pytest.approx(9, abs=0.01)


def test_settling_upwards_may_exceed_the_limit_and_holds_back_later_asks(make: Any, store: str) -> None:
    gate = make("g", [Window(10, per="1h", unit="pu", name="pu")], store=store)
    permit = gate.acquire(cost={"pu": 4})
    permit.settle({"pu": 25})
    assert gate.usage()["pu"].used == 25
    assert gate.try_acquire(cost={"pu": 0.1}) is None


def test_what_was_settled_and_not_sent_comes_back_whole(make: Any, store: str) -> None:
    gate = make("g", [Window(10, per="1h", unit="pu", name="pu")], store=store)
    permit = gate.acquire(cost={"pu": 4})
    permit.settle({"pu": 7})
    permit.release("unsent")
    assert gate.usage()["pu"].used == 0


def test_an_ended_permit_cannot_be_settled(make: Any, store: str) -> None:
    permit = make("g", [Bucket(10, per="1h", name="b")], store=store).acquire()
    permit.release()
    with pytest.raises(InvalidInput, match="ended"):
        permit.settle({"requests": 2})


def test_a_confirmed_grant_counts_for_per_from_the_confirmation(
    make: Any, timed: MemoryStore, clock: HandClock
) -> None:
    gate = make("g", [Window(1, per="10s", slack="1s", name="w")], store=timed)
    permit = gate.acquire()
    clock.forward(0.2)
    permit.confirm()
    clock.forward(9.9)
    assert gate.try_acquire() is None, "it was counted at 0.2 s, so it counts until 10.2 s"
    clock.forward(0.12)
    assert gate.try_acquire() is not None


def test_what_is_not_confirmed_counts_for_the_slack_as_well(make: Any, timed: MemoryStore, clock: HandClock) -> None:
    gate = make("g", [Window(1, per="10s", slack="1s", name="w")], store=timed)
    gate.acquire().release("error")
    clock.forward(10.9)
    assert gate.try_acquire() is None
    clock.forward(0.12)
    assert gate.try_acquire() is not None


def test_a_confirmed_permit_cannot_be_unsent(make: Any, store: str) -> None:
    gate = make("g", [Window(1, per="1h", name="w")], store=store)
    permit = gate.acquire()
    permit.confirm()
    with pytest.raises(InvalidInput, match="confirmed"):
        permit.release("unsent")
    assert permit.release() is True
    assert gate.usage()["w"].used == 1


@pytest.mark.parametrize(
    ("response", "outcome"),
    [
        ({"status": 200, "headers": {}}, "ok"),
        ({"status": 404, "headers": {}}, "ok"),
        ({"status": 500, "headers": {}}, "error"),
        ({"status": 503, "headers": {}}, "overloaded"),
        ({"status": 429, "headers": {}}, "rate_limited"),
    ],
)
def test_report_reads_how_it_went(make: Any, store: str, response: Any, outcome: str) -> None:
    gate = make("g", [slots(20, adaptive=Aimd(start=8, decrease=2))], store=store)
    with gate.acquire() as permit:
        assert permit.report(response) == outcome
    assert gate.usage()["slots"].limit == (6 if outcome in ("rate_limited", "overloaded") else 8)
    assert gate.usage().paused_for is None


@pytest.mark.parametrize(
    ("body", "permanent"),
    [
        ({"error": {"code": "TOO_MANY_REQUESTS", "message": "slower"}}, False),
        ({"error": {"code": "INSUFFICIENT_QUOTA", "message": "spent"}}, True),
    ],
)
def test_report_returns_all_that_the_answer_says(make: Any, store: str, body: Any, permanent: bool) -> None:
    gate = make("g", [slots(5)], store=store)
    with gate.acquire() as permit:
        report = permit.report({"status": 429, "headers": {"Retry-After": "42"}, "json": body})
    assert (report.outcome, report.retry_after, report.permanent, report.status) == ("rate_limited", 42, permanent, 429)
    copy = pickle.loads(pickle.dumps(report))
    assert copy == report == "rate_limited"
    assert copy.permanent is permanent


def test_one_workers_429_with_a_delay_pauses_the_fleet_while_it_still_holds_its_permit(make: Any, store: str) -> None:
    gate, other = make("g", [slots(5)], store=store), make("g", [slots(5)], store=store)
    with gate.acquire() as permit:
        permit.report({"status": 429, "headers": {"Retry-After": "42"}})
        assert 41 < other.usage().paused_for <= 42
        assert other.try_acquire() is None


def test_renew_moves_the_expiry_and_a_lost_lease_says_so(make: Any, timed: MemoryStore, clock: HandClock) -> None:
    gate = make("g", [slots(1, lease="10s")], store=timed)
    permit = gate.acquire(renew=False)
    clock.forward(6)
    assert permit.renew() == pytest.approx(clock.us / 1e6 + 10)
    clock.forward(6)
    assert gate.try_acquire() is None
    clock.forward(5)
    other = gate.acquire(renew=False)
    with pytest.raises(LeaseLost, match=permit.id):
        permit.renew()
    assert permit.lost
    assert permit.release() is False
    assert [holder.id for holder in gate.holders()] == [other.id]


def test_an_expired_lease_is_lost_even_if_nobody_took_its_slot(make: Any, timed: MemoryStore, clock: HandClock) -> None:
    gate = make("g", [slots(1, lease="10s")], store=timed)
    permit = gate.acquire(renew=False)
    clock.forward(10)
    assert gate.holders() == []
    assert permit.release() is False
    assert permit.lost


# --- promises ---------------------------------------------------------------------------------------------------------


def test_reserve_gives_each_its_time_and_cancel_gives_it_back(make: Any, timed: MemoryStore) -> None:
    gate = make("p", [Bucket(1, per="1s", burst=1, slack=0, name="b")], store=timed, waiting="promise")
    places = [gate.reserve() for _ in range(3)]
    assert [place.delay for place in places] == pytest.approx([0, 1, 2])
    places[1].cancel()
    assert gate.reserve().delay == pytest.approx(1)
    places[1].cancel()
    assert gate.reserve().delay == pytest.approx(3)


def test_reserve_by_id_is_one_promise(make: Any, store: str) -> None:
    gate = make("p", [Bucket(1, per="1m", burst=1, slack=0, name="b")], store=store, waiting="promise")
    gate.reserve()
    first, again = gate.reserve(id="x"), gate.reserve(id="x")
    assert first.permit.fence == again.permit.fence
    assert gate.reserve().delay == pytest.approx(120, abs=1)


def test_a_promise_beyond_max_delay_is_denied_and_charges_nothing(make: Any, timed: MemoryStore) -> None:
    limits = [Bucket(1, per="1s", burst=1, slack=0, name="b")]
    gate = make("p", limits, store=timed, waiting="promise", max_delay="1.5s")
    assert [gate.reserve().delay for _ in range(2)] == pytest.approx([0, 1])
    for _ in range(3):
        with pytest.raises(Denied) as caught:
            gate.reserve()
        assert caught.value.retry_after == pytest.approx(2)
        assert caught.value.limit == "b"


def test_an_acquire_on_a_promise_gate_that_would_outlast_its_timeout_is_denied_at_once(make: Any, store: str) -> None:
    gate = make("p", [Bucket(1, per="1h", burst=1, slack=0, name="b")], store=store, waiting="promise")
    gate.acquire()
    with pytest.raises(Denied):
        gate.acquire(timeout=10)
    assert gate.try_acquire() is None


def test_a_promise_gate_sleeps_until_its_time(make: Any, store: str) -> None:
    gate = make("p", [Bucket(10, per="1s", burst=1, slack=0, name="b")], store=store, waiting="promise")
    gate.acquire()
    permit = gate.acquire()
    assert permit.waited > 0.05


def test_release_soon_ends_it_without_waiting_and_once(make: Any, store: str) -> None:
    gate = make("g", [Concurrency(1, name="slots", lease="1h"), Window(5, per="1h", name="rpm")], store=store)
    permit = gate.acquire()
    permit.release_soon("unsent")
    permit.release_soon("ok")
    until(lambda: not gate.holders())
    assert gate.usage()["rpm"].used == 0
    assert permit.release() is True

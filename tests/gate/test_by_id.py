"""What a guard needs of every store: leases that are renewed by their id alone, and tickets that change their process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headgate import Concurrency, Gate, InvalidInput, LeaseLost, Window
from headgate.kernel.commands import Renew, Stand
from headgate.kernel.model import Wait
from headgate.testing import FakeClock
from tests.support import stores

STORES = ["memory", "sqlite", "redis", "dynamodb"]


@contextmanager
def opened(name: str, clock: FakeClock) -> Iterator[Any]:
    with getattr(stores, name)(clock) as store:
        yield store


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Any]:
    with opened(request.param, clock) as made:
        yield made


def one_slot(store: Any) -> Gate:
    return Gate("g", [Concurrency(1, lease="10s", name="slots")], store=store, claim="1s")


@pytest.mark.parametrize("id", [None, "mine"])
def test_a_lease_is_renewed_by_its_id_alone(store: Any, clock: FakeClock, id: str | None) -> None:
    gate = one_slot(store)
    permit = gate.acquire(id=id, renew=False, holder="x")
    for _ in range(5):
        clock.advance("7s")
        assert gate.renew(permit.id) == pytest.approx(clock.now / 1e6 + 10)
    [holder] = gate.holders()
    assert (holder.holder, holder.held_for, holder.expires_in) == ("x", 35, 10)
    assert gate.renew(permit.id, lease="1h") == pytest.approx(clock.now / 1e6 + 3600)
    clock.advance("30m")
    assert gate.release(permit.id) is True
    assert gate.holders() == []


def test_a_lease_by_a_key_is_renewed_by_its_id_alone(store: Any, clock: FakeClock) -> None:
    gate = Gate("g", [Concurrency(1, by="org", lease="10s", name="org"), Concurrency(5, name="all")], store=store)
    first = gate.acquire(key={"org": "a"}, renew=False)
    second = gate.acquire(key={"org": "b"}, id="mine", renew=False)
    clock.advance("7s")
    for permit in (first, second):
        gate.renew(permit.id)
    clock.advance("7s")
    assert len(gate.holders()) == 2
    assert gate.try_acquire(key={"org": "a"}) is None


def test_a_lease_that_ended_is_not_renewed_and_takes_nobodys_slot(store: Any, clock: FakeClock) -> None:
    gate = one_slot(store)
    permit = gate.acquire(renew=False)
    clock.advance("11s")
    other = gate.acquire(renew=False)
    for id in (permit.id, "never-was"):
        with pytest.raises(LeaseLost, match="had already ended"):
            gate.renew(id)
    assert [holder.id for holder in gate.holders()] == [other.id]
    gate.release(other.id)
    with pytest.raises(LeaseLost):
        gate.renew(other.id)


def test_a_gate_without_leases_has_none_to_renew_and_an_id_must_be_one(store: Any) -> None:
    with pytest.raises(InvalidInput, match="no concurrency limit"):
        Gate("rates", [Window(5, per="1m")], store=store).renew("x")
    gate = one_slot(store)
    for id in ("", "\udcff", None):
        with pytest.raises(InvalidInput, match="by its id"):
            gate.renew(id)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="by its id"):
            gate.release(id)  # type: ignore[arg-type]


def test_the_reason_for_a_pause_may_be_anything_that_somebody_was_told(store: Any) -> None:
    gate = one_slot(store)
    gate.pause(5, "429: \udcff")
    assert gate.usage().pause_reason == r"429: \udcff"


def test_a_permit_is_released_by_its_id_with_what_it_really_cost(store: Any) -> None:
    gate = Gate("g", [Window(10, per="1m", name="w")], store=store)
    permit = gate.acquire(cost=5, id="mine")
    assert gate.release(permit.id, cost=2) is True
    assert gate.usage()["w"].used == 2
    assert gate.release(permit.id, cost=2) is False
    assert gate.usage()["w"].used == 2
    for cost in (-1, "2", {"pu": 1}, True):
        with pytest.raises(InvalidInput):
            gate.release(permit.id, cost=cost)  # type: ignore[arg-type]


# --- tickets ------------------------------------------------------------------------------------------------------------


def standing(gate: Gate, store: Any, id: str, session: str) -> Any:
    plan = gate._policy.plan(1, None, None)
    [reply] = store.execute([Stand(plan, id, None, plan.lease, waits=True, session=session, remembered=True)])
    return reply


def test_a_ticket_whose_waiter_comes_again_in_another_process_keeps_its_place_there(
    store: Any, clock: FakeClock
) -> None:
    gate = one_slot(store)
    held = gate.acquire(lease="1h", renew=False)
    for id in ("one", "two", "three"):
        assert isinstance(standing(gate, store, id, "old"), Wait)
    clock.advance("5s")  # the old process has died; its waiters come to a new one, but for the second
    assert isinstance(standing(gate, store, "new one", "new"), Wait)
    for id in ("three", "one"):
        assert isinstance(standing(gate, store, id, "new"), Wait)
    for _ in range(4):
        clock.advance("4s")
        store.execute([Renew("g", (), "new", ("one", "three", "new one"))])
    assert gate.usage().waiting == 3  # nobody has heard of the second for longer than a process may be silent
    gate.release(held.id)
    line = ["one", "three", "new one"]
    while line:
        for id in reversed(line):
            if isinstance(standing(gate, store, id, "new"), tuple):
                break
        assert line.pop(0) == id
        gate.release(id)


def test_a_ticket_that_missed_its_call_in_a_dead_process_is_called_again_in_the_new_one(
    store: Any, clock: FakeClock
) -> None:
    gate = one_slot(store)
    held = gate.acquire(lease="1h", renew=False)
    for id in ("one", "two"):
        standing(gate, store, id, "old")
    gate.release(held.id)  # calls the first, whose process is dead
    clock.advance("3s")
    assert isinstance(standing(gate, store, "two", "new"), tuple)  # its turn, as the first did not come
    assert isinstance(standing(gate, store, "one", "new"), Wait)
    gate.release("two")
    assert isinstance(standing(gate, store, "one", "new"), tuple)


def test_a_heartbeat_never_shortens_a_lease_that_was_extended_by_its_id(store: Any, clock: FakeClock) -> None:
    gate = one_slot(store)  # leases of 10 s
    permit = gate.acquire(renew=False)
    assert gate.renew(permit.id, lease="1h") == pytest.approx(clock.now / 1e6 + 3600)
    permit.renew()  # what its holder's heartbeat sends
    assert [holder.expires_in for holder in gate.holders()] == [3600]
    clock.advance("11s")
    assert gate.try_acquire() is None
    assert gate.renew(permit.id, lease="10s") == pytest.approx(clock.now / 1e6 + 10), "by its id it may be shortened"

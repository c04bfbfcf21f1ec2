"""The public surface of a gate, as a user meets it: the same tests for `Gate` and `AsyncGate`, on both embedded stores."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import Aimd, AsyncGate, Bucket, Concurrency, Denied, Gate, IdConflict, Window
from headgate.stores.memory import MemoryStore
from tests.support.gates import HandClock, slots

# --- asking and ending ------------------------------------------------------------------------------------------------


def test_a_permit_holds_its_slot_for_the_block_and_no_longer(make: Any, store: str) -> None:
    gate = make("g", [slots(1)], store=store)
    with gate.acquire(holder="chunk_001.pdf") as permit:
        assert gate.usage()["slots"].used == 1
        assert [holder.holder for holder in gate.holders()] == ["chunk_001.pdf"]
        assert gate.holders()[0].id == permit.id
        assert gate.try_acquire() is None
    assert gate.usage()["slots"].used == 0
    assert gate.holders() == []
    assert gate.try_acquire() is not None


def test_an_exception_in_the_block_passes_through_and_frees_the_slot(make: Any, store: str) -> None:
    gate = make("g", [slots(1)], store=store)
    with pytest.raises(ZeroDivisionError), gate.acquire():
        raise ZeroDivisionError
    assert gate.usage()["slots"].used == 0


def test_an_exception_in_the_block_keeps_the_charge_and_does_not_tell_an_adaptive_limit(make: Any, store: str) -> None:
    limits = [slots(20, adaptive=Aimd(start=8)), Window(5, per="1h", name="rate")]
    gate = make("g", limits, store=store)
    with pytest.raises(ZeroDivisionError), gate.acquire():
        raise ZeroDivisionError
    assert gate.usage()["rate"].used == 1
    assert gate.usage()["slots"].limit == 8


def test_releasing_twice_is_harmless_and_frees_nobody_elses_slot(make: Any, store: str) -> None:
    gate = make("g", [slots(1)], store=store)
    first = gate.acquire()
    assert first.release() is True
    second = gate.acquire()
    assert first.release() is True
    assert first.release("error") is True
    assert [holder.id for holder in gate.holders()] == [second.id]


def test_unsent_gives_everything_back(make: Any, store: str) -> None:
    gate = make("g", [Window(2, per="1h", name="rate"), Bucket(3, per="1h", name="bucket"), slots(2)], store=store)
    permit = gate.acquire(cost=2)
    assert gate.usage()["rate"].used == 2
    permit.release("unsent")
    usage = gate.usage()
    assert (usage["rate"].used, usage["bucket"].used, usage["slots"].used) == (0, 0, 0)
    assert gate.try_acquire(cost=2) is not None


def test_every_outcome_but_unsent_keeps_the_charge(make: Any, store: str) -> None:
    gate = make("g", [Window(10, per="1h", name="rate")], store=store)
    for outcome in ("ok", "error", "rate_limited", "overloaded"):
        gate.acquire().release(outcome)
    assert gate.usage()["rate"].used == 4
    gate.acquire().release("unsent")
    assert gate.usage()["rate"].used == 4


def test_all_limits_are_taken_together_or_none(make: Any, store: str) -> None:
    limits = [Window(100, per="1h", name="wide"), slots(1), Bucket(100, per="1h", name="bucket")]
    gate = make("g", limits, store=store)
    gate.acquire()
    for _ in range(50):
        assert gate.try_acquire() is None
    usage = gate.usage()
    assert (usage["wide"].used, usage["slots"].used) == (1, 1)
    assert usage["bucket"].used <= 1


def test_a_refused_ask_of_one_key_charges_neither_the_key_nor_the_whole(make: Any, store: str) -> None:
    gate = make("g", [Concurrency(1, name="org", by="org"), Concurrency(5, name="all")], store=store)
    gate.acquire(key={"org": "acme"})
    for _ in range(20):
        assert gate.try_acquire(key={"org": "acme"}) is None
    assert gate.usage()["all"].used == 1
    assert gate.try_acquire(key={"org": "other"}) is not None


def test_no_wait_is_a_denial_that_names_the_limit_and_when(make: Any, timed: MemoryStore) -> None:
    gate = make("g", [Window(1, per="10s", slack=0, name="rate")], store=timed)
    gate.acquire()
    for none in (0, 0.0, "0s"):
        with pytest.raises(Denied) as caught:
            gate.acquire(timeout=none)
        assert caught.value.gate == "g"
        assert caught.value.limit == "rate"
        assert caught.value.retry_after == pytest.approx(10, abs=0.011)
        assert "rate" in str(caught.value)


def test_a_cost_that_can_never_fit_is_denied_at_once_however_long_one_would_wait(make: Any, store: str) -> None:
    gate = make("g", [Bucket(5, per="1m", name="b"), Window(9, per="1h", name="w")], store=store)
    for ask in (gate.acquire, gate.try_acquire):
        with pytest.raises(Denied) as caught:
            ask(cost=6)
        assert caught.value.limit == "b"
        assert caught.value.retry_after is None
    usage = gate.usage()
    assert (usage["b"].used, usage["w"].used, usage.waiting) == (0, 0, 0)


def test_retry_after_is_exact(make: Any, timed: MemoryStore, clock: HandClock) -> None:
    gate = make("g", [Bucket(10, per="1s", burst=1, slack=0, name="b")], store=timed)
    gate.acquire()
    with pytest.raises(Denied) as caught:
        gate.acquire(timeout=0)
    clock.us += round(caught.value.retry_after * 1e6) - 1
    assert gate.try_acquire() is None
    clock.us += 1
    assert gate.try_acquire() is not None


def test_the_fence_grows_with_every_grant(make: Any, store: str) -> None:
    gate = make("g", [slots(10)], store=store)
    fences = [gate.acquire().fence for _ in range(5)]
    assert fences == sorted(set(fences))


def test_a_lease_has_an_expiry_and_a_rate_has_none(make: Any, timed: MemoryStore, clock: HandClock) -> None:
    leased = make("g", [slots(1, lease="30s")], store=timed).acquire(lease="5s", renew=False)
    assert leased.lease_expires_at == pytest.approx(clock.us / 1e6 + 5)
    assert make("r", [Bucket(5, per="1s", name="b")], store=timed).acquire().lease_expires_at is None


# --- ids --------------------------------------------------------------------------------------------------------------


def test_the_same_id_twice_is_one_admission(make: Any, store: str) -> None:
    gate = make("g", [slots(5), Window(9, per="1h", name="w")], store=store)
    first, again = gate.acquire(id="job-7"), gate.acquire(id="job-7")
    assert (first.id, first.fence) == (again.id, again.fence)
    assert gate.usage()["slots"].used == 1
    assert gate.usage()["w"].used == 1
    assert gate.try_acquire(id="job-7").fence == first.fence


def test_another_ask_under_a_known_id_is_an_error_and_the_first_stands(make: Any, store: str) -> None:
    gate = make("g", [Window(9, per="1h", name="w")], store=store)
    gate.acquire(id="job-7", cost=2)
    with pytest.raises(IdConflict, match="job-7"):
        gate.acquire(id="job-7", cost=3)
    assert gate.usage()["w"].used == 2


def test_an_id_works_again_some_time_after_its_permit_ended(make: Any, timed: MemoryStore, clock: HandClock) -> None:
    gate = make("g", [Window(9, per="1s", slack=0, name="w"), slots(2)], store=timed)
    first = gate.acquire(id="job-7", cost=2, renew=False)
    first.release()
    clock.forward(61)
    for _ in range(70):  # what has run off is swept up now and then
        gate.acquire(renew=False).release("unsent")
    assert gate.acquire(id="job-7", cost=3, renew=False).fence > first.fence


# --- by id from elsewhere ---------------------------------------------------------------------------------------------


def test_any_gate_object_can_release_by_id(make: Any, store: str) -> None:
    mine, other = make("g", [slots(1)], store=store), make("g", [slots(1)], store=store)
    permit = mine.acquire()
    assert other.release(permit.id) is True
    assert other.holders() == []
    assert other.release(permit.id) is False
    assert permit.release() is False, "its slot was taken away before: it is told"
    assert permit.lost


def test_release_by_id_finds_a_lease_of_a_key(make: Any, store: str) -> None:
    limits = [Concurrency(1, name="org", by="org"), Concurrency(3, name="user", by="user")]
    gate = make("g", limits, store=store)
    permit = gate.acquire(key={"org": "acme:1/x", "user": "bob@example.org"})
    assert make("g", limits, store=store).release(permit.id) is True
    assert gate.holders() == []


def test_an_id_that_nobody_holds_releases_nothing(make: Any, store: str) -> None:
    gate = make("g", [slots(1)], store=store)
    gate.acquire()
    assert gate.release("never-was") is False
    assert gate.usage()["slots"].used == 1


def test_release_by_id_can_give_the_charge_back(make: Any, store: str) -> None:
    gate = make("g", [slots(2), Window(5, per="1h", name="w")], store=store)
    permit = gate.acquire(cost=3)
    assert gate.release(permit.id, outcome="unsent") is True
    assert gate.usage()["w"].used == 0


# --- as a decorator ---------------------------------------------------------------------------------------------------


def test_a_limited_function_takes_a_permit_for_each_call(store: str) -> None:
    gate = Gate("g", [slots(1), Window(9, per="1h", name="w")], store=store)
    inside = []

    @gate.limited(cost=2, holder="decorated")
    def work(a: int, b: int = 0) -> int:
        """What it does."""
        inside.append([holder.holder for holder in gate.holders()])
        return a + b

    assert work(1, b=2) == 3
    assert work(5) == 5
    assert inside == [["decorated"], ["decorated"]]
    assert gate.usage()["w"].used == 4
    assert gate.holders() == []
    assert (work.__name__, work.__doc__) == ("work", "What it does.")


def test_a_limited_coroutine_function_takes_a_permit_for_each_call(store: str) -> None:
    gate = AsyncGate("g", [slots(1), Window(9, per="1h", name="w")], store=store)
    running = 0

    @gate.limited(cost=2)
    async def work(a: int) -> int:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.01)
        running -= 1
        return a

    async def main() -> None:
        assert await asyncio.gather(*(work(n) for n in range(4))) == [0, 1, 2, 3]
        assert (await gate.usage())["w"].used == 8
        assert await gate.holders() == []

    asyncio.run(main())


# --- priorities -------------------------------------------------------------------------------------------------------


def test_a_class_leaves_the_rest_to_those_above_it(make: Any, store: str) -> None:
    gate = make("g", [slots(5)], store=store, priorities={"live": 1.0, "batch": 0.8})
    assert [bool(gate.try_acquire(priority="batch")) for _ in range(5)] == [True] * 4 + [False]
    assert gate.try_acquire(priority="live") is not None
    assert gate.try_acquire() is None


def test_a_share_below_one_for_everybody_is_a_safety_margin(make: Any, store: str) -> None:
    gate = make("g", [Window(10, per="1h", name="w")], store=store, priorities={"all": 0.9})
    assert sum(gate.try_acquire() is not None for _ in range(12)) == 9

"""The public surface of a gate, as a user meets it: the same tests for `Gate` and `AsyncGate`, on both embedded stores."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import (
    Aimd,
    AsyncGate,
    Bucket,
    Concurrency,
    Denied,
    Gate,
    IdConflict,
    InvalidInput,
    KindChanged,
    LeaseLost,
    Quota,
    Window,
)
from headgate.stores.memory import MemoryStore

NAMES = itertools.count()


class Blocking:
    """An AsyncGate, or what it gives, used as if it were the other kind: every awaitable is run to its end."""

    def __init__(self, runner: asyncio.Runner, thing: Any) -> None:
        self._runner = runner
        self._thing = thing

    def _finish(self, value: Any) -> Any:
        async def finish() -> Any:
            return await value

        if inspect.isawaitable(value):
            value = self._runner.run(finish())
        return Blocking(self._runner, value) if type(value).__name__ in ("AsyncPermit", "AsyncPlace") else value

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._thing, name)
        if name == "permit":
            return Blocking(self._runner, value)
        if not callable(value):
            return value
        return lambda *args, **kwargs: self._finish(value(*args, **kwargs))

    def __enter__(self) -> Any:
        return Blocking(self._runner, self._runner.run(self._thing.__aenter__()))

    def __exit__(self, *error: Any) -> None:
        self._runner.run(self._thing.__aexit__(*error))


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(kind: str) -> Iterator[Callable[..., Any]]:
    """Makes a gate of either kind; both are used alike in the tests."""
    if kind == "sync":
        yield Gate
        return
    with asyncio.Runner() as runner:
        yield lambda *args, **kwargs: Blocking(runner, AsyncGate(*args, **kwargs))


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://gate-tests-{next(NAMES)}"
    return f"sqlite:///{tmp_path}/gates.db"


class HandClock:
    """A clock that a test sets, in seconds. The core counts microseconds."""

    def __init__(self) -> None:
        self.us = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.us

    def forward(self, seconds: float) -> None:
        self.us += round(seconds * 1e6)


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def timed(clock: HandClock) -> MemoryStore:
    """A store whose time stands still unless the test moves it."""
    return MemoryStore(clock=clock)


def slots(n: int, **more: Any) -> Concurrency:
    return Concurrency(n, name="slots", **more)


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
    assert leased.lease_expires == pytest.approx(clock.us / 1e6 + 5)
    assert make("r", [Bucket(5, per="1s", name="b")], store=timed).acquire().lease_expires is None


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


# --- looking ----------------------------------------------------------------------------------------------------------


def test_usage_says_how_full_each_limit_is(make: Any, timed: MemoryStore) -> None:
    limits = [Window(10, per="10s", slack=0, name="w"), slots(4), Quota(100, per="day", name="q")]
    gate = make("g", limits, store=timed)
    gate.acquire(cost=5, renew=False)
    usage = gate.usage()
    window = usage["w"]
    assert (window.used, window.limit, window.available, window.utilisation) == (5, 10, 5, 0.5)
    assert (window.kind, window.unit, window.key) == ("window", "requests", None)
    assert window.next_free == 0
    assert window.time_left == pytest.approx(10, abs=0.011)
    assert (usage["slots"].used, usage["slots"].available) == (1, 3)
    assert usage["q"].used == 5
    assert 0 < usage["q"].time_left <= 86_400
    assert (usage.gate, usage.waiting, usage.paused_until) == ("g", 0, None)
    with pytest.raises(KeyError, match="slots"):
        usage["nope"]


def test_next_free_is_when_the_smallest_ask_could_go(make: Any, timed: MemoryStore, clock: HandClock) -> None:
    gate = make("g", [Window(2, per="10s", slack=0, name="w")], store=timed)
    gate.acquire(cost=2)
    clock.forward(4)
    assert gate.usage()["w"].next_free == pytest.approx(6, abs=0.011)


def test_usage_of_a_key_shows_the_limits_by_that_key(make: Any, store: str) -> None:
    gate = make("g", [Concurrency(2, name="org", by="org"), Concurrency(9, name="all")], store=store)
    gate.acquire(key={"org": "acme"})
    usage = gate.usage(key={"org": "acme"})
    assert (usage["org"].key, usage["org"].used) == ("acme", 1)
    assert gate.usage(key={"org": "idle"})["org"].used == 0
    assert [limit.name for limit in gate.usage().limits] == ["all"]


def test_looking_spends_nothing(make: Any, store: str) -> None:
    gate = make("g", [Window(3, per="1h", name="w"), slots(3)], store=store)
    for _ in range(10):
        assert gate.explain(cost=3).granted
        gate.usage()
        gate.holders()
        gate.overrides()
    assert gate.try_acquire(cost=3) is not None


def test_holders_say_who_since_when_and_until_when(make: Any, timed: MemoryStore, clock: HandClock) -> None:
    limits = [Concurrency(9, name="org", by="org", lease="30s")]
    gate = make("g", limits, store=timed, priorities={"live": 1.0, "batch": 0.9})
    gate.acquire(key={"org": "acme"}, holder="one", renew=False)
    clock.forward(5)
    gate.acquire(key={"org": "b"}, holder="two", priority="batch", renew=False)
    one, two = gate.holders()
    assert (one.holder, dict(one.key), one.since, one.expires) == ("one", {"org": "acme"}, 5, 25)
    assert (two.holder, two.since, two.expires, two.priority) == ("two", 0, 30, "batch")


def test_explain_names_the_limit_its_holders_and_when(make: Any, timed: MemoryStore, clock: HandClock) -> None:
    gate = make("g", [Window(9, per="1m", name="w"), slots(1, lease="30s")], store=timed)
    gate.acquire(holder="sleeper", renew=False)
    clock.forward(10)
    told = gate.explain()
    assert (told.granted, told.limit) == (False, "slots")
    assert told.after == pytest.approx(20)
    assert [holder.holder for holder in told.holders] == ["sleeper"]
    assert told.holders[0].since == pytest.approx(10)
    assert "slots" in told.reason


def test_explain_says_when_something_can_never_go(make: Any, store: str) -> None:
    told = make("g", [Bucket(5, per="1s", name="b")], store=store).explain(cost=50)
    assert (told.granted, told.after, told.limit) == (False, None, "b")
    assert "never" in told.reason


# --- changing while running -------------------------------------------------------------------------------------------


def test_a_changed_limit_is_in_force_at_the_next_decision_of_every_gate_object(make: Any, store: str) -> None:
    gate, other = make("g", [slots(1)], store=store), make("g", [slots(1)], store=store)
    gate.acquire()
    assert other.try_acquire() is None
    gate.set_limit("slots", 2)
    assert other.try_acquire() is not None
    assert other.try_acquire() is None
    assert [(found.limit, found.key, found.value) for found in other.overrides()] == [("slots", None, 2)]
    other.clear_limit("slots")
    assert gate.overrides() == []
    assert gate.usage()["slots"].limit == 1


def test_a_shrink_takes_nothing_away_and_lets_nobody_in(make: Any, store: str) -> None:
    gate = make("g", [slots(4)], store=store)
    held = [gate.acquire() for _ in range(4)]
    gate.set_limit("slots", 2)
    assert len(gate.holders()) == 4
    held[0].release()
    held[1].release()
    assert gate.try_acquire() is None
    held[2].release()
    assert gate.try_acquire() is not None
    assert gate.try_acquire() is None


def test_one_keys_limit_can_be_changed_alone(make: Any, store: str) -> None:
    gate = make("g", [Concurrency(1, name="org", by="org")], store=store)
    gate.set_limit("org", 3, key={"org": "acme"})
    assert [bool(gate.try_acquire(key={"org": "acme"})) for _ in range(4)] == [True, True, True, False]
    assert [bool(gate.try_acquire(key={"org": "b"})) for _ in range(2)] == [True, False]
    assert [(found.limit, found.key, found.value) for found in gate.overrides()] == [("org", "acme", 3)]
    gate.clear_limit("org", key={"org": "acme"})
    assert gate.overrides() == []


def test_an_override_can_make_a_cost_impossible_and_that_is_said(make: Any, store: str) -> None:
    gate = make("g", [Bucket(10, per="1s", name="b")], store=store)
    gate.set_limit("b", 3)
    with pytest.raises(Denied) as caught:
        gate.acquire(cost=5)
    assert caught.value.retry_after is None


def test_a_pause_holds_everybody_back_until_it_ends(make: Any, timed: MemoryStore, clock: HandClock) -> None:
    gate = make("g", [slots(5)], store=timed)
    gate.pause("30s", "upstream maintenance")
    assert gate.try_acquire() is None
    assert gate.usage().paused_until == pytest.approx(30)
    assert gate.usage().pause_reason == "upstream maintenance"
    told = gate.explain()
    assert not told.granted
    assert "upstream maintenance" in told.reason
    with pytest.raises(Denied) as caught:
        gate.acquire(timeout=0)
    assert caught.value.limit is None
    assert caught.value.retry_after == pytest.approx(30)
    clock.forward(29.999999)
    assert gate.try_acquire() is None
    clock.forward(0.000001)
    assert gate.try_acquire(renew=False) is not None
    assert gate.usage().paused_until is None


def test_resume_ends_a_pause_at_once(make: Any, store: str) -> None:
    gate = make("g", [slots(5)], store=store)
    gate.pause(3600)
    assert gate.try_acquire() is None
    gate.resume()
    assert gate.try_acquire() is not None


def test_a_refusal_with_a_delay_pauses_everybody(make: Any, store: str) -> None:
    gate, other = make("g", [slots(5)], store=store), make("g", [slots(5)], store=store)
    gate.acquire().release("rate_limited", retry_after=60)
    assert other.try_acquire() is None
    assert 59 < other.usage().paused_until <= 60
    assert "rate_limited" in other.usage().pause_reason


def test_reset_forgets_and_late_releases_change_nothing(make: Any, store: str) -> None:
    gate = make("g", [slots(1), Window(1, per="1h", name="w")], store=store)
    old = gate.acquire()
    gate.reset()
    new = gate.acquire()
    assert old.release() is False
    assert old.lost
    assert [holder.id for holder in gate.holders()] == [new.id]


def test_one_limit_can_be_reset_alone(make: Any, store: str) -> None:
    gate = make("g", [slots(1), Window(1, per="1h", name="w")], store=store)
    gate.acquire()
    gate.reset("w")
    assert gate.usage()["w"].used == 0
    assert gate.usage()["slots"].used == 1


KINDS = {
    "window": Window(5, per="1h", name="it"),
    "bucket": Bucket(5, per="1h", name="it"),
    "quota": Quota(5, per="day", name="it"),
    "slots": Concurrency(5, name="it"),
}


@pytest.mark.parametrize(("was", "now"), list(itertools.permutations(KINDS, 2)))
def test_another_kind_under_an_old_name_is_an_error_that_names_reset(make: Any, store: str, was: str, now: str) -> None:
    make("g", [KINDS[was]], store=store).acquire()
    changed = make("g", [KINDS[now]], store=store)
    for look in (changed.acquire, changed.try_acquire, changed.usage, changed.explain):
        with pytest.raises(KindChanged, match=r"reset"):
            look()
    changed.reset()
    assert changed.try_acquire() is not None
    assert changed.usage()["it"].used == pytest.approx(1, abs=0.01)


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
    assert gate.usage().paused_until is None


def test_one_workers_429_with_a_delay_pauses_the_fleet_while_it_still_holds_its_permit(make: Any, store: str) -> None:
    gate, other = make("g", [slots(5)], store=store), make("g", [slots(5)], store=store)
    with gate.acquire() as permit:
        permit.report({"status": 429, "headers": {"Retry-After": "42"}})
        assert 41 < other.usage().paused_until <= 42
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
    assert 0.05 < permit.waited < 5


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


# --- bad input --------------------------------------------------------------------------------------------------------

NAN, INF = float("nan"), float("inf")

WRONG_COSTS = [
    pytest.param(cost, id=repr(cost)[:24])
    for cost in (
        *(0, -1, 0.0, -0.5, NAN, INF, -INF, True, "1", "", None, [], [1], b"1", object, 1j, 10**400),
        *({"requests": 0}, {"requests": -1}, {"requests": NAN}, {"requests": INF}, {"requests": "1"}),
        *({"requests": None}, {"requests": True}, {"requests": 10**400}, {"tokens": 1}, {"requests": 1, "tokens": 1}),
        *({1: 1}, {"": 1}, {None: 1}),
    )
]


def asks_of(gate: Any) -> dict[str, Callable[..., Any]]:
    return {"acquire": gate.acquire, "try_acquire": gate.try_acquire, "explain": gate.explain}


def untouched(gate: Any) -> None:
    usage = gate.usage()
    assert [limit.used for limit in usage.limits] == [0] * len(usage.limits)
    assert usage.waiting == 0
    assert usage.paused_until is None
    assert gate.holders() == []
    assert gate.overrides() == []


@pytest.mark.parametrize("cost", WRONG_COSTS)
def test_a_wrong_cost_is_refused_and_charges_nothing(make: Any, cost: Any) -> None:
    gate = make("g", [Window(9, per="1h", name="w"), slots(9)], store=MemoryStore())
    for ask in asks_of(gate).values():
        with pytest.raises(InvalidInput, match=r"gate 'g'.*(cost|unit)"):
            ask(cost=cost)
    untouched(gate)


@pytest.mark.parametrize("cost", WRONG_COSTS)
def test_a_wrong_cost_of_a_promise_is_refused_and_charges_nothing(make: Any, cost: Any) -> None:
    gate = make("g", [Window(9, per="1h", name="w")], store=MemoryStore(), waiting="promise")
    for ask in (gate.acquire, gate.try_acquire, gate.reserve):
        with pytest.raises(InvalidInput, match=r"gate 'g'.*(cost|unit)"):
            ask(cost=cost)
    untouched(gate)


def test_a_missing_unit_is_refused_with_its_name(make: Any, store: str) -> None:
    gate = make("g", [Bucket(9, per="1h", unit="pu", name="pu"), slots(9)], store=store)
    for cost in (1, {}, {"requests": 1}):
        for ask in asks_of(gate).values():
            with pytest.raises(InvalidInput, match=r"'pu' is missing.*cost=\{'pu'"):
                ask(cost=cost)
    untouched(gate)


@pytest.mark.parametrize(
    "key",
    [
        None,
        {},
        "acme",
        5,
        ["org"],
        ("org", "acme"),
        {"user": "bob"},
        {"org": "acme", "user": "bob"},
        {"org": ""},
        {"org": None},
        {"org": True},
        {"org": 1.5},
        {"org": "with space"},
        {"org": "pipe|pipe"},
        {"org": "a,b=c"},
        {"org": "new\nline"},
        {"org": "ü"},
        {"org": "x" * 201},
        {"org": ["acme"]},
        {"org": b"acme"},
    ],
    ids=lambda key: repr(key)[:24],
)
def test_a_wrong_key_is_refused_and_charges_nothing(make: Any, key: Any) -> None:
    gate = make("g", [Concurrency(9, name="org", by="org"), Concurrency(9, name="all")], store=MemoryStore())
    for ask in asks_of(gate).values():
        with pytest.raises(InvalidInput, match=r"gate 'g'.*(key|by)"):
            ask(key=key)
    if key is not None:
        with pytest.raises(InvalidInput, match=r"key|by"):
            gate.usage(key=key)
        with pytest.raises(InvalidInput, match=r"key|by"):
            gate.set_limit("org", 2, key=key)
        with pytest.raises(InvalidInput, match=r"key|by"):
            gate.clear_limit("org", key=key)
    untouched(gate)


def test_a_key_for_a_gate_without_keys_is_refused(make: Any, store: str) -> None:
    gate = make("g", [slots(9)], store=store)
    for ask in asks_of(gate).values():
        with pytest.raises(InvalidInput, match="org"):
            ask(key={"org": "acme"})
    with pytest.raises(InvalidInput, match="not by any key"):
        gate.set_limit("slots", 3, key={"org": "acme"})
    untouched(gate)


@pytest.mark.parametrize("priority", ["urgent", "", 1, True, ["live"], {"live": 1}], ids=repr)
def test_an_unknown_priority_is_refused_with_those_there_are(make: Any, priority: Any) -> None:
    gate = make("g", [slots(9)], store=MemoryStore(), priorities={"live": 1.0, "batch": 0.8})
    for ask in asks_of(gate).values():
        with pytest.raises(InvalidInput, match=r"'live', 'batch'"):
            ask(priority=priority)
    untouched(gate)


WRONG_DURATIONS = [-1, -0.001, NAN, INF, "soon", "", "5 minutes", "-1s", "1x", "P1M", True, [], {}, b"1s", object()]


@pytest.mark.parametrize("timeout", WRONG_DURATIONS, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("waiting", ["line", "promise"])
def test_a_wrong_timeout_is_refused_even_when_nobody_would_have_to_wait(make: Any, waiting: str, timeout: Any) -> None:
    gate = make("g", [Window(9, per="1h", name="w")], store=MemoryStore(), waiting=waiting)
    with pytest.raises(InvalidInput, match="timeout"):
        gate.acquire(timeout=timeout)
    with pytest.raises(InvalidInput, match="timeout"):
        gate.acquire(timeout=timeout, id="x")
    untouched(gate)


@pytest.mark.parametrize("lease", [0, "0s", "9ms", *WRONG_DURATIONS], ids=lambda value: repr(value)[:20])
def test_a_wrong_lease_is_refused_and_holds_nothing(make: Any, lease: Any) -> None:
    gate = make("g", [slots(9)], store=MemoryStore())
    for ask in (gate.acquire, gate.try_acquire):
        with pytest.raises(InvalidInput, match="lease"):
            ask(lease=lease)
        with pytest.raises(InvalidInput, match="lease"):
            ask(lease=lease, id="x")
    untouched(gate)


def test_a_lease_where_there_is_nothing_to_lease_is_refused(make: Any, store: str) -> None:
    for waiting in ("line", "promise"):
        gate = make(waiting, [Window(9, per="1h", name="w")], store=store, waiting=waiting)
        for ask in (gate.acquire, gate.try_acquire):
            with pytest.raises(InvalidInput, match="nothing to lease"):
                ask(lease="5s")
        untouched(gate)


@pytest.mark.parametrize("holder", ["", 5, b"me", "x" * 201, "bell\a", "two\nlines", ["me"], True], ids=repr)
@pytest.mark.parametrize("limit", [slots(9), Bucket(9, per="1h", name="b")], ids=["leased", "rate"])
def test_a_wrong_holder_is_refused_and_charges_nothing(make: Any, limit: Any, holder: Any) -> None:
    gate = make("g", [limit], store=MemoryStore())
    for ask in (gate.acquire, gate.try_acquire):
        with pytest.raises(InvalidInput, match="holder"):
            ask(holder=holder)
    untouched(gate)


@pytest.mark.parametrize("id", ["", "with space", "x" * 201, b"id", 1.5, True, ["id"], "ü"], ids=repr)
def test_a_wrong_id_is_refused_and_charges_nothing(make: Any, id: Any) -> None:
    line = make("g", [Window(9, per="1h", name="w")], store=MemoryStore())
    promise = make("p", [Window(9, per="1h", name="w")], store=MemoryStore(), waiting="promise")
    for ask in (line.acquire, line.try_acquire, promise.acquire, promise.reserve):
        with pytest.raises(InvalidInput, match="id must be"):
            ask(id=id)
    untouched(line)
    untouched(promise)


@pytest.mark.parametrize("permit_id", [None, 5, b"x", ["x"], ""], ids=repr)
def test_releasing_what_is_no_id_is_refused(make: Any, permit_id: Any) -> None:
    gate = make("g", [slots(9)], store=MemoryStore())
    with pytest.raises(InvalidInput, match="id"):
        gate.release(permit_id)


@pytest.mark.parametrize("outcome", ["fine", "", None, 200, ["ok"], "OK"], ids=repr)
def test_a_wrong_outcome_is_refused_and_the_permit_lives_on(make: Any, outcome: Any) -> None:
    gate = make("g", [slots(9)], store=MemoryStore())
    permit = gate.acquire()
    with pytest.raises(InvalidInput, match="ok, rate_limited, overloaded, error, unsent"):
        permit.release(outcome)
    with pytest.raises(InvalidInput, match="ok, rate_limited, overloaded, error, unsent"):
        gate.release(permit.id, outcome)
    assert gate.usage()["slots"].used == 1
    assert permit.release() is True


@pytest.mark.parametrize("after", [-1, NAN, INF, "soon", True, []], ids=repr)
def test_a_wrong_retry_after_is_refused_and_the_permit_lives_on(make: Any, after: Any) -> None:
    gate = make("g", [slots(9)], store=MemoryStore())
    permit = gate.acquire()
    with pytest.raises(InvalidInput, match="retry_after"):
        permit.release("rate_limited", retry_after=after)
    with pytest.raises(InvalidInput, match="retry_after"):
        gate.release(permit.id, "rate_limited", retry_after=after)
    assert gate.usage().paused_until is None
    assert permit.release() is True


@pytest.mark.parametrize(
    "actual", [5, None, "pu", ["pu"], {"tokens": 1}, {"pu": -1}, {"pu": NAN}, {"pu": INF}, {"pu": "3"}, {"pu": True}],
    ids=repr,
)  # fmt: skip
def test_a_wrong_settlement_is_refused_and_changes_nothing(make: Any, actual: Any) -> None:
    gate = make("g", [Bucket(9, per="1h", unit="pu", name="pu")], store=MemoryStore(clock=HandClock()))
    permit = gate.acquire(cost={"pu": 3})
    with pytest.raises(InvalidInput, match=r"unit|pu"):
        permit.settle(actual)
    assert gate.usage()["pu"].used == 3
    permit.settle({"pu": 0})
    assert gate.usage()["pu"].used == 0


@pytest.mark.parametrize("response", [None, "429", 429, {}, {"headers": {}}, {"status": "429"}, Ellipsis], ids=repr)
def test_what_is_no_response_is_not_reported(make: Any, response: Any) -> None:
    gate = make("g", [slots(9)], store=MemoryStore())
    with gate.acquire() as permit, pytest.raises(InvalidInput, match="status"):
        permit.report(response)


def test_a_rate_has_no_lease_to_renew(make: Any, store: str) -> None:
    with pytest.raises(InvalidInput, match="no lease"):
        make("g", [Bucket(9, per="1h", name="b")], store=store).acquire().renew()


@pytest.mark.parametrize("value", [0, -1, NAN, INF, "5", None, True, [], 10**400, 2.5, 0.5], ids=lambda v: repr(v)[:20])
def test_a_wrong_limit_value_is_refused_and_nothing_changes(make: Any, value: Any) -> None:
    gate = make("g", [slots(9)], store=MemoryStore())
    with pytest.raises(InvalidInput, match="slots"):
        gate.set_limit("slots", value)
    untouched(gate)


@pytest.mark.parametrize("name", ["nope", "", None, 5, ["slots"]], ids=repr)
def test_an_unknown_limit_is_refused_with_those_there_are(make: Any, name: Any) -> None:
    gate = make("g", [slots(9)], store=MemoryStore())
    for change in (lambda: gate.set_limit(name, 5), lambda: gate.clear_limit(name)):
        with pytest.raises(InvalidInput, match=r"no limit .*it has slots"):
            change()
    if name is not None:
        with pytest.raises(InvalidInput, match=r"no limit .*it has slots"):
            gate.reset(name)
    untouched(gate)


@pytest.mark.parametrize("seconds", [0, *WRONG_DURATIONS], ids=lambda value: repr(value)[:20])
def test_a_wrong_pause_is_refused_and_nobody_is_held_back(make: Any, seconds: Any) -> None:
    gate = make("g", [slots(9)], store=MemoryStore())
    with pytest.raises(InvalidInput, match="pause"):
        gate.pause(seconds)
    untouched(gate)


def test_reserve_on_a_line_gate_is_refused_and_says_what_to_do(make: Any, store: str) -> None:
    gate = make("g", [Window(9, per="1h", name="w")], store=store)
    with pytest.raises(InvalidInput, match=r"acquire.*promise"):
        gate.reserve()
    untouched(gate)


@pytest.mark.parametrize("cost", [0, -1, "1", NAN, print], ids=repr)
def test_a_decorator_with_a_wrong_cost_is_refused_where_it_is_written(make: Any, cost: Any) -> None:
    gate = make("g", [slots(9)], store=MemoryStore())
    with pytest.raises(InvalidInput, match="cost"):
        gate.limited(cost)


@pytest.mark.parametrize(
    "name",
    ["", "a b", "a/b", "a|b", "-a", ".a", "ü", "x" * 101, None, 5, b"g", ["g"], "a\n"],
    ids=lambda v: repr(v)[:20],
)
def test_a_name_outside_the_grammar_is_refused(make: Any, name: Any) -> None:
    with pytest.raises(InvalidInput, match="gate name"):
        make(name, [slots(1)])
    if name is not None:
        with pytest.raises(InvalidInput, match="limit name"):
            Window(1, per="1s", name=name)
        with pytest.raises(InvalidInput, match="by"):
            Window(1, per="1s", by=name)
    with pytest.raises(InvalidInput, match="unit"):
        Window(1, per="1s", unit=name)


@pytest.mark.parametrize("value", [0, -1, NAN, INF, "5", None, True, [], 10**400], ids=lambda v: repr(v)[:20])
def test_a_limit_that_is_not_positive_is_refused(value: Any) -> None:
    for limit in (
        lambda: Window(value, per="1m"),
        lambda: Bucket(value, per="1m"),
        lambda: Quota(value, per="day"),
        lambda: Concurrency(value),
        lambda: Bucket(1, per="1m", burst=value) if value is not None else Bucket(value, per="1m"),
    ):
        with pytest.raises(InvalidInput, match=r"limit|burst"):
            limit()


@pytest.mark.parametrize("per", [0, None, *WRONG_DURATIONS], ids=lambda value: repr(value)[:20])
def test_a_duration_that_makes_no_sense_is_refused(per: Any) -> None:
    for limit in (
        lambda: Window(5, per=per),
        lambda: Bucket(5, per=per),
        lambda: Quota(5, per=per),
        lambda: Concurrency(5, lease=per),
    ):
        with pytest.raises(InvalidInput, match=r"per|lease|period"):
            limit()
    if per not in (0, None):
        for slacked in (lambda: Window(5, per="1m", slack=per), lambda: Bucket(5, per="1m", slack=per)):
            with pytest.raises(InvalidInput, match="slack"):
                slacked()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"limits": []}, "at least one"),
        ({"limits": slots(1)}, "list of limits"),
        ({"limits": None}, "list of limits"),
        ({"limits": 5}, "list of limits"),
        ({"limits": "slots"}, "not a limit"),
        ({"limits": [5]}, "not a limit"),
        ({"limits": [slots(1), slots(2)]}, "two limits named 'slots'"),
        ({"waiting": "queue"}, "'line' or 'promise'"),
        ({"waiting": None}, "'line' or 'promise'"),
        ({"waiting": "promise"}, "take slots out"),
        ({"priorities": {"live": 0}}, "above 0"),
        ({"priorities": {"live": 1.1}}, "above the whole"),
        ({"priorities": {"live": "1"}}, "number above 0"),
        ({"priorities": {"batch": 0.8, "live": 1.0}}, "highest to the lowest"),
        ({"priorities": {"a b": 1.0}}, "priority"),
        ({"priorities": ["live", "batch"]}, "priorities"),
        ({"priorities": "live"}, "priorities"),
        ({"priorities": 5}, "priorities"),
        ({"on_store_error": "ignore"}, "'closed', 'open' or"),
        ({"on_store_error": None}, "'closed', 'open' or"),
        ({"on_store_error": "local"}, "local:0.02"),
        ({"on_store_error": "local:0"}, "local:0.02"),
        ({"on_store_error": "local:2"}, "local:0.02"),
        ({"on_store_error": "local:nan"}, "local:0.02"),
        ({"on_store_error": ["open"]}, "'closed', 'open' or"),
        ({"max_delay": "5s"}, "promise gates"),
        ({"patience": "later"}, "patience"),
        ({"patience": 0}, "patience"),
        ({"claim": -1}, "claim"),
        ({"store": "mysql://x"}, "memory://, sqlite://"),
        ({"store": ""}, "memory://"),
        ({"store": None}, "store"),
        ({"store": 5}, "store"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_gate_that_makes_no_sense_is_refused_and_says_what_would_be_right(make: Any, more: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        make(**{"name": "g", "limits": [slots(10)], "store": MemoryStore(), **more})


def test_a_store_shown_to_people_keeps_its_password() -> None:
    from headgate.stores.base import shown

    assert shown("redis://user:secret@host:6379/0") == "redis://user:***@host:6379/0"
    assert shown("https://token@guard.example") == "https://***@guard.example"
    assert shown("https://token:@guard.example") == "https://***@guard.example"
    assert shown("redis://:pa/ss@wo:rd@host:6379/0") == "redis://:***@host:6379/0"
    assert shown("redis://host:6379/0?password=secret") == "redis://host:6379/0"
    assert shown("sqlite:///a@b.db") == "sqlite:///a@b.db"

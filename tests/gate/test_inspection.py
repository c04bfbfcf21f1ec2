"""Looking at a gate, and changing it while it runs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from headgate import Bucket, Concurrency, Denied, KindChanged, Quota, Window
from headgate.stores.memory import MemoryStore
from tests.support.gates import HandClock, slots

# --- looking ----------------------------------------------------------------------------------------------------------


def test_usage_says_how_full_each_limit_is(make: Any, timed: MemoryStore) -> None:
    limits = [Window(10, per="10s", slack=0, name="w"), slots(4), Quota(100, per="day", name="q")]
    gate = make("g", limits, store=timed)
    gate.acquire(cost=5, renew=False)
    usage = gate.usage()
    window = usage["w"]
    assert (window.used, window.limit, window.available, window.utilisation) == (5, 10, 5, 0.5)
    assert (window.kind, window.unit, window.key) == ("window", "requests", None)
    assert window.free_in == 0
    assert window.resets_in == pytest.approx(10, abs=0.011)
    assert (usage["slots"].used, usage["slots"].available) == (1, 3)
    assert usage["q"].used == 5
    assert 0 < usage["q"].resets_in <= 86_400
    assert (usage.gate, usage.waiting, usage.paused_for) == ("g", 0, None)
    with pytest.raises(KeyError, match="slots"):
        usage["nope"]


def test_free_in_is_when_the_smallest_ask_could_go(make: Any, timed: MemoryStore, clock: HandClock) -> None:
    gate = make("g", [Window(2, per="10s", slack=0, name="w")], store=timed)
    gate.acquire(cost=2)
    clock.forward(4)
    assert gate.usage()["w"].free_in == pytest.approx(6, abs=0.011)


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
    assert (one.holder, dict(one.key), one.held_for, one.expires_in) == ("one", {"org": "acme"}, 5, 25)
    assert (two.holder, two.held_for, two.expires_in, two.priority) == ("two", 0, 30, "batch")


def test_explain_names_the_limit_its_holders_and_when(make: Any, timed: MemoryStore, clock: HandClock) -> None:
    gate = make("g", [Window(9, per="1m", name="w"), slots(1, lease="30s")], store=timed)
    gate.acquire(holder="sleeper", renew=False)
    clock.forward(10)
    told = gate.explain()
    assert (told.granted, told.limit) == (False, "slots")
    assert told.goes_in == pytest.approx(20)
    assert [holder.holder for holder in told.holders] == ["sleeper"]
    assert told.holders[0].held_for == pytest.approx(10)
    assert "slots" in told.reason


def test_explain_says_when_something_can_never_go(make: Any, store: str) -> None:
    told = make("g", [Bucket(5, per="1s", name="b")], store=store).explain(cost=50)
    assert (told.granted, told.goes_in, told.limit) == (False, None, "b")
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
    assert gate.usage().paused_for == pytest.approx(30)
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
    assert gate.usage().paused_for is None


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
    assert 59 < other.usage().paused_for <= 60
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

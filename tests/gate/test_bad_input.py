"""Input that makes no sense is refused in words, and charges nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate import Bucket, Concurrency, InvalidInput, Quota, Window
from headgate.stores.memory import MemoryStore
from tests.support.gates import HandClock, slots

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
    assert usage.paused_for is None
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


LABELS = {
    "": None,
    5: "5",
    b"me": "b'me'",
    "x" * 201: "x" * 199 + "…",
    "bell\a": r"bell\x07",
    "two\nlines": r"two\nlines",
    "\n" * 200: r"\n" * 99 + "\\…",
    "half of a pair \ud800": r"half of a pair \ud800",
    Path("a/b.pdf"): "a/b.pdf",
}


@pytest.mark.parametrize("given", LABELS, ids=repr)
@pytest.mark.parametrize("way", ["acquire", "try_acquire"])
@pytest.mark.parametrize("id", [None, "mine"])
def test_a_holder_is_a_label_which_is_shortened_and_escaped_and_never_an_error(
    make: Any, tmp_path: Path, way: str, given: Any, id: str | None
) -> None:
    for store in (MemoryStore(), f"sqlite:///{tmp_path}/gates.db"):
        gate = make("g", [slots(9)], store=store)
        permit = getattr(gate, way)(holder=given, id=id)
        assert [holder.holder for holder in gate.holders()] == [LABELS[given]]
        assert permit.release() is True
        gate.store.close()


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
    assert gate.usage().paused_for is None
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
        ({"limits": None}, "has no limits; give it some"),
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

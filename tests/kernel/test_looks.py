"""A look sees what the next decision sees: `explain` says what `try_acquire` then does, and the dead are left out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Bucket, Concurrency, Denied, Gate, InvalidInput, KindChanged, Quota, Window
from headgate.kernel.commands import Peek, Stand
from headgate.kernel.model import Grant, Wait
from headgate.testing import FakeClock
from tests.support.generated import generated
from tests.support.histories import ASK, CROWD, DEEDS, FAMILIES, PASSED, History
from tests.support.stores import STORES, examples


class Alone:
    """One store, as a history takes a pair of them."""

    def __init__(self, store: Any, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock

    def listen(self, ticket: str) -> None:
        """No waiter is here."""

    def execute(self, commands: list[Any], which: int = 0) -> list[Any]:
        replies: list[Any] = self.store.execute(commands)
        return replies


def gate_of(policy: Any, store: Any) -> Gate:
    return Gate(
        policy.name,
        policy.limits,
        store=store,
        waiting=policy.waiting,
        priorities=policy.priorities or None,
        patience=policy.patience / 1e6,
        claim=policy.claim / 1e6,
    )


#: How much time passes, and what happens then; at last an ask that is explained and made.
STEPS = st.lists(st.tuples(PASSED, st.lists(DEEDS, max_size=4), ASK), min_size=1, max_size=10)


def says_what_it_does(store: Any, clock: FakeClock, family: str, crowd: list[Any], steps: list[Any]) -> None:
    history = History(Alone(store, clock), FAMILIES[family])
    gates = [gate_of(policy, store) for policy in FAMILIES[family]]
    held: list[Any] = []
    history.execute(crowd)
    for passed, deeds, ask in steps:
        clock.advance(microseconds=passed)
        history.execute(deeds)
        gate, plan = gates[ask[0] % len(gates)], history.plan(ask)
        cost, key = dict(plan.ref[2]), dict(plan.ref[3]) or None
        priority = list(plan.policy.priorities)[plan.rank] if plan.policy.priorities else None
        told: Any
        answer: Any = (True, 0.0, None)
        try:
            found = gate.explain(cost, key, priority)
            assert gate.explain(cost, key, priority) == found, "a look changed what the next one sees"
            told = (found.granted, found.goes_in, found.limit)
        except KindChanged as changed:
            told = str(changed)
        try:
            held.append(gate.acquire(cost, key=key, priority=priority, timeout=0, renew=False))
        except Denied as denied:
            answer = (False, denied.retry_after, denied.limit)
        except KindChanged as changed:
            answer = str(changed)
        if isinstance(told, str):  # a look describes every limit, so that another kind is an error before any refusal
            assert answer[0] is not True, "\n".join(history.story)
            continue
        assert told == answer, "\n".join(history.story)
    for permit in held:
        permit.release("error")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("store", STORES)
def test_explain_says_what_the_next_ask_is_answered(store: str, family: str) -> None:
    @examples(store, 60)
    @given(CROWD, STEPS)
    def histories(crowd: list[Any], steps: list[Any]) -> None:
        clock = FakeClock()
        with STORES[store](clock) as opened:
            says_what_it_does(opened, clock, family, crowd, steps)

    histories()


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("store", STORES)
def test_explain_says_what_the_next_ask_is_answered_for_long(store: str, family: str) -> None:
    @generated(1000 if store == "memory" else 300)
    @given(CROWD, STEPS)
    def histories(crowd: list[Any], steps: list[Any]) -> None:
        clock = FakeClock()
        with STORES[store](clock) as opened:
            says_what_it_does(opened, clock, family, crowd, steps)

    histories()


# --- the dead ---------------------------------------------------------------------------------------------------------


@pytest.fixture(params=STORES)
def made(request: pytest.FixtureRequest) -> Any:
    clock = FakeClock()
    with STORES[request.param](clock) as store:
        yield store, clock


def stands(gate: Gate, store: Any, id: str, session: str = "killed", **ask: Any) -> None:
    """A process stands in line and is not heard of again."""
    plan = gate.policy.plan(**ask)
    store.decide(Stand(plan, id, f"job {id}", plan.lease, waits=True, session=session))


def test_a_look_leaves_out_the_waiters_of_a_dead_process(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Window(2, per="1m", slack=0, name="w")], store=store)
    gate.acquire(cost=2)
    for number in range(36):
        stands(gate, store, f"t{number}")
    assert gate.usage().waiting == 36
    assert len(gate.waiters()) == 36
    clock.advance("10m")
    usage = gate.usage()
    assert (usage.waiting, usage["w"].used) == (0, 0)
    assert gate.waiters() == []
    assert gate.explain().granted
    assert gate.try_acquire() is not None


def test_a_look_takes_nothing_and_calls_nobody(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Concurrency(1, lease="5s", name="c")], store=store)
    gate.acquire(renew=False)
    stands(gate, store, "next", session="alive")
    clock.advance("6s")  # the lease has ended unseen, so the next decision calls the ticket
    look = Peek(gate.policy, plan=gate.policy.plan(), leases=True, waiters=True)
    before = store.decide(look)
    assert (before.waiting, before.limits[0].used) == (1, 1)
    assert [lease.holder for lease in before.leases] == ["job next"]
    assert store.decide(look) == before
    clock.advance("3s")  # a call would have run out by now; the ticket is still to be called
    after = store.decide(look)
    assert after.seq == before.seq
    assert after.decision is not None
    assert [(waiter.id, waiter.state) for waiter in after.waiters] == [("next", "called")]


def test_a_call_that_is_over_holds_nothing_in_a_look(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Concurrency(1, lease="5s", name="c")], store=store, claim="1s")
    permit = gate.acquire(renew=False)
    stands(gate, store, "called")
    permit.release()
    assert gate.usage()["c"].used == 1
    clock.advance("2s")
    assert gate.usage()["c"].used == 0
    assert gate.explain().granted
    assert gate.try_acquire(renew=False) is not None


def test_a_paused_gate_that_is_also_full_says_when_both_let_it_go(made: Any) -> None:
    store, _ = made
    gate = Gate("g", [Window(1, per="1m", slack=0, name="w")], store=store)
    gate.acquire()
    gate.pause("10s", "maintenance")
    assert gate.explain().goes_in == pytest.approx(60, abs=0.07)
    with pytest.raises(Denied) as caught:
        gate.acquire(timeout=0)
    assert (caught.value.limit, caught.value.retry_after) == ("w", gate.explain().goes_in)
    gate.pause("2m", "more of it")
    assert gate.explain().goes_in == pytest.approx(120)
    assert "more of it" in gate.explain().reason


# --- when it would go -------------------------------------------------------------------------------------------------

RATES = {
    "window": [Window(10, per="10s", slack=0, name="rate")],
    "window-slack": [Window(7, per="10s", name="rate")],
    "bucket": [Bucket(60, per="1m", burst=5, slack=0, name="rate")],
    "quota": [Quota(12, per="minute", slack=0, name="rate")],
}


def served_at(store: Any, clock: FakeClock, tickets: list[Stand]) -> float:
    """Seconds until the last of these tickets was granted. Each takes its call, and asks again when it is told to."""
    began = went = clock()
    while tickets:
        replies = store.execute(tickets)
        if any(isinstance(reply, Grant) for reply in replies):
            went = clock()
        tickets = [stand for stand, reply in zip(tickets, replies, strict=True) if isinstance(reply, Wait)]
        looks = [reply.check_at for reply in replies if isinstance(reply, Wait) and reply.check_at is not None]
        clock.advance(microseconds=max(1000, min([*looks, clock() + 5_000_000]) - clock()))
    return (went - began) / 1e6


@pytest.mark.parametrize("kind", RATES)
@pytest.mark.parametrize("waiting", [1, 9, 35])
def test_retry_after_is_when_those_ahead_have_gone(made: Any, kind: str, waiting: int) -> None:
    store, clock = made
    gate = Gate("g", RATES[kind], store=store)
    while gate.try_acquire(cost=2) is not None:
        clock.advance("300ms")
    plan = gate.policy.plan(2)
    line = [Stand(plan, f"t{number}", None, 0, waits=True, session="alive") for number in range(waiting + 1)]
    assert all(isinstance(reply, Wait) for reply in store.execute(line[:-1]))
    told = gate.explain(2)
    with pytest.raises(Denied) as caught:
        gate.acquire(2, timeout=0)
    assert (told.goes_in, told.timing, told.position) == (caught.value.retry_after, "exact", waiting + 1)
    assert caught.value.position == waiting + 1
    # An ask like it that stands in line takes as long.
    assert told.goes_in == pytest.approx(served_at(store, clock, line), rel=0.05)


def test_a_line_of_different_costs_is_an_estimate_by_what_they_cost(made: Any) -> None:
    store, _ = made
    gate = Gate("g", [Bucket(100, per="10s", burst=100, slack=0, name="tpm", unit="tokens")], store=store)
    gate.acquire({"tokens": 100})
    for number, tokens in enumerate((60, 20, 40)):
        stands(gate, store, f"t{number}", cost={"tokens": tokens})
    told = gate.explain({"tokens": 5})
    assert told.timing == "estimate"
    assert told.goes_in == pytest.approx((60 + 20 + 40 + 5) / 10, rel=0.05)
    assert told.position == 4


def test_slots_are_told_as_the_earliest_moment(made: Any) -> None:
    store, _ = made
    gate = Gate("g", [Concurrency(1, lease="30s", name="c")], store=store)
    gate.acquire(renew=False)
    assert (gate.explain().goes_in, gate.explain().timing) == (30, "earliest")
    stands(gate, store, "t")
    told = gate.explain()
    assert (told.goes_in, told.timing, told.position) == (30, "earliest", 2)
    with pytest.raises(Denied, match="at the earliest 30 s"):
        gate.acquire(timeout=0)


def test_a_higher_class_does_not_wait_for_the_lower_one(made: Any) -> None:
    store, _ = made
    gate = Gate("g", [Window(10, per="10s", slack=0, name="w")], store=store, priorities={"live": 1.0, "batch": 1.0})
    gate.acquire(cost=10)
    for number in range(30):
        stands(gate, store, f"t{number}", priority="batch")
    assert gate.explain(priority="live").goes_in == pytest.approx(10, abs=0.02)
    assert gate.explain(priority="live").position == 1
    assert gate.explain(priority="batch").goes_in == pytest.approx(40, abs=0.1)
    assert gate.explain(priority="batch").position == 31


def test_the_first_ask_of_a_tenant_is_told_its_fair_turn(made: Any) -> None:
    store, _ = made
    gate = Gate("g", [Window(1, per="1s", slack=0, name="w"), Window(99, per="1s", name="o", by="org")], store=store)
    gate.acquire(key={"org": "a"})
    for number in range(60):
        stands(gate, store, f"t{number}", key={"org": "a"})
    assert gate.explain(key={"org": "b"}).goes_in <= 3
    assert gate.explain(key={"org": "a"}).goes_in == pytest.approx(61, abs=2)


def test_a_ticket_that_ran_out_of_time_knows_the_line(made: Any) -> None:
    store, _ = made
    gate = Gate("g", [Bucket(60, per="1m", burst=1, slack=0, name="rate")], store=store)
    gate.acquire()
    for number in range(30):
        stands(gate, store, f"t{number}")
    reply = store.decide(Stand(gate.policy.plan(), "mine", None, 0, waits=True, session="mine"))
    assert (reply.retry_after, reply.timing) == (pytest.approx(31, rel=0.05), "estimate")


# --- why --------------------------------------------------------------------------------------------------------------


def test_one_sentence_says_why(made: Any) -> None:
    store, clock = made
    limits = [Bucket(6000, per="1m", slack=0, name="tpm", unit="tokens"), Window(900, per="1m", name="rpm")]
    gate = Gate("gpt", limits, store=store, priorities={"live": 1.0, "batch": 1.0})
    assert gate.why() == "free now"
    gate.acquire({"tokens": 5900})
    for number in range(36):
        stands(gate, store, f"{number}", cost={"tokens": 1412}, priority="batch")
    assert gate.why() == "36 wait for tpm: the first (job 0, batch) needs 1,412 of 100 left; goes in 13 s"
    gate.pause("30s", "maintenance")
    assert gate.why() == "paused for 30 s: maintenance; 36 wait"
    clock.advance("11m")
    assert gate.why() == "free now"  # the process that waited is gone


def test_a_full_gate_says_which_limit_is_used_up(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Window(2, per="1m", slack=0, name="rpm"), Concurrency(9, name="c")], store=store)
    gate.acquire(cost=2, renew=False)
    clock.advance("18s")
    assert gate.why() == "rpm is used up: the next ask can go in 42 s"


def test_slots_that_are_waited_for_are_said_so(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Concurrency(1, lease="30s", name="c")], store=store)
    gate.acquire(holder="sleeper", renew=False)
    assert gate.why() == "c is used up: the next ask can go within 30 s"
    clock.advance("5s")
    stands(gate, store, "one")
    assert gate.why() == "1 waits for c: the first (job one) needs a slot, and none is free; one ends by itself in 25 s"


def test_a_lease_that_is_renewed_while_others_wait_ends_later_in_every_look(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Concurrency(1, lease="30s", name="c")], store=store, claim="1s")
    permit = gate.acquire(holder="worker", renew=False)
    stands(gate, store, "one", session="alive")
    clock.advance("8s")
    permit.renew()
    clock.advance("1s")
    assert gate.explain().goes_in == 29
    assert [waiter.goes_in for waiter in gate.waiters()] == [29]
    assert gate.why() == "1 waits for c: the first (job one) needs a slot, and none is free; one ends by itself in 29 s"
    permit.release()


def test_a_look_forgets_nothing_so_a_clock_that_goes_back_lets_nobody_in_early(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Window(1, per="10s", slack=0, name="w"), Concurrency(9, lease="5s", name="c")], store=store)
    gate.acquire(renew=False)
    clock.advance("30s")
    assert (gate.usage()["w"].used, gate.usage()["c"].used) == (0, 0)
    clock.set(clock() - 25_000_000)
    assert gate.try_acquire(renew=False) is None
    assert gate.usage()["w"].used == 1


def test_a_promise_gate_says_what_is_promised(made: Any) -> None:
    store, _ = made
    gate = Gate("g", [Bucket(10, per="10s", burst=1, slack=0, name="b")], store=store, waiting="promise")
    for _ in range(15):
        gate.reserve()
    assert gate.why() == "b is used up, and 14 are promised: the next ask can go in 15 s"


def test_waiters_say_what_they_cost_what_they_wait_for_and_when_they_would_go(made: Any) -> None:
    store, _ = made
    limits = [Bucket(60, per="1m", burst=1, slack=0, name="all"), Window(1, per="1m", slack=0, name="each", by="org")]
    gate = Gate("g", limits, store=store, priorities={"live": 1.0, "batch": 1.0})
    gate.acquire(key={"org": "a"})
    stands(gate, store, "a1", key={"org": "a"})
    for number in range(3):
        stands(gate, store, f"b{number}", key={"org": f"b{number}"}, priority="batch")
    first, *rest = gate.waiters()
    assert (first.id, first.limit, first.priority, first.state) == ("a1", "each", "live", "waits")
    assert (first.cost, first.goes_in) == ({"requests": 1}, pytest.approx(60, rel=0.01))
    assert [(waiter.limit, waiter.priority) for waiter in rest] == [("all", "batch")] * 3
    assert [waiter.goes_in for waiter in rest] == [1, 2, 3]


# --- keys -------------------------------------------------------------------------------------------------------------


def test_the_keys_that_use_most_of_a_limit_are_told(made: Any) -> None:
    store, _ = made
    limits = [Window(10, per="1m", slack=0, name="rpm", by="org"), Concurrency(9, name="slots", by="org")]
    gate = Gate("g", limits, store=store)
    for org, calls in (("acme", 9), ("beta", 2), ("acorn", 5), ("zeta", 1)):
        for _ in range(calls):
            gate.acquire(key={"org": org}, renew=False)
    assert [(row.key, row.used, row.limit) for row in gate.keys("rpm", top=3)] == [
        ("acme", 9, 10),
        ("acorn", 5, 10),
        ("beta", 2, 10),
    ]
    assert [row.key for row in gate.keys("rpm", search="ac")] == ["acme", "acorn"]
    assert [(row.key, row.used) for row in gate.keys("slots", top=1)] == [("acme", 9)]
    gate.set_limit("rpm", 1, key={"org": "zeta"})
    assert [row.key for row in gate.keys("rpm", top=1)] == ["zeta"]  # all of its own limit
    with pytest.raises(InvalidInput, match="rpm, slots"):
        Gate("h", [*limits, Window(1, per="1s", name="all")], store=store).keys("all")
    with pytest.raises(InvalidInput, match="from 1 to"):
        gate.keys("rpm", top=0)


def test_a_bucket_that_has_run_off_is_not_the_fullest(made: Any) -> None:
    store, clock = made
    gate = Gate("g", [Bucket(60, per="1m", burst=60, slack=0, name="b", by="org")], store=store)
    gate.acquire(cost=60, key={"org": "before"})
    clock.advance("59s")
    gate.acquire(cost=5, key={"org": "now"})
    assert [(row.key, row.used) for row in gate.keys("b")] == [("now", 5), ("before", pytest.approx(1))]

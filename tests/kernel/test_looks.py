"""A look sees what the next decision sees: `explain` says what `try_acquire` then does, and the dead are left out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Concurrency, Denied, Gate, Window
from headgate.kernel.commands import Stand
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
        told = gate.explain(cost, key, priority)
        assert gate.explain(cost, key, priority) == told, "a look changed what the next one sees"
        answer = (True, 0.0, None)
        try:
            held.append(gate.acquire(cost, key=key, priority=priority, timeout=0, renew=False))
        except Denied as denied:
            answer = (False, denied.retry_after, denied.limit)
        assert (told.granted, told.after, told.limit) == answer, "\n".join(history.story)
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
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("store", STORES)
def test_explain_says_what_the_next_ask_is_answered_for_long(store: str, family: str) -> None:
    @generated(1000 if store in ("memory", "redis") else 300)
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
    before = gate.usage()
    assert (before.waiting, before["c"].used) == (1, 1)
    assert [holder.holder for holder in gate.holders()] == ["job next"]
    assert gate.usage() == before
    clock.advance("3s")  # a call would have run out by now; the ticket is still to be called
    assert gate.explain().granted is False
    assert [waiter.id for waiter in gate.waiters()] == ["next"]


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
    assert gate.explain().after == pytest.approx(60, abs=0.07)
    with pytest.raises(Denied) as caught:
        gate.acquire(timeout=0)
    assert (caught.value.limit, caught.value.retry_after) == ("w", gate.explain().after)
    gate.pause("2m", "more of it")
    assert gate.explain().after == pytest.approx(120)
    assert "more of it" in gate.explain().reason

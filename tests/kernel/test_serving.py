"""A command that leaves the line unserved leaves nobody waiting who could go, and nobody's moment unwatched."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Bucket, Window
from headgate.kernel import line
from headgate.kernel.commands import Command, Configure, Settle, Stand
from headgate.kernel.model import SECOND, Grant, Refusal, Wait
from headgate.kernel.plan import Policy
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.support.generated import generated
from tests.support.histories import ASKING, ENDING, FAMILIES, OVERRIDING, PASSED, History

LINES = {gate: policies for gate, policies in FAMILIES.items() if policies[0].waiting == "line"}

#: The kinds of deeds that may leave the line alone, and often; and overrides, which make some of those who wait impossible.
DEED = st.one_of(*ASKING, *ENDING, OVERRIDING)


class Served:
    """A store in memory whose line is served once more after every command, on a copy, to see what that would do."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(clock=self.clock)

    def listen(self, ticket: str) -> None:
        """Wakes are not looked at here."""

    def execute(self, commands: list[Command], which: int = 0) -> list[Any]:
        replies = []
        for command in commands:
            replies += self.store.execute([command])
            self._serve_again(command.gate)
        return replies

    def _serve_again(self, gate: str) -> None:
        records = self.store._gates[gate]
        if not records.head.tickets or records.head.now >= line.line_state(records).timer_at:
            return  # nobody waits, or whoever keeps the timer is about to look
        served = deepcopy(records)
        now = served.head.now
        before = [id for _, id in served.space("calls").scan()]
        line.serve(served, now)
        assert [id for _, id in served.space("calls").scan()] == before, "somebody could have gone"
        assert line.line_state(served).timer_at >= line.line_state(records).timer_at, "a moment would have been missed"
        if line.line_state(served).timer:
            assert line.line_state(records).timer, "nobody keeps the timer"


@pytest.mark.parametrize("gate", LINES)
def test_after_every_command_serving_the_line_once_more_calls_nobody(gate: str) -> None:
    @generated(120)
    @given(st.lists(st.tuples(PASSED, st.lists(DEED, min_size=1, max_size=4)), max_size=25))
    def check(story: list[Any]) -> None:
        served = Served()
        history = History(served, LINES[gate])
        for passed, deeds in story:
            served.clock.advance(microseconds=passed)
            history.execute(deeds)

    check()


@pytest.mark.parametrize("by", [None, "org"])
def test_what_is_confirmed_in_time_lets_the_next_go_a_window_after_the_confirmation(by: str | None) -> None:
    served = Served()
    policy = Policy("early", [Window(2, per="5s", slack="1s", name="w", by=by)])
    plan = policy.plan(1, {by: "acme"} if by else None)
    asks = [Stand(plan, f"ask-{number}", waits=True, session="one") for number in range(3)]
    [first, second, waits] = served.execute(list(asks))
    assert waits.check_at == first[0] + 6 * SECOND
    confirmed = served.clock.advance("0.5s")
    served.execute(
        [Settle(plan, grant.at, ask.id, None, False) for ask, grant in zip(asks, (first, second), strict=False)]
    )
    served.clock.set(confirmed + 5 * SECOND - 1)
    [still] = served.execute([asks[2]])
    assert still.check_at == confirmed + 5 * SECOND
    served.clock.set(confirmed + 5 * SECOND)
    [granted] = served.execute([asks[2]])
    assert granted.at == confirmed + 5 * SECOND


def test_a_confirmation_for_one_key_counts_while_the_timer_is_kept_for_another() -> None:
    served = Served()
    policy = Policy("keys", [Window(1, per="5s", slack="1s", name="w", by="org")])
    asks = {}
    for org in ("early", "late"):
        plan = policy.plan(1, {"org": org})
        asks[org] = [Stand(plan, f"{org}-{number}", waits=True, session=org) for number in range(2)]
        [granted, waits] = served.execute(list(asks[org]))
        assert isinstance(waits, Wait)
        served.clock.advance("1s" if org == "early" else "100ms")
    confirmed = served.clock()
    served.execute([Settle(asks["late"][0].plan, granted.at, "late-0", None, False)])
    served.clock.set(confirmed + 5 * SECOND)
    served.execute([asks["early"][1]])
    [granted] = served.execute([asks["late"][1]])
    assert granted.at == confirmed + 5 * SECOND


def test_tickets_behind_others_early_confirmations_and_taken_calls_do_not_serve_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = 0
    serve = line.serve

    def counting(*arguments: Any) -> Any:
        nonlocal served
        served += 1
        return serve(*arguments)

    monkeypatch.setattr(line, "serve", counting)
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    plan = Policy("busy", [Window(20, per="1m", slack="5s", name="w")]).plan()
    granted = 0
    for number in range(60):
        clock.advance("50ms")
        ask = Stand(plan, f"ask-{number}", waits=True, session="one")
        [reply] = store.execute([ask])
        if isinstance(reply, Grant):
            granted += 1
            clock.advance("10ms")
            store.execute([Settle(plan, reply.at, ask.id, None, False)])
    # The first to stand is looked at; the 39 behind it change nothing.
    assert (granted, served) == (20, 1)


def test_who_waits_is_told_when_to_look_though_one_of_a_lower_class_became_impossible_in_the_same_moment() -> None:
    served = Served()
    limits = [Bucket(3, per="3s", slack=0, name="b", by="org")]
    policy = Policy("classes", limits, priorities={"live": 1.0, "batch": 0.5}, patience=60 * SECOND)
    live, batch = (policy.plan(1, {"org": "acme"}, priority) for priority in ("live", "batch"))
    asks = [Stand(batch, "batch", waits=True, session="one"), Stand(live, "live", waits=True, session="two")]
    served.execute([Stand(batch, "gone"), asks[0], Stand(live, "too"), Stand(live, "far"), asks[1]])
    served.execute([Configure("classes", "b", 1.0)])  # half of it is less than what the lower class asks for
    refused, waits = served.execute(list(asks))
    assert isinstance(refused, Refusal)
    assert isinstance(waits, Wait)
    assert waits.check_at is not None
    served.clock.advance(microseconds=waits.check_at - waits.now)
    assert isinstance(served.execute([asks[1]])[0], tuple)


def test_nothing_is_left_of_keys_that_were_waited_for() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    policy = Policy("keys", [Window(1, per="1s", slack=0, name="w", by="org")])
    for number in range(50):
        plan = policy.plan(1, {"org": f"org-{number}"})
        first, second = (Stand(plan, f"{number}-{place}", waits=True, session="one") for place in range(2))
        store.execute([first, second])
        clock.advance("1.1s")
        assert isinstance(store.execute([second])[0], tuple)
    assert not any(store._gates["keys"].names(kind) for kind in ("lane", "of", "parked", "rest"))

"""Retries by policy: what is worth another try, when, and what is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import AsyncGate, Concurrency, Denied, Gate, InvalidInput, Report, Window
from headgate.clients import Retry
from headgate.stores.memory import MemoryStore

REFUSED = {"status": 429, "headers": {}}
AWAY = {"status": 503, "headers": {}}
FINE = {"status": 200, "headers": {}}


class Refused(Exception):
    """An SDK's exception that carries the answer."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(status)
        self.response = {"status": status, "headers": headers}


def gate_of(*limits: Any) -> Gate:
    return Gate("retry", limits or [Window(1000, per="1m", name="rpm"), Concurrency(1)], store=MemoryStore())


def test_a_429_with_a_delay_asks_again_at_once_because_the_gate_is_paused_for_everybody() -> None:
    assert Retry().next_wait_s(Report("rate_limited", 28.0), 1, 0.0, 0.5) == 0.0


def test_a_429_without_a_delay_and_a_503_back_off_with_full_jitter() -> None:
    retry = Retry(attempts=9, base="2s", cap="10s")
    for report in (Report("rate_limited"), Report("overloaded"), Report("overloaded", 3.0)):
        assert [retry.next_wait_s(report, n, 0.0, 1.0) for n in (1, 2, 3, 4, 5)] == [2, 4, 8, 10, 10]
        assert [retry.next_wait_s(report, n, 0.0, 0.0) for n in (1, 2, 3)] == [0, 0, 0]
    assert Retry(base="2s", jitter=0.5).next_wait_s(Report("overloaded"), 1, 0.0, 0.0) == 1.0


@pytest.mark.parametrize("report", [Report("ok"), Report("error"), Report("unsent"), Report("rate_limited", 5.0, True)])
def test_everything_else_and_a_spent_quota_fail_at_once(report: Report) -> None:
    assert Retry().next_wait_s(report, 1, 0.0, 0.5) is None


@given(
    attempts=st.integers(1, 12),
    attempt=st.integers(1, 12),
    elapsed=st.floats(0, 100),
    after=st.one_of(st.none(), st.floats(0, 100)),
    chance=st.floats(0, 1),
    jitter=st.floats(0, 1),
    outcome=st.sampled_from(["rate_limited", "overloaded"]),
)
def test_no_attempt_begins_after_the_deadline_nor_after_the_last(
    attempts: int, attempt: int, elapsed: float, after: float | None, chance: float, jitter: float, outcome: str
) -> None:
    wait = Retry(attempts=attempts, deadline="60s", jitter=jitter).next_wait_s(
        Report(outcome, after), attempt, elapsed, chance
    )
    if wait is not None:
        assert attempt < attempts
        assert wait >= 0
        assert elapsed + max(wait, after or 0.0) < 60


@pytest.mark.parametrize(
    "wrong",
    [{"attempts": 0}, {"attempts": True}, {"attempts": 1.5}, {"jitter": 2}, {"base": "soon"}, {"deadline": -1}],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Retry(**wrong)


def test_call_makes_refused_calls_again_each_under_a_permit_of_its_own() -> None:
    gate, answers, held = gate_of(), [AWAY, Refused(429), FINE], []

    def call(permit: Any) -> Any:
        held.append(permit.id)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert Retry(base="1ms").call(gate, call) is FINE
    assert len(set(held)) == 3
    assert (gate.usage()["rpm"].used, gate.holders()) == (3, [])


def test_call_gives_its_caller_the_last_error_and_the_last_result() -> None:
    gate = gate_of()
    with pytest.raises(Refused):
        Retry(attempts=2, base="1ms").call(gate, lambda permit: raised(Refused(503)))
    assert Retry(attempts=2, base="1ms").call(gate, lambda permit: AWAY) is AWAY
    with pytest.raises(KeyError):
        Retry(base="1ms").call(gate, lambda permit: raised(KeyError("mine")))
    assert Retry(base="1ms").call(gate, lambda permit: "no answer at all") == "no answer at all"
    assert (gate.usage()["rpm"].used, gate.holders()) == (6, [])


def raised(error: Exception) -> None:
    raise error


def test_the_last_attempt_is_not_followed_by_a_sleep() -> None:
    # An hour would be the test's end.
    assert Retry(attempts=1, base="1h", jitter=0).call(gate_of(), lambda permit: AWAY) is AWAY


def test_the_deadline_is_kept_while_a_call_waits_for_its_permit() -> None:
    gate = gate_of(Window(1, per="1h"))
    retry = Retry(attempts=5, base="1ms", deadline="100ms")
    assert retry.call(gate, lambda permit: AWAY) is AWAY
    with pytest.raises(Denied):
        retry.call(gate, lambda permit: AWAY)
    with pytest.raises(Denied):
        Retry(deadline="1h").call(gate, lambda permit: AWAY, timeout=0)


def test_acall_is_the_same_on_an_event_loop_and_leaves_nothing_when_cancelled() -> None:
    async def main() -> None:
        gate = AsyncGate("retry", [Window(1000, per="1m", name="rpm"), Concurrency(1)], store=MemoryStore())
        answers = [AWAY, Refused(429), FINE]

        async def call(permit: Any) -> Any:
            await asyncio.sleep(0)
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        assert await Retry(base="1ms").acall(gate, call) is FINE
        assert (await gate.usage())["rpm"].used == 3

        async def long(permit: Any) -> Any:
            await asyncio.sleep(3600)

        task = asyncio.create_task(Retry().acall(gate, long))
        while not await gate.holders():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await gate.holders() == []
        answers += [AWAY]
        with pytest.raises(Refused):
            await Retry(attempts=1).acall(gate, refuse)

    async def refuse(permit: Any) -> Any:
        raise Refused(429, **{"retry-after": "1"})

    asyncio.run(main())

"""Many promises at once: a decision looks at about as many records as with few, and still breaks nothing."""

from random import Random
from typing import Any

import pytest

from headgate import Bucket, Gate, Window
from headgate.kernel.limits import bucket as buckets
from headgate.kernel.limits import window as windows
from headgate.kernel.records import DictSpace
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock, FakeUpstream
from tests.kernel.test_promises import CONFIGS, Promises, S

KINDS: dict[str, Any] = {
    "bucket": Bucket(1000, per="1m", burst=50, slack=0, name="b"),
    "window": Window(1000, per="1m", slack=0, name="w"),
}


def places(gate: Gate, clock: FakeClock, costs: list[float]) -> list[tuple[int, float]]:
    return [(clock() + round(gate.reserve(cost).delay * S), cost) for cost in costs]


def mixed(numbers: Random, count: int) -> list[float]:
    """Costs of which hardly two are the same, in quarters, so that sums of them are exact."""
    return [numbers.randrange(1, 160) / 4 for _ in range(count)]


@pytest.mark.parametrize("config", CONFIGS)
def test_long_histories_promise_the_earliest_moment_too(config: str) -> None:
    for seed in range(3):
        numbers, clock = Random(seed), FakeClock()
        promises = Promises(CONFIGS[config], MemoryStore(clock=clock), clock)
        deeds = {"r": promises.reserve, "c": promises.cancel, "t": promises.time_passes}
        for _ in range(80):
            deeds[numbers.choice("rrrrrrrct")](numbers.randrange(1001), numbers.randrange(12))


@pytest.mark.parametrize("kind", KINDS)
def test_a_decision_reads_as_many_records_with_thousands_of_promises_as_with_a_few(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    def counted(space: DictSpace, member: Any, default: Any = None) -> Any:
        nonlocal read
        read += 1
        return dict.get(space, member, default)

    numbers, clock = Random(7), FakeClock()
    gate = Gate("g", [KINDS[kind]], store=MemoryStore(clock=clock), waiting="promise")
    gate.reserve(50 if kind == "bucket" else 1000)
    means = []
    for before in (10, 90, 5900):
        places(gate, clock, mixed(numbers, before))
        with monkeypatch.context() as patched:
            patched.setattr(DictSpace, "get", counted)
            read = 0
            places(gate, clock, mixed(numbers, 100))
            means.append(read / 100)
    assert means[2] <= 2 * means[0], f"records read for a decision, among 10, 200 and 6,200 promises: {means}"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_cancelled_among_thousands_is_given_to_others_and_nothing_is_broken(kind: str) -> None:
    assert windows.LOOKED == buckets.LOOKED == 2000
    numbers, clock = Random(11), FakeClock()
    limit = KINDS[kind]
    gate = Gate("g", [limit], store=MemoryStore(clock=clock), waiting="promise")
    kept: list[tuple[int, float]] = []
    held = []
    for cost in mixed(numbers, 5000):
        place = gate.reserve(cost)
        held.append((clock() + round(place.delay * S), cost, place))
    for number in (4900, 3000, 40, 2):
        held.pop(number)[2].cancel()
        last = max(at for at, _, _ in held)
        for cost in mixed(numbers, 4):
            place = gate.reserve(cost)
            at = clock() + round(place.delay * S)
            assert at <= last + 60 * S, "no later than behind all others"
            held.append((at, cost, place))
            last = max(last, at)
        clock.advance("1s")
    kept = [(at, cost) for at, cost, _ in held]
    if kind == "window":
        assert FakeUpstream(1000, "1m").judge(kept) == []
    else:
        assert FakeUpstream(1000, "1m", "bucket", burst=50 + 1e-6).judge(kept) == []
    # In between there is as much room as before: an ask that is small enough goes soon, and one that is not goes last.
    assert sum(cost for _, cost in kept) / 1000 * 60 * S >= 0.97 * (max(at for at, _ in kept) - clock())

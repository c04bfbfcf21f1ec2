"""The short way decides as the long way does: the same replies, and the same records after each of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import Aimd, Bucket, Concurrency, Denied, Gate, Permit, Quota, Window
from headgate.kernel.commands import Admit, Command, Stand
from headgate.kernel.head import Head
from headgate.kernel.records import DictSpace
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock


class LongWay(MemoryStore):
    """Nothing is made ready, and every ask goes by the rules in all generality."""

    def caller(self, gate: str) -> Any:
        return None

    def prepared(self, gate: str, prepare: Any) -> Any:
        return None

    def decide(self, command: Command) -> Any:
        if type(command) is Admit:
            command = Stand(command.plan, command.id, command.holder, command.lease)
        return super().decide(command)


bucket = st.builds(Bucket, st.sampled_from([1, 3, 8.5, 1000]), st.just("10s"), slack=st.sampled_from([0, 0.5, None]))
window = st.builds(Window, st.sampled_from([1, 4, 9.5, 1000]), st.just("10s"), slack=st.sampled_from([0, 0.5, None]))
quota = st.builds(Quota, st.sampled_from([2, 30]), st.just("minute"))
slots = st.builds(Concurrency, st.sampled_from([1, 2, 5]), lease=st.sampled_from(["2s", "30s"]))
adaptive = st.builds(Concurrency, st.just(5), adaptive=st.just(Aimd(start=3, increase_every=2)))
kinds = st.one_of(bucket, window, quota, slots, adaptive)


def named(limits: list[Any], by: list[bool]) -> list[Any]:
    """The limits with names of their own, each by a key or not."""
    for number, (limit, keyed) in enumerate(zip(limits, by, strict=True)):
        limit.name = f"{limit.kind}{number}"
        limit.by = "org" if keyed else None
    return limits


FAMILIES = {
    "one bucket": bucket.map(lambda limit: [limit]),
    "another rate": st.one_of(window, quota).map(lambda limit: [limit]),
    "slots": slots.map(lambda limit: [limit]),
    "a rate and slots": st.tuples(st.one_of(bucket, window, quota), slots).map(list),
    "several rates": st.lists(st.one_of(bucket, window, quota), min_size=2, max_size=3),
    "anything": st.lists(kinds, min_size=1, max_size=4),
}


index = st.integers(0, 20)
moments = st.sampled_from([0, 1, 9_000, 60_000, 700_000, 2_500_000, 31_000_000])
steps = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from([1, 1, 1, 2.5]), index),
    st.tuples(st.just("ask and end"), st.integers(1, 300), index),
    st.tuples(st.just("end"), index, st.sampled_from(["ok", "ok", "ok", "error", "unsent", "rate_limited"])),
    st.tuples(st.just("confirm"), index),
    st.tuples(st.just("renew"), index),
    st.tuples(st.just("pass"), moments),
    st.tuples(st.just("ask, pass and end"), moments, index),
    st.tuples(st.just("back"), st.sampled_from([1, 5_000_000])),
    st.tuples(st.just("override"), st.sampled_from([1, 3, None]), index),
    st.tuples(st.just("pause"), st.booleans()),
    st.tuples(st.just("reset"), st.booleans(), index),
)


class Two:
    """The same gate twice on one clock: once as it is, once the long way. Whatever is done is done to both."""

    def __init__(self, limits: list[Any]) -> None:
        self.clock = FakeClock()
        self.stores = (MemoryStore(clock=self.clock), LongWay(clock=self.clock))
        self.gates = [Gate("g", limits, store=store) for store in self.stores]
        self.limits = limits
        self.keyed = any(limit.by for limit in limits)
        self.held: list[tuple[Permit, Permit]] = []
        #: Ids are new on each side; what they stand for is the same.
        self.numbers: dict[str, int] = {}

    def do(self, what: str, *how: Any) -> None:
        getattr(self, "do_" + what.replace(",", "").replace(" ", "_"))(*how)
        self.compare()

    def do_ask(self, cost: float, key: int) -> None:
        org = {"org": f"org{key % 3}"} if self.keyed else None
        said = [asked(gate, cost, org) for gate in self.gates]
        short, long = said
        if not isinstance(short, Permit) or not isinstance(long, Permit):
            assert short == long
            # The short way may leave a refusal without a number.
            ours, theirs = (store._records("g") for store in self.stores)
            assert ours.head.heeded() == theirs.head.heeded()
            theirs.head = Head(*ours.head.stored())
            return
        told = ("_at", "_expires", "_fence", "_worth")
        assert [getattr(short, name) for name in told] == [getattr(long, name) for name in told]
        assert bool(short.id) == bool(long.id)
        self.numbers[short.id] = self.numbers[long.id] = len(self.numbers)
        self.held.append((short, long))

    def do_ask_and_end(self, times: int, key: int) -> None:
        for _ in range(times):
            self.do_ask(1, key)
            if self.held:
                self.do_end(len(self.held) - 1, "ok")

    def do_ask_pass_and_end(self, microseconds: int, key: int) -> None:
        before = len(self.held)
        self.do_ask(1, key)
        self.do_pass(microseconds)
        if len(self.held) > before:
            self.do_end(before, "ok")

    def do_end(self, which: int, outcome: str) -> None:
        if self.held:
            short, long = self.held.pop(which % len(self.held))
            confirmed = short._confirmed
            outcome = "ok" if confirmed and outcome == "unsent" else outcome
            assert short.release(outcome) == long.release(outcome)

    def do_confirm(self, which: int) -> None:
        if self.held:
            short, long = self.held[which % len(self.held)]
            short.confirm()
            long.confirm()
            assert short._confirmed == long._confirmed

    def do_renew(self, which: int) -> None:
        leased = [pair for pair in self.held if pair[0].id and pair[0].lease_expires_at]
        if leased:
            renewed = []
            for permit in leased[which % len(leased)]:
                try:
                    renewed.append(permit.renew())
                except Exception as error:
                    renewed.append(type(error))  # type: ignore[arg-type]
            assert renewed[0] == renewed[1]

    def do_pass(self, microseconds: int) -> None:
        self.clock.now += microseconds

    def do_back(self, microseconds: int) -> None:
        self.clock.now -= microseconds

    def do_override(self, value: float | None, which: int) -> None:
        name = self.limits[which % len(self.limits)].name
        for gate in self.gates:
            gate.clear_limit(name) if value is None else gate.set_limit(name, value)

    def do_pause(self, on: bool) -> None:
        for gate in self.gates:
            gate.pause(1) if on else gate.resume()

    def do_reset(self, whole: bool, which: int) -> None:
        for gate in self.gates:
            gate.reset(None if whole else self.limits[which % len(self.limits)].name)

    def compare(self) -> None:
        short, long = (self.picture(store) for store in self.stores)
        assert short == long

    def picture(self, store: MemoryStore) -> dict[str, Any]:
        """All that is on record, in the words of both: ids by number, and no leases that have expired unseen."""
        records = store._records("g")
        now = max(self.clock.now, records.head.now)
        seen: dict[str, Any] = {"head": records.head.stored(), "states": rows(records.states)}
        for kind, spaces in records.kinds.items():
            for name, space in spaces.items():
                there = rows(space)
                if kind == "leases":
                    there = {self.numbers[id]: row for id, row in there.items() if row[1] > now}
                if there:
                    seen[f"{kind}/{name}"] = there
        return seen


def rows(space: DictSpace) -> dict[Any, tuple[Any, Any]]:
    """Member → (value, score), without asking for the order: that would change how the next ones are found."""
    scores = {**space.scores, **space.fresh}
    return {member: (value, scores.get(member)) for member, value in space.items()}


def asked(gate: Gate, cost: float, key: dict[str, str] | None) -> Permit | tuple[str | None, float | None] | None:
    """A permit, None, or why there will never be one."""
    try:
        return gate.try_acquire(cost, key=key)
    except Denied as error:
        return error.limit, error.retry_after


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data(), history=st.lists(steps, min_size=15, max_size=60))
@settings(max_examples=80, deadline=None)
def test_the_short_way_and_the_long_way_give_the_same_replies_and_leave_the_same_records(
    family: str, data: st.DataObject, history: list[tuple[Any, ...]]
) -> None:
    limits = data.draw(FAMILIES[family])
    by = data.draw(st.one_of(st.just([False] * len(limits)), st.tuples(*[st.booleans()] * len(limits)).map(list)))
    two = Two(named(limits, by))
    for step in history:
        two.do(*step)


DAY = 86_400_000_000
KNOWN = {
    "a confirmation at the end": (
        [Window(4, per="10s", slack=0.5), Concurrency(5)],
        [
            ("ask", 1, 0),
            ("ask", 1, 0),
            ("ask", 1, 0),
            ("pass", 60_000),
            ("end", 2, "ok"),
            ("end", 1, "ok"),
            ("end", 0, "ok"),
        ],
    ),
    "one slot of a window after the other": (
        [Window(1000, per="10s", slack=0.5)],
        [("ask", 1, 0), ("pass", 9_000)] * 40,
    ),
    "what has run off is forgotten": (
        [Window(1000, per="10s"), Concurrency(5)],
        [
            ("ask and end", 300, 0),
            ("pass", 2 * DAY),
            ("ask and end", 300, 0),
            ("pass", 2 * DAY),
            ("ask and end", 300, 0),
        ],
    ),
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_histories_go_the_same_on_both_ways(name: str) -> None:
    limits, history = KNOWN[name]
    two = Two(limits)
    for step in history:
        two.do(*step)


def test_keys_that_have_run_off_are_forgotten_on_the_short_way_too() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    gate = Gate("g", [Bucket(100, per="1s", by="org")], store=store)
    for number in range(1000):
        assert gate.try_acquire(key={"org": f"org{number}"})
    assert len(store._records("g").states) == 1000
    clock.advance("10s")
    for _ in range(1500):
        clock.advance("10ms")
        assert gate.try_acquire(key={"org": "busy"})
    assert len(store._records("g").states) == 1


def test_a_refusal_of_the_short_way_names_the_same_limit_and_moment_as_the_long_way() -> None:
    clock = FakeClock()
    limits = [Window(2, per="10s", name="rate"), Concurrency(5, name="slots")]
    said = []
    for store in (MemoryStore(clock=clock), LongWay(clock=clock)):
        gate = Gate("g", limits, store=store)
        kept = [gate.try_acquire(), gate.try_acquire()]
        wait = gate.explain()
        assert all(kept)
        assert gate.try_acquire() is None
        said.append((wait.limit, wait.goes_in))
    assert said[0] == said[1] == ("rate", 10.2)


members = st.integers(0, 12)
moves = st.one_of(
    st.tuples(st.just("put"), members, st.integers(0, 30)),
    st.tuples(st.just("put many"), members, st.integers(0, 1500)),
    st.tuples(st.just("set"), members),
    st.tuples(st.just("delete"), members),
    st.tuples(st.just("delete many"), st.integers(0, 700)),
    st.tuples(st.just("first")),
    st.tuples(st.just("scan"), st.integers(-1, 31)),
)


@given(st.lists(moves, max_size=60))
@settings(max_examples=200, deadline=None)
def test_a_space_in_memory_keeps_the_order_that_a_sorted_list_would(history: list[tuple[Any, ...]]) -> None:
    space = DictSpace()
    values: dict[int, int] = {}
    scores: dict[int, int] = {}
    for number, (what, *how) in enumerate(history):
        if what in ("put", "put many"):
            more = how[1] if what == "put many" else 1
            for member in range(how[0], how[0] + more):
                score = how[1] if more == 1 else (member * 7919 + number) % 977
                space.put(member, number, score)
                values[member], scores[member] = number, score
        elif what == "set":
            space[how[0]] = values[how[0]] = number
        elif what == "delete":
            values.pop(how[0], None)
            assert space.delete(how[0]) == scores.pop(how[0], None)
        elif what == "delete many":
            for member in sorted(scores)[: how[0]]:
                del values[member]
                assert space.delete(member) == scores.pop(member)
        elif what == "first":
            assert space.first() == min(((score, member) for member, score in scores.items()), default=None)
        else:
            left = sorted((score, member) for member, score in scores.items() if score >= how[0])
            assert list(space.scan(how[0])) == left
        assert len(space) == len(values)
        assert all(space.get(member) == values[member] for member in list(values)[:20])

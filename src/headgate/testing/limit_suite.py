"""What every kind of limit must pass, through `Gate` with a clock that stands still: on a store in memory, by default."""

from __future__ import annotations

import json

from ..errors import Denied, KindChanged
from ..gate import Gate
from ..kernel.commands import Stand
from ..kernel.commands.base import REAP_EVERY
from ..kernel.limits import Bucket, Concurrency, from_spec
from ..kernel.model import Wait
from ..stores.memory import MemoryStore
from .clock import FakeClock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..gate import Permit
    from ..kernel.limits import Limit
    from ..stores.base import Store

#: More asks than this and the limit under test is too large for the suite.
MOST = 10_000


def _raised(kind: type[Any], call: Callable[[], Any]) -> Any:
    """The error that a call raises, which must be of this kind."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


class LimitSuite:
    """Subclass it, name the class `Test…`, and make your limit in `make_limit`; pytest does the rest.

    The limit should be small (a few dozen asks use it up) and not by a key. `cost` is what one ask takes of its unit.
    `make_store` may be given as well, to run it on another store that decides with the limit's own class.
    """

    cost: float = 1.0

    def make_limit(self) -> Limit:
        raise NotImplementedError("make_limit() returns the limit under test")

    def make_store(self, clock: FakeClock) -> Store:
        """A new, empty store that takes its time from `clock`."""
        return MemoryStore(clock=clock)

    # --- what the tests are made of ------------------------------------------------------------------------------

    def gate(self, limit: Limit | None = None, store: Store | None = None, **more: Any) -> tuple[Gate, FakeClock]:
        clock = FakeClock()
        store = store or self.make_store(clock)
        return Gate("suite", [limit or self.make_limit()], store=store, **more), clock

    def ask(self, gate: Gate, cost: float | None = None) -> Permit | float:
        """A permit, or the microseconds after which to try again."""
        limit = self.make_limit()
        amount = self.cost if cost is None else cost
        wanted: Any = 1 if limit.leased else {limit.unit: amount}
        try:
            return gate.acquire(wanted, timeout=0, renew=False)
        except Denied as denied:
            if denied.retry_after is None:
                raise
            return round(denied.retry_after * 1_000_000)

    def use_up(self, gate: Gate) -> list[Permit]:
        """Ask until refused."""
        permits: list[Permit] = []
        while True:
            answer = self.ask(gate)
            if isinstance(answer, float | int):
                return permits
            permits.append(answer)
            assert len(permits) < MOST, "give the suite a smaller limit"

    def wait_for(self, gate: Gate) -> int:
        answer = self.ask(gate)
        assert isinstance(answer, float | int), "it was granted, and should have been refused"
        assert answer > 0, "a refusal that could be repeated at once"
        return int(answer)

    # --- what must be so -----------------------------------------------------------------------------------------

    def test_an_ask_is_refused_just_before_its_retry_and_granted_exactly_at_it(self) -> None:
        gate, clock = self.gate()
        self.use_up(gate)
        for _ in range(5):
            wait = self.wait_for(gate)
            clock.advance(microseconds=wait - 1)
            assert self.wait_for(gate) == 1
            clock.advance(microseconds=1)
            assert not isinstance(self.ask(gate), float | int), "refused at the moment that it had named itself"
            self.use_up(gate)

    def test_it_refuses_after_as_much_as_it_allows_and_says_so_in_its_usage(self) -> None:
        gate, _ = self.gate()
        permits = self.use_up(gate)
        usage = gate.usage()[self.make_limit().name]
        each = 1.0 if self.make_limit().leased else self.cost
        assert len(permits) >= 1
        assert usage.used == sum([each] * len(permits))
        assert usage.used <= usage.limit

    def test_a_refusal_charges_nothing(self) -> None:
        gate, clock = self.gate()
        self.use_up(gate)
        before = gate.usage()[self.make_limit().name]
        wait = self.wait_for(gate)
        for _ in range(200):
            assert self.wait_for(gate) == wait
        assert gate.usage()[self.make_limit().name] == before
        clock.advance(microseconds=wait)
        assert not isinstance(self.ask(gate), float | int)

    def test_what_was_not_sent_is_given_back_once(self) -> None:
        gate, _ = self.gate()
        permits = self.use_up(gate)
        for permit in permits[-2:]:
            permit.release("unsent")
            permit.release("unsent")
        assert len(self.use_up(gate)) == len(permits[-2:])

    def test_giving_everything_back_leaves_it_as_it_was(self) -> None:
        gate, _ = self.gate()
        permits = self.use_up(gate)
        for permit in reversed(permits):
            permit.release("unsent")
        assert gate.usage()[self.make_limit().name].used == 0
        assert len(self.use_up(gate)) == len(permits)

    def test_looking_never_changes_a_decision(self) -> None:
        plain, clock = self.gate()
        watched, watched_clock = self.gate()
        limit = self.make_limit()
        for step in range(60):
            answers = [self.ask(plain), self.ask(watched)]
            assert isinstance(answers[0], float | int) == isinstance(answers[1], float | int)
            if isinstance(answers[0], float | int):
                assert answers[0] == answers[1]
                move = max(1, int(answers[0]) * (step % 3 + 1) // 3)
                clock.advance(microseconds=move)
                watched_clock.advance(microseconds=move)
            watched.usage()
            watched.holders()
            watched.explain(1 if limit.leased else {limit.unit: self.cost})
            watched.usage()
        assert plain.usage() == watched.usage()

    def test_a_changed_value_goes_on_with_what_was_used(self) -> None:
        gate, _ = self.gate()
        limit = self.make_limit()
        whole = len(self.use_up(gate))
        gate.reset()
        for _ in range(whole // 2):
            self.ask(gate)
        gate.set_limit(limit.name, max(1, limit.limit // 4))
        assert isinstance(self.ask(gate), float | int), "more was used than the new value allows"
        gate.clear_limit(limit.name)
        assert len(self.use_up(gate)) == whole - whole // 2

    def test_two_versions_of_a_configuration_share_one_state(self) -> None:
        limit = self.make_limit()
        clock = FakeClock()
        store = self.make_store(clock)
        old = Gate("suite", [limit], store=store)
        new = Gate("suite", [limit.scaled(2.0)], store=store)
        used = len(self.use_up(old))
        more = len(self.use_up(new))
        assert more >= 1
        assert isinstance(self.ask(old), float | int)
        fresh, _ = self.gate(limit.scaled(2.0))
        assert used + more == len(self.use_up(fresh))

    def test_its_spec_makes_it_again_also_from_plain_lists(self) -> None:
        limit = self.make_limit()
        again = from_spec(json.loads(json.dumps(limit.spec())))
        assert again == limit
        assert again.spec() == limit.spec()
        assert from_spec(limit.spec()) == limit
        one, clock = self.gate(limit)
        two, other = self.gate(again)
        assert len(self.use_up(one)) == len(self.use_up(two))
        assert self.wait_for(one) == self.wait_for(two)
        clock.advance("1h")
        other.advance("1h")
        assert len(self.use_up(one)) == len(self.use_up(two))

    def test_a_cost_that_can_never_fit_is_denied_at_once_and_charges_nothing(self) -> None:
        limit = self.make_limit()
        if limit.leased:
            return
        gate, _ = self.gate()
        for _ in range(3):
            denied = _raised(Denied, lambda: gate.acquire({limit.unit: limit.largest(limit.limit) * 2}))
            assert denied.retry_after is None
            assert denied.limit == limit.name
        assert gate.usage()[limit.name].used == 0

    def test_another_kind_under_its_name_is_an_error_that_names_reset(self) -> None:
        limit = self.make_limit()
        clock = FakeClock()
        store = self.make_store(clock)
        gate = Gate("suite", [limit], store=store)
        self.ask(gate)
        other: Limit = Bucket(5, per="1s", name=limit.name)
        if isinstance(limit, Bucket):
            other = Concurrency(5, name=limit.name)
        changed = Gate("suite", [other], store=store)
        assert "reset" in str(_raised(KindChanged, changed.try_acquire))
        changed.reset()
        assert changed.try_acquire() is not None

    def test_a_called_ticket_holds_what_it_will_take(self) -> None:
        limit = self.make_limit()
        clock = FakeClock()
        store = self.make_store(clock)
        gate = Gate("suite", [limit], store=store, claim="1s")
        plan = gate.policy.plan(1 if limit.leased else {limit.unit: self.cost})
        permits = self.use_up(gate)
        first = Stand(plan, "first", None, plan.lease, waits=True, session="a")
        second = Stand(plan, "second", None, plan.lease, waits=True, session="b")
        assert isinstance(store.decide(first), Wait)
        assert isinstance(store.decide(second), Wait)
        permits[-1].release("unsent")
        # The first was called: what it holds is there for nobody else, though nothing was charged so far.
        assert gate.try_acquire(1 if limit.leased else {limit.unit: self.cost}, renew=False) is None
        assert isinstance(store.decide(second), Wait)
        assert isinstance(store.decide(first), tuple)
        assert isinstance(store.decide(second), Wait)
        assert gate.usage()[limit.name].used <= gate.usage()[limit.name].limit

    def test_state_that_has_run_off_is_forgotten(self) -> None:
        clock = FakeClock()
        store = MemoryStore(clock=clock)
        limit = self.make_limit()
        gate = Gate("suite", [limit], store=store)
        self.use_up(gate)
        clock.advance("800d")
        other = Gate("suite", [Bucket(1000, per="1s", name="another")], store=store)
        for _ in range(2 * REAP_EVERY):
            other.try_acquire()
        records = store.prepared("suite", lambda here: here.records)
        assert records.states.get(limit.name) is None
        assert not records.names("windows")
        assert not [name for name in records.names("leases") if records.leases[name]]
        assert not records.names("promised")

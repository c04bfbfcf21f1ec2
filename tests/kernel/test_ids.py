"""Ids repeated at every point of a permit's life, and cancels before and after their asks, against the oracle of ids."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Concurrency
from headgate.errors import AttemptOver
from headgate.kernel.commands import Cancel, Peek, Release, Renew, Settle, Stand
from headgate.kernel.model import SECOND, Grant, Wait
from headgate.kernel.plan import Policy
from headgate.testing import FakeClock
from tests.support.generated import generated
from tests.support.oracle import Admission, IdsOracle
from tests.support.stores import STORES, examples

LEASE = 5 * SECOND
SLOTS = 2
POLICY = Policy("ids", [Concurrency(SLOTS, lease="5s", name="c")])

#: Two ids of callers, each with three asks; and two that were made for one ask.
NAMED = st.sampled_from([(id, name) for id in ("x", "y") for name in ("a", "b", "c")] + [("m", ""), ("n", "")])
DEEDS = st.one_of(
    st.tuples(st.just("ask"), NAMED),
    st.tuples(st.just("ask"), NAMED),
    st.tuples(st.just("cancel"), NAMED),
    st.tuples(st.just("release"), st.sampled_from("xymn")),
    # Said so long ago, and told only now: the id may be another permit's since.
    st.tuples(
        st.just("late"), st.tuples(st.sampled_from("xymn"), st.sampled_from([1, SECOND, 4 * SECOND, 6 * SECOND]))
    ),
    # By the holder of one of the last grants, which may have ended long ago.
    st.tuples(st.just("end"), st.integers(0, 5)),
    st.tuples(st.just("renew"), st.integers(0, 5)),
    st.tuples(
        st.just("pass"), st.sampled_from([1, SECOND, 4 * SECOND, 5 * SECOND, 30 * SECOND, 56 * SECOND, 60 * SECOND])
    ),
)


class IdHistory:
    """Has a store and the oracle do the same, and fails where they differ."""

    def __init__(self, store: Any, clock: FakeClock) -> None:
        self.store, self.clock = store, clock
        self.oracle = IdsOracle(SLOTS, LEASE)
        self.fences: dict[Admission, int] = {}
        self.grants: list[tuple[Admission, Grant]] = []
        self.story: list[str] = []

    def execute(self, deeds: list[Any]) -> None:
        for deed, what in deeds:
            self.story.append(f"{self.clock() / SECOND:.6f} {deed} {what}")
            getattr(self, deed)(what)
            self.same("the slots in use", self.usage(), len(self.oracle.live(self.clock())))

    def same(self, what: str, got: Any, expected: Any) -> None:
        assert got == expected, "\n".join([*self.story, f"{what}: {got}, and by the definitions {expected}"])

    def usage(self) -> float:
        snapshot = self.store.decide(Peek(POLICY))
        self.same("tickets", snapshot.waiting, 0)
        return float(snapshot.limits[0].used)

    def ask(self, named: tuple[str, str]) -> None:
        plan, now = POLICY.plan(), self.clock()
        [reply] = self.store.execute([Stand(plan, named[0], None, plan.lease, remembered=True, attempt=named[1])])
        expected = self.oracle.ask(*named, now)
        if isinstance(expected, str):
            self.same("the reply", type(reply), {"over": AttemptOver, "wait": Wait}[expected])
            return
        self.same("the reply", type(reply), Grant)
        self.same("which permit", self.fences.setdefault(expected, reply.fence), reply.fence)
        self.same("its end", reply.expires, expected.expires)
        self.same("permits of one fence", len(set(self.fences.values())), len(self.fences))
        self.grants.append((expected, reply))

    def cancel(self, named: tuple[str, str]) -> None:
        self.store.decide(Cancel(POLICY, *named))
        self.oracle.cancel(*named, self.clock())

    def release(self, id: str) -> None:
        ended = self.store.decide(Release(POLICY, id, "ok"))
        permit = self.oracle.of(id, self.clock())
        self.same("whether it was there", not ended.lost, permit is not None and self.oracle.end(permit, self.clock()))

    def late(self, what: tuple[str, int]) -> None:
        id, ago = what
        ended = self.store.decide(Release(POLICY, id, "ok", ago=ago))
        permit = self.oracle.of(id, self.clock())
        if permit is not None and permit.granted > self.clock() - ago:
            permit = None  # it came after the release was said
        self.same("whether it was there", not ended.lost, permit is not None and self.oracle.end(permit, self.clock()))

    def end(self, number: int) -> None:
        if self.grants:
            permit, grant = self.grants[-1 - number % len(self.grants)]
            ended = self.store.decide(Settle(POLICY.plan(), grant.at, permit.id, "ok", fence=grant.fence))
            self.same("whether it was there", not ended.lost, self.oracle.end(permit, self.clock()))

    def renew(self, number: int) -> None:
        if self.grants:
            permit, grant = self.grants[-1 - number % len(self.grants)]
            row = (POLICY.plan(), permit.id, grant.at, LEASE, grant.fence, None)
            pulse = self.store.decide(Renew("ids", (row,)))
            self.same("whether it lives", permit.id not in pulse.gone, self.oracle.renew(permit, self.clock()))

    def pass_(self, time: int) -> None:
        self.clock.advance(microseconds=time)

    locals()["pass"] = pass_


def agree(store: str, settings: Any, least: int = 1) -> int:
    """Histories on a store. Returns the number of steps in all."""
    steps = 0

    @settings
    @given(st.lists(DEEDS, min_size=least, max_size=60))
    def same(deeds: list[Any]) -> None:
        nonlocal steps
        clock = FakeClock()
        with STORES[store](clock) as opened:
            IdHistory(opened, clock).execute(deeds)
        steps += len(deeds)

    same()
    return steps


@pytest.mark.parametrize("store", STORES)
def test_an_id_is_one_permit_while_it_lives_and_a_new_admission_after_it(store: str) -> None:
    assert agree(store, examples(store, 300)) > 0


@pytest.mark.soak
@pytest.mark.parametrize(("store", "histories"), [("memory", 800), ("sqlite", 800), ("redis", 800), ("dynamodb", 100)])
def test_an_id_is_one_permit_while_it_lives_for_long(store: str, histories: int) -> None:
    assert agree(store, generated(histories), least=25) >= 25 * histories

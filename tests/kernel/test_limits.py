"""Generated histories on a gate with a line: every decision, retry time and usage is the oracle's."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Bucket, Concurrency, Denied, Gate, LeaseLost, Quota, Window
from headgate.testing import FakeClock
from tests.support.oracle import NEVER, BucketOracle, GateOracle, QuotaOracle, Rule, SlotsOracle, WindowOracle
from tests.support.own_time import time_of
from tests.support.stores import STORES, examples

MS = 1000
S = 1_000_000


def window(name: str, limit: float, per: int, slack: int, unit: str = "requests", by: str | None = None) -> Any:
    real = Window(limit, per / S, slack=slack / S, name=name, unit=unit, by=by)
    return real, Rule(name, lambda share: WindowOracle(limit * share, per, slack), unit, by)


def bucket(
    name: str, limit: float, per: int, burst: float, slack: int, unit: str = "requests", by: str | None = None
) -> Any:
    real = Bucket(limit, per / S, burst=burst, slack=slack / S, name=name, unit=unit, by=by)
    return real, Rule(
        name,
        lambda share: BucketOracle(limit * share, per, burst * share, slack),
        unit,
        by,
    )


def quota(name: str, limit: float, per: str, zone: str, slack: int, by: str | None = None) -> Any:
    real = Quota(limit, per, zone, slack=slack / S, name=name, by=by)
    return real, Rule(name, lambda share: QuotaOracle(limit * share, per, zone, slack), by=by)


def slots(name: str, limit: int, lease: int, by: str | None = None) -> Any:
    real = Concurrency(limit, lease=lease / S, name=name, by=by)
    return real, Rule(name, lambda share: SlotsOracle(limit * share), by=by, slots=True)


@dataclass
class Config:
    limits: list[Any]
    costs: tuple[float, ...] = (1,)
    pu: tuple[float, ...] = ()
    shares: tuple[tuple[str, float], ...] = ()
    longest: int = 2 * S
    lease: int = 0
    start: int = FakeClock().now

    @property
    def by(self) -> bool:
        return any(limit.by for limit, _ in self.limits)


# A bucket whose unit runs off in 1,024 µs, and costs in eighths: doubles hold that exactly, so that "exact" means it.
CONFIGS = {
    "window": Config([window("w", 3, S, 100 * MS)], (1, 2, 3)),
    "windows": Config([window("w", 4, S, 0), window("day", 9, 10 * S, 0)], (1, 0.5, 4), longest=6 * S),
    "bucket": Config([bucket("b", 1000, 1_024_000, 40, 8192)], (1, 4.5, 30, 0.125, 40), longest=60 * MS),
    "quota": Config(
        [quota("q", 5, "day", "Europe/Berlin", S)],
        (1, 2, 5),
        longest=30 * 3600 * S,
        start=1_711_800_000 * S,  # a day before the clocks go forward
    ),
    "slots": Config([slots("c", 3, 5 * S)], longest=4 * S, lease=5 * S),
    "window-and-slots": Config([window("w", 4, 2 * S, 100 * MS), slots("c", 3, S)], (1, 2), longest=S, lease=S),
    "hierarchy": Config(
        [slots("org", 2, 5 * S, by="org"), slots("all", 3, 5 * S), window("w", 4, S, 0, by="org")],
        (1, 3),
        longest=3 * S,
        lease=5 * S,
    ),
    "units": Config(
        [
            window("w", 4, S, 100 * MS),
            bucket("pu", 1000, 1_024_000, 40, 8192, unit="pu"),
            quota("q", 20, "minute", "UTC", 100 * MS),
        ],
        (1, 2),
        pu=(1, 4.5, 24),
        longest=S,
    ),
    "shares": Config(
        [window("w", 4, S, 100 * MS), slots("c", 4, 2 * S)],
        (1, 2),
        shares=(("live", 1.0), ("batch", 0.5), ("rest", 0.5)),
        longest=S,
        lease=2 * S,
    ),
    "margin": Config([bucket("b", 1000, 1_024_000, 40, 0)], (1, 9.5, 20), shares=(("all", 0.5),), longest=60 * MS),
}


@dataclass
class Held:
    permit: Any
    put: list[Any]
    confirmed: bool = False


class History:
    """One gate and its oracle, through the same events."""

    def __init__(self, config: Config, store: Any, clock: FakeClock) -> None:
        self.config = config
        self.clock = clock
        shares = dict(config.shares)
        self.gate = Gate("gate", [limit for limit, _ in config.limits], store=store, priorities=shares)
        self.oracle = GateOracle([rule for _, rule in config.limits], list(shares.values()))
        self.held: list[Held] = []
        #: A bucket that was given something back may keep some of it: then it must only never be early.
        self.exact = True

    def drawn(self, one: int, two: int) -> tuple[Any, dict[str, float], dict[str, str], str | None, int]:
        config = self.config
        cost = config.costs[one % len(config.costs)]
        costs: dict[str, float] = {"requests": cost}
        asked: Any = cost
        if config.pu:
            costs["pu"] = config.pu[two % len(config.pu)]
            asked = dict(costs)
        key = {"org": "ab"[two % 2]} if config.by else {}
        names = [None, *(name for name, _ in config.shares)]
        priority = names[two % len(names)]
        return asked, costs, key, priority, max(0, names.index(priority) - 1)

    def ask(self, asked: Any, costs: Any, key: Any, priority: Any, rank: int) -> int:
        """Ask, compare with the oracle, and return how long to wait: 0 when granted, -1 when it never fits."""
        now = self.clock()
        wanted = self.oracle.earliest(now, now, costs, key, rank)
        try:
            permit = self.gate.acquire(asked, key=key or None, priority=priority, timeout=0, renew=False)
        except Denied as denied:
            if denied.retry_after is None:
                assert wanted == NEVER
                return -1
            wait = round(denied.retry_after * S)
            if self.exact:
                assert now + wait == wanted, f"told {wait}, should be {wanted - now}"
            else:
                assert now + wait >= wanted
            return wait
        assert wanted == now, f"granted, though it fits only after {wanted - now}"
        expires = now + self.config.lease
        self.held.append(Held(permit, self.oracle.charge(now, costs, key, rank, permit.id, expires)))
        return 0

    def time_passes(self, one: int, two: int) -> None:
        self.clock.advance(microseconds=one if two % 4 == 0 else self.config.longest * one // 1000)

    def asks(self, one: int, two: int) -> None:
        self.ask(*self.drawn(one, two))

    def asks_just_before_and_at_its_retry(self, one: int, two: int) -> None:
        drawn = self.drawn(one, two)
        wait = self.ask(*drawn)
        if wait > 0 and self.exact:
            self.clock.advance(microseconds=wait - 1)
            assert self.ask(*drawn) == 1
            self.clock.advance(microseconds=1)
            assert self.ask(*drawn) == 0

    def ends(self, one: int, two: int) -> None:
        if not self.held:
            return
        outcome = ("ok", "unsent", "error", "rate_limited", "unsent", "overloaded")[two % 6]
        held = self.held[one % len(self.held)]
        if outcome == "unsent" and held.confirmed:
            return
        self.held.remove(held)
        now = self.clock()
        lost = self.lost(held)
        assert held.permit.release(outcome) is not lost
        assert held.permit.release(outcome) is not lost, "releasing twice is harmless"
        for rule, limit, charge in held.put:
            if rule.slots:
                charge.expires = min(charge.expires, now)
            elif lost:
                continue
            elif outcome == "unsent":
                self.exact = self.exact and not isinstance(limit, BucketOracle)
                limit.charges.remove(charge)
            elif outcome != "error" and not held.confirmed:
                charge.confirmed = now

    def lost(self, held: Held) -> bool:
        return any(rule.slots and charge.expires <= self.clock() for rule, _, charge in held.put)

    def is_confirmed_perhaps_twice(self, one: int, two: int) -> None:
        held = self.held[one % len(self.held)] if self.held else None
        if held is None or self.lost(held):
            return
        held.permit.confirm()
        if not held.confirmed:
            held.confirmed = True
            for _, _, charge in held.put:
                charge.confirmed = self.clock()

    def is_stamped(self, one: int, two: int) -> None:
        """A call is written, at once or late. It counts from then on; where it has to wait for that, time passes."""
        held = self.held[one % len(self.held)] if self.held else None
        if held is None or held.confirmed:
            return
        rates = [(limit, charge) for rule, limit, charge in held.put if not rule.slots]
        slacks = [limit.slack for limit, rule in self.config.limits if not rule.slots]
        begun = self.clock()
        if self.lost(held) or not rates:
            with suppress(LeaseLost):  # a fresh grant is not asked about
                held.permit.sent()
            assert self.clock() == begun
            return
        try:
            held.permit.sent()
        except LeaseLost:  # it had to wait, and its lease ended meanwhile: it is never written, and counts all the same
            assert self.clock() > begun
            assert self.lost(held)
            self.exact = False
            for limit, charge in rates:
                limit.charges.remove(charge)
            self.held.remove(held)
            return
        written = self.clock()
        if 0 <= begun - rates[0][1].at <= min(slacks) // 4:
            assert written == begun
            return
        moment = begun
        while (then := max(limit.restamp(charge, moment) for limit, charge in rates)) > moment:
            moment = then
        self.exact = self.exact and not any(isinstance(limit, BucketOracle) for limit, _ in rates)
        if self.exact:
            assert written == moment, f"it waited for {written - begun}, should be {moment - begun}"
        assert written >= moment
        for _, charge in rates:
            charge.at = written

    def is_renewed(self, one: int, two: int) -> None:
        held = self.held[one % len(self.held)] if self.held else None
        if held is None or self.lost(held) or not self.config.lease:
            return
        held.permit.renew()
        for rule, _, charge in held.put:
            if rule.slots:
                charge.expires = self.clock() + self.config.lease

    def a_limit_is_overridden_for_a_while(self, one: int, two: int) -> None:
        """What is used survives a changed value, and the next decision uses the new one."""
        rule = self.config.limits[0][1]
        value = one % 4 + 1  # of 5 or more, one unit would not be worth a confirmation, which the oracle always counts
        self.gate.set_limit(rule.name, value)
        if hasattr(rule.make(1.0), "limit") and not (rule.by or self.config.shares or self.config.pu):
            limit = next(iter(self.oracle.limits({"org": "a"}, 0)))[2]
            limit.limit, before = value, limit.limit
            self.asks(one, two)
            limit.limit = before
        self.gate.clear_limit(rule.name)

    def check(self) -> None:
        """Usage is what the lists say."""
        for key in ({"org": "a"}, {"org": "b"}) if self.config.by else ({},):
            usage = self.gate.usage(key=key or None)
            for found, _, limit in self.oracle.limits(key, -1):
                assert usage[found.name].used == limit.used(self.clock()), found.name


EVENTS = (
    History.time_passes,
    History.time_passes,
    History.asks,
    History.asks,
    History.asks,
    History.asks_just_before_and_at_its_retry,
    History.ends,
    History.is_confirmed_perhaps_twice,
    History.is_stamped,
    History.is_stamped,
    History.is_renewed,
    History.a_limit_is_overridden_for_a_while,
)

HISTORIES = st.lists(
    st.tuples(st.integers(0, len(EVENTS) - 1), st.integers(0, 1000), st.integers(0, 11)), min_size=1, max_size=40
)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("store", STORES)
def test_every_decision_is_the_oracles(store: str, config: str) -> None:
    @examples(store, 200)
    @given(HISTORIES)
    def histories(events: list[tuple[int, int, int]]) -> None:
        clock = FakeClock(CONFIGS[config].start)
        with STORES[store](clock) as made, time_of(clock):
            history = History(CONFIGS[config], made, clock)
            for event, one, two in events:
                EVENTS[event](history, one, two)
                if history.exact:
                    history.check()
            assert history.oracle.holds() or any(event == len(EVENTS) - 1 for event, _, _ in events)

    histories()

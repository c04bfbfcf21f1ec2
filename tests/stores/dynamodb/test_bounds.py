"""The DynamoDB store near its bounds: an item takes 400 KB, and a clock only what it may believe."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from secrets import token_urlsafe
from typing import Any

import pytest

from headgate import Bucket, Concurrency, Denied, Gate, HeadgateError, Quota, Window
from headgate.kernel.model import Grant
from headgate.stores.dynamodb import DynamoStore
from headgate.stores.dynamodb import batch as dynamodb_batch
from headgate.stores.dynamodb import writer as dynamodb_writer
from tests.support.dynamo_servers import Server
from tests.support.dynamo_tables import items

# --- bounds -----------------------------------------------------------------------------------------------------------


def test_waiters_are_capped_with_an_error_that_names_the_cap_and_nothing_is_charged(
    still: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headgate.kernel.commands import Stand
    from headgate.kernel.model import Wait

    monkeypatch.setattr(dynamodb_writer, "MOST_WAITERS", 5)
    gate = Gate("g", [Concurrency(1, lease="1h"), Window(100, per="1h", name="w")], store=still)
    held = gate.acquire(renew=False)
    plan = gate._policy.plan()
    for number in range(5):
        ask = Stand(plan, f"t{number}", None, plan.lease, waits=True, session="p", remembered=True)
        assert isinstance(still.decide(ask), Wait)
    with pytest.raises(Denied, match="at most 5 wait"):
        gate.acquire()
    assert gate.usage().waiting == 5
    assert gate.usage()["w"].used == 1
    held.release()


def test_leases_are_capped_with_an_error_that_names_the_cap_and_nothing_is_charged(
    still: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_batch, "MOST_LEASES", 5)
    gate = Gate("g", [Window(100, per="1h", name="w"), Concurrency(10, lease="1h")], store=still)
    permits = [gate.acquire(renew=False) for _ in range(5)]
    with pytest.raises(Denied, match="at most 5") as told:
        gate.acquire()
    assert told.value.retry_after is not None
    assert gate.usage()["w"].used == 5
    permits[0].release()
    gate.acquire(renew=False)


def test_a_state_that_would_outgrow_its_item_denies_asks_and_lets_everything_else_go_on(
    still: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_writer, "LARGEST_FOR_ASKS", 1500)
    gate = Gate("g", [Concurrency(1000, name="c", lease="1h")], store=still)
    permits: list[Any] = []

    def fill() -> None:
        while len(permits) < 1000:
            permits.append(gate.acquire(renew=False, holder=os.urandom(60).hex()))

    with pytest.raises(Denied, match="bytes"):
        fill()
    assert 3 < len(permits) < 100
    assert gate.usage()["c"].used == len(permits)
    for permit in permits:
        assert permit.release()
    assert gate.usage()["c"].used == 0


def test_an_item_that_is_as_full_as_it_gets_is_taken_by_dynamodb_and_lets_releases_through(
    still: DynamoStore, server: Server, table: str
) -> None:
    from headgate.kernel.commands import Stand

    gate = Gate("g", [Concurrency(2000, name="c", lease="1h")], store=still)
    plan = gate._policy.plan()
    asks = [
        Stand(plan, f"{number}", token_urlsafe(190), plan.lease, waits=True, session="p", remembered=True)
        for number in range(1770)  # some 200 bytes each
    ]
    assert all(isinstance(reply, Grant) for reply in still.execute(asks))
    held: list[Any] = []

    def fill() -> None:
        while len(held) < 500:
            held.append(gate.acquire(renew=False, holder=token_urlsafe(140)))

    with pytest.raises(Denied, match="no room: the gate's state would take"):
        fill()
    assert held
    assert 355_000 < len(items(server, table)["headgate:g"]["s"]["B"]) <= 360_000
    assert held[0].release()
    assert len(gate.holders()) == len(asks) + len(held) - 1


def test_a_thousand_waiters_and_two_thousand_leases_fit_into_an_item(still: DynamoStore) -> None:
    from headgate.kernel.commands import Stand

    gate = Gate("g", [Concurrency(2000, name="c", lease="1h"), Window(5000, per="1h", name="w")], store=still)
    plan = gate._policy.plan()
    asks = [
        Stand(plan, f"{os.urandom(6).hex()}-{number}", f"chunk_{number}.pdf", plan.lease, waits=True, session="p",
              remembered=True)
        for number in range(3000)
    ]  # fmt: skip
    replies = still.execute(asks)
    assert sum(isinstance(reply, Grant) for reply in replies) == 2000
    assert not [reply for reply in replies if isinstance(reply, HeadgateError)]
    assert gate.usage().waiting == 1000


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_stamp_far_ahead_is_refused_rather_than_adopted(opened: Callable[..., DynamoStore]) -> None:
    ahead = opened(clock=lambda: (time.time_ns() // 1000) + 3600 * 1_000_000)
    limits = [Bucket(10, per="1s", burst=1, slack=0, name="b"), Concurrency(5, name="c", lease="30s")]
    Gate("g", limits, store=ahead).acquire(renew=False)
    gate = Gate("g", [limits[1]], store=opened())
    permit = gate.acquire(timeout=60, renew=False)
    assert permit.lease_expires_at is not None
    assert abs(permit.lease_expires_at - 30 - time.time()) < 5


def test_two_processes_agree_on_the_time_to_within_their_spread(opened: Callable[..., DynamoStore]) -> None:
    one, two = opened(spread=0.1), opened(spread=0.1)
    for store in (one, two):
        Gate("g", [Window(10, per="1h")], store=store).acquire()
        assert store.table.clock.width() <= 100_000 + 1000
    apart = one.table.clock.now() - two.table.clock.now()
    assert abs(apart) <= 100_000
    assert abs(one.table.clock.now() / 1e6 - time.time()) < 0.2


def test_what_the_clock_leaves_open_is_allowed_for_in_every_rate(opened: Callable[..., DynamoStore]) -> None:
    store = opened(spread=0.1)
    limits = [
        Window(10, per="1m", slack="1s", name="w"),
        Bucket(10, per="1m", slack="1s", name="b"),
        Quota(10, per="day", slack="1s", name="q"),
        Concurrency(5, name="c"),
    ]
    window, bucket, quota, slots = Gate("g", limits, store=store).policy.limits
    assert (window.per, window.slack) == (60_100_000, 1_000_000)  # type: ignore[attr-defined]
    assert (bucket.per, bucket.slack) == (60_000_000, 1_100_000)  # type: ignore[attr-defined]
    assert quota.slack == 1_100_000  # type: ignore[attr-defined]
    assert slots == limits[3]

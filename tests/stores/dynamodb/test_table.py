"""What the DynamoDB store keeps in its table, and what it leaves alone there."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from headgate import Concurrency, Gate, StoreFormatError, Window
from headgate.stores.dynamodb import DynamoStore
from headgate.stores.dynamodb import records as dynamodb_records
from headgate.testing import FakeClock
from tests.support.dynamo_servers import Proxy, Server, client, make_table
from tests.support.dynamo_tables import NUMBERS, items

S0_RECORDS = [
    {
        "counter_id": {"S": "adobe_api_in_flight"},
        "in_flight": {"N": "45"},
        "last_updated": {"S": "2026-02-22T10:30:00Z"},
    },
    {"counter_id": {"S": "rpm_window_20260222_1030"}, "request_count": {"N": "87"}, "ttl": {"N": "4102444800"}},
]


def test_a_table_that_holds_the_seeds_two_records_works_as_it_is_and_its_reset_admits_nobody_extra(
    server: Server, table: str, opened: Callable[..., DynamoStore]
) -> None:
    asked = client(server.endpoint)
    for record in S0_RECORDS:
        asked.put_item(TableName=table, Item=record)
    gate = Gate("adobe", [Window(190, per="1m", name="rpm"), Concurrency(2, name="in_flight")], store=opened())
    assert gate.try_acquire() is not None
    assert gate.try_acquire() is not None
    reset = {"counter_id": {"S": "adobe_api_in_flight"}, "in_flight": {"N": "0"}}
    asked.put_item(TableName=table, Item=reset)
    assert gate.try_acquire() is None
    assert gate.usage()["in_flight"].used == 2
    found = items(server, table)
    assert found["adobe_api_in_flight"] == reset
    assert found["rpm_window_20260222_1030"] == S0_RECORDS[1]
    assert set(found) == {"adobe_api_in_flight", "rpm_window_20260222_1030", "headgate:adobe"}


def test_every_item_has_a_time_to_live_under_the_reserved_word_and_beyond_all_that_counts(
    server: Server, table: str, opened: Callable[..., DynamoStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_records, "INLINE", 0)
    gate = Gate("g", [Window(5, per="2h", name="w"), Concurrency(5, name="c", by="org")], store=opened())
    gate.acquire(key={"org": "acme"}, renew=False)
    found = items(server, table)
    assert set(found) == {"headgate:g", "headgate:g|acme"}
    for item in found.values():
        assert int(item["ttl"]["N"]) > time.time() + 7200


@pytest.mark.parametrize(("key", "ttl"), [("pk", "expires"), ("key", "timestamp"), ("hash", "ttl")])
def test_the_key_and_the_time_to_live_may_have_other_names_also_reserved_words(
    server: Server, key: str, ttl: str
) -> None:
    table = f"others-{next(NUMBERS)}"
    make_table(server.endpoint, table, key=key, ttl=ttl)
    url = f"dynamodb://{table}?region=eu-central-1&endpoint={server.endpoint}&timeout=10"
    gate = Gate("g", [Window(5, per="1m")], store=f"{url}&key={key}&ttl={ttl}")
    assert gate.try_acquire() is not None
    assert gate.try_acquire() is not None
    [item] = client(server.endpoint).scan(TableName=table)["Items"]
    assert item[key] == {"S": "headgate:g"}
    assert ttl in item
    with pytest.raises(StoreFormatError, match="key="):
        Gate("g", [Window(5, per="1m")], store=url).try_acquire()


@pytest.mark.parametrize("schema", [[("counter_id", "N", "HASH")], [("counter_id", "S", "HASH"), ("at", "S", "RANGE")]])
def test_a_table_whose_key_is_a_number_or_has_two_parts_is_refused_with_what_would_be_right(
    server: Server, opened: Callable[..., DynamoStore], schema: list[tuple[str, str, str]]
) -> None:
    table = f"others-{next(NUMBERS)}"
    client(server.endpoint).create_table(
        TableName=table,
        KeySchema=[{"AttributeName": name, "KeyType": part} for name, _, part in schema],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, kind, _ in schema],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(StoreFormatError, match="a string, and no sort key"):
        Gate("g", [Window(5, per="1m")], store=opened(table=table)).try_acquire()


def test_an_item_that_is_not_ours_or_of_a_newer_format_is_left_as_it_is(
    server: Server, table: str, still: DynamoStore
) -> None:
    gate = Gate("g", [Window(5, per="1m")], store=still)
    asked = client(server.endpoint)
    for item in (
        {"counter_id": {"S": "headgate:g"}, "mine": {"S": "yes"}},
        {"counter_id": {"S": "headgate:g"}, "w": {"S": "x"}, "f": {"N": "99"}, "s": {"B": b"j[]"}},
        {"counter_id": {"S": "headgate:g"}, "w": {"S": "x"}, "f": {"N": "1"}, "s": {"B": b"zz"}},
    ):
        asked.put_item(TableName=table, Item=item)
        with pytest.raises(StoreFormatError, match="headgate:g"):
            gate.try_acquire()
        assert items(server, table)["headgate:g"] == item


def test_values_of_a_key_lie_with_the_gate_while_they_are_few_and_in_items_of_their_own_then(
    server: Server, table: str, still: DynamoStore, proxy: Proxy
) -> None:
    gate = Gate("g", [Concurrency(2, name="org", by="org", lease="1h"), Concurrency(500, name="all")], store=still)
    for number in range(3):
        assert gate.try_acquire(key={"org": f"org-{number}"}, renew=False) is not None
    assert set(items(server, table)) == {"headgate:g"}
    assert proxy.counts["TransactWriteItems"] == 0
    for number in range(3, 60):
        assert gate.try_acquire(key={"org": f"org-{number}"}, renew=False) is not None
    assert len(items(server, table)) > 30
    assert proxy.counts["TransactWriteItems"] > 0
    for number in range(60):
        assert gate.try_acquire(key={"org": f"org-{number}"}, renew=False) is not None
        assert gate.try_acquire(key={"org": f"org-{number}"}, renew=False) is None
    assert len(gate.holders()) == 120


def test_what_is_kept_by_a_key_is_reset_overridden_and_released_whether_it_was_read_or_not(
    opened: Callable[..., DynamoStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_records, "INLINE", 0)
    clock = FakeClock()
    limits = [Concurrency(1, name="org", by="org", lease="1h"), Window(50, per="1h", name="w", by="org")]
    one, two = (Gate("g", limits, store=opened(clock=clock)) for _ in range(2))
    permits = [one.try_acquire(key={"org": f"org-{number}"}, renew=False) for number in range(5)]
    assert len(two.holders()) == 5
    assert two.release(permits[0].id)  # type: ignore[union-attr]
    assert one.try_acquire(key={"org": "org-0"}, renew=False) is not None
    two.reset("org")
    assert one.holders() == []
    assert one.usage(key={"org": "org-3"})["w"].used == 1
    two.reset()
    assert one.usage(key={"org": "org-3"})["w"].used == 0
    one.set_limit("org", 3, key={"org": "org-4"})
    assert sum(two.try_acquire(key={"org": "org-4"}, renew=False) is not None for _ in range(5)) == 3


def test_more_values_than_a_transaction_takes_are_written_all_the_same(
    still: DynamoStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_records, "INLINE", 0)
    limits = [Concurrency(1, name="all", lease="1h"), Concurrency(1, name="org", by="org", lease="1h")]
    gate = Gate("g", limits, store=still)
    held = gate.try_acquire(key={"org": "first"}, renew=False)
    from headgate.kernel.commands import Peek, Stand

    for number in range(150):
        plan = gate._policy.plan(key={"org": f"org-{number}"})
        still.decide(Stand(plan, f"ticket-{number}", None, plan.lease, waits=True, session="elsewhere"))
    gate.set_limit("all", 200)  # calls all of them at once
    assert held is not None
    assert len(still.decide(Peek(gate._policy, leases=True)).leases) == 151

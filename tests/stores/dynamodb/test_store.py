"""The DynamoDB store on a real server: what it writes, what it costs, and what happens when things go wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from pathlib import Path
from secrets import token_urlsafe
from statistics import median
from typing import Any

import pytest

from headgate import (
    AsyncGate,
    Bucket,
    Concurrency,
    Denied,
    Gate,
    HeadgateError,
    InvalidInput,
    Quota,
    StoreFormatError,
    StoreUnavailable,
    Window,
)
from headgate.stores import open_store
from headgate.stores.dynamodb import DynamoStore
from headgate.stores.dynamodb import jobs as dynamodb_jobs
from headgate.stores.dynamodb import records as dynamodb_records
from headgate.stores.dynamodb import writer as dynamodb_writer
from headgate.testing import FakeClock
from tests.support import ROOT
from tests.support.dynamo_servers import (
    CREDENTIALS,
    Fault,
    Proxy,
    Server,
    client,
    free_port,
    make_table,
    proxied,
    started,
)
from tests.support.waiting import until
from tests.support.workers import Child, children

_tables = count()


#: For what is between the store and the proxy alone, or takes long: any server will do.
ON_ANY = pytest.mark.parametrize("server", ["dynoxide"], indirect=True)


@pytest.fixture(scope="module", params=["dynoxide", pytest.param("local", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = started(request.param)
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server) as proxy:
        yield proxy


@pytest.fixture
def table(server: Server) -> str:
    name = f"table-{next(_tables)}"
    make_table(server.endpoint, name, ttl="ttl")
    return name


@pytest.fixture
def opened(proxy: Proxy, table: str) -> Iterator[Callable[..., DynamoStore]]:
    """Opens stores on the table, each as another process would have it."""
    stores = []

    def open(**options: Any) -> DynamoStore:
        options = {"endpoint": proxy.endpoint, "timeout": 10.0, "spread": 0.25, **options}
        store = DynamoStore(options.pop("table", table), region="eu-central-1", **options)
        stores.append(store)
        return store

    yield open
    for store in stores:
        store.close()


@pytest.fixture
def still(opened: Callable[..., DynamoStore]) -> DynamoStore:
    """A store whose clock stands still."""
    return opened(clock=FakeClock())


def items(server: Server, table: str) -> dict[str, Any]:
    return {item["counter_id"]["S"]: item for item in client(server.endpoint).scan(TableName=table)["Items"]}


# --- the table --------------------------------------------------------------------------------------------------------

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
    table = f"others-{next(_tables)}"
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
    table = f"others-{next(_tables)}"
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


# --- what is asked of DynamoDB ----------------------------------------------------------------------------------------

HOW_TO = ROOT / "docs" / "how-to" / "dynamodb.md"


def allowed() -> tuple[set[str], set[str]]:
    """What the how-to's policy lets a worker do, and what its text adds for `headgate doctor --create`."""
    text = HOW_TO.read_text()
    policy = json.loads(text[text.index('{\n  "Version"') :].partition("```")[0])
    [statement] = policy["Statement"]
    after = text.partition("`headgate doctor --create` also needs")[2].partition(". ")[0]
    return {action.removeprefix("dynamodb:") for action in statement["Action"]}, set(
        re.findall(r"dynamodb:(\w+)", after)
    )


def invoke(config: Path, *arguments: str) -> Any:
    from click.testing import CliRunner

    from headgate.cli.app import app

    return CliRunner().invoke(app, ["--config", str(config), *arguments])


def test_the_policy_of_the_how_to_allows_what_is_asked_for_and_nothing_else(
    opened: Callable[..., DynamoStore], proxy: Proxy, table: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, Any]] = []
    proxy.on_ask = lambda operation, body, headers: asked.append((operation, body))
    monkeypatch.setattr(dynamodb_records, "INLINE", 0)
    clock = FakeClock()
    limits = [Window(9, per="1h", name="w", by="org"), Concurrency(1, name="c", by="org", lease="1h")]
    one, two = (Gate("g", limits, store=opened(clock=clock)) for _ in range(2))
    acme = {"org": "acme"}
    with one.acquire(key=acme) as permit:
        permit.renew()
        assert two.try_acquire(key=acme) is None
        with pytest.raises(Denied):
            two.acquire(key=acme, timeout=1.5)  # for so long that it says that it lives
        assert len(two.holders()) == 1
        two.explain(key=acme)
    two.set_limit("c", 2, key=acme)
    two.pause(1, "lunch")
    two.resume()
    two.reset()
    Gate("p", [Bucket(5, per="1m")], store=two._store, waiting="promise").reserve().cancel()
    config = tmp_path / "headgate.toml"
    config.write_text(
        f'store = "dynamodb://{table}?region=eu-central-1&endpoint={proxy.endpoint}&timeout=10"\n'
        '[gates.adobe]\nlimits = [{ window = 190, per = "1m", name = "rpm" }]\n'
    )
    for command in (["doctor"], ["status"], ["leases", "list", "adobe"], ["explain", "adobe"]):
        assert invoke(config, *command).exit_code == 0

    worker, creator = allowed()
    assert {operation for operation, _ in asked} == {*worker, "TransactWriteItems"}, "each of them is needed"
    for operation, body in asked:
        if operation == "TransactWriteItems":
            assert all(list(action) == ["Put"] for action in body["TransactItems"]), "which PutItem allows"
            body = body["TransactItems"][0]["Put"]
        if operation in ("PutItem", "UpdateItem", "TransactWriteItems"):
            assert body["ConditionExpression"], "no write without a condition"
        else:
            read = body if operation == "GetItem" else body["RequestItems"][table]
            assert read["ConsistentRead"] is True, "decided on what is there now"
    asked.clear()
    config.write_text(config.read_text().replace(table, f"{table}-new"))
    assert invoke(config, "doctor", "--create").exit_code == 0
    assert {operation for operation, _ in asked} - worker == creator


# --- costs ------------------------------------------------------------------------------------------------------------


def test_who_is_alone_pays_one_write_per_decision_and_no_read(still: DynamoStore, proxy: Proxy) -> None:
    gate = Gate("g", [Window(1000, per="1h"), Concurrency(100)], store=still)
    for _ in range(5):
        gate.acquire().release()
    proxy.counts.clear()
    for _ in range(20):
        gate.acquire().release()
    assert dict(proxy.counts) == {"PutItem": 40}


def test_a_refusal_costs_one_read_and_no_write(still: DynamoStore, proxy: Proxy) -> None:
    gate = Gate("g", [Window(1, per="1h", name="w"), Concurrency(5)], store=still)
    gate.acquire()
    gate.try_acquire()
    proxy.counts.clear()
    for _ in range(10):
        assert gate.try_acquire() is None
    assert dict(proxy.counts) == {"GetItem": 10}
    assert gate.usage()["w"].used == 1


def test_threads_that_ask_at_the_same_moment_share_a_write_and_one_is_in_flight(
    still: DynamoStore, proxy: Proxy
) -> None:
    gate = Gate("g", [Window(10_000, per="1h", name="w")], store=still)
    for _ in range(3):
        gate.acquire()
    proxy.counts.clear()
    under_way, most = [0], [0]
    passing = proxy.fault

    def count_in_flight(operation: str) -> Fault | None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        return passing(operation)

    proxy.fault = count_in_flight
    proxy.on_answer = lambda operation: under_way.__setitem__(0, under_way[0] - 1)
    threads = [threading.Thread(target=lambda: [gate.acquire() for _ in range(10)]) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gate.usage()["w"].used == 403
    assert most[0] == 1
    assert proxy.counts["PutItem"] <= 100, "400 asks"


def test_tasks_share_writes_as_threads_do(still: DynamoStore, proxy: Proxy) -> None:
    async def main() -> None:
        gate = AsyncGate("g", [Window(10_000, per="1h", name="w"), Concurrency(1000)], store=still)

        async def one() -> None:
            async with gate.acquire():
                await asyncio.sleep(0)

        await asyncio.gather(*(one() for _ in range(200)))
        assert (await gate.usage())["w"].used == 200
        assert await gate.holders() == []

    asyncio.run(main())
    assert proxy.counts["PutItem"] <= 40, "400 decisions"


def test_a_cancelled_task_leaves_nothing_behind(still: DynamoStore) -> None:
    async def main() -> None:
        gate = AsyncGate("g", [Concurrency(1, lease="1h")], store=still)
        held = await gate.acquire()
        waiters = [asyncio.ensure_future(gate.acquire()) for _ in range(10)]
        while (await gate.usage()).waiting < 10:
            await asyncio.sleep(0.01)
        for waiter in waiters:
            waiter.cancel()
        await asyncio.gather(*waiters, return_exceptions=True)
        async with asyncio.timeout(10):
            while (await gate.usage()).waiting:
                await asyncio.sleep(0.02)
        await held.release()
        assert (await gate.try_acquire()) is not None

    asyncio.run(main())


def test_what_was_read_of_a_gate_goes_without_the_garbage_collector(opened: Callable[..., DynamoStore]) -> None:
    """Else that is called for often, and takes a tenth of a second each time: the driver alone has 100,000 objects."""
    clock = FakeClock()
    gates = [Gate("g", [Concurrency(50, name="c", lease="1h")], store=opened(clock=clock)) for _ in range(2)]

    def read() -> int:
        return sum(isinstance(one, dynamodb_records.DynamoRecords) for one in gc.get_objects())

    gc.disable()
    try:
        before = read()
        for _ in range(10):
            for gate in gates:
                gate.acquire(renew=False)
                gate.usage()
        assert read() - before <= 2 * len(gates)
    finally:
        gc.enable()


# --- faults -----------------------------------------------------------------------------------------------------------


def sometimes(
    fault: Fault, *operations: str, times: int | None = None, every: int = 1
) -> Callable[[str], Fault | None]:
    seen = count(1)

    def decide(operation: str) -> Fault | None:
        if operation not in operations:
            return None
        number = next(seen)
        if number % every or (times is not None and number // every > times):
            return None
        return fault

    return decide


@pytest.mark.parametrize("keyed", [False, True])
def test_an_ask_whose_answer_was_lost_is_charged_once(
    keyed: bool, opened: Callable[..., DynamoStore], proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_records, "INLINE", 0)
    store = opened(clock=FakeClock())
    by = {"by": "org"} if keyed else {}
    gate = Gate("g", [Window(1000, per="1h", name="w", **by), Concurrency(100, name="c", **by)], store=store)
    ask: dict[str, Any] = {"key": {"org": "acme"}} if keyed else {}
    proxy.fault = sometimes(Fault(lose_reply=True), "PutItem", "TransactWriteItems", every=3)
    permits = [gate.acquire(renew=False, **ask) for _ in range(20)]
    for permit in permits[:10]:
        assert permit.release("error")
    proxy.fault = lambda operation: None
    usage = gate.usage(**ask)
    assert (usage["w"].used, usage["c"].used) == (20, 10)
    assert len({permit.fence for permit in permits}) == 20


def test_an_answer_that_was_lost_is_found_also_after_others_have_written(
    opened: Callable[..., DynamoStore], proxy: Proxy, server: Server
) -> None:
    clock = FakeClock()
    mine = Gate("g", [Window(1000, per="1h", name="w")], store=opened(clock=clock))
    other = Gate("g", [Window(1000, per="1h", name="w")], store=opened(clock=clock, endpoint=server.endpoint))
    mine.acquire()
    lost = []

    def lose(operation: str) -> Fault | None:
        if operation == "PutItem" and not lost:
            lost.append(operation)
            return Fault(lose_reply=True)
        if operation == "GetItem" and len(lost) == 1:
            lost.append(operation)
            for _ in range(3):  # between the write whose answer was lost and the look for it
                other.acquire()
        return None

    proxy.fault = lose
    mine.acquire()
    assert lost == ["PutItem", "GetItem"]
    assert mine.usage()["w"].used == 5


@ON_ANY
def test_an_answer_that_was_lost_is_found_also_when_looking_for_it_is_throttled(
    still: DynamoStore, proxy: Proxy
) -> None:
    from headgate.kernel.commands import Admit

    gate = Gate("g", [Window(1000, per="1h", name="w")], store=still)
    gate.acquire()
    faults = {"PutItem": [Fault(lose_reply=True)], "GetItem": [None, Fault("ThrottlingException", "Rate exceeded")]}
    proxy.fault = lambda operation: faults[operation].pop(0) if faults.get(operation) else None
    still.decide(Admit(gate._policy.plan()))  # an ask without an id: nothing else could tell that it was charged
    assert faults == {"PutItem": [], "GetItem": []}
    assert gate.usage()["w"].used == 2


@ON_ANY
def test_throttling_is_waited_out(still: DynamoStore, proxy: Proxy) -> None:
    gate = Gate("g", [Window(10, per="1h", name="w")], store=still)
    fault = Fault(
        "ProvisionedThroughputExceededException", "The level of configured provisioned throughput was exceeded"
    )
    proxy.fault = sometimes(fault, "PutItem", "GetItem", times=3)
    gate.acquire()
    assert gate.usage()["w"].used == 1


@ON_ANY
def test_throttling_that_does_not_end_is_an_error_that_says_what_to_do_and_charges_nothing(
    still: DynamoStore, proxy: Proxy
) -> None:
    gate = Gate("g", [Window(10, per="1h", name="w")], store=still)
    gate.acquire()
    proxy.fault = sometimes(Fault("ThrottlingException", "Rate exceeded"), "PutItem")
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match="PAY_PER_REQUEST"):
        gate.acquire()
    assert time.monotonic() - begun < 4
    proxy.fault = lambda operation: None
    time.sleep(0.6)  # until the gate tries the store again
    assert gate.usage()["w"].used == 1


@ON_ANY
def test_processes_that_are_throttled_together_do_not_come_back_together_nor_often(
    opened: Callable[..., DynamoStore], proxy: Proxy
) -> None:
    asked: dict[str, list[float]] = {f"headgate:g{number}": [] for number in range(12)}
    proxy.on_ask = lambda operation, body, headers: asked[body["Key"]["counter_id"]["S"]].append(time.monotonic())
    proxy.fault = sometimes(Fault("ProvisionedThroughputExceededException", "exceeded"), "GetItem")
    gates = [Gate(f"g{number}", [Window(10, per="1h")], store=opened(clock=FakeClock())) for number in range(12)]

    def ask(gate: Gate) -> None:
        with pytest.raises(StoreUnavailable, match="throttled"):
            gate.acquire()

    threads = [threading.Thread(target=ask, args=(gate,)) for gate in gates]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pauses = [[after - before for before, after in pairwise(times)] for times in asked.values()]
    assert all(4 <= len(own) <= 16 and sum(own) < 4 for own in pauses), "ever less often, and not for ever"
    late = [pause for own in pauses for pause in own[3:7]]
    assert min(late) < 0.85 * median(late), "each with a jitter of its own"


CONFLICTS = [
    Fault("TransactionConflictException", "Transaction is ongoing for the item"),
    Fault("ReplicatedWriteConflictException", "being modified by a request in another Region"),
    Fault("InternalServerError", "Internal server error", status=500),
]
CANCELLED = [
    Fault("TransactionCanceledException", "Transaction cancelled", reasons=[{"Code": first}, {"Code": second}])
    for first, second in [
        ("TransactionConflict", "None"),
        ("None", "TransactionConflict"),
        ("ConditionalCheckFailed", "None"),
        ("ThrottlingError", "None"),
        ("None", "ProvisionedThroughputExceeded"),
    ]
]


@ON_ANY
@pytest.mark.parametrize(
    ("fault", "keyed"),
    [(fault, False) for fault in CONFLICTS] + [(fault, True) for fault in [*CONFLICTS, *CANCELLED]],
)
def test_a_write_or_transaction_that_met_another_is_run_again_and_charged_once(
    fault: Fault, keyed: bool, still: DynamoStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_records, "INLINE", 0)
    by, ask = ({"by": "org"}, {"key": {"org": "acme"}}) if keyed else ({}, {})
    gate = Gate("g", [Window(10, per="1h", name="w", **by)], store=still)  # type: ignore[arg-type]
    gate.acquire(**ask)  # type: ignore[arg-type]
    proxy.counts.clear()
    operation = "TransactWriteItems" if keyed else "PutItem"
    proxy.fault = sometimes(fault, operation, times=2)
    gate.acquire(**ask)  # type: ignore[arg-type]
    assert proxy.counts[operation] == 3
    assert gate.usage(**ask)["w"].used == 2  # type: ignore[arg-type]


@ON_ANY
def test_contention_that_does_not_end_is_waited_for_and_never_opens_a_gate(
    still: DynamoStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_jobs, "CONTENDED_FOR", 0.3)
    limits = [Window(10, per="1h", name="w"), Concurrency(5, name="c", lease="1h")]
    gate = Gate("g", limits, store=still, on_store_error="open")
    held = gate.acquire(renew=False)
    proxy.fault = sometimes(Fault("ConditionalCheckFailedException", "The conditional request failed"), "PutItem")
    assert gate.try_acquire() is None
    with pytest.raises(Denied, match="ran out of time"):
        gate.acquire(timeout=1)
    granted: list[Any] = []
    threads = [
        threading.Thread(target=lambda: granted.append(gate.acquire(renew=False))),
        threading.Thread(target=held.release),
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.7)
    assert not granted
    proxy.fault = lambda operation: None
    for thread in threads:
        thread.join(10)
    assert len(granted) == 1
    usage = gate.usage()
    assert (usage["w"].used, usage["c"].used) == (2, 1), "the release came through as well, and nothing went uncounted"


@ON_ANY
def test_a_release_that_others_never_let_through_ends_with_an_error_and_is_made_up_for(
    still: DynamoStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_jobs, "CONTENDED_FOR", 0.1)
    monkeypatch.setattr(dynamodb_writer, "STUBBORN_FOR", 0.3)
    gate = Gate("g", [Concurrency(5, name="c", lease="1h")], store=still)
    held = gate.acquire(renew=False)
    proxy.fault = sometimes(Fault("ConditionalCheckFailedException", "The conditional request failed"), "PutItem")
    with pytest.raises(StoreUnavailable, match="contended"):
        gate.set_limit("c", 3)
    assert gate.usage()["c"].limit == 5, "which is no outage: looking goes on"
    begun = time.monotonic()
    held.release()
    assert time.monotonic() - begun < 3
    proxy.fault = lambda operation: None
    time.sleep(0.6)  # until the gate tries the store again
    end = time.monotonic() + 10
    while gate.usage()["c"].used:
        assert time.monotonic() < end
        time.sleep(0.05)


@ON_ANY
def test_credentials_that_have_expired_are_replaced_by_those_that_there_are_now(
    still: DynamoStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str] = []

    def note(operation: str, body: Any, headers: Any) -> None:
        keys.append(headers["Authorization"].partition("Credential=")[2].partition("/")[0])

    proxy.on_ask = note
    gate = Gate("g", [Window(10, per="1h", name="w")], store=still)
    gate.acquire()
    expired = keys[-1]
    proxy.fault = lambda operation: Fault("ExpiredTokenException", "expired") if keys[-1] == expired else None
    with pytest.raises(StoreUnavailable, match="have expired"):
        gate.acquire()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    time.sleep(0.6)  # until the gate tries the store again
    gate.acquire()
    assert keys[-1] == "renewed"
    assert gate.usage()["w"].used == 2


@ON_ANY
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("ExpiredTokenException", "have expired"),
        ("UnrecognizedClientException", "not known"),
        ("AccessDeniedException", "denied"),
        ("InvalidSignatureException", "clock"),
    ],
)
def test_credentials_that_are_refused_are_told_in_words_and_looked_for_again(
    code: str, told: str, still: DynamoStore, proxy: Proxy
) -> None:
    gate = Gate("g", [Window(10, per="1h", name="w")], store=still)
    proxy.fault = sometimes(Fault(code, "The security token included in the request is expired"), "PutItem", "GetItem")
    with pytest.raises(StoreUnavailable, match=told):
        gate.acquire()
    proxy.fault = lambda operation: None
    time.sleep(0.6)
    gate.acquire()
    assert gate.usage()["w"].used == 1


def test_a_missing_table_is_told_with_the_remedy(opened: Callable[..., DynamoStore]) -> None:
    gate = Gate("g", [Window(10, per="1h")], store=opened(table="not-there", clock=FakeClock()))
    with pytest.raises(StoreUnavailable, match="headgate doctor --create"):
        gate.acquire()


def test_a_missing_region_is_told_with_the_remedy(table: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidInput, match=r"region=eu-central-1"):
        DynamoStore(table)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("dynamodb://", "names no table"),
        ("dynamodb://a b?region=x", "names no table"),
        ("dynamodb://table?colour=red", "is not known"),
        ("dynamodb://table?timeout=soon", "timeout"),
        ("dynamodb://table?spread=2h", "between 10ms and 60s"),
        ("dynamodb://table?endpoint=localhost:8000", "http://"),
        ("dynamodb://table?key=ttl", "two names"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_with_what_would_be_right(url: str, told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        open_store(url)


@ON_ANY
def test_an_endpoint_that_is_not_there_is_unavailable_within_250_ms(table: str) -> None:
    store = DynamoStore(table, region="eu-central-1", endpoint=f"http://127.0.0.1:{free_port()}")
    gate = Gate("g", [Window(10, per="1h")], store=store)
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        gate.acquire()
    assert time.monotonic() - begun < 0.25
    begun = time.monotonic()
    for _ in range(20):
        with pytest.raises(StoreUnavailable):
            gate.acquire()
    assert time.monotonic() - begun < 0.25, "later calls do not stall"


@ON_ANY
def test_an_endpoint_that_does_not_answer_is_unavailable_within_250_ms_and_comes_back(table: str) -> None:
    server = Server()
    server.start()
    try:
        make_table(server.endpoint, table)
        store = DynamoStore(table, region="eu-central-1", endpoint=server.endpoint, clock=FakeClock())
        gate = Gate("g", [Window(10, per="1h", name="w")], store=store)
        for _ in range(3):
            gate.acquire()
        server.signal(signal.SIGSTOP)
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable):
            gate.acquire()
        took = time.monotonic() - begun
        server.signal(signal.SIGCONT)
        assert took < 0.25
        time.sleep(0.6)
        gate.acquire()
        # What was sent to the server that slept may have been written when it woke; then it is cancelled by its id.
        end = time.monotonic() + 10
        while gate.usage()["w"].used != 4:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        server.signal(signal.SIGCONT)
        server.stop()


@ON_ANY
def test_an_open_gate_lets_pass_while_the_endpoint_is_gone(table: str) -> None:
    store = DynamoStore(table, region="eu-central-1", endpoint=f"http://127.0.0.1:{free_port()}")
    gate = Gate("g", [Window(1, per="1h")], store=store, on_store_error="open")
    assert [gate.try_acquire() is not None for _ in range(3)] == [True] * 3


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
    monkeypatch.setattr(dynamodb_jobs, "MOST_LEASES", 5)
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
    assert all(isinstance(reply, tuple) for reply in still.execute(asks))
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
    assert sum(isinstance(reply, tuple) for reply in replies) == 2000
    assert not [reply for reply in replies if isinstance(reply, HeadgateError)]
    assert gate.usage().waiting == 1000


# --- time -------------------------------------------------------------------------------------------------------------


def test_a_stamp_far_ahead_is_refused_rather_than_adopted(opened: Callable[..., DynamoStore]) -> None:
    ahead = opened(clock=lambda: (time.time_ns() // 1000) + 3600 * 1_000_000)
    limits = [Bucket(10, per="1s", burst=1, slack=0, name="b"), Concurrency(5, name="c", lease="30s")]
    Gate("g", limits, store=ahead).acquire(renew=False)
    gate = Gate("g", [limits[1]], store=opened())
    permit = gate.acquire(timeout=5, renew=False)
    assert permit.lease_expires is not None
    assert abs(permit.lease_expires - 30 - time.time()) < 5


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


# --- waiting ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    with children() as starter:
        yield starter


def url_of(proxy: Proxy, table: str, spread: float = 0.25) -> str:
    return f"dynamodb://{table}?region=eu-central-1&endpoint={proxy.endpoint}&timeout=10&spread={spread}"


@ON_ANY
def test_a_slot_that_one_process_releases_goes_to_one_that_waits_in_another(
    start: Callable[..., Child], proxy: Proxy, table: str
) -> None:
    gate = Gate("shared", [Concurrency(1, name="slots", lease="1h")], store=url_of(proxy, table))
    held = gate.acquire()
    waiter = start("waiter", store=url_of(proxy, table), limits={"slots": {"limit": 1, "lease": "1h"}})
    end = time.monotonic() + 20
    while not gate.usage().waiting:
        assert time.monotonic() < end
        time.sleep(0.05)
    released = time.monotonic()
    held.release()
    assert waiter.read()["granted"] - released < 3.5, "one look"


@ON_ANY
@pytest.mark.slow
def test_a_fleet_of_100_that_waits_costs_at_most_one_read_per_waiter_and_named_time(
    start: Callable[..., Child], proxy: Proxy, table: str
) -> None:
    limits = {"window": {"limit": 120, "per": 8.0, "slack": 0.1}}
    gate = Gate("shared", [Window(120, per=8.0, slack=0.1, name="window")], store=url_of(proxy, table))
    for _ in range(120):
        gate.acquire()
    fleet = [start("waiter", store=url_of(proxy, table), limits=limits, threads=25) for _ in range(4)]
    end = time.monotonic() + 30
    while gate.usage().waiting < 100:
        assert time.monotonic() < end
        time.sleep(0.2)
    proxy.counts.clear()
    begun = time.monotonic()
    granted = [waiter.read()["granted"] for waiter in fleet for _ in range(25)]
    waited = max(granted) - begun
    assert waited > 1.5, "they had to wait"
    # Everything that was asked for while 100 waited and went: looks, heartbeats, taking their calls.
    assert proxy.counts["GetItem"] <= 100, dict(proxy.counts)
    assert proxy.counts["PutItem"] <= 100, dict(proxy.counts)
    assert max(granted) - min(granted) < 3.0, "they went when their time had come"


@ON_ANY
@pytest.mark.slow
def test_processes_with_a_single_waiter_each_cost_at_most_one_read_per_waiter_and_named_time(
    opened: Callable[..., DynamoStore], proxy: Proxy
) -> None:
    """Each says twice or more meanwhile that it lives: a write that reads nothing, and is a look at the line as well."""
    limits = [Window(20, per=16.0, slack=0.1, name="window")]
    gate = Gate("shared", limits, store=opened())
    for _ in range(20):
        gate.acquire()
    granted: list[float] = []

    def wait(store: DynamoStore) -> None:
        Gate("shared", limits, store=store).acquire()
        granted.append(time.monotonic())

    waiters = [threading.Thread(target=wait, args=(opened(),)) for _ in range(20)]
    for waiter in waiters:
        waiter.start()
    until(lambda: gate.usage().waiting == 20)
    proxy.counts.clear()
    begun = time.monotonic()
    until(lambda: granted, 30)
    meanwhile = proxy.counts.copy()
    for waiter in waiters:
        waiter.join(20)
    sys.stdout.write(f"\n{granted[0] - begun:.1f} s: {dict(meanwhile)} meanwhile, {dict(proxy.counts)} in all\n")
    assert len(granted) == 20
    assert granted[0] - begun > 8, "they had to wait"
    assert meanwhile["GetItem"] <= 20, meanwhile
    assert max(granted) - granted[0] < 3.0, "they went when their time had come"


@pytest.mark.parametrize(
    "fault", [None, Fault(lose_reply=True), Fault("AccessDeniedException"), Fault("TransactionConflictException")]
)
def test_a_process_that_says_that_it_lives_keeps_its_place_whoever_writes_next(
    opened: Callable[..., DynamoStore], proxy: Proxy, fault: Fault | None
) -> None:
    """It says so with one write; where that is lost or refused, with a read and a write as all else."""
    from headgate.kernel.commands import Renew, Stand

    clock = FakeClock()
    waiting, other = opened(clock=clock), opened(clock=clock)
    gate = Gate("g", [Concurrency(1, name="c", lease="1h")], store=other)
    held = gate.acquire(renew=False)
    plan = gate._policy.plan(1, None, None)
    waiting.decide(Stand(plan, "ticket", None, plan.lease, waits=True, session=waiting.session))
    if fault is not None:
        proxy.fault = sometimes(fault, "UpdateItem")
    beat = Renew("g", (), waiting.session, ("ticket",))
    for _ in range(3):
        clock.advance(6)
        proxy.counts.clear()
        pulse = waiting.decide(beat)
        assert (pulse.called, pulse.unknown) == ((), ())
        if fault is None:
            assert proxy.counts["GetItem"] == 0, "it is the answer to the write that tells"
        gate.resume()
        assert gate.usage().waiting == 1
    held.release()
    assert waiting.decide(beat).called == ("ticket",), "it looks at the line as well"
    clock.advance(11)
    gate.resume()
    assert gate.usage().waiting == 0, "it was not heard of again"


@ON_ANY
def test_a_killed_process_that_waited_leaves_the_line_by_itself(
    start: Callable[..., Child], proxy: Proxy, table: str
) -> None:
    gate = Gate("shared", [Concurrency(1, name="slots", lease="1h")], store=url_of(proxy, table))
    held = gate.acquire()
    dying = start("waiter", store=url_of(proxy, table), limits={"slots": {"limit": 1, "lease": "1h"}}, threads=3)
    end = time.monotonic() + 20
    while gate.usage().waiting < 3:
        assert time.monotonic() < end
        time.sleep(0.05)
    dying.kill()
    with pytest.raises(Denied):
        gate.acquire(timeout=11)
    assert gate.usage().waiting == 0
    held.release()


def test_the_child_of_a_fork_has_a_session_of_its_own(opened: Callable[..., DynamoStore]) -> None:
    store = opened(clock=FakeClock())
    gate = Gate("g", [Window(10, per="1h", name="w")], store=store)
    gate.acquire()
    mine, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        try:
            gate.acquire()
            theirs.send(store.session.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    mine.settimeout(5)
    assert mine.recv(100).decode() not in ("", store.session)
    assert gate.usage()["w"].used == 2
    mine.close(), theirs.close()


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_creates_the_table_and_its_time_to_live_once(server: Server, tmp_path: Path) -> None:
    name = f"made-{next(_tables)}"
    config = tmp_path / "headgate.toml"
    config.write_text(
        f'store = "dynamodb://{name}?region=eu-central-1&endpoint={server.endpoint}&timeout=10"\n'
        '[gates.adobe]\nlimits = [{ window = 190, per = "1m", name = "rpm" }]\n'
    )
    without = invoke(config, "doctor")
    assert "headgate doctor --create" in " ".join(without.output.split())
    assert without.exit_code != 0
    made = invoke(config, "doctor", "--create")
    assert made.exit_code == 0, made.output
    told = client(server.endpoint).describe_table(TableName=name)["Table"]
    assert told["KeySchema"] == [{"AttributeName": "counter_id", "KeyType": "HASH"}]
    live = client(server.endpoint).describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    assert live["AttributeName"] == "ttl"
    again = invoke(config, "doctor", "--create")
    assert "nothing to create" in " ".join(again.output.split())

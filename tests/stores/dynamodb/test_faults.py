"""The DynamoDB store when answers are lost, calls are throttled, writes meet, credentials end, or the endpoint is away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from headgate import Concurrency, Denied, Gate, StoreUnavailable, Window
from headgate.stores.dynamodb import DynamoStore
from headgate.stores.dynamodb import backoff as dynamodb_backoff
from headgate.stores.dynamodb import records as dynamodb_records
from headgate.stores.dynamodb import writer as dynamodb_writer
from headgate.testing import FakeClock
from tests.support.dynamo_servers import Fault, Proxy, Server, free_port, make_table
from tests.support.dynamo_tables import ON_ANY, sometimes
from tests.support.timing import DECIDES_IN_TIME
from tests.support.waiting import timed


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
    with pytest.raises(StoreUnavailable, match="PAY_PER_REQUEST"):
        gate.acquire()
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
    monkeypatch.setattr(dynamodb_backoff, "CONTENDED_FOR", 0.3)
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
        thread.join(60)
    assert len(granted) == 1
    usage = gate.usage()
    assert (usage["w"].used, usage["c"].used) == (2, 1), "the release came through as well, and nothing went uncounted"


@ON_ANY
def test_a_release_that_others_never_let_through_ends_with_an_error_and_is_made_up_for(
    still: DynamoStore, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamodb_backoff, "CONTENDED_FOR", 0.1)
    monkeypatch.setattr(dynamodb_writer, "STUBBORN_FOR", 0.3)
    gate = Gate("g", [Concurrency(5, name="c", lease="1h")], store=still)
    held = gate.acquire(renew=False)
    proxy.fault = sometimes(Fault("ConditionalCheckFailedException", "The conditional request failed"), "PutItem")
    with pytest.raises(StoreUnavailable, match="contended"):
        gate.set_limit("c", 3)
    assert gate.usage()["c"].limit == 5, "which is no outage: looking goes on"
    held.release()
    proxy.fault = lambda operation: None
    time.sleep(0.6)  # until the gate tries the store again
    end = time.monotonic() + 60
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


@DECIDES_IN_TIME
@ON_ANY
def test_an_endpoint_that_is_not_there_is_unavailable_within_250_ms(table: str) -> None:
    store = DynamoStore(table, region="eu-central-1", endpoint=f"http://127.0.0.1:{free_port()}")
    gate = Gate("g", [Window(10, per="1h")], store=store)
    took, answer = timed(gate.acquire)
    assert isinstance(answer, StoreUnavailable)
    assert "cannot be reached" in str(answer)
    assert took < 0.25
    took, answers = timed(lambda: [timed(gate.acquire)[1] for _ in range(20)])
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    assert took < 0.25, "later calls do not stall"


@DECIDES_IN_TIME
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
        server.freeze()
        took, answer = timed(gate.acquire)
        server.thaw()
        assert isinstance(answer, StoreUnavailable)
        assert took < 0.25
        time.sleep(0.6)
        gate.acquire()
        # What was sent to the server that slept may have been written when it woke; then it is cancelled by its id.
        end = time.monotonic() + 60
        while gate.usage()["w"].used != 4:
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        server.thaw()
        server.stop()


@ON_ANY
def test_an_open_gate_lets_pass_while_the_endpoint_is_gone(table: str) -> None:
    store = DynamoStore(table, region="eu-central-1", endpoint=f"http://127.0.0.1:{free_port()}")
    gate = Gate("g", [Window(1, per="1h")], store=store, on_store_error="open")
    assert [gate.try_acquire() is not None for _ in range(3)] == [True] * 3

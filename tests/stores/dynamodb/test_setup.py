"""What one sets up for the DynamoDB store: rights, tables, regions, URLs; and what `doctor` does about it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate import Bucket, Concurrency, Denied, Gate, InvalidInput, StoreUnavailable, Window
from headgate.stores import open_store
from headgate.stores.dynamodb import DynamoStore
from headgate.stores.dynamodb import records as dynamodb_records
from headgate.testing import FakeClock
from tests.support import ROOT
from tests.support.dynamo_servers import Proxy, Server, client
from tests.support.dynamo_tables import NUMBERS
from tests.support.waiting import until

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


# --- doctor -----------------------------------------------------------------------------------------------------------


def test_doctor_creates_the_table_and_its_time_to_live_once(server: Server, tmp_path: Path) -> None:
    name = f"made-{next(NUMBERS)}"
    config = tmp_path / "headgate.toml"
    config.write_text(
        f'store = "dynamodb://{name}?region=eu-central-1&endpoint={server.endpoint}&timeout=10"\n'
        '[gates.adobe]\nlimits = [{ window = 190, per = "1m", name = "rpm" }]\n'
    )
    without = invoke(config, "doctor")
    assert "headgate doctor --create" in " ".join(without.output.split())
    assert without.exit_code != 0
    # In one process: it is tried again half a second after the first found the store away.
    until(lambda: invoke(config, "doctor", "--create").exit_code == 0)
    told = client(server.endpoint).describe_table(TableName=name)["Table"]
    assert told["KeySchema"] == [{"AttributeName": "counter_id", "KeyType": "HASH"}]
    live = client(server.endpoint).describe_time_to_live(TableName=name)["TimeToLiveDescription"]
    assert live["AttributeName"] == "ttl"
    again = invoke(config, "doctor", "--create")
    assert "nothing to create" in " ".join(again.output.split())

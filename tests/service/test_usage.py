"""What a gate tells of itself is the same everywhere, since it follows from the fields of `Usage` and `LimitUsage`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from headgate import Bucket, Concurrency, Gate, LimitUsage, Quota, Usage, Window
from headgate.kernel.commands import Peek
from headgate.kernel.model import Snapshot, plain
from headgate.service.schema.document import ANSWERS
from headgate.service.schema.values import members
from headgate.service.web import encode
from headgate.sinks.prometheus import GAUGES, METRICS, Prometheus
from headgate.stores.http.wire import read_reply, row
from headgate.stores.memory import MemoryStore


def gate_without_a_slot_for_batch() -> Gate:
    """One of whose limits can never be free: a class's share of it is less than one slot."""
    gate = Gate(
        "few",
        [Concurrency(4, name="slots"), Window(9, per="1m"), Bucket(9, per="1m"), Quota(9)],
        store=MemoryStore(),
        priorities={"live": 1.0, "batch": 0.5},
    )
    gate.acquire(priority="batch").release()
    gate.set_limit("slots", 1)
    gate.pause(60, "maintenance")
    return gate


def test_every_member_of_a_usage_over_http_is_in_its_schema() -> None:
    usage = gate_without_a_slot_for_batch().usage()
    told = members(usage)
    assert set(told) < set(ANSWERS["GateUsage"]["properties"])
    for limit in told["limits"]:
        assert list(limit) == list(ANSWERS["LimitUsage"]["properties"])
    assert set(ANSWERS["Paused"]["properties"]) == {"gate", "paused_for", "pause_reason"}
    assert (told["paused_for"], told["pause_reason"]) == (pytest.approx(60, abs=5), "maintenance")
    assert members(Usage("idle", (), 0))["pause_reason"] is None


def test_every_field_of_a_usage_is_described() -> None:
    for kind in (LimitUsage, Usage):
        for field in fields(kind):
            assert field.metadata["about"].endswith("."), field.name


def test_a_limit_that_is_never_free_is_told_as_null_and_not_as_a_number_that_json_does_not_have() -> None:
    usage = gate_without_a_slot_for_batch().usage()
    assert usage["slots@batch"].free_in == float("inf")
    [told] = [limit for limit in plain(usage)["limits"] if limit["name"] == "slots@batch"]
    assert told["free_in"] is None
    assert '"free_in":null' in encode(members(usage))


def snapshot() -> Snapshot:
    gate = gate_without_a_slot_for_batch()
    gate.resume()
    gate.acquire(holder="chunk")
    plan = gate._policy.plan(1)
    reply = gate._store.decide(Peek(gate._policy, plan=plan, leases=True, waiters=True))
    assert isinstance(reply, Snapshot)
    return replace(reply, limits=(*reply.limits, *gate.usage().limits))


def test_a_snapshot_comes_over_http_as_it_was() -> None:
    wanted = snapshot()
    assert wanted.decision is not None
    assert wanted.leases
    assert wanted.overrides
    assert read_reply(as_json(row(wanted))) == wanted


def test_a_guard_of_a_later_version_may_tell_of_more_and_one_of_an_earlier_of_less() -> None:
    wanted = snapshot()
    letter, *told = as_json(row(wanted))
    places = [field.name for field in fields(Snapshot)]
    limits = told[places.index("limits")]
    more = [*told, "news"]
    more[places.index("limits")] = [[*limit, "news"] for limit in limits]
    assert read_reply([letter, *more]) == wanted
    less = told[:-1]
    less[places.index("limits")] = [limit[:-1] for limit in limits]
    assert read_reply([letter, *less]) == wanted


def as_json(value: Any) -> Any:
    from json import dumps, loads

    return loads(dumps(value))


def test_the_gauges_of_a_limit_are_fields_of_its_usage() -> None:
    metrics = Prometheus()
    usage = gate_without_a_slot_for_batch().usage()
    metrics.look(usage)
    assert set(GAUGES) == {"used", "limit", "utilisation", "promised"}
    for name, about in GAUGES.items():
        assert METRICS[f"headgate_{name}"] == ("gauge", ("gate", "limit"), about)
        assert metrics.value(f"headgate_{name}", "few", "slots") == getattr(usage["slots"], name)

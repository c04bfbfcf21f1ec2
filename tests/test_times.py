"""A time says by its name what it counts from, wherever it is told: now (`_in`, `_for`), or 1970 (`_at`)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate import Bucket, Concurrency, Denied, Gate, Window
from headgate.events import KINDS
from headgate.kernel.model import plain
from headgate.service.schema.document import ANSWERS
from headgate.simulate.result import COLUMNS
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.support import ROOT
from tests.support.command_line import read
from tests.support.guard_client import Client
from tests.support.guards import GuardThread

#: Seconds from now, and seconds since 1970.
RELATIVE, ABSOLUTE = ("_in", "_for"), ("_at",)

#: Numbers that are no times: amounts, counts, shares, sequence numbers.
AMOUNTS = {
    "used",
    "limit",
    "available",
    "utilisation",
    "maximum",
    "waiting",
    "seq",
    "position",
    "fence",
    "value",
    "was",
    "configured",
    "override",
    "tightened",
    "holding",
    "own",
    "burst",
    "status",
    "v",
    "changes",
    "counts",
    "minutes",
    "history",
    "done",
    "refused",
    "fairness",
    "total",
    "items",
    "calls",
    "per_minute",
    "without",
    "in_flight",
    "bounds",
    "items_per_minute",
    "items_per_hour",
    "items_per_day",
    "cost",
    "weight",
    "promised",
    "requests",
    "old",
    "new",
}
#: Lengths: seconds that are not counted from now. They are named after what they measure.
LENGTHS = {
    "lease",
    "per",
    "slack",
    "patience",
    "claim",
    "wait",
    "waited",
    "seconds",
    "lease_seconds",
    "duration",
    "crossover",
    "takes",
    "ideal",
    "makespan",
    "wait_p50",
    "wait_p99",
}
#: Names that are older than the rule, and those of the standards.
OLDER = {"retry_after", "delay", "delay_ms"}

WHAT_TO_DO = (
    "is a number whose name says neither that it is an amount nor what it counts from. A time ends in _in or _for (seconds "
    "from now) or in _at (epoch seconds): docs/reference/times.md. Anything else goes into AMOUNTS or LENGTHS of this test"
)


def is_well_named(name: str) -> bool:
    return name.endswith((*RELATIVE, *ABSOLUTE)) or name in AMOUNTS | LENGTHS | OLDER


def numbers_in(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a JSON value, with the name of the member that it is in."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from numbers_in(member, key)
    elif isinstance(value, list):
        for member in value:
            yield from numbers_in(member, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def check(told: Any) -> set[str]:
    """Every number of a JSON value is well named, and its size is that of what it says it is. Returns the times."""
    times = set()
    for name, number in numbers_in(told):
        assert is_well_named(name), f"{name} {WHAT_TO_DO}: {told}"
        if name.endswith(ABSOLUTE):
            assert abs(number - time.time()) < 400 * 86_400, (
                f"{name} is {number}, which is not near now in epoch seconds"
            )
            times.add(name)
        elif name.endswith(RELATIVE):
            assert 0 <= number < 400 * 86_400, f"{name} is {number}, which is not a number of seconds from now"
            times.add(name)
    return times


def busy_gate(store: Any) -> Gate:
    """A gate with holders, a pause, an override and full limits."""
    limits = [Window(3, per="1h", name="rpm"), Bucket(9, per="1h", name="pu", unit="pu"), Concurrency(2, name="slots")]
    gate = Gate("adobe", limits, store=store, priorities={"live": 1.0, "batch": 0.5})
    gate.acquire({"pu": 1}, holder="one")
    gate.set_limit("rpm", 2)
    gate.pause(3600, "maintenance")
    return gate


# --- Python -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [kind for kind in (getattr(headgate, name) for name in headgate.__all__) if is_dataclass(kind)],
    ids=lambda kind: str(kind.__name__),
)
def test_every_number_of_a_public_dataclass_is_an_amount_or_says_what_it_counts_from(kind: Any) -> None:
    for field in fields(kind):
        if not field.name.startswith("_") and re.search(r"\b(int|float)\b", str(field.type)):
            assert is_well_named(field.name), f"{kind.__name__}.{field.name} {WHAT_TO_DO}"


def test_what_permits_places_and_refusals_tell() -> None:
    gate = busy_gate(MemoryStore())
    with pytest.raises(Denied) as refused:
        gate.acquire({"pu": 1}, timeout=0)
    gate.resume()
    promising = Gate("sentinel", [Bucket(1, per="1h")], store=MemoryStore(), waiting="promise")
    places = [promising.reserve(), promising.reserve()]
    found = set()
    for told in (gate.acquire({"pu": 1}), refused.value, *places):
        shown = {
            name: getattr(told, name)
            for name in dir(told)
            if not name.startswith("_") and isinstance(getattr(told, name), int | float)
        }
        found |= check(shown)
    assert found == {"lease_expires_at"}
    assert (places[1].delay, refused.value.retry_after) == (pytest.approx(3600, abs=300), pytest.approx(3600, abs=300))


def test_what_a_gate_tells() -> None:
    gate = busy_gate(MemoryStore())
    found = check(plain([gate.usage(), *gate.holders(), gate.explain({"pu": 1})]))
    assert found == {"paused_for", "free_in", "resets_in", "held_for", "expires_in", "goes_in"}
    assert gate.usage().paused_for == pytest.approx(3600, abs=300)
    assert gate.explain({"pu": 1}).goes_in == pytest.approx(3600, abs=300)


def test_a_waiter_tells_for_how_long_it_waits() -> None:
    from headgate.kernel.commands import Stand

    clock = FakeClock()
    store = MemoryStore(clock=clock)
    gate = Gate("g", [Concurrency(1, name="slots")], store=store)
    gate.acquire(renew=False)
    store.decide(Stand(gate.policy.plan(1), "ticket", waits=True, session="another"))
    clock.advance(7)
    [waiter] = gate.waiters()
    assert check(plain(waiter)) == {"waiting_for", "goes_in"}
    assert waiter.waiting_for == 7
    [holder] = gate.holders()
    assert (holder.held_for, holder.expires_in) == (7, 23)


def test_the_facts_of_events() -> None:
    for kind, (_, sentence) in KINDS.items():
        for name in re.findall(r"{(\w+):", sentence):  # what has a format is a number
            assert is_well_named(name), f"{kind}: {name} {WHAT_TO_DO}"


# --- HTTP ---------------------------------------------------------------------------------------------------------------


def schema_numbers(schema: dict[str, Any]) -> Iterator[str]:
    for name, member in schema.get("properties", {}).items():
        kinds = member.get("type", ())
        if {"number", "integer"} & {*([kinds] if isinstance(kinds, str) else kinds)}:
            yield name
        yield from schema_numbers(member)


@pytest.mark.parametrize("answer", ANSWERS)
def test_every_number_of_an_answer_over_http_says_what_it_is(answer: str) -> None:
    for name in schema_numbers(ANSWERS[answer]):
        assert is_well_named(name), f"{answer}: {name} {WHAT_TO_DO}"


GATES = """
[gates.adobe]
limits = [
  { window = 3, per = "1h", name = "rpm" },
  { bucket = 9, per = "1h", name = "pu", unit = "pu" },
  { concurrency = 2, name = "slots" },
]

[gates.sentinel]
waiting = "promise"
limits = [{ bucket = 1, per = "1h", name = "requests" }]
"""


def test_answers_of_a_guard_tell_times_as_they_are_named() -> None:
    guard = GuardThread(MemoryStore(), GATES)
    try:
        client = Client(guard.port)
        permit = client.acquire("adobe", cost={"pu": 1}, holder="one").json
        told = [permit, client.post(f"/v1/permits/{permit['id']}/renew", {}).json]
        assert [abs(one["expires_at"] - time.time() - one["lease"]) < 300 for one in told] == [True, True]
        told += [client.post("/v1/gates/adobe/pause", {"seconds": 3600}).json]
        told += [client.get(f"/v1/gates/adobe{path}").json for path in ("", "/holders", "/explain?cost=pu=1")]
        client.post("/v1/gates/sentinel/reserve", {})
        place = client.post("/v1/gates/sentinel/reserve", {}).json
        assert place["delay"] == place["delay_ms"]
        assert 3_000_000 < place["delay_ms"] < 3_700_000
        [batched] = client.post("/v1/batch", {"commands": [{"do": "reserve", "gate": "sentinel"}]}).json["replies"]
        assert batched["delay"] == batched["delay_ms"]
        told += [place, batched, sample_of(guard)]
        found = set().union(*map(check, told))
    finally:
        guard.stop()
    wanted = {"expires_at", "paused_for", "free_in", "resets_in", "held_for", "expires_in", "goes_in", "sampled_at"}
    assert found == wanted


def sample_of(guard: GuardThread) -> Any:
    """The first sample of the dashboard's stream."""
    from http.client import HTTPConnection

    connection = HTTPConnection("127.0.0.1", guard.port, timeout=60)
    connection.request("GET", "/v1/events")
    with connection.getresponse() as answer:
        lines = [answer.readline().decode() for _ in range(6)]
    connection.close()
    assert lines[3] == "event: gates\n"
    return json.loads(lines[4].removeprefix("data: "))


# --- the command line -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_a_folder")
def test_json_of_the_command_line_tells_times_as_they_are_named(tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text(f'store = "sqlite:///{tmp_path}/state.db"\n{GATES}')
    gate = headgate.load()["adobe"]
    gate.acquire({"pu": 1}, holder="one")
    gate.pause(3600)
    found = set()
    for command in (
        "status",
        "explain adobe --cost pu=1",
        "leases list",
        "limits list",
        "limits get adobe rpm",
        "doctor",
    ):
        found |= check(read(*command.split()))
    assert found == {"paused_for", "free_in", "resets_in", "held_for", "expires_in", "goes_in"}
    check(read("plan", "--rate", "190/1m", "--in-flight", "150", "--duration", "30s", "--items", "9"))


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_columns_of_a_simulation() -> None:
    for name, about in COLUMNS.items():
        assert name == "strategy" or is_well_named(name), f"{name} ({about}) {WHAT_TO_DO}"


# --- the table ------------------------------------------------------------------------------------------------------------


def test_the_reference_lists_every_time_that_is_told() -> None:
    page = (ROOT / "docs" / "reference" / "times.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(\w+)` \| ", page, re.MULTILINE)) - {*RELATIVE, *ABSOLUTE}
    public = [kind for kind in vars(headgate).values() if is_dataclass(kind)]
    told = {field.name for kind in public for field in fields(kind)} | {"lease_expires_at", "down_for", "sampled_at"}
    told.add("sent_for")  # which callers tell
    told |= {name for schema in ANSWERS.values() for name in schema_numbers(schema)}
    assert listed == {name for name in told if name.endswith((*RELATIVE, *ABSOLUTE))}

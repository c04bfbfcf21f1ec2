"""A kind of limit of one's own, by the recipe of ARCHITECTURE.md: one class and one line, and every face takes it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headgate
from headgate import AsyncGate, ConfigError, Gate
from headgate.cli.app import app
from headgate.config.file import parse
from headgate.http.headers import policy_field
from headgate.kernel.limits import Limit, from_spec
from headgate.service.schema.document import document
from headgate.simulate.planning import forecast
from headgate.stores import open_store
from headgate.stores.memory import MemoryStore
from headgate.stores.sqlite.store import SqliteStore
from headgate.testing import FakeClock, LimitSuite
from tests.support.guards import GuardThread
from tests.support.own_kind import Tumbling, registered

CONFIG = """
store = "sqlite:///{folder}/state.db"

[gates.api]
priorities = {{ live = 1.0, batch = 0.5 }}
limits = [
  {{ tumbling = 4, per = "1h", name = "t" }},
  {{ tumbling = 2, per = "1m", slack = 0, by = "org", name = "each", unit = "requests" }},
]
"""


@pytest.fixture(autouse=True)
def with_own_kind() -> Iterator[None]:
    with registered():
        yield


@pytest.fixture
def gates(tmp_path: Path, at_the_command_line: None) -> Iterator[Any]:
    (tmp_path / "headgate.toml").write_text(CONFIG.format(folder=tmp_path), encoding="utf-8")
    loaded = headgate.load()
    yield loaded
    open_store(loaded.config.store).close()


class TestTumblingInMemory(LimitSuite):
    def make_limit(self) -> Limit:
        return Tumbling(12, per="1s")


class TestTumblingOfFractions(LimitSuite):
    cost = 0.25

    def make_limit(self) -> Limit:
        return Tumbling(6, per="1m", slack="2s", unit="pu")


class TestTumblingInSqlite(LimitSuite):
    def make_limit(self) -> Limit:
        return Tumbling(12, per="1s")

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> Iterator[None]:
        self.folder, self.stores = tmp_path, list[SqliteStore]()
        yield
        for store in self.stores:
            store.close()

    def make_store(self, clock: FakeClock) -> Any:
        store = SqliteStore(str(self.folder / f"{len(self.stores)}.db"), clock=clock)
        self.stores.append(store)
        return store


def test_it_is_made_again_from_its_spec_and_answers_for_itself() -> None:
    limit = Tumbling(30, per="1m", slack="1s", name="t")
    assert from_spec(limit.spec()) == limit
    assert limit.with_slack(0) == Tumbling(30, per="1m", slack=0, name="t")
    assert limit.widened(500_000) == Tumbling(30, per="1m", slack="1.5s", name="t")
    assert limit.with_limit(3) == Tumbling(3, per="1m", slack="1s", name="t")
    assert [limit.in_words(field) for field in limit.fields] == ["30", "60 s", "1 s", "'t'", "'requests'", "None"]
    assert limit.per_minute(2.0, 5.0) == 15
    assert policy_field([limit]) == b'"t";q=30;w=60'


def test_a_gate_at_the_boundary_and_an_override_take_it() -> None:
    gate = Gate("api", [Tumbling(2, per="10s", slack="1s", name="t")], store=MemoryStore(clock=FakeClock()))
    assert gate.at_boundary().policy.limits == (Tumbling(2, per="10s", slack=0, name="t"),)
    gate.set_limit("t", 3.5)
    assert sum(gate.try_acquire() is not None for _ in range(9)) == 3


def test_asks_wait_for_it_in_line() -> None:
    async def waited() -> list[float]:
        gate = AsyncGate("api", [Tumbling(1, per="50ms", slack=0)], store=MemoryStore())
        permits = await asyncio.gather(*(gate.acquire(timeout=60) for _ in range(3)))
        return sorted(permit.waited for permit in permits)

    first, second, third = asyncio.run(waited())
    assert first < second < third


def test_a_configuration_takes_it_by_its_name_and_its_arguments(gates: Any) -> None:
    shared, each = gates["api"].policy.limits
    assert shared == Tumbling(4, per="1h", name="t")
    assert each == Tumbling(2, per="1m", slack=0, by="org", name="each")
    with pytest.raises(
        ConfigError, match=r"limits\[0\].burst: 'burst' is unknown; a tumbling takes tumbling, per, slack"
    ):
        parse('[gates.g]\nlimits = [{ tumbling = 1, per = "1m", burst = 2 }]')
    with pytest.raises(ConfigError, match=r"limits\[0\].per: per is missing; a tumbling needs it"):
        parse("[gates.g]\nlimits = [{ tumbling = 1 }]")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), prog_name="headgate", catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_usage_explain_status_and_limits_show_it(gates: Any) -> None:
    gate = gates["api"]
    for _ in range(2):
        assert gate.try_acquire(key={"org": "acme"}) is not None
    rows = [(row.name, row.kind, row.used, row.limit) for row in gate.usage(key={"org": "acme"}).limits]
    assert rows == [("t", "tumbling", 2, 4), ("each", "tumbling", 2, 2)]
    answer = gate.explain(key={"org": "acme"})
    assert (answer.granted, answer.limit) == (False, "each")
    assert 0 < answer.goes_in <= 60
    shown = run("status", "api", "--key", "org=acme")
    assert "begins anew in" in shown
    told = json.loads(run("status", "api", "--json"))
    assert [(row["name"], row["kind"]) for row in told["gates"][0]["limits"]][:1] == [("t", "tumbling")]
    assert "each" in run("explain", "api", "--key", "org=acme")
    assert [row.split()[:4] for row in run("limits", "list", "api").splitlines()[1:]] == [
        ["api", "t", "tumbling", "requests"],
        ["api", "each", "tumbling", "requests"],
    ]


def test_it_is_planned_and_simulated(gates: Any, tmp_path: Path) -> None:
    limit = Tumbling(30, per="1m", name="t")
    assert forecast([limit], 5).per_minute == 30
    told = json.loads(run("plan", "api", "--duration", "5s", "--json"))
    assert {bound["kind"] for bound in told["bounds"]} == {"tumbling"}
    (tmp_path / "scenario.toml").write_text(
        """
strategies = ["headgate"]
[jobs]
count = 60
[fleet]
workers = 10
[call]
work = "1s"
[upstream]
limits = [{ sliding = 40, per = "1m" }]
[gate]
limits = [{ tumbling = 20, per = "1m", slack = "1s", name = "t" }]
""",
        encoding="utf-8",
    )
    [row] = json.loads(run("simulate", "scenario.toml", "--json"))["rows"]
    assert (row["refused"], row["done"]) == (0, 60)


def test_a_guard_tells_of_it() -> None:
    guard = GuardThread(MemoryStore(), '[gates.api]\nlimits = [{ tumbling = 4, per = "1h", name = "t" }]\n')
    try:
        assert guard.guard is not None
        served = guard.guard.gates.async_gate("api")
        assert asyncio.run(served.usage())["t"].kind == "tumbling"
        schema = document(guard.guard.settings, tokens=True, gates=[])["components"]["schemas"]["LimitUsage"]
        assert "tumbling" in schema["properties"]["kind"]["enum"]
    finally:
        guard.stop()

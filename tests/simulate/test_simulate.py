"""The simulator: the real kernel in virtual time, judged by books that know nothing of it."""

import ast
import json
import random
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

import headgate.simulate.books
from headgate.errors import ConfigError, InvalidInput
from headgate.simulate import COLUMNS, STRATEGIES, Scenario, load, parse, run, simulate
from headgate.simulate.books import NANO, BookRule, SimulatedUpstream
from headgate.simulate.chance import KINDS
from headgate.simulate.scenario import (
    ANSWERS,
    CALL_KEYS,
    FLEET_KEYS,
    GATE_KEYS,
    JOB_KEYS,
    RULE_KEYS,
    SETTINGS,
    STARTS,
    TENANT_KEYS,
    TOP_KEYS,
)
from tests.support import ROOT

SCENARIOS = ROOT / "benchmarks" / "scenarios"

SMALL = """
[jobs]
count = 600

[fleet]
workers = 150
processes = 5

[call]
network = { lognormal = "50ms", sigma = 0.8, plus = "50ms" }
work = { uniform = ["2s", "10s"] }

[upstream]
limits = [{ sliding = 100, per = "1m" }]

[gate]
limits = [{ window = 100, per = "1m", slack = "2s", name = "rpm" }]
"""


def small(**changes: object) -> Scenario:
    return parse(SMALL, file="small.toml").having(**changes)


def written(old: str, new: str) -> Scenario:
    assert old in SMALL
    return parse(SMALL.replace(old, new), file="small.toml")


# --- ours ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["at once", "even", "poisson"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fleet_behind_a_gate_uses_the_upstream_without_a_single_refusal(start: str, seed: int) -> None:
    row = run(small(start=start, over=5_000_000), "headgate", seed)
    assert (row.done, row.refused) == (600, 0)
    assert row.utilisation > 0.97


@pytest.mark.slow
@pytest.mark.parametrize(("start", "least"), [("at once", 0.99), ("even", 0.988), ("poisson", 0.988)])
def test_the_reference_fleet_gets_what_is_promised_of_the_upstream_and_no_refusal(start: str, least: float) -> None:
    row = run(load(SCENARIOS / "adobe.toml").having(start=start), "headgate", 1)
    assert (row.done, row.refused) == (6000, 0)
    assert row.utilisation >= least


@pytest.mark.slow
def test_without_an_early_answer_the_reference_fleet_pays_for_the_slack_and_nothing_else() -> None:
    row = run(load(SCENARIOS / "adobe-slow.toml"), "headgate", 1)
    assert (row.done, row.refused) == (6000, 0)
    assert 0.998 * 60 / 62 <= row.utilisation <= 60 / 62


def test_confirmations_are_what_saves_the_slack() -> None:
    with_them = run(small(), "headgate", 1).utilisation
    assert with_them - run(small(confirm=False), "headgate", 1).utilisation > 0.02


def test_without_a_network_nothing_is_lost_but_one_slack_at_the_start_and_the_grid() -> None:
    # The first quarter of the limit is not worth confirming: it counts for the whole slack, once.
    scenario = written('network = { lognormal = "50ms", sigma = 0.8, plus = "50ms" }', 'network = "0ms"')
    row = run(scenario, "headgate", 1)
    assert row.refused == 0
    assert row.utilisation >= 300 / (300 + 2 + 6 * 0.06)


def test_processes_that_die_lose_no_job_and_cause_no_refusal() -> None:
    row = run(small(crash_every=20_000_000, restart=10_000_000), "headgate", 1)
    assert row.tally.crashes > 5
    assert (row.done, row.refused) == (600, 0)


def test_the_slots_of_processes_that_die_come_back_when_their_leases_end() -> None:
    text = SMALL.replace('sliding = 100, per = "1m"', "slots = 30")
    text = text.replace('window = 100, per = "1m", slack = "2s", name = "rpm"', 'concurrency = 30, lease = "30s"')
    crashes = 'processes = 5\ncrashes = { every = "20s", restart = "5s" }'
    row = run(parse(text.replace("processes = 5", crashes)), "headgate", 1)
    assert row.tally.crashes > 3
    assert (row.done, row.refused) == (600, 0)


def test_a_store_that_is_far_away_costs_time_but_no_refusal() -> None:
    scenario = written("[gate]", '[gate]\ndelay = { uniform = ["5ms", "50ms"] }')
    row = run(scenario, "headgate", 1)
    assert (row.done, row.refused) == (600, 0)
    assert row.utilisation > 0.96


LATE = 'client_lag = { mix = [{ share = 4, constant = "20ms" }, { share = 1, uniform = ["2s", "6s"] }] }'


def late(**changes: object) -> Scenario:
    """Workers of which one call in five is written seconds after its permit."""
    return written("[upstream]", f"{LATE}\n\n[upstream]").having(**changes)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_clients_that_are_late_and_stamp_cause_no_refusal_and_the_same_that_do_not_stamp_do(seed: int) -> None:
    stamped = run(late(), "headgate", seed)
    assert (stamped.refused, stamped.done) == (0, 600)
    assert run(late(stamp=False), "headgate", seed).refused > 0


def test_a_bucket_makes_late_clients_wait_and_nobody_is_refused() -> None:
    bucket = written('{ sliding = 100, per = "1m" }', '{ bucket = 100, per = "1m", burst = 3 }')
    gate = parse(
        SMALL.replace('{ window = 100, per = "1m", slack = "2s", name = "rpm" }',
                      '{ bucket = 100, per = "1m", burst = 3, slack = "1s", name = "rpm" }'),
        file="small.toml",
    ).gate  # fmt: skip
    scenario = bucket.having(gate=gate, client_lag=late().client_lag)
    assert run(scenario, "headgate", 1).refused == 0
    assert run(scenario.having(stamp=False), "headgate", 1).refused > 0


def test_late_clients_stamp_over_a_network_too() -> None:
    scenario = late(delay=parse(SMALL.replace("[gate]", '[gate]\ndelay = "20ms"'), file="small.toml").delay)
    assert run(scenario, "headgate", 1).refused == 0


def test_a_gate_that_makes_promises_runs_in_virtual_time_too() -> None:
    row = run(written("[gate]", '[gate]\nwaiting = "promise"'), "headgate", 1)
    assert (row.done, row.refused) == (600, 0)


def test_an_upstream_that_tells_when_to_come_again_pauses_the_whole_fleet() -> None:
    text = SMALL.replace("window = 100", "window = 120")  # the gate was told too much
    blind = run(parse(text), "headgate", 1)
    told = run(parse(text.replace("[upstream]", "[upstream]\nretry_after = true")), "headgate", 1)
    assert blind.done == told.done == 600
    assert 0 < told.refused < blind.refused


# --- theirs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "headgate"])
def test_every_other_strategy_is_refused_in_the_same_run(strategy: str) -> None:
    row = run(small(), strategy, 1)
    assert row.refused > 50
    assert row.done + row.tally.lost == 600


def test_two_limits_at_once_are_kept_together() -> None:
    row = run(load(SCENARIOS / "s2-50x10.toml"), "headgate", 1)
    assert (row.done, row.refused) == (500, 0)
    assert row.makespan < 1.02 * row.ideal


def test_a_capacity_that_nobody_publishes_is_found_by_adapting_to_refusals() -> None:
    result = simulate(load(SCENARIOS / "s3-capacity.toml"), 1)
    assert result["headgate"].done == result["uncoordinated"].done == 1500
    assert 10 * result["headgate"].refused < result["uncoordinated"].refused


def test_tenants_with_many_workers_get_no_more_than_those_with_few() -> None:
    result = simulate(load(SCENARIOS / "s4-orgs.toml"), 1)
    assert (result["headgate"].refused, result["headgate"].done) == (0, 1500)
    assert result["headgate"].fairness > 0.99
    assert result["headgate"].fairness > result["uncoordinated"].fairness


# --- the same again -----------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_result_every_time_and_another_seed_another() -> None:
    scenario = small(jobs=200, crash_every=30_000_000, restart=5_000_000)
    first, again, other = (simulate(scenario, seed).as_json() for seed in (7, 7, 8))
    assert first == again
    assert first["rows"] != other["rows"]


def test_json_has_exactly_the_fields_that_are_promised() -> None:
    found = json.loads(json.dumps(simulate(small(jobs=50), 3, ["headgate"]).as_json()))
    assert list(found) == ["scenario", "seed", "rows"]
    assert (found["scenario"], found["seed"]) == ("small", 3)
    fields = "strategy done ideal utilisation refused makespan wait_p50 wait_p99 fairness"
    assert list(found["rows"][0]) == list(COLUMNS) == fields.split()
    assert found["rows"][0]["strategy"] == "headgate"


def test_a_result_is_a_table_a_csv_and_a_plot() -> None:
    result = simulate(small(jobs=150), 1)
    lines = result.as_text().splitlines()
    assert lines[0] == "small: 150 calls, seed 1"
    rows = lines[2 : lines.index("", 2)]
    assert [line.split()[0] for line in rows[1:]] == list(STRATEGIES)
    assert len({len(line) for line in rows}) == 1
    assert re.fullmatch(r"\S+ s of slack cost \d\.\d\d%, .*", lines[-1])
    assert [line.split(",")[2] for line in result.as_csv().splitlines()] == ["strategy", *STRATEGIES]
    drawing = ElementTree.fromstring(result.as_svg())
    assert len(drawing.findall("{http://www.w3.org/2000/svg}polyline")) == 2 * len(STRATEGIES)


def test_how_far_a_run_is_can_be_asked_while_it_runs() -> None:
    asked: dict[str, Callable[[], float]] = {}
    simulate(small(jobs=50), 1, ["uncoordinated", "headgate"], asked.__setitem__)
    assert list(asked) == ["uncoordinated", "headgate"]
    assert all(share() == 1.0 for share in asked.values())


def test_a_gate_that_a_call_can_never_pass_is_a_mistake_of_the_scenario() -> None:
    with pytest.raises(ConfigError, match=r"small\.toml: gate\.limits: .*can never fit"):
        run(written("window = 100", "window = 0.5"), "headgate", 1)


def test_a_strategy_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(InvalidInput, match="'magic'; there are uncoordinated"):
        simulate(small(), 1, ["magic"])
    with pytest.raises(KeyError, match="headgate were"):
        simulate(small(jobs=10), 1, ["headgate"])["uncoordinated"]


def test_a_run_that_does_not_end_is_cut_off_at_its_horizon() -> None:
    row = run(small(horizon=90_000_000), "headgate", 1)
    assert row.done < 600
    assert row.makespan <= 90


# --- the books ----------------------------------------------------------------------------------------------------


def test_the_books_share_no_code_with_headgate() -> None:
    source = Path(headgate.simulate.books.__file__).read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", None) or node.names[0].name for node in imports}
    assert modules == {"__future__", "bisect", "collections", "collections.abc", "typing"}
    assert all(getattr(node, "level", 0) == 0 for node in imports)


def arrivals(kind: str, limit: float, per: float, seed: int) -> list[float]:
    """When, in seconds, an upstream accepted something of a busy, random crowd."""
    rng = random.Random(seed)
    upstream = SimulatedUpstream(
        [BookRule(kind, ((0, limit),), int(per * NANO), None, "requests", None)], offset=rng.randrange(10**9)
    )
    upstream.begin(0)
    accepted, at = [], 0
    for _ in range(3000):
        at += int(rng.expovariate(1.0) * 20_000)
        if upstream.arrive(at, {"requests": 1.0}):
            accepted.append(at / 1e6)
    return accepted


@pytest.mark.parametrize("seed", range(5))
def test_a_sliding_window_never_holds_more_than_its_limit_and_wastes_nothing(seed: int) -> None:
    times = arrivals("sliding", 20, 3.0, seed)
    assert all(later - earlier >= 3.0 for earlier, later in zip(times, times[20:], strict=False))
    assert len(times) > 0.95 * 20 * times[-1] / 3.0


@pytest.mark.parametrize("seed", range(5))
def test_a_token_bucket_never_gives_more_than_its_burst_and_what_flows_in(seed: int) -> None:
    times = arrivals("bucket", 20, 3.0, seed)
    for begin in range(0, len(times), 7):
        for end in range(begin, len(times), 11):
            assert end - begin + 1 <= 20 + (times[end] - times[begin]) * 20 / 3.0 + 1e-6


def test_a_calendar_window_lets_two_lots_through_around_a_boundary() -> None:
    upstream = SimulatedUpstream([BookRule("calendar", ((0, 5.0),), 60 * NANO, None, "requests", None)], offset=0)
    took = [upstream.arrive(59_900_000, {"requests": 1.0}) for _ in range(6)]
    took += [upstream.arrive(60_000_000, {"requests": 1.0}) for _ in range(6)]
    assert took == [True] * 5 + [False] + [True] * 5 + [False]


def test_slots_are_per_key_and_follow_a_changing_capacity() -> None:
    upstream = SimulatedUpstream(
        [BookRule("slots", ((0, 2.0), (10 * NANO, 1.0)), 0, None, "requests", "org")], offset=0
    )
    cost = {"requests": 1.0}
    assert [upstream.arrive(0, cost, "a"), upstream.arrive(0, cost, "a"), upstream.arrive(0, cost, "a")] == [
        True,
        True,
        False,
    ]
    assert upstream.arrive(0, cost, "b")
    upstream.leave("a")
    assert not upstream.arrive(11_000_000, cost, "a")
    upstream.leave("a")
    assert upstream.arrive(11_000_000, cost, "a")


def test_a_refused_call_leaves_no_trace_on_the_other_limits() -> None:
    rules = [
        BookRule("sliding", ((0, 10.0),), 60 * NANO, None, "requests", None),
        BookRule("bucket", ((0, 4.0),), 60 * NANO, None, "pu", None),
    ]
    upstream = SimulatedUpstream(rules, offset=0)
    assert upstream.arrive(0, {"requests": 1.0, "pu": 3.0})
    assert not any(upstream.arrive(0, {"requests": 1.0, "pu": 3.0}) for _ in range(50))
    assert all(upstream.arrive(0, {"requests": 1.0, "pu": 0.1}) for _ in range(9))


# --- scenarios ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_scenario_that_is_shipped_says_what_it_is_about(path: Path) -> None:
    scenario = load(path)
    assert scenario.name == path.stem
    assert scenario.about
    assert "headgate" in scenario.strategies


@pytest.mark.parametrize(
    ("old", "new", "place", "told"),
    [
        ("[jobs]", "[joobs]", "joobs", "did you mean 'jobs'"),
        ("count = 600", "", "jobs.count", "count is missing"),
        ("count = 600", "count = 0", "jobs.count", "a whole number from 1"),
        ("workers = 150", "workers = 1.5", "fleet.workers", "1.5 is not a count"),
        ("processes = 5", "processes = 151", "fleet.processes", "151 processes for 150 workers"),
        ("processes = 5", 'start = "evn"', "fleet.start", "did you mean 'even'"),
        ("processes = 5", 'over = "1m"', "fleet.over", "means nothing"),
        ("processes = 5", "crashes = {}", "fleet.crashes.every", "every is missing"),
        ('uniform = ["2s", "10s"]', 'uniform = ["10s", "2s"]', "call.work.uniform", "the first end is above"),
        ('uniform = ["2s", "10s"]', 'uniform = ["2s"]', "call.work.uniform", "no two ends"),
        ('uniform = ["2s", "10s"]', 'unifrom = "2s"', "call.work.unifrom", "did you mean 'uniform'"),
        ("sigma = 0.8, ", "", "call.network.sigma", "sigma is missing"),
        ("sigma = 0.8", "sigma = -1", "call.network.sigma", "-1 is not a sigma"),
        ('"2s", "10s"', '"2s", "soon"', "call.work.uniform[1]", "soon"),
        ("sliding = 100", "slidign = 100", "upstream.limits[0].slidign", "did you mean 'sliding'"),
        ("sliding = 100", "sliding = 0", "upstream.limits[0].sliding", "a number from 1e-09"),
        ("sliding = 100", "sliding = 100, slots = 3", "upstream.limits[0]", "sliding and slots at once"),
        ('sliding = 100, per = "1m"', "sliding = 100", "upstream.limits[0].per", "per is missing"),
        ('sliding = 100, per = "1m"', 'slots = 5, per = "1m"', "upstream.limits[0].per", "means nothing"),
        ('sliding = 100, per = "1m"', 'sliding = 1, per = "1m", unit = "pu"', "jobs.cost", "cost of a call in 'pu'"),
        ('sliding = 100, per = "1m"', 'slots = 1, by = "org"', "tenants", "nobody to tell apart"),
        ("window = 100", "widnow = 100", "gate.limits[0]", "did you mean 'window'"),
        ("[gate]", '[gate]\nstore = "memory://"', "gate.store", "'store' is unknown"),
        ("[jobs]", "strategies = ['luck']\n[jobs]", "strategies[0]", "no strategy 'luck'"),
        ("[gate]", "[settings.headgate]\nspeed = 3\n[gate]", "settings.headgate.speed", "the settings of headgate are"),
    ],
)
def test_a_mistake_in_a_scenario_is_told_with_its_place_and_what_would_be_right(
    old: str, new: str, place: str, told: str
) -> None:
    assert old in SMALL
    with pytest.raises(ConfigError) as caught:
        parse(SMALL.replace(old, new, 1), file="small.toml")
    assert str(caught.value).startswith(f"small.toml: {place}: ")
    assert told in str(caught.value)


def test_a_scenario_that_cannot_be_read_is_told_without_a_traceback_of_ours(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[jobs\n")
    with pytest.raises(ConfigError, match="it is not TOML"):
        load(broken)


def test_every_key_and_setting_of_a_scenario_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "reference" / "scenario.md").read_text(encoding="utf-8")
    for key in (*TOP_KEYS, *JOB_KEYS, *FLEET_KEYS, *CALL_KEYS, *TENANT_KEYS, *GATE_KEYS, *RULE_KEYS, *STARTS, *ANSWERS):
        assert f"`{key}`" in page, key
    for kind in KINDS:
        assert f"{kind} = " in page, kind
    for strategy, settings in SETTINGS.items():
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{strategy}` |")]
        for name, value in settings.items():
            assert f"`{name}` (" in row
            assert not value or f"`{name}` ({value:g})" in row


@pytest.mark.soak
@pytest.mark.parametrize("part", ["reference", "late", "slow", "million"])
def test_the_fleet_keeps_every_bound_under_fifty_seeds(part: str) -> None:
    from benchmarks import fleet

    assert fleet.main([part]) == 0

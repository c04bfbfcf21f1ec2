"""What is in deploy/: it names only what exists, and the tools that read it accept it where they can be had."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.config import file as config_file
from headgate.sinks.prometheus import METRICS
from tests.support import ROOT

DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "headgate.rules.yml"

#: Every series that a guard tells, and the one that Prometheus makes by itself.
SERIES = {"up"} | {
    f"{name}{end}"
    for name, (kind, _, _) in METRICS.items()
    for end in (("_bucket", "_sum", "_count") if kind == "histogram" else ("",))
}

#: Words of the query language that look like names.
_WORDS = re.compile(r"\b(?:headgate_\w+|up)\b")


def yaml_of(path: Path) -> Any:
    try:
        import yaml
    except ImportError:
        if os.environ.get("CI"):
            raise
        pytest.skip("PyYAML is missing: pip install PyYAML")
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml_of(RULES)["groups"] for rule in group["rules"]]


def selectors(expression: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each series of a query, with the labels that it asks for."""
    for found in re.finditer(r"\b(headgate_\w+|up)\b(?:\{([^}]*)\})?", expression):
        yield found[1], dict(re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"', found[2] or ""))


def labels_of(series: str) -> set[str]:
    name = re.sub("_(bucket|sum|count)$", "", series) if series not in METRICS else series
    return {*METRICS[name][1], "le", "instance", "job"} if name in METRICS else {"job", "instance"}


# --- alerts -----------------------------------------------------------------------------------------------------------


def test_every_alert_has_a_duration_a_severity_and_says_what_to_do() -> None:
    assert len(rules()) >= 8
    for rule in rules():
        assert re.fullmatch(r"[1-9]\d*[smh]", rule["for"]), rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)


def test_every_series_and_label_that_an_alert_asks_for_is_told_by_a_guard() -> None:
    for rule in rules():
        assert _WORDS.findall(rule["expr"]), rule["alert"]
        for series, labels in selectors(rule["expr"]):
            assert series in SERIES, f"{rule['alert']} asks for {series}"
            assert labels.keys() <= labels_of(series), f"{rule['alert']} asks {series} for {labels}"
        told = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        grouped = set(re.findall(r"by \(([^)]*)\)", rule["expr"]))
        kept = {label.strip() for group in grouped for label in group.split(",")} or {"instance", "job"}
        assert told <= kept, f"{rule['alert']} tells labels that its query drops"


def test_what_the_issue_asked_to_be_alerted_about_is() -> None:
    told = " ".join(rule["expr"] for rule in rules())
    for words in ("headgate_utilisation", "> 0.8", "headgate_key_utilisation_max", "> 0.9", 'class="rate_limited"',
                  "headgate_store_up", "headgate_store_errors_total", "headgate_overshoot_total",
                  "headgate_dead_letters) >= 10"):  # fmt: skip
        assert words in told


def test_promtool_accepts_the_rules_and_they_fire_when_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: it comes with Prometheus (apt-get install prometheus)")
    for command in (["check", "rules", RULES.name], ["test", "rules", "headgate.rules.test.yml"]):
        done = subprocess.run(
            [promtool, *command], cwd=RULES.parent, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_tests_of_the_rules_name_alerts_and_series_that_there_are() -> None:
    tests = yaml_of(RULES.parent / "headgate.rules.test.yml")
    assert tests["rule_files"] == [RULES.name]
    names = {rule["alert"] for rule in rules()}
    for test in tests["tests"]:
        assert {case["alertname"] for case in test["alert_rule_test"]} <= names
        for series in test["input_series"]:
            [(name, labels)] = selectors(series["series"])
            assert name in SERIES
            assert labels.keys() == set(METRICS[name][1])


# --- Grafana ----------------------------------------------------------------------------------------------------------


def test_the_dashboard_of_grafana_asks_for_what_a_guard_tells_and_shows_all_that_matters() -> None:
    board = json.loads((DEPLOY / "grafana" / "headgate.json").read_text(encoding="utf-8"))
    asked: set[str] = set()
    ids, places = set(), set()
    for panel in board["panels"]:
        assert panel["title"]
        assert panel["description"]
        assert panel["id"] not in ids
        ids.add(panel["id"])
        grid = panel["gridPos"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & places, f"{panel['title']} lies on another"
        assert grid["x"] + grid["w"] <= 24
        places |= cells
        for target in panel["targets"]:
            for series, labels in selectors(target["expr"]):
                assert series in SERIES, f"{panel['title']} asks for {series}"
                assert labels.keys() <= labels_of(series)
                asked.add(re.sub("_(bucket|sum|count)$", "", series) if series not in METRICS else series)
            kept = {
                label.strip() for group in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in group.split(",")
            }
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept
    assert asked >= METRICS.keys() - {"headgate_info", "headgate_used"}
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "gate"]


# --- systemd, Docker, compose -----------------------------------------------------------------------------------------


def serves(command: list[str]) -> None:
    """The command line exists, with all of its options."""
    click_testing = pytest.importorskip("click.testing", reason="click is missing: pip install 'headgate[cli]'")
    from headgate.cli.app import app

    assert Path(command[0]).name == "headgate"
    result = click_testing.CliRunner().invoke(app, [*command[1:], "--help"])
    assert result.exit_code == 0, result.output


def test_the_unit_of_systemd_is_well_formed_and_runs_a_command_that_there_is(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "headgate.service").read_text(encoding="utf-8")
    settings = dict(line.split("=", 1) for line in text.splitlines() if re.match(r"[A-Z]\w*=", line))
    serves(shlex.split(settings["ExecStart"]))
    assert settings["WorkingDirectory"] == f"/var/lib/{settings['StateDirectory']}"
    assert int(settings["TimeoutStopSec"]) > 10, "a guard gives requests ten seconds to end"
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is missing: the unit was only read, not verified")
    unit = tmp_path / "headgate.service"
    unit.write_text(text.replace("/opt/headgate/bin/headgate", "/bin/true"), encoding="utf-8")
    done = subprocess.run([verify, "verify", str(unit)], capture_output=True, text=True, timeout=120, check=False)
    about_us = [line for line in (done.stdout + done.stderr).splitlines() if "headgate.service" in line]
    assert about_us == []


def test_the_dockerfile_copies_what_there_is_and_runs_a_command_that_there_is() -> None:
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), line
        if word == "CMD":
            serves(json.loads(rest))
        for extras in re.findall(r"/src\[([\w,]+)\]", line):
            assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    assert any(line.startswith("USER ") and line != "USER root" for line in lines)
    assert any(line.startswith("HEALTHCHECK") and "/livez" in line for line in lines)


def test_compose_mounts_what_there_is_and_its_configuration_is_one(tmp_path: Path) -> None:
    compose = yaml_of(DEPLOY / "compose.yaml")
    assert (DEPLOY / compose["services"]["guard"]["build"]["context"] / "deploy" / "Dockerfile").exists()
    for service in compose["services"].values():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists(), volume
        for port in service["ports"]:
            assert port.startswith("127.0.0.1:"), "nothing is open to others unless somebody wants it"
    config = config_file.parse((DEPLOY / "headgate.toml").read_text(encoding="utf-8"))
    published = compose["services"]["guard"]["ports"][0].rsplit(":", 1)[1]
    assert config.serve.port == int(published)
    assert config.serve.tokens, "it listens for others, so it needs tokens"
    scrape = yaml_of(DEPLOY / "prometheus" / "prometheus.yml")
    assert scrape["rule_files"] == [RULES.name]
    assert scrape["scrape_configs"][0]["static_configs"][0]["targets"] == [f"guard:{published}"]
    assert scrape["scrape_configs"][0]["job_name"] == "headgate"
    for name in ("datasource.yml", "provider.yml"):
        assert yaml_of(DEPLOY / "grafana" / name)["apiVersion"] == 1

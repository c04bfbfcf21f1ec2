"""Planning, simulating, checking and measuring from the command line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headgate
from tests.support import ROOT
from tests.support.command_line import done, read, run

pytestmark = pytest.mark.usefixtures("at_the_command_line")


def test_plan_says_which_limit_binds() -> None:
    for seconds, binding, per_minute in ((5, "rate", 190), (30, "rate", 190), (60, "in_flight", 150)):
        plan = read("plan", "--rate", "190/1m", "--in-flight", "150", "--duration", str(seconds))
        assert (plan["binding"], plan["per_minute"]) == (binding, per_minute)
        assert plan["crossover"] == pytest.approx(47.4, abs=0.05)
    text = done("plan", "--rate", "200/m", "--duration", "10s", "--calls", "2", "--items", "1000000")
    assert "100 items/min, 6,000/h, 144,000/day" in text
    assert "6.94 days" in text
    assert read("plan", "--workers", "100", "--duration", "10")["per_minute"] == 600
    assert read("plan", "--tenants", "10", "--each", "20") == {"expected": 200, "low": 250, "high": 300}
    assert [claim["right"] for claim in read("plan", "--claims")["claims"]].count(False) == 2
    assert "wrong" in done("plan", "--claims")


def test_plan_takes_the_limits_of_a_gate(gates: Any) -> None:
    assert read("plan", "adobe", "--duration", "5")["binding"] == "rpm"
    assert read("plan", "units", "--duration", "5", "--cost", "pu=2")["per_minute"] == pytest.approx(5 / 60)


SCENARIO = """
strategies = ["uncoordinated", "headgate"]
[jobs]
count = 60
[fleet]
workers = 10
[call]
network = "10ms"
work = "100ms"
[upstream]
limits = [{ sliding = 20, per = "10s" }]
[gate]
limits = [{ window = 20, per = "10s", name = "rpm" }]
"""


def test_simulate_prints_a_table_json_csv_and_a_plot(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text(SCENARIO)
    found = read("simulate", "small.toml", "--seed", "7")
    assert (found["scenario"], found["seed"]) == ("small", 7)
    assert [row["strategy"] for row in found["rows"]] == ["uncoordinated", "headgate"]
    assert found["rows"][1]["refused"] == 0
    columns = ["strategy", "done", "ideal", "utilisation", "refused", "makespan", "wait_p50", "wait_p99", "fairness"]
    assert list(found["rows"][1]) == columns
    assert done("simulate", "small.toml", "--seed", "7", "--json") == json.dumps(found, indent=2) + "\n"
    assert done("simulate", "small.toml", "--csv", "--plot", "out.svg").startswith("scenario,seed,strategy,done")
    assert (tmp_path / "out.svg").read_text().startswith("<svg")
    table = done("simulate", "small.toml", "--strategy", "headgate")
    assert "headgate" in table
    assert "uncoordinated" not in table
    wrong = run("simulate", "small.toml", "--strategy", "magic")
    assert (wrong.exit_code, "magic" in wrong.stderr) == (2, True)
    assert run("simulate", "small.toml", "--plot", "no/such/folder.svg").exit_code == 1
    told = run("simulate", "small.toml", "--json", "--plot", "out.svg")
    assert told.stderr == f"headgate: wrote {tmp_path}/out.svg\n"
    json.loads(told.stdout)
    refused = run("simulate", "small.toml", "--plot", "out.png")
    assert refused.exit_code == 2
    assert "--plot draws SVG, so name it like fleet.svg, not 'out.png'" in refused.stderr
    assert not (tmp_path / "out.png").exists()


def test_doctor_finds_nothing_wrong_with_a_gate_that_works(gates: Any) -> None:
    found = read("doctor")
    assert found["ok"] is True
    assert {check["check"].split()[0] for check in found["checks"]} == {"versions", "clock", "configuration", "store"}
    assert "reachable and writable" in done("doctor", "--create")
    assert all(limit.used == 0 for name in gates for limit in gates[name].usage().limits)


def test_doctor_checks_local_shares_against_the_number_of_processes(tmp_path: Path) -> None:
    limits = 'on_store_error = { local = 0.02 }\nlimits = [{ window = 100, per = "1m" }]'
    (tmp_path / "headgate.toml").write_text(f"[gates.a]\n{limits}")
    notes = [check for check in read("doctor")["checks"] if check["level"] == "note"]
    assert any("at most 50 processes" in check["detail"] for check in notes)
    assert any("no two processes share it" in check["detail"] for check in notes)
    assert "headgate.toml: 1 gate: a\n" in done("doctor", "--processes", "50")
    result = run("doctor", "--processes", "51")
    assert result.exit_code == 1
    assert "102%" in result.stdout


def test_doctor_notes_a_total_that_its_tenants_are_expected_to_use_up(tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text(
        'store = "sqlite:///g.db"\n[gates.api]\n'
        'limits = [{ concurrency = 5, name = "org", by = "org" }, { concurrency = 8, name = "global" }]\n'
    )

    def notes() -> list[str]:
        return [check["detail"] for check in read("doctor")["checks"] if check["check"] == "gate api"]

    gate = headgate.load()["api"]
    assert notes() == []
    for org in ("a", "b"):
        gate.set_limit("org", 10, key={"org": org})
    assert notes() == ["the limit 'global' of 8 is below the 20 that the 2 with values of their own may use"]
    permits = [gate.acquire(key={"org": "a"}) for _ in range(7)]
    assert notes()[1:] == ["the limit 'global' is at 7 of 8"]
    for permit in permits:
        permit.release()
    for org in ("a", "b"):
        gate.clear_limit("org", key={"org": org})
    gate.set_limit("global", 4)
    assert notes() == ["the limit 'global' of 4 is below the 5 that one org may use"]


def test_doctor_says_what_is_wrong_with_the_configuration(tmp_path: Path) -> None:
    assert run("doctor").exit_code == 78
    (tmp_path / "headgate.toml").write_text("[gates.a]\nlimits = []")
    result = run("doctor", "--json")
    assert result.exit_code == 78
    assert json.loads(result.stdout)["ok"] is False


def test_a_gate_that_nobody_shares_is_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text('[gates.a]\nlimits = [{ window = 100, per = "1m" }]')
    result = run("status")
    assert result.exit_code == 0
    assert "no two processes share" in result.stderr


def test_bench_runs_the_benchmarks_of_the_checkout_and_passes_their_exit_code_on() -> None:
    out = subprocess.run(
        [sys.executable, "-m", "headgate", "bench", "--help"], capture_output=True, text=True, check=True
    )
    assert "python -m benchmarks" in out.stdout
    out = subprocess.run(
        [sys.executable, "-m", "headgate", "bench", "no-such-benchmark"], capture_output=True, text=True, check=False
    )
    assert out.returncode == 2
    assert "no benchmark named no-such-benchmark" in out.stderr


def test_what_is_piped_into_a_program_that_stops_reading_ends_quietly(gates: Any) -> None:
    script = f"{sys.executable} -m headgate status | true"
    out = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, env={**os.environ})
    assert "Traceback" not in out.stderr


def test_bench_without_a_checkout_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package as it is when installed: elsewhere, and without what stands beside it in the repository."""
    import shutil

    shutil.copytree(ROOT / "src" / "headgate", tmp_path / "lib" / "python" / "headgate")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lib" / "python"))
    out = subprocess.run(
        [sys.executable, "-m", "headgate", "bench"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (out.returncode, out.stdout) == (1, "")
    assert re.fullmatch(r"headgate: the benchmarks need a checkout .*`make bench`.*\n", out.stderr)


def test_bench_without_the_peers_says_how_to_get_them() -> None:
    script = "import benchmarks.__main__ as bench; bench.PEERS = ('no_such_peer',); bench.main(['peers'])"
    out = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert out.returncode == 2
    assert "make bench" in out.stderr
    assert "Traceback" not in out.stderr


@pytest.mark.slow
def test_the_tutorial_in_a_terminal_works_as_it_is_written(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    part = page[page.index("# In a terminal") : page.index("# In Python")]
    blocks = re.findall(r"^```sh\n(.*?)^```$", part, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert lines[:2] == ["make demo", ". .venv/bin/activate"]
    # What it takes for granted: `headgate` and `curl` on the path, and an Internet. The rest is run as it stands.
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "headgate").write_text(f'#!/bin/sh\nexec {sys.executable} -m headgate "$@"\n')
    (tools / "curl").write_text('#!/bin/sh\necho "curl $*"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    script = "\n".join(["set -e", *lines[2:]]).replace("headgate top", "sleep 4; headgate top")
    out = subprocess.run(
        ["bash", "-c", script + "\nwait"],
        env=os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "TMPDIR": str(tmp_path), "COLUMNS": "80"},
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert (out.returncode, out.stderr) == (0, "")
    assert "curl -fsS https://example.com" in out.stdout
    assert re.search(r"^  rpm +\S+ +2% +1/60  free$", out.stdout, flags=re.MULTILINE)
    assert re.search(r"^mygate ─+ 2 waiting · 10 in flight$", out.stdout, flags=re.MULTILINE)
    assert "mygate: paused for 30 s" in out.stdout
    assert "mygate: in_flight is as configured again" in out.stdout

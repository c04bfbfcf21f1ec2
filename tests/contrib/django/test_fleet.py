"""The example as a fleet: real HTTP, several server processes, kill -9, on Redis and on SQLite, by its own books."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate import Concurrency, Gate
from tests.contrib.django.conftest import patient
from tests.contrib.django.settings import EXAMPLE
from tests.support import ROOT
from tests.support.servers import Server
from tests.support.waiting import until

DEFAULT, ACME = 8, 5
#: A total that the organisations use up together, and one that they do not.
SCARCE, AMPLE = 20, 100
KEYS = {"acme": "ka", "bolt": "kb", "cord": "kc", "dune": "kd"}
#: Seconds: of a fleet whose processes are killed, and of one in which nothing is to be lost.
SHORT, LONG = 15.0, 300.0


@contextmanager
def site(kind: str, folder: Path, processes: int, total: int, lease: float) -> Iterator[tuple[Any, Gate]]:
    """The example, running, and a gate on its store to look at."""
    from demo import Site

    with ExitStack() as stack:
        url = f"sqlite:///{folder / 'headgate.db'}" if kind == "sqlite" else patient(stack.enter_context(Server()))
        limits = {
            "API_DEPLOYMENT_DEFAULT_RATE_LIMIT": str(DEFAULT), "API_DEPLOYMENT_GLOBAL_RATE_LIMIT": str(total),
            "HEADGATE_STORE": url, "EXAMPLE_LEASE": f"{lease}s", "EXAMPLE_LOG": "WARNING",
        }  # fmt: skip
        fleet = Site(folder, processes=processes, threads=50, run_seconds=0.5, **limits)
        fleet.manage("migrate", "-v0")
        fleet.manage("make_example", *(f"{name}={key}" for name, key in KEYS.items()))
        fleet.manage("set_org_rate_limit", "acme", str(ACME))
        stack.enter_context(fleet)
        rules = [Concurrency(DEFAULT, name="org", by="org"), Concurrency(total, name="global")]
        yield fleet, Gate("api-deployment", rules, store=url)


def load(fleet: Any, groups: list[dict[str, Any]], seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.http_load"], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps({"port": fleet.port, "seconds": seconds, "groups": groups}) + "\n")
    process.stdin.flush()
    return process


def group(name: str, count: int, pause: float = 0.0) -> dict[str, Any]:
    return {"name": name, "key": KEYS[name], "count": count, "pause": pause}


def check_books(fleet: Any, lost_for: float, total: int) -> dict[str, Any]:
    books: dict[str, Any] = fleet.books(lost_for)
    passed = (fleet.data / "server.log").read_text(errors="replace").count("let pass uncounted")
    assert passed == 0, "a busy store opens nothing"
    assert books["all"]["most_at_once"] <= total
    for name in KEYS:
        if name in books:
            assert books[name]["most_at_once"] <= (ACME if name == "acme" else DEFAULT), name
    return books


def flood(
    kind: str, folder: Path, clients: int, processes: int, seconds: float, kills: bool, total: int
) -> dict[str, Any]:
    """A flood of one organisation beside three that ask now and then. Returns what each got, and the books."""
    with site(kind, folder, processes, total, SHORT if kills else LONG) as (fleet, gate):
        others = [group(name, 4, pause=0.2) for name in ("bolt", "cord", "dune")]
        process = load(fleet, [group("acme", clients - 12), *others], seconds)
        end, killed = time.monotonic() + seconds, 0
        while process.poll() is None and time.monotonic() < end:
            time.sleep(min(4.0, seconds / 3))
            if kills:
                fleet.kill_worker() if killed % 2 else fleet.kill_server_process()
                killed += 1
        out, _ = process.communicate(timeout=300)
        results: dict[str, Any] = json.loads(out)
        begun = time.monotonic()
        # What is queued is worked off, and what was lost is back after one lease: nothing has to be told.
        until(lambda: not gate.holders(), seconds=240)
        results["empty_after"] = time.monotonic() - begun
        results["books"] = check_books(fleet, SHORT if kills else LONG, total)
        results["killed"] = killed
    return results


def check_fairness(results: dict[str, Any]) -> None:
    """The flood takes its own slots alone. The total has room for all, so others are refused by their own limit or not."""
    for name in ("bolt", "cord", "dune"):
        statuses = results[name]["statuses"]
        assert statuses.get("200", 0) > 0
        assert set(statuses) <= {"200", "429 org", "broken"}, statuses
    assert results["acme"]["statuses"].get("429 org", 0) > 0
    assert not [status for name in KEYS for status in results[name]["statuses"] if status.startswith("5")]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_flood_never_gets_more_than_its_limit_and_costs_nobody_else_a_slot(kind: str, tmp_path: Path) -> None:
    results = flood(kind, tmp_path, clients=40, processes=2, seconds=5, kills=False, total=AMPLE)
    check_fairness(results)
    books = results["books"]
    assert books["all"]["accepted"] == books["all"]["ended"] > 0
    assert books["all"]["expired"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_killed_processes_give_their_slots_back_after_one_lease_and_none_before(kind: str, tmp_path: Path) -> None:
    results = flood(kind, tmp_path, clients=30, processes=2, seconds=6, kills=True, total=SCARCE)
    assert results["killed"] >= 2
    assert results["books"]["all"]["accepted"] > 0


@pytest.mark.slow
def test_the_demo_prints_what_each_organization_got(tmp_path: Path) -> None:
    embedded = {name: value for name, value in os.environ.items() if name not in ("EXAMPLE_POSTGRES", "HEADGATE_STORE")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "demo.py")],
        env=embedded,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  acme: 5 queued, 15 refused\n" in done.stdout
    assert "(5/5). Please try again later." in done.stdout
    assert "  all: 25 runs, 25 completed, at most 25 at once\n" in done.stdout
    assert "Global System: 0/25 concurrent requests" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
@pytest.mark.parametrize("kills", [False, True], ids=["quiet", "kills"])
def test_two_hundred_clients_on_four_server_processes_for_half_a_minute(
    kind: str, kills: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = flood(kind, tmp_path, clients=200, processes=4, seconds=30, kills=kills, total=SCARCE if kills else AMPLE)
    with capsys.disabled():
        sys.stdout.write(f"\n{kind} {'kills' if kills else 'quiet'}: {json.dumps(results)}\n")
    if not kills:
        check_fairness(results)

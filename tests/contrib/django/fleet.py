"""The example as a fleet, for tests: real HTTP, server processes, kill -9, on Redis and SQLite, by its own books."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from headgate import Concurrency, Gate
from tests.contrib.django.conftest import patient
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
        prepare(fleet)
        stack.enter_context(fleet)
        rules = [Concurrency(DEFAULT, name="org", by="org"), Concurrency(total, name="global")]
        yield fleet, Gate("api-deployment", rules, store=url)


#: Three commands in one process, which starts once.
PREPARE = """
import json
import django; django.setup()
from django.core.management import call_command
for words in json.loads(input()):
    call_command(*words)
"""


def prepare(fleet: Any) -> None:
    organizations = [f"{name}={key}" for name, key in KEYS.items()]
    commands = [["migrate", "-v0"], ["make_example", *organizations], ["set_org_rate_limit", "acme", str(ACME)]]
    done = subprocess.run(
        [sys.executable, "-c", PREPARE], env=fleet.env, cwd=fleet.data, input=json.dumps(commands),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


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

"""The example as a fleet: a flood of one organisation beside three that ask now and then."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.contrib.django.fleet import AMPLE, SCARCE, check_fairness, flood


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_flood_never_gets_more_than_its_limit_and_costs_nobody_else_a_slot(kind: str, tmp_path: Path) -> None:
    results = flood(kind, tmp_path, clients=40, processes=2, seconds=4, kills=False, total=AMPLE)
    check_fairness(results)
    books = results["books"]
    assert books["all"]["accepted"] == books["all"]["ended"] > 0
    assert books["all"]["expired"] == 0


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

"""The example as a fleet whose server processes and workers are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contrib.django.fleet import SCARCE, flood


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_killed_processes_give_their_slots_back_after_one_lease_and_none_before(kind: str, tmp_path: Path) -> None:
    results = flood(kind, tmp_path, clients=30, processes=2, seconds=6, kills=True, total=SCARCE)
    assert results["killed"] >= 2
    assert results["books"]["all"]["accepted"] > 0

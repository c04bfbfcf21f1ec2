"""The example as a fleet on Redis whose server processes and workers are killed: a file of its own, since it takes long."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contrib.django.fleet import SCARCE, flood


@pytest.mark.slow
def test_killed_processes_give_their_slots_back_after_one_lease_and_none_before(tmp_path: Path) -> None:
    results = flood("redis", tmp_path, clients=30, processes=2, seconds=6, kills=True, total=SCARCE)
    assert results["killed"] >= 2
    assert results["books"]["all"]["accepted"] > 0

"""500 real images by three processes, while the capacity of the service changes: minutes, so not in `make test`."""

import pytest

from benchmarks.images import measure


@pytest.mark.soak
def test_three_processes_share_one_working_limit_on_a_capacity_that_changes() -> None:
    """Figures are for `python -m benchmarks.images`, and for virtual time (tests/kernel/test_probing.py)."""
    aimd, probing = (measure(rule, images=500, scale=5.0, processes=3) for rule in ("aimd", "probing"))
    assert aimd["made"] == probing["made"] == 500
    assert max(aimd["most_at_once"], probing["most_at_once"]) <= 20
    assert probing["share"] > aimd["share"]
    assert probing["refusals"] < aimd["refusals"]

"""The mark `timing`: for tests that assert on wall-clock time because nothing else would do.

    @pytest.mark.timing("the contract is a bound in real time: a decision within 250 ms while the store is away")

Each says why. A busy machine can make such a test fail, so it alone is run again, and each rerun is in the summary of the
run (RERUN). All other tests must hold on any machine, however slow, and fail when they fail once.
"""

from __future__ import annotations

import pytest

#: How often a test is run again that is marked `timing`.
RERUNS = 2

#: For tests that hold a gate to its contract while its store is away.
DECIDES_IN_TIME = pytest.mark.timing(
    "the contract is a bound in real time: while the store is away a decision takes 250 ms, and later calls do not stall"
)


def allow_reruns(items: list[pytest.Item]) -> None:
    """Let the tests marked `timing` be run again, and refuse a mark that does not say why."""
    for item in items:
        for mark in item.iter_markers("timing"):
            if len(mark.args) != 1 or mark.kwargs or not isinstance(mark.args[0], str) or not mark.args[0].strip():
                raise pytest.UsageError(
                    f'{item.nodeid}: say why it asserts on wall-clock time: @pytest.mark.timing("…")'
                )
        if item.get_closest_marker("timing"):
            item.add_marker(pytest.mark.flaky(reruns=RERUNS))

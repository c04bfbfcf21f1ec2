"""A guard in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.guards import GATES, GuardProcess


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[GuardProcess]:
    process = GuardProcess(tmp_path, GATES)
    yield process
    process.kill()

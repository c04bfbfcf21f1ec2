"""`make demo-django`, as it is run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contrib.django.settings import EXAMPLE


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

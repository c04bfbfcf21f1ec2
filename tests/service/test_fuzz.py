"""Schemathesis against the guard's own document: what it promises is what it does, whatever one sends."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.guards import GuardProcess

CONFIG = """\
store = "memory://"

[serve]
max_wait = "100ms"

[gates.adobe]
limits = [{ window = 1000000, per = "1m", name = "rpm" }, { concurrency = 100000, name = "in_flight" }]

[gates.sentinel]
waiting = "promise"
priorities = { live = 1.0, batch = 0.8 }
limits = [{ bucket = 60, per = "1m", name = "requests" }, { bucket = 1000, per = "1m", name = "pu", unit = "pu" }]

[gates.orgs]
limits = [{ concurrency = 1, by = "org", name = "org" }]
"""

# What only a gate can know (its units, keys, classes and limits) no schema of all gates can say: 422. A lease that is over
# is gone: 410. All else is as Schemathesis expects it.
SETTINGS = """\
[checks]
positive_data_acceptance.expected-statuses = ["2xx", "401", "403", "404", "409", "410", "422", "429", "503"]
"""

#: They never end, which is what they are for; they have tests of their own.
STREAMS = "^/v1/(events|wakes)$"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_schemathesis_finds_nothing(tmp_path: Path) -> None:
    if importlib.util.find_spec("schemathesis") is None:
        if os.environ.get("CI"):
            pytest.fail("schemathesis is missing: `pip install --group dev` brings it")
        pytest.skip("schemathesis is missing: `pip install --group dev` brings it")
    (tmp_path / "schemathesis.toml").write_text(SETTINGS, encoding="utf-8")
    guard = GuardProcess(tmp_path, CONFIG)
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{guard.url}/openapi.json"),
                *("--exclude-path-regex", STREAMS, "--no-color", "--warnings", "off"),
                *("--phases", "examples,coverage,fuzzing,stateful", "--max-examples", "60", "--max-time", "60"),
                *("--request-timeout", "10", "--generation-deterministic"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=1100,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert '"level": "error"' not in guard.log(), guard.log()[-3000:]
    finally:
        guard.kill()

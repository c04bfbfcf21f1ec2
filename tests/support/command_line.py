"""The command line called in this process, and gates for it."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from headgate.cli.app import app

CONFIG = """
store = "sqlite:///{folder}/state.db"

[gates.adobe]
limits = [
  {{ window = 3, per = "1h", name = "rpm" }},
  {{ concurrency = 2, name = "in_flight" }},
]

[gates.units]
priorities = {{ live = 1.0, batch = 0.5 }}
limits = [{{ bucket = 10, per = "1h", name = "pu", unit = "pu" }}]

[gates.orgs]
limits = [
  {{ concurrency = 5, name = "org", by = "org" }},
  {{ concurrency = 8, name = "all" }},
]
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="headgate")


def done(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def read(*arguments: str) -> Any:
    return json.loads(done(*arguments, "--json"))

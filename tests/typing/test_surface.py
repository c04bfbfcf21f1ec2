"""The types of the public surface, as mypy --strict and pyright see them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Literal

import pytest

from tests.support import ROOT

SURFACE = Path(__file__).with_name("surface.py")


def expected() -> dict[int, str]:
    """Line → the type that its comment names."""
    lines = SURFACE.read_text(encoding="utf-8").splitlines()
    return {
        number: line.rpartition("  # ")[2]
        for number, line in enumerate(lines, 1)
        if line.lstrip().startswith("reveal_type(")
    }


def plain(text: str) -> str:
    """A type as the comments write it: without modules, quotes and default arguments."""
    text = re.sub(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z_])", "", text.strip('"'))
    return {"def ()": "() -> None"}.get(text, text).removeprefix("def ").replace("builtins.", "")


def revealed_by_mypy() -> dict[int, str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--show-error-codes", str(SURFACE)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found: dict[int, str] = {}
    for line in run.stdout.splitlines():
        match = re.match(r'.*surface\.py:(\d+): note: Revealed type is "(.*)"', line)
        assert match is not None, f"mypy --strict says: {line}"
        found[int(match[1])] = plain(match[2])
    assert found, run.stderr
    return found


def revealed_by_pyright(tmp_path: Path) -> dict[int, str]:
    config = tmp_path / "pyrightconfig.json"
    settings = {"include": [str(SURFACE)], "typeCheckingMode": "strict", "extraPaths": [str(ROOT / "src")]}
    config.write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--project", str(config), "--outputjson"]
    command += ["--pythonpath", sys.executable]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    found: dict[int, str] = {}
    for item in json.loads(run.stdout)["generalDiagnostics"]:
        match = re.fullmatch(r'Type of ".*" is "(.*)"', item["message"], flags=re.DOTALL)
        line = item["range"]["start"]["line"] + 1
        assert match is not None, f"pyright says: line {line}: {item['message']}"
        found[line] = plain(match[1])
    return found


def test_mypy_reveals_every_type_of_the_public_surface() -> None:
    assert revealed_by_mypy() == expected()


#: What is no option, and has to be an error for whoever checks types.
WRONG = """
from headgate import Concurrency, Gate, Quota, Window

gate = Gate("g", [Window(1, per="1m")], waiting="queue")
gate.acquire().release("fine")
gate.release("id", outcome="done")
Quota(5, per="fortnight")
"""


def test_an_option_that_there_is_not_is_an_error_for_mypy(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text(WRONG, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(tmp_path / "wrong.py")]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    told = [line for line in run.stdout.splitlines() if "error:" in line]
    assert [re.search(r":(\d+): error: .*expected .Literal\[", line)[1] for line in told] == ["4", "5", "6", "7"]  # type: ignore[index]


def test_the_options_that_types_name_are_those_that_there_are() -> None:
    from typing import get_args

    from headgate.kernel.limits import quota
    from headgate.kernel.model import OUTCOMES
    from headgate.kernel.plan import WAITING

    names: dict[str, object] = {}
    for module in ("kernel/model.py", "kernel/limits/quota.py"):
        text = (ROOT / "src" / "headgate" / module).read_text(encoding="utf-8")
        for name, literal in re.findall(r"^    (\w+) = (Literal\[[^\]]+\])$", text, flags=re.MULTILINE):
            names[name] = eval(literal, {"Literal": Literal})
    assert {name: get_args(literal) for name, literal in names.items()} == {
        "OutcomeName": tuple(OUTCOMES),
        "Waiting": WAITING,
        "Period": tuple(quota.PERIODS),
    }


def test_pyright_reveals_every_type_of_the_public_surface(tmp_path: Path) -> None:
    pytest.importorskip("basedpyright")
    assert revealed_by_pyright(tmp_path) == expected()

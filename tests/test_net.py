"""The net itself: which tests are run again, what is kept of a counter-example, and what `make test` does to a machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.support import ROOT

CONFTEST = """
from tests.support.timing import allow_reruns

def pytest_collection_modifyitems(items):
    allow_reruns(items)
"""


def pytest_run(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """Some tests under the rules of tests/conftest.py, in a run of their own."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    timing(why): as here\n")
    (folder / "test_some.py").write_text(tests)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-raR", "-p", "pytest_rerunfailures", "--strict-markers", str(folder)],
        capture_output=True,
        text=True,
        cwd=folder,
        # Of all the plugins that are installed these runs need one; the others take seconds to load.
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


TRIES = """
import pytest

TRIED = []

def test_counts_once():
    TRIED.append(1)
    assert len(TRIED) > 1

@pytest.mark.timing("the machine may be busy")
def test_is_tried_again():
    TRIED.append(2)
    assert TRIED.count(2) > 1
"""


def test_only_what_is_marked_timing_is_run_again_and_each_rerun_is_told(tmp_path: Path) -> None:
    done = pytest_run(tmp_path, TRIES)
    assert "1 failed, 1 passed, 1 rerun" in done.stdout
    assert "RERUN test_some.py::test_is_tried_again" in done.stdout
    assert "FAILED test_some.py::test_counts_once" in done.stdout


@pytest.mark.parametrize("arguments", ["", '("")', "(5)", '(why="it is slow")'])
def test_a_timing_mark_that_does_not_say_why_is_refused(tmp_path: Path, arguments: str) -> None:
    done = pytest_run(tmp_path, f"import pytest\n\n@pytest.mark.timing{arguments}\ndef test_it():\n    pass\n")
    assert done.returncode == 4, done.stdout
    assert "say why it asserts on wall-clock time" in done.stdout + done.stderr


def test_the_run_has_no_time_limit_and_each_test_has_a_generous_one() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    assert options["timeout"] >= 300
    assert "session_timeout" not in options
    for text in ((ROOT / "Makefile").read_text(encoding="utf-8"), *options["addopts"]):
        assert "session-timeout" not in text
        assert "--reruns" not in text


def test_a_counter_example_is_kept_and_printed() -> None:
    if os.environ.get("HYPOTHESIS_PROFILE") == "mutants":
        pytest.skip("one failure is all that is wanted there")
    assert isinstance(settings.default.database, DirectoryBasedExampleDatabase)
    assert Path(settings.default.database.path) == ROOT / ".hypothesis" / "examples"
    assert settings.default.print_blob
    assert not settings.default.derandomize


# --- make chromium ----------------------------------------------------------------------------------------------------


def make_chromium(folder: Path, uid: int, *arguments: str) -> str:
    """What `make chromium` says, and what it runs, on a machine without a browser."""
    for program in ("sh", "make", "echo", "cat"):
        (folder / program).symlink_to(str(shutil.which(program)))
    for program, does in (("apt-get", 'echo "ran: apt-get $*" >&2'), ("id", f"echo {uid}")):
        (folder / program).write_text(f"#!{shutil.which('sh')}\n{does}\n")
        (folder / program).chmod(0o755)
    make = str(shutil.which("make"))
    done = subprocess.run(
        [make, "-f", str(ROOT / "Makefile"), "chromium", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"PATH": str(folder)},
        check=True,
    )
    return done.stderr


def test_make_says_what_it_installs_and_why_before_it_does(tmp_path: Path) -> None:
    said = make_chromium(tmp_path, uid=0)
    assert said.index("the tests of the dashboard look at it in one") < said.index("ran: apt-get update")
    assert said.index("NO_APT=1 skips this") < said.index("ran: apt-get update") < said.index("ran: apt-get install")


@pytest.mark.parametrize(("uid", "arguments"), [(0, ["NO_APT=1"]), (1000, []), (1000, ["NO_APT=1"])])
def test_make_installs_nothing_where_it_may_not(tmp_path: Path, uid: int, arguments: list[str]) -> None:
    said = make_chromium(tmp_path, uid, *arguments)
    assert "ran:" not in said
    assert "the dashboard is not looked at" in said

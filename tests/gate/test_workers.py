"""A limit in memory is a limit of one process: where there seem to be others, that is told, once, with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAKE = (
    "from headgate import Concurrency, Gate; g = [Gate(n, [Concurrency(1)], store={store!r}) for n in ('one', 'two')]"
)

#: How a process comes to be one of many: a script that makes gates there.
STARTED = {
    "a fork": "import os, headgate\nif os.fork():\n    os.wait()\nelse:\n    {make}\n    os._exit(0)",
    "multiprocessing": (
        "import multiprocessing\ndef work():\n    {make}\n"
        "if __name__ == '__main__':\n    p = multiprocessing.get_context('spawn').Process(target=work); p.start(); p.join()"
    ),
    "gunicorn": "import gunicorn.arbiter\n{make}",
    "celery": "import celery\n{make}",
}
WORDS = {
    "a fork": "it was forked",
    "multiprocessing": "multiprocessing started it",
    "gunicorn": "gunicorn runs it",
    "celery": "it is a Celery worker",
}


def told_by(folder: Path, script: str) -> str:
    """What a script writes to standard error: the log of the library, which nothing has configured."""
    for name in ("gunicorn/__init__.py", "gunicorn/arbiter.py", "celery/__init__.py"):  # all that is looked at of them
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    (folder / "app.py").write_text(script)
    command = [sys.executable, "app.py", "-A", "tasks", "worker"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, env={**os.environ})
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("way", STARTED)
def test_one_of_many_workers_with_limits_in_memory_is_told_once_what_to_do(tmp_path: Path, way: str) -> None:
    told = told_by(tmp_path, STARTED[way].format(make=MAKE.format(store="memory://")))
    [line] = told.splitlines()
    assert line.startswith("gate one: its limits are in the memory of this process alone")
    assert WORDS[way] in line
    assert 'store="sqlite:///headgate.db"' in line


@pytest.mark.parametrize("way", STARTED)
def test_one_of_many_workers_with_a_shared_store_is_told_nothing(tmp_path: Path, way: str) -> None:
    assert told_by(tmp_path, STARTED[way].format(make=MAKE.format(store="sqlite:///here.db"))) == ""


def test_a_process_of_its_own_is_told_nothing(tmp_path: Path) -> None:
    assert told_by(tmp_path, MAKE.format(store="memory://")) == ""


def test_a_process_that_forks_is_not_one_of_many_itself_and_its_child_is(tmp_path: Path) -> None:
    script = f"import os, headgate\nif os.fork() == 0:\n    os._exit(0)\nos.wait()\n{MAKE.format(store='memory://')}"
    assert told_by(tmp_path, script) == ""

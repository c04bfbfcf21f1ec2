"""`import headgate` is for everybody's start-up: the standard library only, and little of that."""

from __future__ import annotations

import subprocess
import sys


def loaded_by(statement: str) -> set[str]:
    """The modules that a statement adds to those of a bare interpreter."""
    script = f"import sys; before = set(sys.modules); {statement}; print(' '.join(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return set(done.stdout.split())


def test_importing_headgate_loads_the_standard_library_only() -> None:
    outside = {
        name
        for name in (module.partition(".")[0] for module in loaded_by("import headgate"))
        if name != "headgate" and name not in sys.stdlib_module_names
    }
    assert outside == set()


def test_importing_headgate_loads_neither_an_event_loop_nor_a_database_nor_a_parser() -> None:
    heavy = {
        *("asyncio", "sqlite3", "tomllib", "json", "logging", "inspect", "typing", "socket", "ssl", "http", "email"),
        *("urllib", "multiprocessing", "concurrent", "subprocess", "zoneinfo", "datetime", "decimal", "random"),
    }
    bare = loaded_by("import dataclasses, enum, threading")
    assert loaded_by("import headgate") & heavy <= bare & heavy


def test_importing_headgate_makes_none_of_the_values_that_only_looks_tell() -> None:
    assert "headgate.kernel.looks" not in loaded_by("import headgate")
    assert "headgate.kernel.looks" in loaded_by(
        "import headgate; headgate.Gate('g', [headgate.Window(1, per=1)]).usage()"
    )
    assert "headgate.kernel.looks" in loaded_by("from headgate import Usage")


def test_a_memory_gate_needs_no_event_loop_and_no_database() -> None:
    used = "import headgate; headgate.Gate('g', [headgate.Concurrency(1)]).acquire().release()"
    assert loaded_by(used) & {"asyncio", "sqlite3", "tomllib"} == set()


def test_every_public_name_is_there() -> None:
    import headgate

    for name in headgate.__all__:
        assert getattr(headgate, name) is not None

"""Imports go one way. This walks the source of the package and fails where an import goes against the layers.

A *part* is the first name under ``headgate``: ``kernel`` for ``headgate/kernel/limits/window.py``, ``clock`` for
``headgate/clock.py``. Imports inside functions and under ``TYPE_CHECKING`` count as well: what a file must know about,
it depends on. Only the two ``__init__.py`` that load names on demand may import inside functions as they like.
"""

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import ROOT

SOURCE = ROOT / "src" / "headgate"

# From low to high: a part imports its own layer and lower ones.
LAYERS = (
    ("errors", "duration", "clock", "extras"),
    ("background",),
    ("sqlite_file", "aws"),
    ("kernel",),
    ("sinks",),
    ("events", "config", "http", "limits"),
    ("gate",),
    ("clients", "batch", "stages", "service", "contrib", "dropin", "sentinelhub", "simulate"),
    ("pdf", "images"),
    ("cli", "__main__"),
    ("testing",),
)
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}

# Stores stand beside the layers: they know the kernel and its values, and are known from the configuration upwards.
STORES_MAY_IMPORT = {"errors", "duration", "clock", "background", "extras", "sqlite_file", "aws", "kernel", "stores"}
LEVEL["stores"] = LEVEL["kernel"]

# Names that were documented before their modules moved.
LEVEL["policy"] = LEVEL["sources"] = LEVEL["config"]

# The public names themselves (`from headgate import Gate`) are for the parts above the gate.
MAY_IMPORT_PUBLIC_NAMES = {part for part, level in LEVEL.items() if level > LEVEL["gate"]}

# Inside the kernel the same: values, limits, plans, the line and commands, flows.
KERNEL_LAYERS = (
    ("head", "model", "looks", "records", "overlay"),
    ("limits", "overrides"),
    ("plan",),
    ("ahead", "line", "commands"),
    ("flows", "why"),
)
KERNEL_LEVEL = {part: level for level, parts in enumerate(KERNEL_LAYERS) for part in parts}

PURE = {"kernel"}
PURE_MAY_IMPORT = {"kernel", "errors", "duration"}
# Clocks, chance, locks, threads, event loops, processes, files, the network. Not the calendar: Quota computes with it.
IMPURE = {
    *("time", "random", "secrets", "uuid"),
    *("threading", "_thread", "asyncio", "concurrent", "multiprocessing", "queue", "sched", "signal", "contextvars"),
    *("os", "io", "pathlib", "shutil", "tempfile", "subprocess", "sqlite3", "logging", "warnings"),
    *("socket", "select", "selectors", "ssl", "http", "urllib"),
}

# A third-party package is imported in one file; a framework that a whole package is written in, only in that package.
FRAMEWORKS = {
    "django": "contrib/django/",
    "rest_framework": "contrib/django/",
    "asgiref": "contrib/django/",
    "click": "cli/",
    "rich": ("cli/", "batch/bar.py"),
    "pytest": "testing/",
    "_pytest": "testing/",
    "hypothesis": "testing/",
}

LOADS_ON_DEMAND = {"__init__.py", "stores/__init__.py"}


@dataclass(frozen=True)
class Import:
    """One import statement: the file it stands in, the line, and the full name of the module that it needs."""

    file: str
    line: int
    target: str

    @property
    def part(self) -> str:
        first = self.file.split("/")[0]
        return first.removesuffix(".py")

    @property
    def top(self) -> str:
        return self.target.split(".")[0]

    @property
    def target_part(self) -> str:
        """The part of headgate that is imported; empty for the public names of the root."""
        return self.target.split(".")[1] if "." in self.target else ""

    @property
    def is_ours(self) -> bool:
        return self.top == "headgate"

    @property
    def is_third_party(self) -> bool:
        return not self.is_ours and self.top not in sys.stdlib_module_names

    def __str__(self) -> str:
        return f"headgate/{self.file}:{self.line} imports {self.target}"


def imports_of(source: Path) -> list[Import]:
    return [found for file in sorted(source.rglob("*.py")) for found in imports_in(source, file)]


def imports_in(source: Path, file: Path) -> Iterator[Import]:
    name = file.relative_to(source).as_posix()
    package = ["headgate", *file.relative_to(source).parts[:-1]]
    for node in statements(ast.parse(file.read_text(encoding="utf-8")), into_functions=name not in LOADS_ON_DEMAND):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(
                    name, node.lineno, f"{module}.{alias.name}" if is_module(source, module, alias) else module
                )


def statements(node: ast.AST, into_functions: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if into_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from statements(child, into_functions)


def is_module(source: Path, module: str, alias: ast.alias) -> bool:
    """Whether `from module import alias` names a module of ours, and not something in one."""
    head, *rest = module.split(".")
    if head != "headgate":
        return False
    path = source.joinpath(*rest, alias.name)
    return path.is_dir() or path.with_suffix(".py").is_file()


def parts_without_a_layer(source: Path) -> list[str]:
    """A new part has to be given its place in LAYERS before anything can be said about it."""
    parts = {path.relative_to(source).parts[0].removesuffix(".py") for path in source.rglob("*.py")}
    return sorted(parts - LEVEL.keys() - {"__init__"})


def upward(imports: list[Import]) -> list[str]:
    """Imports of a higher layer, and of the public names from below them."""
    broken = []
    for found in imports:
        if not found.is_ours or found.part == "__init__":
            continue
        if not found.target_part:
            if found.part not in MAY_IMPORT_PUBLIC_NAMES:
                broken.append(f"{found}: the public names are made from it")
        elif LEVEL.get(found.target_part, 0) > LEVEL.get(found.part, len(LAYERS)):
            broken.append(f"{found}: it is in a higher layer")
        elif found.part == "stores" and found.target_part not in STORES_MAY_IMPORT:
            broken.append(f"{found}: stores import commands and values only")
    return broken


def upward_in_the_kernel(imports: list[Import]) -> list[str]:
    """The same among the parts of the kernel."""
    broken = []
    for found in imports:
        file, target = found.file.split("/"), found.target.split(".")
        if file[0] == "kernel" and target[:2] == ["headgate", "kernel"] and len(target) > 2:
            part = file[1].removesuffix(".py")
            if KERNEL_LEVEL.get(target[2], -1) > KERNEL_LEVEL.get(part, len(KERNEL_LAYERS)):
                broken.append(f"{found}: it is in a higher layer of the kernel")
    return broken


def round_trips(imports: list[Import]) -> list[str]:
    """Parts of one layer that need each other, directly or around a corner."""
    needs: dict[str, set[str]] = {}
    for found in imports:
        if found.is_ours and found.part not in ("__init__", found.target_part):
            needs.setdefault(found.part, set()).add(found.target_part)
    return sorted(part for part in needs if part in reachable(needs, part))


def reachable(needs: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    todo = list(needs.get(start, ()))
    while todo:
        part = todo.pop()
        if part not in seen:
            seen.add(part)
            todo.extend(needs.get(part, ()))
    return seen


def impure(imports: list[Import]) -> list[str]:
    """What would let the pure core see a clock, a lock, a thread, the outside world or somebody else's code."""
    return [
        f"{found}: {found.part} is pure"
        for found in imports
        if found.part in PURE
        and (found.target_part not in PURE_MAY_IMPORT if found.is_ours else found.is_third_party or found.top in IMPURE)
    ]


def strays(imports: list[Import]) -> list[str]:
    """Third-party packages that are imported in more than their one place."""
    broken = []
    homes: dict[str, set[str]] = {}
    for found in imports:
        if not found.is_third_party:
            continue
        if found.top in FRAMEWORKS:
            if not found.file.startswith(FRAMEWORKS[found.top]):
                broken.append(f"{found}: it belongs in headgate/{FRAMEWORKS[found.top]} alone")
        else:
            homes.setdefault(found.top, set()).add(found.file)
    broken += [f"{name} is imported in {', '.join(sorted(files))}" for name, files in homes.items() if len(files) > 1]
    return broken


def test_every_part_of_the_package_has_a_layer() -> None:
    assert parts_without_a_layer(SOURCE) == []


def test_imports_go_from_higher_layers_to_lower_ones() -> None:
    assert upward(imports_of(SOURCE)) == []


def test_imports_in_the_kernel_go_from_higher_layers_to_lower_ones() -> None:
    parts = {path.relative_to(SOURCE / "kernel").parts[0] for path in (SOURCE / "kernel").rglob("*.py")}
    assert {part.removesuffix(".py") for part in parts} - {"__init__"} == KERNEL_LEVEL.keys()
    assert upward_in_the_kernel(imports_of(SOURCE)) == []


def test_no_two_parts_import_each_other() -> None:
    assert round_trips(imports_of(SOURCE)) == []


def test_the_pure_core_imports_no_clock_lock_thread_socket_or_third_party_code() -> None:
    assert impure(imports_of(SOURCE)) == []


def test_each_third_party_package_is_imported_in_exactly_one_place() -> None:
    assert strays(imports_of(SOURCE)) == []


# The rules themselves: each finds what it is for, and lets pass what is right.


def package(root: Path, **files: str) -> Path:
    """A package with these files; `__` in a name is a slash."""
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    "files",
    [
        {"gate": "", "kernel__commands": "from headgate.gate import Gate"},
        {"gate": "", "kernel__commands": "import headgate.gate"},
        {"gate": "", "kernel__commands": "from .. import gate"},
        {"gate": "", "kernel__commands": "from headgate import gate"},
        {"gate": "", "kernel__limits__window": "from ...gate import Gate"},
        {"gate": "", "kernel__limits__window": "def charge():\n    from headgate.gate import Gate"},
        {"gate": "", "kernel__limits__window": "if TYPE_CHECKING:\n    from headgate.gate import Gate"},
        {"config__file": "", "stores__memory": "from headgate.config import file"},
        {"stores__memory": "", "clock": "from headgate.stores.memory import MemoryStore"},
        {"testing__clock": "", "cli__demo": "from headgate.testing.clock import FakeClock"},
        {"gate": "from headgate import Permit"},
    ],
)
def test_an_import_against_the_layers_is_found(tmp_path: Path, files: dict[str, str]) -> None:
    assert len(upward(imports_of(package(tmp_path, **files)))) == 1


@pytest.mark.parametrize(
    "files",
    [
        {"kernel__flows": "", "kernel__commands__admit": "from ..flows import acquire"},
        {"kernel__line": "", "kernel__limits__window": "from headgate.kernel import line"},
        {"kernel__plan": "", "kernel__records": "def f():\n    from .plan import Plan"},
    ],
)
def test_an_import_against_the_layers_of_the_kernel_is_found(tmp_path: Path, files: dict[str, str]) -> None:
    assert len(upward_in_the_kernel(imports_of(package(tmp_path, **files)))) == 1


@pytest.mark.parametrize(
    "files",
    [
        {
            "gate": "from headgate.kernel.flows import acquire\nimport threading",
            "kernel__flows": "from .commands import Admit",
            "kernel__commands": "",
        },
        {"stores__memory": "from headgate.kernel.commands import Admit\nfrom . import base", "stores__base": ""},
        {"gate": "from headgate.stores import connect", "stores__memory": ""},
        {"cli__status": "from headgate import load", "gate": ""},
        {"testing__suite": "import headgate.gate, headgate.cli.status", "cli__status": "", "gate": ""},
    ],
)
def test_an_import_along_the_layers_passes(tmp_path: Path, files: dict[str, str]) -> None:
    imports = imports_of(package(tmp_path, **files))
    assert upward(imports) + upward_in_the_kernel(imports) + round_trips(imports) + impure(imports) == []


def test_only_the_two_packages_that_load_on_demand_are_excused_for_imports_in_functions(tmp_path: Path) -> None:
    lazy = "def connect():\n    from headgate.gate import Gate"
    (tmp_path / "stores").mkdir()
    (tmp_path / "stores" / "__init__.py").write_text(lazy)
    assert upward(imports_of(package(tmp_path, gate=""))) == []
    assert len(upward(imports_of(package(tmp_path, stores__sqlite=lazy)))) == 1


def test_parts_of_one_layer_that_import_each_other_are_found(tmp_path: Path) -> None:
    files = {
        "clock": "import headgate.errors",
        "errors": "import headgate.duration",
        "duration": "import headgate.clock",
    }
    assert round_trips(imports_of(package(tmp_path, **files))) == ["clock", "duration", "errors"]


@pytest.mark.parametrize(
    "statement",
    [
        "import time",
        "from asyncio import sleep",
        "import os.path",
        "import concurrent.futures",
        "import redis",
        "from headgate.clock import Clock",
        "def f():\n    import random",
    ],
)
@pytest.mark.parametrize("part", ["limits__window", "line", "commands", "flows", "plan", "records"])
def test_an_impure_import_in_the_core_is_found(tmp_path: Path, part: str, statement: str) -> None:
    assert len(impure(imports_of(package(tmp_path, **{f"kernel__{part}": statement})))) == 1


def test_the_core_may_use_values_and_the_calendar(tmp_path: Path) -> None:
    text = "import math\nfrom datetime import datetime\nfrom headgate.kernel.model import Wait"
    assert impure(imports_of(package(tmp_path, kernel__limits__quota=text, gate="import time, redis"))) == []


def test_a_driver_in_two_files_and_a_framework_outside_its_package_are_found(tmp_path: Path) -> None:
    root = package(tmp_path, stores__redis="import redis", batch="from redis.asyncio import Redis", gate="import click")
    assert len(strays(imports_of(root))) == 2


def test_a_driver_in_one_file_and_a_framework_in_its_package_pass(tmp_path: Path) -> None:
    root = package(
        tmp_path, stores__redis="import redis\nimport redis.asyncio", cli__a="import click", cli__b="import click"
    )
    assert strays(imports_of(root)) == []


def test_a_part_without_a_layer_is_found(tmp_path: Path) -> None:
    assert parts_without_a_layer(package(tmp_path, gate="", utils="", helpers__text="")) == ["helpers", "utils"]

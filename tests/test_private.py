"""Private attributes stay in their part. This walks the source and fails where code reads `something._private` of another.

A *part* is the first name under ``headgate``, as in ``test_imports.py``. The parts above the gate (the service, the command
line, the suites for stores …) read no private attribute but their own: gates, permits and stores have public hooks for them
(``gate.policy``, ``gate.store``, ``ServedGate``). The parts below read those that a class or module of the same part has.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.test_imports import LEVEL, package

SOURCE = ROOT / "src" / "headgate"

# What the standard library has and does not document: the methods of a named tuple, and of a lock that knows its owner.
# The sentinelhub package has no public hook: a client of one's own overrides this method, and calls it.
SENTINELHUB = {"_do_download"}
# Django documents these of a model, underscore and all.
DJANGO = {"_default_manager", "_meta"}
STANDARD = {"_asdict", "_at_fork_reinit", "_fields", "_is_owned", "_make", "_replace"}


def part_of(source: Path, file: Path) -> str:
    return file.relative_to(source).parts[0].removesuffix(".py")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def names_in(tree: ast.Module) -> Iterator[str]:
    """The attributes that the classes of a module have, and the names of the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def trespasses(source: Path) -> list[str]:
    """Where a private attribute is read that is not the reader's own."""
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(source.rglob("*.py"))}
    names: dict[str, set[str]] = {}
    for file, tree in trees.items():
        names.setdefault(part_of(source, file), set()).update(names_in(tree))
    found = []
    for file, tree in trees.items():
        part = part_of(source, file)
        own = names[part] if LEVEL.get(part, 0) <= LEVEL["gate"] else set()
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute) or not is_private(node.attr) or is_own(node):
                continue
            documented = DJANGO if file.is_relative_to(source / "contrib" / "django") else set()
            documented = SENTINELHUB if file.is_relative_to(source / "sentinelhub") else documented
            if node.attr not in own | STANDARD | documented:
                found.append(f"headgate/{file.relative_to(source).as_posix()}:{node.lineno} reads {ast.unparse(node)}")
    return found


def test_no_part_reads_what_is_private_to_another() -> None:
    assert trespasses(SOURCE) == []


@pytest.mark.parametrize(
    "files",
    [
        {"gate__base": "class Gate:\n    def __init__(self): self._policy = 1", "service__app": "x = gate._policy"},
        # The part has a class with such an attribute, but a gate is none of that class.
        {"service__app": "class A:\n    def f(self, gate):\n        self._policy = gate._policy"},
        {"cli__status": "def f(permit): return permit._grant[0]"},
        {"testing__suite": "def f(store): store._gates.clear()"},
        {"stores__redis__wire": "def f(policy): return policy._rows", "kernel__plan": "class P:\n    _rows = ()"},
        {"kernel__plan": "def f(gate): return gate.store._lock"},
    ],
)
def test_a_private_attribute_of_another_is_found(tmp_path: Path, files: dict[str, str]) -> None:
    assert len(trespasses(package(tmp_path, **files))) == 1


@pytest.mark.parametrize(
    "files",
    [
        {"service__app": "class A:\n    def f(self): return self._policy"},
        {"service__app": "def f(grant): return grant._replace(at=1).__class__"},
        {"gate__base": "class Gate:\n    _policy = 1", "gate__served": "def f(gate): return gate._policy"},
        {"stores__memory": "def f(lock): return lock._is_owned()"},
        {"kernel__line": "class T:\n    _at: int\n    def f(self, other): return other._at"},
    ],
)
def test_what_is_the_readers_own_or_the_standard_librarys_passes(tmp_path: Path, files: dict[str, str]) -> None:
    assert trespasses(package(tmp_path, **files)) == []

"""One meaning each: a name of a class stands for one thing in the whole tree."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.support import ROOT

SOURCE = ROOT / "src" / "headgate"

# What Django looks for under these names in each of its modules and models.
PRESCRIBED = {"Command", "Meta", "Migration"}


def shared_class_names(source: Path) -> dict[str, list[str]]:
    """The names that classes of several places have, each with its places."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not is_prescribed(source, file, node.name):
                places[node.name].append(f"{file.relative_to(source).as_posix()}:{node.lineno}")
    return {name: found for name, found in places.items() if len(found) > 1}


def is_prescribed(source: Path, file: Path, name: str) -> bool:
    return name in PRESCRIBED and file.is_relative_to(source / "contrib" / "django")


def test_no_two_classes_have_the_same_name() -> None:
    assert shared_class_names(SOURCE) == {}


def test_two_classes_of_one_name_are_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Waiter:\n    class Inner: ...\n", encoding="utf-8")
    (tmp_path / "two.py").write_text("if True:\n    class Waiter: ...\n", encoding="utf-8")
    assert shared_class_names(tmp_path) == {"Waiter": ["one.py:1", "two.py:2"]}

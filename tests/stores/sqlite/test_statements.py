"""The SQL of the store, as newer Pythons take it."""

from __future__ import annotations

import ast
import re

from tests.support import ROOT

SOURCE = ROOT / "src" / "headgate"


def test_no_statement_has_numbered_placeholders_which_python_3_14_refuses_with_a_tuple() -> None:
    found = [
        f"{file.relative_to(SOURCE)}:{node.lineno}: {node.value}"
        for folder in ("stores/sqlite", "sqlite_file")
        for file in sorted((SOURCE / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"\?\d", node.value)
    ]
    assert found == []

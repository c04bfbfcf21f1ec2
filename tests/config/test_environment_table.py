"""The environment variables: one table in the code, one page in the docs, and what the code really reads."""

from __future__ import annotations

import re

from headgate.config.file import ENVIRONMENT
from tests.support import ROOT

PACKAGE = ROOT / "src" / "headgate"
PAGE = ROOT / "docs" / "reference" / "environment.md"


# Settings of a Django project, in `docs/reference/django.md`: no variables.
DJANGO_SETTINGS = {"HEADGATE_ORGANIZATION_MODEL", "HEADGATE_TENANTS"}


def test_every_variable_that_the_code_names_is_in_the_table() -> None:
    named = {
        variable
        for file in PACKAGE.rglob("*.py")
        for variable in re.findall(r"\bHEADGATE_[A-Z0-9_]+\b", file.read_text(encoding="utf-8"))
    }
    assert named - DJANGO_SETTINGS == set(ENVIRONMENT)


def test_every_variable_of_the_table_is_used_outside_the_table() -> None:
    sources = [file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")]
    for variable in ENVIRONMENT:
        uses = sum(len(re.findall(rf'"{variable}"(?!:)', source)) for source in sources)
        assert uses > 0, f"{variable} is in the table, and nothing reads it"


def test_the_reference_page_repeats_the_table() -> None:
    rows = re.findall(r"^\| `([A-Z0-9_]+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert rows == list(ENVIRONMENT.items())

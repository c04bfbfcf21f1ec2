"""The recipes of ARCHITECTURE.md name every file of src/ that a change touches: computed from the tree, not remembered."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path

import pytest

from headgate.kernel.commands import FORMS, Extend
from tests.support import ROOT

SOURCE = ROOT / "src" / "headgate"

#: Recipe → the names of its example, and how many files it may touch at most.
RECIPES: dict[str, tuple[tuple[str, ...], int | None]] = {
    "How to add a limit": (("Quota", "quota"), 8),
    "How to add a store": (("SqliteStore", "sqlite"), None),
    "How to add a command": (("Extend",), None),
    "How to add an outcome": (("overloaded",), 5),
    "How to add a usage field": (("resets_in",), 6),
    "How to add a sink": (("Prometheus", "prometheus"), None),
    "How to add a local upstream": (("WindowUpstream",), 2),
}


#: What makes limits of certain kinds because somebody asked for these: a new kind changes nothing there.
MAKERS = {"src/headgate/config/account.py", "src/headgate/config/boot.py"}


@cache
def words_in(file: Path) -> frozenset[str]:
    """The names that a file uses, and its strings that are one word: not what its comments and docstrings talk of."""
    text = file.read_text(encoding="utf-8")
    if file.suffix == ".py":
        return frozenset(python_words(text))
    if file.suffix == ".lua":
        # What a command is called on the server is its letter.
        text = re.sub(r"--[^\n]*", "", text)
        return frozenset(re.findall(r"\w+", text)) | frozenset(re.findall(r"op == ('\w')", text))
    return frozenset(re.findall(r"\w+", re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)))


def python_words(text: str) -> set[str]:
    words = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            words.add(token.string)
        elif token.type == tokenize.STRING and token.string.lstrip("rRbBuU")[:1] in "'\"":
            value = ast.literal_eval(token.string)
            if isinstance(value, str) and value.isidentifier():
                words.add(value)
        elif token.type == tokenize.STRING:  # an f-string: what stands in its braces
            words.update(re.findall(r"\w+", " ".join(re.findall(r"\{([^{}]*)\}", token.string))))
    return words


def files() -> list[Path]:
    found = [file for kind in ("py", "lua", "js", "html") for file in SOURCE.rglob(f"*.{kind}")]
    # A library of others; and drop-ins, which say what there is under other names: nothing new goes there.
    return [file for file in found if not file.name.startswith("uplot.") and file.parent.name != "dropin"]


def places_of(names: tuple[str, ...]) -> set[str]:
    return {file.relative_to(ROOT).as_posix() for file in files() if words_in(file).intersection(names)} - MAKERS


def places_told(recipe: str) -> set[str]:
    """The files in the rows of a recipe's table."""
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = re.search(rf"^### {recipe}$(.+?)(?=^##)", page, flags=re.MULTILINE | re.DOTALL)
    assert section is not None, f"ARCHITECTURE.md has no recipe {recipe!r}"
    places = set()
    for row in re.findall(r"^\|(.+)$", section[1], flags=re.MULTILINE):
        places |= set(re.findall(r"\]\((src/headgate/[^)#]+)\)", row.split(" | ")[0]))
    return places


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_names_every_file_that_its_example_stands_in(recipe: str) -> None:
    names, most = RECIPES[recipe]
    found = places_of((*names, f"'{FORMS[Extend].for_script()[0]}'") if "Extend" in names else names)
    assert places_told(recipe) == found
    assert most is None or len(found) <= most


def test_a_kind_is_named_by_what_makes_it_ready_and_by_the_simulated_upstreams_and_nowhere_else() -> None:
    """One prepared decision knows buckets, and the simulator has upstreams of its own; nothing else asks for the kind."""
    own = {place.replace("quota", "bucket") for place in places_told("How to add a limit")}
    found = {place.removeprefix("src/headgate/") for place in places_of(("bucket",)) - own}
    others = {"gate/prepared.py", "simulate/books.py", "simulate/scenario.py"}
    assert {place for place in found if not place.startswith(("testing/", "simulate/upstreams/"))} == others


def test_what_is_said_of_a_thing_is_no_place_of_it() -> None:
    text = (
        '"""Of a Quota."""\n# a quota\nx = {"resets_in": f"{row.maximum:g} in all", "kind": "quota"}\nname = "a quota"'
    )
    assert python_words(text) == {"x", "resets_in", "row", "maximum", "g", "kind", "quota", "name"}

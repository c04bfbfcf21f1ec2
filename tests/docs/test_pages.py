"""The documentation: what it shows runs, what it points to is there, and what the code has is in it.

Every page is run as one script, in a process and a directory of its own. A block marked `python no-run` is compiled only;
a block marked `toml NAME` is also written to that file, so that the page's code can load it.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import string
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import headgate
from headgate import events, stores
from headgate.config import file as config_file
from headgate.config import sources
from headgate.kernel.limits import KINDS, Aimd
from headgate.kernel.model import OUTCOMES
from tests.support import ROOT

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@dataclass(frozen=True)
class Block:
    """A fenced block: what its fence says, the line it starts on, and its text."""

    page: Path
    line: int
    info: tuple[str, ...]
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    blocks = []
    lines = page.read_text(encoding="utf-8").splitlines()
    begun: int | None = None
    for number, line in enumerate(lines, start=1):
        if not line.startswith("```"):
            continue
        if begun is None:
            begun = number
        else:
            info = tuple(lines[begun - 1].removeprefix("```").split())
            blocks.append(Block(page, begun, info, "\n".join(lines[begun : number - 1]) + "\n"))
            begun = None
    assert begun is None, f"{name_of(page)}:{begun}: this block is not closed"
    return blocks


def prose_of(page: Path) -> str:
    """The page without its blocks, which may hold anything."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def script_of(page: Path) -> str:
    """The Python of a page as one script in which every line has the number that it has on the page."""
    lines: list[str] = []
    for block in blocks_of(page):
        if block.info == ("python",):
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n" if lines else ""


def run_script(script: Path, directory: Path, timeout: float = 55) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    return subprocess.run(
        [sys.executable, "-W", "error", str(script)],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.parametrize("page", [page for page in PAGES if script_of(page)], ids=name_of)
def test_the_python_of_every_page_runs(page: Path, tmp_path: Path) -> None:
    for block in blocks_of(page):
        if block.info[:1] == ("toml",) and len(block.info) == 2:
            (tmp_path / block.info[1]).write_text(block.text, encoding="utf-8")
    script = tmp_path / f"{page.stem.replace('-', '_')}_page.py"
    script.write_text(script_of(page), encoding="utf-8")
    done = run_script(script, tmp_path)
    assert done.returncode == 0, f"{name_of(page)} (the line numbers are the page's):\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_other_block_is_at_least_well_formed(page: Path) -> None:
    for block in blocks_of(page):
        if block.info == ("python", "no-run"):
            compile(block.text, block.place, "exec")
        elif block.info[:1] == ("toml",):
            config_file.parse(block.text, file=block.place)
        else:
            # tests/service/test_docs.py has the guard's pages: their commands run, and so does what is in JavaScript.
            known = [(), ("python",), ("python", "guard"), ("sh",), ("text",), ("javascript",), ("go",)]
            assert block.info in known, f"{block.place}: nothing checks {block.info}"


def test_the_tests_that_the_testing_page_shows_pass_under_pytest(tmp_path: Path) -> None:
    script = tmp_path / "test_page.py"
    script.write_text(script_of(DOCS / "testing.md"), encoding="utf-8")
    options = ["-q", "-W", "error", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--rootdir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(script)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@cache
def run_example(example: Path) -> tuple[subprocess.CompletedProcess[str], list[Path]]:
    """How it ended, and the files that it left behind."""
    with TemporaryDirectory() as directory:
        done = run_script(example, Path(directory))
        return done, list(Path(directory).iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_every_example_ends_well_by_itself_and_leaves_nothing_behind(example: Path) -> None:
    done, left = run_example(example)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert left == []


@pytest.mark.slow
def test_the_demo_is_refused_without_headgate_and_never_with_it() -> None:
    done, _ = run_example(ROOT / "examples" / "first_gate.py")
    rows = dict(re.findall(r"^  (uncoordinated|headgate) +60 +(\d+) ", done.stdout, flags=re.MULTILINE))
    assert rows.keys() == {"uncoordinated", "headgate"}, done.stdout + done.stderr
    assert int(rows["uncoordinated"]) > 0
    assert int(rows["headgate"]) == 0


# --- links ------------------------------------------------------------------------------------------------------


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+?) *$", prose_of(page), flags=re.MULTILINE)
    plain = [re.sub(r"\[(.+?)\]\(.+?\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    prose = prose_of(page)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose) + re.findall(r'(?:src|href|srcset)="([^"]+)"', prose)
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name_of(page)}: {target} leads nowhere"
        assert found.is_relative_to(ROOT), f"{name_of(page)}: {target} leads out of the project"
        if anchor:
            assert anchor in anchors_of(found), f"{name_of(page)}: {name_of(found)} has no heading for #{anchor}"


def test_every_page_of_the_docs_can_be_reached_from_the_index() -> None:
    index = DOCS / "index.md"
    linked = {(DOCS / target.partition("#")[0]).resolve() for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(index))}
    missing = [name_of(page) for page in DOCS.rglob("*.md") if page != index and page not in linked]
    assert missing == []


# --- the architecture page names what is there --------------------------------------------------------------------


def test_every_function_on_the_path_of_an_acquire_is_where_the_page_says() -> None:
    named = re.findall(r"((?:`[\w.]+`(?:, )?)+) in \[[^\]]+\]\((src/[^)]+)\)", prose_of(ROOT / "ARCHITECTURE.md"))
    assert len(named) > 10
    for names, file in named:
        source = (ROOT / file).read_text(encoding="utf-8")
        for name in re.findall(r"`([\w.]+)`", names):
            for part in name.split("."):
                assert re.search(rf"(?:class|def) {part}\b", source), f"{file} has no {name}"


def test_every_test_that_the_architecture_page_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", prose_of(ROOT / "ARCHITECTURE.md")))
    assert len(named) > 10
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "src" / "headgate" / "testing").rglob("*.py")]
    source = "".join(file.read_text(encoding="utf-8") for file in files)
    assert {name for name in named if f"def {name}(" not in source} == set()


# --- what the code has is in the reference ----------------------------------------------------------------------


def entries_of(page: Path) -> set[str]:
    """What a page explains: the names in its headings, and in the first column of its tables."""
    text = prose_of(page)
    found: set[str] = set()
    for line in re.findall(r"^#+ .+$", text, flags=re.MULTILINE):
        found.update(re.findall(r"`([^`]+)`", line))
    for cell in re.findall(r"^\| *((?:`[^`]+`(?:, | / )?)+) *\|", text, flags=re.MULTILINE):
        found.update(re.findall(r"`([^`]+)`", cell))
    return {re.match(r"[^(]*", entry)[0] for entry in found}  # type: ignore[index]


def public(kind: type) -> set[str]:
    names = {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}
    if dataclasses.is_dataclass(kind):
        names |= {field.name for field in dataclasses.fields(kind)}
    return names


@pytest.mark.parametrize("name", sorted(headgate.__all__))
def test_every_public_name_has_an_entry_in_the_reference(name: str) -> None:
    assert any(name in entries_of(page) for page in REFERENCE.glob("*.md"))


def test_every_method_and_argument_of_a_gate_is_in_the_reference() -> None:
    entries = entries_of(REFERENCE / "gate.md")
    arguments = set(inspect.signature(headgate.Gate).parameters)
    for method in (headgate.Gate.acquire, headgate.Gate.reserve, headgate.Gate.limited):
        arguments |= set(inspect.signature(method).parameters) - {"self", "ask"}
    assert (public(headgate.Gate) | arguments) - entries == set()


@pytest.mark.parametrize("kind", [headgate.Permit, headgate.Place], ids=lambda kind: kind.__name__)
def test_everything_of_a_permit_is_in_the_reference(kind: type) -> None:
    for_the_keeper = {
        "disown",
        "gate_name",
        "lease_gone",
        "lease_lost_at_end",
        "lease_moved",
        "lease_row",
        "lease_seconds",
    }
    assert public(kind) - for_the_keeper - entries_of(REFERENCE / "permit.md") == set()


@pytest.mark.parametrize(
    "kind",
    [headgate.Usage, headgate.LimitUsage, headgate.Holder, headgate.Waiter, headgate.Explanation, headgate.Override],
    ids=lambda kind: kind.__name__,
)
def test_every_field_of_what_a_gate_tells_is_in_the_reference(kind: type) -> None:
    assert public(kind) - entries_of(REFERENCE / "gate.md") == set()


def test_every_argument_of_every_limit_is_in_the_reference() -> None:
    entries = entries_of(REFERENCE / "limits.md")
    for limit in (*KINDS.values(), Aimd):
        assert set(inspect.signature(limit).parameters) - entries == set()


def test_every_configuration_key_is_in_the_reference() -> None:
    keys = {*config_file.TOP_KEYS, *config_file.GATE_KEYS, *KINDS, "source", "refresh"}
    for limit in (*KINDS.values(), Aimd):
        keys |= set(inspect.signature(limit).parameters) - {"limit"}
    assert keys - entries_of(REFERENCE / "configuration.md") == set()


def test_every_source_of_values_is_in_the_reference() -> None:
    assert {f"{scheme}:" for scheme in sources.SOURCES} <= {
        entry.partition(":")[0] + ":" for entry in entries_of(REFERENCE / "configuration.md")
    }


def test_every_event_is_in_the_reference_with_its_facts() -> None:
    page = (REFERENCE / "events.md").read_text(encoding="utf-8")
    for kind, (level, sentence) in events.KINDS.items():
        row = re.search(rf"^\| `{kind}` \| {level} \| (.+)$", page, flags=re.MULTILINE)
        assert row is not None, f"{kind} ({level}) has no row"
        facts = {fact for _, fact, _, _ in string.Formatter().parse(sentence) if fact} - {"gate"}
        assert facts <= set(re.findall(r"`(\w+)`", row[1])), kind


def test_every_outcome_is_in_the_reference_with_what_follows_from_it() -> None:
    page = (REFERENCE / "permit.md").read_text(encoding="utf-8")
    for name, outcome in OUTCOMES.items():
        row = re.search(rf"^\| `{name}` \| (.+) \| (.+) \| (.+) \|$", page, flags=re.MULTILINE)
        assert row is not None, f"{name} has no row"
        assert row[1].startswith(outcome.about)
        assert ("confirmed" in row[2], "give the charge back" in row[2]) == (outcome.answered, outcome.refunds)
        assert row[3] == {1: "counts as a success", 0: "unchanged", -1: "steps down"}[outcome.adapts]


def test_the_reference_has_the_stores_that_there_are_and_no_others() -> None:
    entries = entries_of(REFERENCE / "stores.md")
    assert {entry.partition("://")[0] for entry in entries if "://" in entry} == set(stores.SCHEMES)


def test_the_changelog_has_an_unreleased_section_with_something_in_it() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(r"^## \[Unreleased\]$(.+?)(?=^## |\Z)", changelog, flags=re.MULTILINE | re.DOTALL)
    assert section is not None
    assert re.search(r"^- ", section[1], flags=re.MULTILINE)

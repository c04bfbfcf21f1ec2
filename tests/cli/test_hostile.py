"""Thousands of command lines, configurations, scenarios and files that make no sense: one message, a documented code.

They are made from a seed, so a failure can be run again: its arguments and its file are in the message of the assertion.
"""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import headgate
from headgate.cli import reference
from headgate.cli.app import EXIT_CODES, app
from headgate.stores import open_store

pytestmark = pytest.mark.usefixtures("at_the_command_line")

CONFIG = """
store = "sqlite:///{folder}/state.db"

[gates.adobe]
limits = [
  {{ window = 3, per = "1h", name = "rpm" }},
  {{ concurrency = 2, name = "in_flight" }},
]

[gates.units]
priorities = {{ live = 1.0, batch = 0.5 }}
limits = [{{ bucket = 10, per = "1h", name = "pu", unit = "pu" }}]

[gates.orgs]
limits = [{{ concurrency = 5, name = "org", by = "org" }}, {{ concurrency = 8, name = "all" }}]
"""
SCENARIO = """
horizon = "30s"
[jobs]
count = 20
calls = 1
[fleet]
workers = 5
processes = 2
start = "even"
over = "1s"
think = "10ms"
crashes = { every = "10m", restart = "30s" }
[call]
network = { lognormal = "50ms", sigma = 0.8, plus = "50ms" }
work = { uniform = ["200ms", "1s"] }
answer = "at once"
[upstream]
limits = [{ sliding = 10, per = "1s" }, { slots = 5 }]
retry_after = true
[gate]
limits = [{ window = 10, per = "1s", slack = "100ms", name = "rps" }, { concurrency = 5 }]
confirm = true
delay = "1ms"
[settings.uncoordinated]
base = 1.0
"""

#: What people and programs put where a number, a name or a duration belongs.
WORDS = [
    "", " ", "\t", "-", "--", "---", "-1", "0", "-0", "+1", "1", "2.5", "1e400", "1e-400", "9" * 400, "nan", "NaN", "inf",
    "-inf", "0x10", "1_000", "٣", "½", "1m", "1 m", "-1m", "0s", "1h1m", "PT1M", "PT", "P1Y", "1fortnight", "99999999d",
    "true", "null", "none", "[]", "{}", "=", "==", "a=", "=b", "a=b", "a=b=c", "org=acme", "org=", "org=a b", "pu=1",
    "pu=nan", "requests=-1", "adobe", "units", "orgs", "ADOBE", "adobe ", "rpm", "in_flight", "pu", "org", "all",
    "rpm@live", "../../etc/passwd", "/", ".", "/dev/null", "/no/such/place", "~", "*", "$(id)", "`id`", ";", "|", "a\nb",
    "\x1b[31m", "\x07", "ü", "日本", "🙂", "\u202e", "\udcff", "x" * 300, "x" * 3000, "%s", "{0}", "[bold]", "[/]",
    "\\", "'", '"',
]  # fmt: skip


@pytest.fixture
def gates(tmp_path: Path) -> Any:
    (tmp_path / "headgate.toml").write_text(CONFIG.format(folder=tmp_path))
    loaded = headgate.load()
    yield loaded
    open_store(loaded.config.store).close()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), prog_name="headgate")


def told_properly(result: Result, what: object) -> None:
    """Whatever it was: a documented code, and for a failure one line on standard error and nothing else."""
    shown = f"{what!r}\n{result.output!r}"
    assert result.exception is None or isinstance(result.exception, SystemExit), f"{result.exception!r} after {shown}"
    assert str(result.exit_code) in EXIT_CODES, f"{result.exit_code} after {shown}"
    assert "Traceback" not in result.output, shown
    if result.exit_code:
        assert result.stdout == "", shown
        assert len(result.stderr.splitlines()) == 1, shown
        assert result.stderr.startswith("headgate"), shown
        assert len(result.stderr) < 2000, shown


#: Not run with arguments that may be right: they take long, replace files, or leave the process.
PARAMETERS = {
    path[1:]: [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
    for path, command in reference.commands()
    if len(path) > 1 and path[1] not in ("bench", "demo", "serve", "upstream", "worker", "batch", "images")
}


def command_line(rng: random.Random) -> list[str]:
    """A command with options of its own and others', and words for what they want."""
    path = rng.choice([path for path in PARAMETERS if path])
    line = list(path)
    if path[0] == "simulate":
        line.append("scenario.toml")
    for _ in range(rng.randrange(6)):
        if rng.random() < 0.5:
            line.append(rng.choice(PARAMETERS[path] + rng.choice(list(PARAMETERS.values())) + ["--config", "-x"]))
        if rng.random() < 0.9:
            line.append(rng.choice(WORDS))
    if path[0] == "acquire":
        line += ["--timeout", "0", "--", "true"]
    return [word for word in line if word not in ("--force", "--help", "-h")]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_no_command_line_ends_in_a_traceback_or_an_undocumented_code(gates: Any, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    failed = 0
    for _ in range(60):
        line = command_line(rng)
        result = run(*line)
        told_properly(result, line)
        failed += bool(result.exit_code)
    assert failed > 30  # or it is no test of mistakes


#: Command lines with one place, `?`, where something else stands than belongs there.
TEMPLATES = (
    """
status ?|status adobe --key ?|status orgs --key org=?|top ?|top --every ?|explain ?|explain adobe --cost ?
explain units --cost pu=?|explain units --cost pu=1 --priority ?|explain orgs --key org=?|explain orgs --key ?=acme
acquire ? --timeout 0 -- true|acquire orgs --key org=a --timeout ? -- true|acquire adobe --timeout 0 --cost ? -- true
acquire adobe --timeout 0 --holder ? -- true|acquire adobe --timeout 0 --lease ? -- true
acquire adobe --timeout 0 --kill-after ? -- true|acquire adobe --timeout 0 -- ?|acquire orgs --timeout 0 --key org=? -- true
limits list ?|limits get ? rpm|limits get adobe ?|limits get orgs org --key ?|limits set adobe rpm ?|limits set adobe ? 5
limits set adobe in_flight ?|limits set orgs org 5 --key ?|limits set ? rpm 5|limits delete adobe ?|limits delete ? rpm
leases list ?|leases list orgs --key ?|leases release adobe ?|leases release ? x|pause adobe ?|pause ? 1
pause adobe 1 --reason ?|resume ?|reset ? --yes|reset adobe --limit ? --yes|simulate ?|simulate scenario.toml --seed ?
simulate scenario.toml --strategy ?|plan ? --duration 5|plan --duration ? --rate 190/1m|plan --duration 5 --rate ?
plan --duration 5 --rate ?/1m|plan --duration 5 --rate 190/?|plan --duration 5 --in-flight ?|plan --duration 5 --workers ?
plan --duration 5 --rate 190/1m --calls ?|plan --duration 5 --rate 190/1m --items ?|plan adobe --duration 5 --cost ?
plan --tenants ? --each 20|plan --tenants 10 --each ?|init --preset ?|doctor --processes ?|demo --limit ? --workers 0
demo --window ? --workers 0|demo --workers 0 --threads ?|--config ? status|--config ? plan adobe --duration 5|?
""".replace("\n", "|")
    .strip("|")
    .split("|")
)


@pytest.mark.slow
@pytest.mark.parametrize("template", TEMPLATES)
def test_whatever_stands_in_one_place_is_taken_or_told_what_is_wrong_with_it(
    gates: Any, tmp_path: Path, template: str
) -> None:
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    for word in WORDS:
        line = [part.replace("?", word) for part in template.split(" ")]
        told_properly(run(*line), line)
        gates["adobe"].resume()


FILES = {
    "empty": b"",
    "blank": b"\n\n   \n",
    "binary": bytes(range(256)) * 20,
    "elf": b"\x7fELF\x02\x01\x01" + b"\0" * 200,
    "utf-16": "[gates.a]\nlimits = []\n".encode("utf-16"),
    "latin-1": "# Größe\n".encode("latin-1"),
    "nul": b'store = "a\0b"\n',
    "json": b'{"gates": {}}',
    "yaml": b"gates:\n  adobe:\n    - window: 5\n",
    "deep": b"a = " + b"[" * 5000 + b"]" * 5000,
    "digits": b"[gates.a]\nlimits = [{ window = " + b"9" * 5000 + b", per = '1m' }]",
    "many digits": b"[gates.a]\nlimits = [{ window = " + b"9" * 400 + b", per = '1m' }]",
    "nan": b"[gates.a]\nlimits = [{ window = nan, per = '1m' }]",
    "inf": b"[gates.a]\nlimits = [{ window = inf, per = inf }]",
    "negative": b"[gates.a]\nlimits = [{ concurrency = -1 }]",
    "date": b"[gates.a]\nlimits = [{ window = 5, per = 1979-05-27T07:32:00Z }]",
    "twice": b"store = 'memory://'\nstore = 'memory://'\n",
    "escape": b"[gates.\"\\u001b[31m\"]\nlimits = [{ window = 5, per = '1m' }]",
    "no gates": b"[gates]\n",
    "gate is a number": b"gates.a = 5\n",
    "gates is a list": b"[[gates]]\nname = 'a'\n",
    "another's": b"[project]\nname = 'headgate'\n",
    "unknown store": b"store = 'gopher://x'\n[gates.a]\nlimits = [{ window = 5, per = '1m' }]",
    "store in no folder": b"store = 'sqlite:////no/such/folder/x.db'\n[gates.a]\nlimits = [{ window = 5, per = '1m' }]",
    "store is a folder": b"store = 'sqlite:////tmp'\n[gates.a]\nlimits = [{ window = 5, per = '1m' }]",
}
READERS = (
    ["status"],
    ["top"],
    ["explain", "a"],
    ["limits", "list"],
    ["plan", "a", "--duration", "5"],
    ["leases", "list"],
)


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_file_that_is_no_configuration_and_no_scenario_is_told_in_one_message(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "headgate.toml").write_bytes(content)
    for line in READERS:
        result = run(*line)
        told_properly(result, line)
        assert result.exit_code in (69, 78) or line[0] == "plan", (line, result.output)
    result = run("simulate", "headgate.toml")
    told_properly(result, "simulate")
    assert result.exit_code == 78
    assert "headgate.toml" in result.stderr


@pytest.mark.parametrize(
    "place",
    [".", "/", "none", "loop", "dangling", "headgate.toml/x", "x" * 300, "/dev/null", "/dev/zero", "pipe", "huge"],
)
def test_what_is_no_file_is_told_in_one_message_wherever_a_file_belongs(gates: Any, tmp_path: Path, place: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").write_bytes(b"#" * (2 << 20))
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    for line in (["--config", place, "status"], ["--config", place, "doctor", "--json"], ["simulate", place]):
        result = run(*line)
        if line[-1] == "--json":
            assert result.exit_code == 78, result.output
        else:
            told_properly(result, line)
            assert result.exit_code == 78, (line, result.output)
    if place in (".", "/", "loop", "headgate.toml/x", "x" * 300):
        for line in (["simulate", "scenario.toml", "--plot", place], ["--config", place, "init", "--force"]):
            result = run(*line)
            told_properly(result, line)
            assert result.exit_code == (2 if "--plot" in line else 1), (line, result.output)
    if place == "loop":  # a plot is a file called .svg, if anything
        (tmp_path / "loop.svg").symlink_to("loop.svg")
        (tmp_path / "folder.svg").mkdir()
        for plot in ("loop.svg", "folder.svg", "headgate.toml/x.svg"):
            result = run("simulate", "scenario.toml", "--plot", plot)
            told_properly(result, plot)
            assert result.exit_code == 1, (plot, result.output)


def test_what_may_not_be_read_or_written_is_told_in_one_message(tmp_path: Path) -> None:
    """In a process of somebody who is nobody here: root may read and write everything."""
    folder = tmp_path / "closed"
    folder.mkdir()
    (folder / "headgate.toml").write_text(CONFIG.format(folder=folder))
    (folder / "scenario.toml").write_text(SCENARIO)
    for file in ("headgate.toml", "scenario.toml"):
        (folder / file).chmod(0)
    folder.chmod(0o555)
    try:
        for line, code in (
            (["status"], 78),
            (["simulate", "scenario.toml"], 78),
            (["init", "--force"], 1),
            (["--config", "other.toml", "init"], 1),
        ):
            done = subprocess.run(
                [sys.executable, "-c", AS_NOBODY, *line], cwd=folder, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (code, "", 1), (line, done.stderr)
            assert "ermission" in done.stderr, done.stderr
        # A store that cannot be opened or created.
        (folder / "headgate.toml").chmod(0o444)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, "status"], cwd=folder, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (69, "", 1), done.stderr
    finally:
        folder.chmod(stat.S_IRWXU)


#: Everything is imported first: nobody may not be allowed to read the package either.
AS_NOBODY = """
import os, sys
from importlib import import_module
from headgate.cli.app import COMMANDS, app
for module, _ in COMMANDS.values(): import_module(f"headgate.cli.{module}")
import headgate.stores.sqlite, headgate.simulate, rich.progress, rich.table, rich.live, sqlite3, encodings.unicode_escape
import headgate.cli.view, headgate.config.file, headgate.config.toml_table, headgate.kernel.limits, headgate.kernel.plan
import tomllib, inspect, difflib
import encodings.utf_8_sig
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
app(prog_name="headgate")
"""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_what_is_shown_needs_no_utf_8(gates: Any, tmp_path: Path, encoding: str) -> None:
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    with gates["adobe"].acquire(holder="chunk ü 日本.pdf"):
        for line in (
            ["status"], ["top"], ["explain", "adobe"], ["leases", "list"], ["limits", "list"], ["doctor"],
            ["plan", "adobe", "--duration", "5"], ["plan", "--claims"],
            ["simulate", "scenario.toml", "--strategy", "headgate"],
        ):  # fmt: skip
            done = subprocess.run(
                [sys.executable, "-m", "headgate", *line],
                cwd=tmp_path, env=os.environ | {"PYTHONIOENCODING": encoding}, capture_output=True, check=False,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, b""), (line, done.stderr)
            done.stdout.decode(encoding)


# --- scenarios --------------------------------------------------------------------------------------------------------

#: What may stand behind an equals sign of a scenario, and mostly makes no sense there.
VALUES = [
    "0", "-1", "1", "3", "0.5", "nan", "inf", "-inf", "1e308", "1e-308", "9" * 30, "9" * 400, "true", "false", '""', '"x"',
    '"at once"', '"even"', '"1s"', '"-1s"', '"0s"', '"1ms"', '"100000d"', "[]", "[[]]", "{}", "[1, 2]", '["2s"]',
    '["9s", "1s"]', "{ uniform = [1, 2] }", '{ uniform = ["0s", "0s"] }', "{ lognormal = 1 }",
    '{ exponential = "1s", sigma = 2 }', "{ mix = [] }",
    '{ mix = [{ share = 1, constant = "10ms" }] }', "{ mix = [{ share = nan, constant = 1 }] }",
    '[{ sliding = 10, per = "1s" }]', '[{ sliding = 1e-9, per = "1s" }]', '[{ bucket = 1, per = "1s", burst = 0.1 }]',
    "[{ slots = 0.5 }]", '[{ calendar = 5, per = "1ms" }]', '[{ window = 1, per = "1m" }]', "[{ concurrency = 1e9 }]",
    '[{ window = 1, per = "1s", by = "org" }]', "1979-05-27",
]  # fmt: skip


def spoilt(rng: random.Random) -> str:
    """The scenario with one to three of its lines changed, left out, doubled or misspelt."""
    lines = SCENARIO.strip().splitlines()
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines))
        name, equals, _ = lines[at].partition(" = ")
        kind = rng.randrange(6)
        if kind == 0:
            del lines[at]
        elif kind == 1:
            lines.insert(at, lines[at])
        elif kind == 2:
            letter = rng.randrange(len(lines[at]))
            lines[at] = lines[at][:letter] + rng.choice("abz=[]{}\"'#,.-0") + lines[at][letter + 1 :]
        elif equals and name != "horizon":
            lines[at] = f"{name} = {rng.choice(VALUES)}"
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_no_scenario_ends_in_a_traceback_or_for_ever(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    failed = 0
    for _ in range(60):
        text = spoilt(rng)
        if "horizon" not in text:
            continue
        (tmp_path / "scenario.toml").write_text(text)
        result = run("simulate", "scenario.toml", "--json")
        told_properly(result, text)
        failed += bool(result.exit_code)
        if result.exit_code:
            assert result.exit_code == 78, (text, result.output)
            assert "scenario.toml: " in result.stderr
    assert failed > 20

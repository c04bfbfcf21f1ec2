"""The command line, as somebody at a terminal or a script sees it: what it prints, and how it ends."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest

import headgate
from headgate.cli import reference
from headgate.cli.app import COMMANDS
from headgate.cli.presets import DEFAULT, PRESETS
from headgate.config import file as config_file
from headgate.kernel.commands import Stand
from headgate.stores import open_store
from tests.support import ROOT
from tests.support.command_line import done, read, run

pytestmark = pytest.mark.usefixtures("at_the_command_line")


# --- the table of commands --------------------------------------------------------------------------------------------


def test_every_command_says_what_it_does_and_every_option_what_it_means() -> None:
    for path, command in reference.commands():
        assert command.help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (path, parameter.name)


def test_every_reading_command_takes_json() -> None:
    readers = {
        "status",
        "explain",
        "limits list",
        "limits get",
        "leases list",
        "waiters",
        "simulate",
        "plan",
        "doctor",
        "demo",
        "images",
    }
    readers |= {"token list", "worker", "batch", "queue list", "queue peek", "dlq list", "dlq show"}
    having = {
        " ".join(path[1:])
        for path, command in reference.commands()
        if any("--json" in parameter.opts for parameter in command.params)
    }
    assert having == readers


def test_the_reference_page_is_what_the_commands_say() -> None:
    written = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert written == reference.page(), "python -m headgate.cli.reference > docs/reference/cli.md"
    for name in COMMANDS:
        assert f"## `headgate {name}`" in written


def test_without_a_command_the_help_is_shown() -> None:
    assert "Commands:" in done()
    assert "Commands:" in done("--help")
    assert done("--version") == f"headgate {headgate.__version__}\n"


def test_it_can_be_run_as_a_script_and_as_a_module() -> None:
    for module in ("headgate", "headgate.cli"):
        out = subprocess.run([sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True)
        assert out.stdout == f"headgate {headgate.__version__}\n"
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"headgate": "headgate.cli:main"}


def test_without_click_one_sentence_says_what_to_install() -> None:
    script = "import sys; sys.modules['click'] = None; from headgate.cli import main; main()"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert out.returncode == 1
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cli"]
    told, _, command = out.stderr.partition("pip install ")
    assert told == "headgate: the command line needs click and rich: "
    assert sorted(shlex.split(command)) == sorted(wanted)


@pytest.mark.parametrize("extra", ["redis", "aws", "server", "cli"])
def test_what_an_extra_brings_is_named_so_that_it_can_be_installed_wherever_headgate_came_from(extra: str) -> None:
    from headgate.extras import how_to_install

    command = how_to_install(extra)
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    assert shlex.split(command)[:2] == ["pip", "install"]
    assert sorted(shlex.split(command)[2:]) == sorted(wanted)


def test_no_page_tells_to_install_a_release_that_there_is_not() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deploy").rglob("*.*")]
    texts = [*pages, *(ROOT / "src").rglob("*.py")]
    found = [str(file) for file in texts if file.suffix in (".md", ".py", ".service", ".toml", ".yml", "")]
    assert not [file for file in found if "install 'headgate[" in Path(file).read_text(encoding="utf-8")]


# --- completion -------------------------------------------------------------------------------------------------------


def completed(folder: Path, *words: str) -> list[str]:
    """What a shell is offered for the last of these words."""
    env = os.environ | {
        "_HEADGATE_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("headgate", *words)),
        "COMP_CWORD": str(len(words)),
    }
    out = subprocess.run(
        [sys.executable, "-m", "headgate"], cwd=folder, env=env, capture_output=True, text=True, check=True
    )
    return [line.partition(",")[2] for line in out.stdout.splitlines() if line]


def test_a_shell_completes_gates_limits_and_classes(gates: Any, tmp_path: Path) -> None:
    assert completed(tmp_path, "status", "") == ["adobe", "units", "orgs"]
    assert completed(tmp_path, "explain", "o") == ["orgs"]
    assert completed(tmp_path, "limits", "set", "adobe", "") == ["in_flight", "rpm"]
    assert completed(tmp_path, "limits", "get", "orgs", "a") == ["all"]
    assert completed(tmp_path, "reset", "units", "--limit", "") == ["pu"]
    assert completed(tmp_path, "acquire", "units", "--priority", "b") == ["batch"]
    assert completed(tmp_path, "--config", "nowhere.toml", "status", "") == []
    assert "acquire" in completed(tmp_path, "a")


def test_the_page_on_the_command_line_says_how_to_switch_completion_on() -> None:
    page = (ROOT / "docs" / "how-to" / "command-line.md").read_text(encoding="utf-8")
    for shell in ("bash", "zsh", "fish"):
        env = os.environ | {"_HEADGATE_COMPLETE": f"{shell}_source"}
        out = subprocess.run([sys.executable, "-m", "headgate"], env=env, capture_output=True, text=True, check=False)
        assert f"_HEADGATE_COMPLETE={shell}_source headgate" in page
        assert "_HEADGATE_COMPLETE" in out.stdout, out.stderr


# --- init -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_what_init_writes_loads_and_its_gate_grants(tmp_path: Path, preset: str | None) -> None:
    printed = done("init", *(["--preset", preset] if preset else []))
    chosen = PRESETS[preset] if preset else DEFAULT
    spec = config_file.load()[chosen.gate]
    assert spec.store == f"sqlite:///{tmp_path}/headgate.db"
    # The line that init shows as the next step works as it stands.
    shown = re.search(r"next: headgate (acquire .*) -- curl", printed)
    assert shown is not None
    done(*shown[1].split(), "--", sys.executable, "-c", "")
    open_store(spec.store).close()


@pytest.mark.parametrize(
    ("preset", "in_flight", "per_minute"),
    [("adobe-conservative", 100, 150), ("adobe-balanced", 150, 190), ("adobe-aggressive", 180, 195)],
)
def test_the_adobe_presets_have_the_numbers_of_their_table(preset: str, in_flight: int, per_minute: int) -> None:
    limits = {limit.name: limit for limit in config_file.parse(PRESETS[preset].text)["adobe"].limits}
    assert (limits["in_flight"].limit, limits["rpm"].limit) == (in_flight, per_minute)
    page = (ROOT / "docs" / "reference" / "presets.md").read_text(encoding="utf-8")
    crossing = in_flight * 60 / per_minute
    row = rf"\| {preset.removeprefix('adobe-')} \| {in_flight} \| {per_minute} \| .* \| {crossing:.1f} s \|"
    assert re.search(row, page)


def test_every_preset_is_on_its_page_and_no_other() -> None:
    page = (ROOT / "docs" / "reference" / "presets.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \| `([a-z-]+)` \|", page, flags=re.MULTILINE)
    assert rows == [(name, preset.gate) for name, preset in PRESETS.items()]


def test_init_leaves_a_file_that_is_there_alone_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text("mine")
    assert run("init").exit_code == 1
    assert (tmp_path / "headgate.toml").read_text() == "mine"
    done("init", "--force")
    assert "mygate" in (tmp_path / "headgate.toml").read_text()
    done("--config", "other.toml", "init", "--preset", "nanobanana")
    assert list(config_file.load("other.toml")) == ["nanobanana"]
    assert run("--config", "no/such/folder.toml", "init").exit_code == 1


# --- looking ----------------------------------------------------------------------------------------------------------


def test_status_shows_use_holders_the_line_and_a_pause(gates: Any) -> None:
    permit = gates["adobe"].acquire(holder="chunk_001.pdf")
    gates["units"].pause(60, "the upstream is down")
    text = done("status")
    assert re.search(r"^adobe ─+ 0 waiting · 1 in flight$", text, flags=re.MULTILINE)
    assert re.search(r"^  rpm +█.* 33% +1/3 requests +free", text, flags=re.MULTILINE)
    assert re.search(r"^  in_flight +█.* 50% +1/2 slots +free", text, flags=re.MULTILINE)
    assert re.search(r"· chunk_001.pdf +held +0\.\d s +lease +30 s", text)
    assert re.search(r"units ─+ paused for (60|59) s: the upstream is down · 0 waiting", text)
    assert permit.id in text
    permit.release()


@pytest.mark.parametrize("columns", [60, 80, 100, 140, 200])
def test_no_line_of_status_is_wider_than_the_terminal(
    gates: Any, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    with gates["orgs"].acquire(key={"org": "acme"}, holder="a name that is long " * 5):
        gates["adobe"].set_limit("rpm", 2)
        gates["adobe"].pause(60, "a reason that is long " * 5)
        lines = done("status").splitlines()
        assert max(len(line) for line in lines) <= columns
        assert any("org acme" in line and "1/5" in line for line in lines)


def test_the_columns_of_all_gates_stand_under_each_other(gates: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in ("80", "140"):
        monkeypatch.setenv("COLUMNS", columns)
        bars = [line for line in done("status").splitlines() if "%" in line]
        assert len(bars) > 3
        for sign in ("░", "%", "/", "free"):
            assert len({line.index(sign) for line in bars}) == 1, (sign, bars)


def test_top_says_what_there_is_no_room_for(gates: Any) -> None:
    from rich.console import Console

    from headgate.cli.top import Screen

    console = Console(width=80, height=9, force_terminal=True)
    with console.capture() as caught:
        console.print(Screen(gates, list(gates), console, "headgate.toml").frame(9))
    lines = caught.get().splitlines()
    assert len(lines) <= 9
    assert "2 more: headgate top GATE" in lines[-1]


def test_status_as_json_has_the_fields_of_usage_and_the_holders(gates: Any) -> None:
    with gates["adobe"].acquire(holder="one"):
        [gate] = read("status", "adobe")["gates"]
    assert (gate["gate"], gate["waiting"], gate["paused_for"]) == ("adobe", 0, None)
    assert [limit["name"] for limit in gate["limits"]] == ["rpm", "in_flight"]
    assert gate["limits"][1]["used"] == 1
    assert gate["limits"][1]["utilisation"] == 0.5
    assert [holder["holder"] for holder in gate["holders"]] == ["one"]
    assert [gate["gate"] for gate in read("status")["gates"]] == ["adobe", "units", "orgs"]


def test_status_with_a_key_shows_that_key(gates: Any) -> None:
    with gates["orgs"].acquire(key={"org": "acme"}), gates["orgs"].acquire(key={"org": "other"}):
        [gate] = read("status", "orgs", "--key", "org=acme")["gates"]
        assert [(limit["name"], limit["key"], limit["used"]) for limit in gate["limits"]] == [
            ("org", "acme", 1),
            ("all", None, 2),
        ]
        assert len(gate["holders"]) == 1


def test_top_prints_one_frame_where_there_is_no_terminal(gates: Any) -> None:
    text = done("top")
    assert "headgate.toml" in text.splitlines()[0]
    assert re.search(r"^adobe ─+", text, flags=re.MULTILINE)
    assert "\x1b" not in text
    assert "orgs" not in done("top", "adobe")


def test_a_password_in_a_store_url_is_never_shown(tmp_path: Path) -> None:
    for store in ("redis://user:secret@127.0.0.1:1/0", "redis://127.0.0.1:1/0?password=secret"):
        (tmp_path / "headgate.toml").write_text(f'store = "{store}"\n[gates.a]\nlimits = [{{ concurrency = 1 }}]')
        for command in ("doctor", "status", "top"):
            told = run(command).output
            assert "127.0.0.1:1/0" in told
            assert "secret" not in told


def test_explain_names_what_blocks_who_holds_it_and_spends_nothing(gates: Any) -> None:
    assert "it would go now" in done("explain", "adobe")
    with gates["adobe"].acquire(holder="one"), gates["adobe"].acquire(holder="two"):
        text = done("explain", "adobe")
        assert re.search(r"it would go at the earliest in (30|29) s: limit 'in_flight' is used up", text)
        assert "two" in text
        answer = read("explain", "adobe")
    assert answer["granted"] is False
    assert answer["limit"] == "in_flight"
    assert [holder["holder"] for holder in answer["holders"]] == ["one", "two"]
    assert gates["adobe"].usage()["rpm"].used == 2
    assert "it can never go" in done("explain", "units", "--cost", "pu=6", "--priority", "batch")
    assert read("explain", "units", "--cost", "pu=6")["granted"] is True


def test_waiters_are_listed_with_what_they_wait_for_and_the_reason_is_one_sentence(gates: Any) -> None:
    assert done("waiters", "adobe") == "adobe: free now\n"
    adobe = gates["adobe"]
    held = [adobe.acquire(), adobe.acquire()]
    plan = adobe.policy.plan()
    stand = Stand(plan, "mine", "report.pdf", plan.lease, waits=True, session="another")
    adobe.store.decide(stand)
    why = "1 waits for in_flight: the first (report.pdf) needs a slot, and none is free; one ends by itself in "
    text = done("waiters", "adobe")
    assert text.startswith(f"adobe: {why}")
    assert "report.pdf" in text.splitlines()[2]
    told = read("waiters", "adobe")
    [waiter] = told["waiters"]
    assert (waiter["id"], waiter["limit"], waiter["cost"], waiter["state"]) == (
        "mine",
        "in_flight",
        {"requests": 1},
        "waits",
    )
    assert told["why"].startswith(why)
    for command in ("status", "top", "explain"):
        assert why in done(command, "adobe")
    assert read("status", "adobe")["gates"][0]["why"].startswith(why)
    adobe.pause(60, "maintenance")
    assert "paused for 60 s: maintenance; 1 waits" in done("status", "adobe")
    for permit in held:
        permit.release()


def test_status_shows_the_keys_that_use_most(gates: Any) -> None:
    orgs = gates["orgs"]
    held = [orgs.acquire(key={"org": org}) for org in ("acme", "acme", "beta")]
    rows = read("status", "orgs", "--top-keys", "1")["gates"][0]["limits"]
    assert [(row["key"], row["used"]) for row in rows if row["key"]] == [("acme", 2)]
    text = done("status", "orgs", "--top-keys")
    assert text.index("org acme") < text.index("org beta")
    assert run("status", "--top-keys", "3").exit_code == 2
    for permit in held:
        permit.release()


# --- changing ---------------------------------------------------------------------------------------------------------


def test_a_limit_is_set_seen_and_deleted(gates: Any) -> None:
    assert done("limits", "get", "adobe", "rpm") == "3\n"
    assert done("limits", "set", "adobe", "rpm", "1") == "adobe: rpm is now 1\n"
    assert done("limits", "get", "adobe", "rpm") == "1\n"
    with gates["adobe"].acquire():
        assert gates["adobe"].try_acquire() is None
    row = read("limits", "get", "adobe", "rpm")
    assert (row["configured"], row["override"], row["value"], row["key"]) == (3, 1, 1, None)
    assert "override" in done("status", "adobe")
    assert "as configured again" in done("limits", "delete", "adobe", "rpm")
    assert "had no override" in done("limits", "delete", "adobe", "rpm")
    assert done("limits", "get", "adobe", "rpm") == "3\n"


def test_a_limit_is_set_for_a_time_and_with_a_reason(gates: Any) -> None:
    told = done("limits", "set", "adobe", "rpm", "1", "--for", "2h", "--reason", "[maintenance]")
    assert told == "adobe: rpm is now 1 for 2h00m\n"
    row = read("limits", "get", "adobe", "rpm")
    assert (row["value"], row["reason"], row["tightened"]) == (1, "[maintenance]", None)
    assert 7190 < row["expires_in"] <= 7200
    assert "[maintenance]" in done("limits", "list")
    assert "rpm set to 1 for" in done("status", "adobe")
    assert read("status", "adobe")["gates"][0]["overrides"][0]["reason"] == "[maintenance]"
    with gates["adobe"].acquire():
        assert "[maintenance]" in done("explain", "adobe")
    done("limits", "delete", "adobe", "rpm")


def test_what_was_tightened_is_seen_and_ended_apart_from_what_was_set(gates: Any) -> None:
    done("limits", "set", "adobe", "rpm", "2")
    gates["adobe"].tighten("rpm", 1, expires_in="1h", reason="the upstream said so")
    assert done("limits", "get", "adobe", "rpm").startswith("1\n")
    assert "tightened to 1" in done("limits", "set", "adobe", "rpm", "2")
    assert "rpm tightened to 1 for" in done("status", "adobe")
    done("limits", "delete", "adobe", "rpm", "--tightened")
    assert done("limits", "get", "adobe", "rpm") == "2\n"
    assert "was not tightened" in done("limits", "delete", "adobe", "rpm", "--tightened")
    assert "as configured again" in done("limits", "delete", "adobe", "rpm")


def test_a_limit_is_set_for_one_key_alone(gates: Any) -> None:
    done("limits", "set", "orgs", "org", "1", "--key", "org=acme")
    assert done("limits", "get", "orgs", "org", "--key", "org=acme") == "1\n"
    assert done("limits", "get", "orgs", "org", "--key", "org=other") == "5\n"
    rows = [(row["limit"], row["key"], row["value"]) for row in read("limits", "list", "orgs")["limits"]]
    assert rows == [("org", None, 5), ("org", "acme", 1), ("all", None, 8)]
    assert "org=acme" in done("limits", "list")


def test_leases_are_listed_and_released(gates: Any) -> None:
    permit = gates["orgs"].acquire(key={"org": "acme"}, holder="one")
    gates["orgs"].acquire(key={"org": "other"}, holder="two", renew=False)
    found = read("leases", "list")["leases"]
    assert [(lease["gate"], lease["holder"], lease["key"]) for lease in found] == [
        ("orgs", "one", {"org": "acme"}),
        ("orgs", "two", {"org": "other"}),
    ]
    assert [lease["holder"] for lease in read("leases", "list", "orgs", "--key", "org=acme")["leases"]] == ["one"]
    assert [lease["holder"] for lease in read("leases", "list", "--older-than", "0s")["leases"]] == ["one", "two"]
    assert read("leases", "list", "--older-than", "1h")["leases"] == []
    assert "--older-than" in run("leases", "list", "--older-than", "long").output
    assert permit.id in done("leases", "list", "orgs")
    assert done("leases", "release", "orgs", permit.id) == f"orgs: {permit.id} is released\n"
    assert run("leases", "release", "orgs", permit.id).exit_code == 1
    assert permit.release() is False
    assert done("leases", "list", "adobe") == "nobody holds a lease\n"


def test_a_gate_is_paused_and_goes_on(gates: Any) -> None:
    assert "paused for 60 s" in done("pause", "adobe", "1m", "--reason", "lunch")
    assert gates["adobe"].try_acquire() is None
    assert "lunch" in done("explain", "adobe")
    assert done("resume", "adobe") == "adobe: goes on\n"
    assert done("resume", "adobe") == "adobe: was not paused\n"
    assert gates["adobe"].try_acquire() is not None


def test_a_reset_forgets_one_limit_or_all_and_a_late_release_changes_nothing(gates: Any) -> None:
    gate = gates["adobe"]
    one, two = gate.acquire(), gate.acquire()
    done("reset", "adobe", "--limit", "in_flight", "--yes")
    assert (gate.usage()["rpm"].used, gate.usage()["in_flight"].used) == (2, 0)
    assert one.release() is False
    done("reset", "adobe", "--yes")
    assert (gate.usage()["rpm"].used, gate.usage()["in_flight"].used) == (0, 0)
    assert two.release() is False
    assert (gate.usage()["rpm"].used, gate.usage()["in_flight"].used) == (0, 0)

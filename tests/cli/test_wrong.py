"""What is wrong on a command line or in a configuration is told in one message, with a documented exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import CONFIG, run

pytestmark = pytest.mark.usefixtures("at_the_command_line")


WRONG = [
    # arguments, exit code, what the message says
    (["frobnicate"], 2, "there is no command 'frobnicate'"),
    (["stauts"], 2, "did you mean 'status'"),
    (["status", "--frob"], 2, "--frob"),
    (["status", "nosuch"], 2, "there is no gate 'nosuch'"),
    (["status", "--key", "org=a"], 2, "name it"),
    (["status", "adobe", "--key", "org=a"], 2, "org"),
    (["status", "orgs", "--key", "org"], 2, "write it like org=acme"),
    (["top", "nosuch"], 2, "there is no gate 'nosuch'"),
    (["top", "--every", "0"], 2, "more than zero"),
    (["explain"], 2, "GATE"),
    (["explain", "adobe", "--cost", "0"], 2, "above nought"),
    (["explain", "adobe", "--cost", "pu=x"], 2, "above nought"),
    (["explain", "adobe", "--cost", "nan"], 2, "above nought"),
    (["explain", "adobe", "--cost", "pu=3"], 2, "no unit 'pu'"),
    (["explain", "units"], 2, "'pu' is missing"),
    (["explain", "units", "--cost", "pu=1", "--cost", "pu=2"], 2, "twice"),
    (["explain", "units", "--cost", "pu=1", "--priority", "urgent"], 2, "urgent"),
    (["explain", "orgs"], 2, "org"),
    (["acquire", "adobe"], 2, "COMMAND"),
    (["acquire", "nosuch", "--", "true"], 2, "there is no gate 'nosuch'"),
    (["acquire", "adobe", "--timeout", "soon", "--", "true"], 2, "is not a duration"),
    (["acquire", "adobe", "--timeout", "-1", "--", "true"], 2, "negative"),
    (["acquire", "adobe", "--cost", "-1", "--", "true"], 2, "above nought"),
    (["acquire", "adobe", "--lease", "1ms", "--", "true"], 2, "10 ms"),
    (["acquire", "units", "--cost", "pu=1", "--lease", "1m", "--", "true"], 2, "nothing to lease"),
    (["acquire", "orgs", "--key", "team=a", "--", "true"], 2, "team"),
    (["acquire", "adobe", "--cost", "4", "--", "true"], 65, "rpm"),
    (["acquire", "adobe", "--", "no-such-program"], 127, "there is no such program"),
    (["acquire", "adobe", "--", "./headgate.toml"], 126, "cannot be executed"),
    (["limits", "get", "adobe", "nosuch"], 2, "it has rpm, in_flight"),
    (["limits", "get", "adobe", "rpm", "--key", "org=a"], 2, "not kept by one"),
    (["limits", "get", "orgs", "org", "--key", "team=a"], 2, "--key org="),
    (["limits", "set", "adobe", "nosuch", "5"], 2, "nosuch"),
    (["limits", "set", "adobe", "rpm", "many"], 2, "many"),
    (["limits", "set", "adobe", "rpm", "0"], 2, "above nought"),
    (["limits", "set", "adobe", "rpm", "-5"], 2, "above nought"),
    (["limits", "set", "adobe", "rpm", "inf"], 2, "above nought"),
    (["limits", "set", "adobe", "in_flight", "1.5"], 2, "whole number"),
    (["limits", "set", "adobe", "rpm", "5", "--key", "org=a"], 2, "org"),
    (["limits", "delete", "adobe", "nosuch"], 2, "nosuch"),
    (["leases", "list", "adobe", "--key", "org=a"], 2, "no limit there is kept by a key"),
    (["leases", "release", "adobe", "no-such-lease"], 1, "no live lease 'no-such-lease'"),
    (["pause", "adobe", "0"], 2, "more than zero"),
    (["pause", "adobe", "a while"], 2, "is not a duration"),
    (["pause", "nosuch", "5"], 2, "there is no gate 'nosuch'"),
    (["resume", "nosuch"], 2, "there is no gate 'nosuch'"),
    (["reset", "adobe"], 2, "say --yes"),
    (["reset", "adobe", "--limit", "nosuch", "--yes"], 2, "it has rpm, in_flight"),
    (["simulate", "nosuch.toml"], 78, "nosuch.toml"),
    (["simulate", "headgate.toml"], 78, "headgate.toml"),
    (["simulate", "headgate.toml", "--json", "--csv"], 2, "exclude each other"),
    (["simulate", "nosuch.toml", "--seed", "x"], 2, "--seed"),
    (["plan"], 2, "--duration"),
    (["plan", "--duration", "5"], 2, "nothing to plan with"),
    (["plan", "--duration", "5", "--rate", "lots"], 2, "write it like 190/1m"),
    (["plan", "--duration", "5", "--rate", "1/0s"], 2, "write it like 190/1m"),
    (["plan", "adobe", "--duration", "5", "--in-flight", "3"], 2, "leave out"),
    (["plan", "units", "--duration", "5"], 2, "pu"),
    (["plan", "--tenants", "10"], 2, "belong together"),
    (["plan", "--tenants", "10", "--each", "-1"], 2, "above 0"),
    (["init", "--preset", "nosuch"], 2, "adobe-balanced"),
    (["init"], 1, "--force"),
    (["demo", "--window", "1ms"], 2, "too short"),
    (["demo", "--workers", "0"], 2, "--workers"),
    (["--config", "nosuch.toml", "status"], 78, "there is no such file"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), WRONG, ids=[" ".join(row[0]) for row in WRONG])
def test_what_is_wrong_is_told_in_one_message_and_charges_nothing(
    gates: Any, arguments: list[str], code: int, says: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("headgate")
    assert says in result.stderr
    assert "Traceback" not in result.stderr
    for name in gates:
        assert all(limit.used == 0 for limit in gates[name].usage().limits)
        assert gates[name].overrides() == []
        assert gates[name].usage().paused_for is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("store = 5", "store"),
        ("[gates.a]\nlimits = [{ windw = 5 }]", "gates.a.limits[0]"),
        ("[gates.a]\nlimits = [{ window = 0, per = '1m' }]", "gates.a.limits[0]"),
        ("[gates.a", "TOML"),
        ("", "there are no gates"),
        ("store = 'nosuch://x'\n[gates.a]\nlimits = [{ window = 5, per = '1m' }]", "nosuch"),
    ],
)
def test_a_configuration_that_is_wrong_is_refused_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "headgate.toml").write_text(text)
    for arguments in (["status"], ["acquire", "a", "--", "true"]):
        result = run(*arguments)
        assert result.exit_code == 78
        assert says in result.stderr
        assert len(result.stderr.splitlines()) == 1


def test_a_store_that_cannot_be_used_ends_with_69(tmp_path: Path) -> None:
    (tmp_path / "junk.db").write_text("this is no database " * 100)
    (tmp_path / "headgate.toml").write_text(CONFIG.format(folder=tmp_path).replace("state.db", "junk.db"))
    for arguments in (["status"], ["acquire", "adobe", "--", "true"], ["limits", "list"]):
        result = run(*arguments)
        assert result.exit_code == 69, result.output
        assert len(result.stderr.splitlines()) == 1
    assert run("doctor").exit_code == 69
    assert (tmp_path / "junk.db").read_text().startswith("this is no database")


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["explain", "units"], "--cost pu=1.0"),
        (["acquire", "orgs", "--", "true"], "--key org=acme"),
        (["explain", "orgs", "--key", "team=a"], "--key org=acme"),
        (["leases", "release", "adobe", ""], "`headgate leases list`"),
    ],
    ids=" ".join,
)
def test_hints_are_in_the_syntax_of_the_command_line(gates: Any, arguments: list[str], hint: str) -> None:
    told = run(*arguments)
    assert told.exit_code == 2
    assert hint in told.stderr
    assert "={" not in told.stderr
    assert "permit.id" not in told.stderr


def test_a_limit_of_another_kind_is_told_with_the_command_that_helps(gates: Any, tmp_path: Path) -> None:
    gates["adobe"].acquire().release()
    file = tmp_path / "headgate.toml"
    file.write_text(file.read_text().replace("{ window = 3", "{ bucket = 3"))
    told = run("acquire", "adobe", "--", "true")
    assert told.exit_code == 78
    assert "forget what the gate counts with `headgate reset adobe`" in told.stderr
    assert "reset()" not in told.stderr

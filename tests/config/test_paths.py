"""A relative path in a configuration file starts at that file, in code and in variables at the working directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate import Concurrency, Gate
from headgate.config.file import load, parse
from headgate.config.sources import FileSource, open_source
from headgate.stores import absolute, open_store

CONFIG = """
store = "sqlite:///headgate.db"

[gates.adobe]
limits = [{ concurrency = 1, name = "in_flight" }]

[gates.other]
store = "sqlite:///../shared/other.db?synchronous=full"
limits = [{ window = 5, per = "1m", name = "rpm", source = "file:rpm.txt" }]
"""


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """A folder with a configuration, and beside it two to work in."""
    for name in ("one", "two", "shared", "a folder called 100%? yes"):
        (tmp_path / name).mkdir()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "headgate.toml").write_text(CONFIG)
    (tmp_path / "conf" / "rpm.txt").write_text("3")
    return tmp_path


def headgate_in(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    command = [sys.executable, "-m", "headgate", *arguments]
    return subprocess.run(command, cwd=folder, env=clean | env, capture_output=True, text=True, timeout=300)


def test_processes_in_two_directories_share_the_limits_of_one_file(folders: Path) -> None:
    config = str(folders / "conf" / "headgate.toml")
    inner = [sys.executable, "-m", "headgate", "acquire", "adobe", "--timeout", "0", "--", "true"]
    # The inner one asks, from another directory, while the outer one has the only slot.
    script = f"import subprocess, sys; sys.exit(subprocess.run({inner!r}, cwd={str(folders / 'two')!r}).returncode)"
    done = headgate_in(folders / "one", "acquire", "adobe", "--", sys.executable, "-c", script, HEADGATE_CONFIG=config)
    assert done.returncode == 75, done.stderr
    assert sorted(path.name for path in folders.rglob("*.db")) == ["headgate.db"]
    assert (folders / "conf" / "headgate.db").exists()


def test_a_path_relative_to_where_the_process_is_names_the_same_file(folders: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(folders / "one")
    from_here = load("../conf/headgate.toml")
    monkeypatch.chdir(folders)
    from_there = load("conf/headgate.toml")
    assert from_here.store == from_there.store == f"sqlite:///{folders}/conf/headgate.db"
    assert from_here["other"].store == f"sqlite:///{folders}/shared/other.db?synchronous=full"


def test_a_value_is_read_from_a_file_beside_the_configuration(folders: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(folders / "two")
    gates = headgate.load(folders / "conf" / "headgate.toml")
    try:
        with gates["other"].acquire():
            assert gates["other"].usage()["rpm"].limit == 3
    finally:
        open_store(gates.config["other"].store).close()


def test_in_code_and_in_variables_a_path_starts_at_the_working_directory(folders: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(folders / "two")
    config = load(folders / "conf" / "headgate.toml", {"HEADGATE_STORE": "sqlite:///mine.db"})
    assert config.store == config["adobe"].store == f"sqlite:///{folders}/two/mine.db"
    assert config["other"].store == f"sqlite:///{folders}/shared/other.db?synchronous=full"
    source = open_source("file:rpm.txt")
    monkeypatch.chdir(folders / "one")  # where it was made is what counts
    assert isinstance(source, FileSource)
    assert source.path == str(folders / "two" / "rpm.txt")


def test_a_process_that_changes_its_directory_has_two_stores_not_one(folders: Path, monkeypatch: Any) -> None:
    gates = []
    for name in ("one", "two", "one"):
        monkeypatch.chdir(folders / name)
        gates.append(Gate("g", [Concurrency(1, name="slots")], store="sqlite:///here.db"))
    held = [gate.try_acquire() for gate in gates]
    try:
        assert [permit is not None for permit in held] == [True, True, False]
        assert repr(gates[0]) == f"Gate('g', [{gates[0].policy.limits[0]!r}], store='sqlite:///{folders}/one/here.db')"
    finally:
        for gate in gates:
            gate.store.close()


def test_a_folder_with_any_name_is_found_again(folders: Path, monkeypatch: Any) -> None:
    strange = folders / "a folder called 100%? yes"
    (strange / "headgate.toml").write_text(CONFIG)
    store = open_store(load(strange / "headgate.toml").store)
    try:
        assert (strange / "headgate.db").exists()
        assert open_store(store.url) is store
    finally:
        store.close()


def test_files_that_a_store_is_told_of_by_options_are_beside_the_configuration_too() -> None:
    text = """
    store = "rediss://localhost?ssl_ca_certs=ca.pem&timeout=1s&ssl_keyfile=/etc/key%20one.pem"
    [gates.g]
    store = "https://guard?ca=certs/ca%20two.pem"
    limits = [{ concurrency = 1 }]
    """
    config = parse(text, file="/etc/headgate/headgate.toml")
    wanted = "rediss://localhost?ssl_ca_certs=/etc/headgate/ca.pem&timeout=1s&ssl_keyfile=/etc/key%20one.pem"
    assert config.store == wanted
    assert config["g"].store == "https://guard?ca=/etc/headgate/certs/ca%20two.pem"


@pytest.mark.parametrize(
    "url",
    [
        "memory://",
        "memory://a",
        "sqlite:///",
        "sqlite:///folder/",
        "sqlite:///:memory:",
        "sqlite://x.db",
        "redis://h/0",
    ],
)
def test_a_url_without_a_file_stays_as_it_is(url: str) -> None:
    assert absolute(url, "/somewhere") == url


def test_the_command_line_shows_where_the_state_is(folders: Path) -> None:
    config, store = str(folders / "conf" / "headgate.toml"), f"sqlite:///{folders}/conf/headgate.db"
    here = folders / "one"
    relative = "../conf/headgate.toml"
    told = json.loads(headgate_in(here, "--config", relative, "status", "--json").stdout)
    assert (told["config"], told["gates"][0]["store"]) == (config, store)
    assert told["gates"][1]["store"] == f"sqlite:///{folders}/shared/other.db"
    for command in (["status", "adobe"], ["top", "adobe"], ["doctor"]):
        done = headgate_in(here, "--config", relative, *command, COLUMNS="1000")
        assert store in done.stdout, done.stdout + done.stderr
        assert config in done.stdout


def test_a_guard_says_where_its_state_is(folders: Path) -> None:
    from tests.support.guards import need_server

    need_server()
    command = [sys.executable, "-m", "headgate", "--config", "../conf/headgate.toml", "serve", "--port", "0"]
    with subprocess.Popen(
        command, cwd=folders / "one", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as guard:
        assert guard.stdout is not None
        line = guard.stdout.readline()
        guard.terminate()
    conf = folders / "conf"
    wanted = f"from {conf}/headgate.toml in sqlite:///{conf}/headgate.db, sqlite:///{folders}/shared/other.db"
    assert wanted in line

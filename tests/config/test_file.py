"""Configuration: what is accepted, and where it is read from. What is refused is in test_refusals.py."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from headgate.config.file import Config, GateSpec, load, parse
from headgate.errors import ConfigError, UnknownGate
from headgate.kernel.limits import KINDS, AdaptiveRule, Aimd, Bucket, Concurrency, Probing, Quota, Window

FILE = "conf/headgate.toml"

DESIGN = """
store = "sqlite:///headgate.db"

[gates.adobe]
limits = [
  { window = 190, per = "1m", name = "rpm" },
  { concurrency = 150, name = "in_flight" },
]

[gates.sentinel-hub]
waiting = "promise"
priorities = { live = 1.0, batch = 0.8 }
limits = [
  { bucket = 1000,   per = "1m",   name = "requests" },
  { bucket = 1000,   per = "1m",   name = "pu-minute", unit = "pu" },
  { bucket = 400000, per = "744h", name = "pu-month",  unit = "pu" },
]

[gates.api-deployment]
on_store_error = "open"
limits = [
  { concurrency = 20,  name = "org", by = "org", lease = "6h" },
  { concurrency = 100, name = "global", lease = "6h" },
]
"""


def gate(body: str = "", limits: str = '{ window = 190, per = "1m" }') -> GateSpec:
    """The gate that these lines describe, with one window unless told otherwise."""
    return parse(f"[gates.g]\nlimits = [{limits}]\n{body}", file=FILE)["g"]


def limit(table: str) -> Any:
    (only,) = gate(limits=table).limits
    return only


# What is accepted


def test_the_example_of_the_design_becomes_three_gates() -> None:
    config = parse(DESIGN, file=FILE)
    assert list(config) == ["adobe", "sentinel-hub", "api-deployment"]
    assert config.store == f"sqlite:///{os.getcwd()}/conf/headgate.db"
    assert config.path == FILE
    assert config["adobe"].limits == (Window(190, per="1m", name="rpm"), Concurrency(150, name="in_flight"))
    assert config["adobe"].waiting == "line"
    assert config["sentinel-hub"].waiting == "promise"
    assert config["sentinel-hub"].priorities == {"live": 1.0, "batch": 0.8}
    assert config["sentinel-hub"].limits[2] == Bucket(400000, per="744h", name="pu-month", unit="pu")
    assert config["api-deployment"].on_store_error == "open"
    assert config["api-deployment"].limits[0] == Concurrency(20, name="org", by="org", lease="6h")
    assert {spec.store for spec in config.values()} == {config.store}


def test_every_kind_of_limit_takes_the_keys_of_its_constructor() -> None:
    assert limit('{ window = 5, per = "1s", slack = 0, name = "a", unit = "pu", by = "org" }') == Window(
        5, per="1s", slack=0, name="a", unit="pu", by="org"
    )
    assert limit('{ bucket = 2.5, per = 60, burst = 10, slack = "PT1S" }') == Bucket(2.5, per=60, burst=10, slack=1)
    assert limit('{ quota = 500, per = "month", zone = "Europe/Berlin" }') == Quota(
        500, per="month", zone="Europe/Berlin"
    )
    assert limit('{ concurrency = 3, lease = "6h", by = "org" }') == Concurrency(3, lease="6h", by="org")
    assert set(KINDS) == {"window", "bucket", "quota", "concurrency"}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("true", Aimd()),
        ("{}", Aimd()),
        ("{ start = 4, minimum = 1, decrease = 3, increase_every = 5 }", Aimd(4, 1, 3, 5)),
        ('{ rule = "aimd", start = 4 }', Aimd(4)),
        ('{ rule = "probing" }', Probing()),
        ('{ rule = "probing", start = 4, probe_every = 3 }', Probing(4, probe_every=3)),
        ("false", None),
    ],
)
def test_adaptive_is_a_table_or_true_for_the_defaults(written: str, meant: AdaptiveRule | None) -> None:
    assert limit(f"{{ concurrency = 20, adaptive = {written} }}") == Concurrency(20, adaptive=meant)


def test_limits_may_be_written_as_an_array_of_tables() -> None:
    config = parse('[[gates.g.limits]]\nwindow = 190\nper = "1m"\n[[gates.g.limits]]\nconcurrency = 2\n')
    assert [made.name for made in config["g"].limits] == ["window", "concurrency"]


def test_a_limit_without_a_name_is_called_after_its_kind() -> None:
    assert limit('{ window = 190, per = "1m" }').name == "window"


def test_a_gate_name_with_a_dot_is_written_in_quotes() -> None:
    assert list(parse('[gates."adobe.eu"]\nlimits = [{ concurrency = 1 }]')) == ["adobe.eu"]


def test_a_gate_may_have_a_store_of_its_own() -> None:
    text = 'store = "sqlite:///a.db"\n[gates.g]\nstore = "memory://"\nlimits = [{ concurrency = 1 }]'
    assert (parse(text).store, parse(text)["g"].store) == (f"sqlite:///{os.getcwd()}/a.db", "memory://")


def test_without_a_store_a_gate_is_in_memory() -> None:
    assert gate().store == "memory://"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('"closed"', "closed"),
        ('"open"', "open"),
        ("{ local = 0.02 }", "local:0.02"),
        ('"local:0.02"', "local:0.02"),
        ("{ local = 1 }", "local:1"),
    ],
)
def test_all_ways_to_say_what_happens_without_a_store_mean_one_thing(written: str, meant: str) -> None:
    assert gate(f"on_store_error = {written}").on_store_error == meant


def test_without_a_store_a_gate_is_closed_unless_told_otherwise() -> None:
    assert gate().on_store_error == "closed"


def test_a_share_below_one_for_the_only_class_is_a_safety_margin() -> None:
    assert gate("priorities = { every-worker = 0.9 }").priorities == {"every-worker": 0.9}


def test_classes_keep_the_order_in_which_they_are_written() -> None:
    spec = gate("[gates.g.priorities]\nlive = 1\nnormal = 0.8\nbatch = 0.8\nidle = 0.1")
    assert list((spec.priorities or {}).items()) == [("live", 1), ("normal", 0.8), ("batch", 0.8), ("idle", 0.1)]


def test_what_a_gate_did_not_say_is_left_to_the_gates_own_defaults() -> None:
    spec = gate()
    assert spec.arguments() == {
        "name": "g",
        "limits": [Window(190, per="1m")],
        "store": "memory://",
        "waiting": "line",
        "on_store_error": "closed",
    }


def test_what_a_gate_said_is_among_its_arguments() -> None:
    line = gate('patience = "2m"\nclaim = 0.5\npriorities = { live = 1, batch = 0.5 }').arguments()
    assert (line["patience"], line["claim"], line["priorities"]) == ("2m", 0.5, {"live": 1, "batch": 0.5})
    assert gate('waiting = "promise"\nmax_delay = "PT5M"').arguments()["max_delay"] == "PT5M"
    assert gate('waiting = "promise"\nmax_delay = 0').arguments()["max_delay"] == 0


def test_a_stores_password_is_not_in_the_repr() -> None:
    config = parse('store = "redis://:hunter2@cache/0"\n[gates.g]\nlimits = [{ concurrency = 1 }]')
    assert "hunter2" not in repr(config)
    assert "hunter2" not in repr(config["g"])


# Where it is read from


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path: Path, gate_name: str = "g", store: str | None = None) -> Path:
    top = "" if store is None else f'store = "{store}"\n'
    path.write_text(f"{top}[gates.{gate_name}]\nlimits = [{{ concurrency = 1 }}]\n", encoding="utf-8")
    return path


def test_a_path_goes_before_the_variable_and_the_variable_before_the_working_directory(here: Path) -> None:
    write(here / "headgate.toml", "c")
    named = write(here / "named.toml", "b")
    given = write(here / "given.toml", "a")
    assert list(load(given, env={"HEADGATE_CONFIG": str(named)})) == ["a"]
    assert list(load(str(given), env={})) == ["a"]
    assert list(load(env={"HEADGATE_CONFIG": str(named)})) == ["b"]
    assert list(load(env={})) == ["c"]
    assert list(load(env={"HEADGATE_CONFIG": ""})) == ["c"]
    assert load(env={}).path == "headgate.toml"


def test_the_environment_is_that_of_the_process_unless_told_otherwise(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_CONFIG", str(write(here / "named.toml", "b")))
    assert list(load()) == ["b"]


def test_the_variable_replaces_the_store_of_the_file_but_not_that_of_a_gate(here: Path) -> None:
    text = 'store = "sqlite:///a.db"\n[gates.a]\nlimits = [{ concurrency = 1 }]\n'
    text += '[gates.b]\nstore = "sqlite:///b.db"\nlimits = [{ concurrency = 1 }]\n'
    (here / "headgate.toml").write_text(text, encoding="utf-8")
    config = load(env={"HEADGATE_STORE": "memory://"})
    assert (config.store, config["a"].store, config["b"].store) == (
        "memory://",
        "memory://",
        f"sqlite:///{here}/b.db",
    )
    assert load(env={"HEADGATE_STORE": ""}).store == f"sqlite:///{here}/a.db"


def test_a_bad_store_in_the_variable_is_blamed_on_the_variable(here: Path) -> None:
    write(here / "headgate.toml")
    with pytest.raises(
        ConfigError, match="environment: HEADGATE_STORE: it is not a store's URL; write it like memory://"
    ):
        load(env={"HEADGATE_STORE": "localhost"})


def test_a_bad_store_in_the_file_is_refused_even_where_the_variable_replaces_it(here: Path) -> None:
    write(here / "headgate.toml", store="localhost")
    with pytest.raises(ConfigError, match=r"headgate\.toml: store: "):
        load(env={"HEADGATE_STORE": "memory://"})


def test_a_missing_file_says_where_it_looked_and_how_to_make_one(here: Path) -> None:
    with pytest.raises(ConfigError, match="headgate init") as caught:
        load(env={})
    assert str(here) in str(caught.value)
    assert "HEADGATE_CONFIG" in str(caught.value)
    with pytest.raises(ConfigError, match=r"nowhere\.toml: there is no such file \(looked as \$HEADGATE_CONFIG says\)"):
        load(env={"HEADGATE_CONFIG": "nowhere.toml"})
    with pytest.raises(ConfigError, match=r"other\.toml: there is no such file \(looked as the caller said\)"):
        load("other.toml", env={"HEADGATE_CONFIG": "nowhere.toml"})


def test_a_directory_is_no_configuration(here: Path) -> None:
    with pytest.raises(ConfigError, match="it cannot be read: Is a directory; it must be a file"):
        load(here, env={})


def test_a_name_that_no_file_can_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="it cannot be read"):
        load("a\0b", env={})


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(here: Path) -> None:
    write(here / "headgate.toml").chmod(0)
    with pytest.raises(ConfigError, match="Permission denied; it must be a file that this process may read"):
        load(env={})


def test_a_file_in_another_encoding_is_refused(here: Path) -> None:
    (here / "headgate.toml").write_bytes("# Zürich".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"headgate\.toml: it is not UTF-8 text .*; save it as UTF-8"):
        load(env={})


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(here: Path) -> None:
    (here / "headgate.toml").write_bytes(b"\xef\xbb\xbf[gates.g]\r\nlimits = [{ concurrency = 1 }]\r\n")
    assert list(load(env={})) == ["g"]


def test_a_gate_that_is_not_there_is_a_key_error_that_names_those_that_are() -> None:
    config = parse(DESIGN, file=FILE)
    with pytest.raises(
        UnknownGate, match=r"conf/headgate\.toml: gates: there is no gate 'adobo'; did you mean 'adobe'\?"
    ):
        config["adobo"]
    with pytest.raises(KeyError, match="sentinel-hub"):
        config["xyzzy"]
    assert "adobo" not in config
    assert config.get("adobo") is None
    assert isinstance(config, Config)
    assert len(config) == 3

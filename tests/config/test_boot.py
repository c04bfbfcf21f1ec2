"""Limits from the command line of a guard: what they mean, and that they take the place of the file's."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from headgate import Bucket, Concurrency, ConfigError, InvalidInput, Quota, Window
from headgate.config import file as config_file
from headgate.config.boot import read_limit, with_limits
from tests.support.guards import need_server


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("requests=1000/PT1M", Bucket(1000, per="1m", name="requests-1m")),
        ("pu=400000/PT744H", Bucket(400_000, per="744h", name="pu-31d", unit="pu")),
        ("pu=2.5/10s,burst=5,name=mine", Bucket(2.5, per="10s", burst=5, name="mine", unit="pu")),
        ("requests=190/1m,window,slack=2s", Window(190, per="1m", slack="2s", name="requests-1m")),
        ("requests=500/month", Quota(500, per="month", name="requests-month")),
        ("pu=5000/PT0S", Quota(5000, per="ever", name="pu-ever", unit="pu")),
        ("in_flight=150", Concurrency(150, name="in_flight")),
    ],
)
def test_a_limit_is_read_from_its_text(text: str, limit: object) -> None:
    assert read_limit(text) == limit


@pytest.mark.parametrize(
    "text",
    [
        *("", "requests", "requests=nan/1m", "requests=-5/1m", "requests=0/1m", "requests=many/1m", "=5/1m"),
        *(
            "requests=5/",
            "requests=5/soon",
            "requests=5/1m,leaky",
            "requests=5/1m,burst=x",
            "requests=5/1m,window,burst=3",
        ),
        *(
            "pu=5/PT0S,bucket",
            "requests=5,window",
            "requests=5/1m,bucket,window",
            "requests=5/1m,name=",
            "in_flight=1.5",
        ),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(InvalidInput):
        read_limit(text)


FILE = """
store = "sqlite:///hub.db"
[gates.sentinel-hub]
waiting = "promise"
priorities = { live = 1.0, batch = 0.8 }
limits = [{ bucket = 10, per = "1m", name = "requests" }]
[gates.other]
limits = [{ window = 1, per = "1s" }]
"""


def test_they_take_the_place_of_the_files_limits_and_of_nothing_else(tmp_path: Path) -> None:
    config = config_file.parse(FILE, file=str(tmp_path / "headgate.toml"))
    found = with_limits(config, ["sentinel-hub"], ["requests=1000/PT1M", "pu=1000/PT1M"], None)
    spec = found["sentinel-hub"]
    assert [limit.name for limit in spec.limits] == ["requests-1m", "pu-1m"]
    assert (spec.waiting, spec.priorities) == ("promise", {"live": 1.0, "batch": 0.8})
    assert found["other"] == config["other"]
    assert spec.store == config["sentinel-hub"].store


def test_a_gate_without_a_file_hands_out_delays_where_all_of_its_limits_are_rates() -> None:
    found = with_limits(None, ["hub"], ["requests=1000/PT1M"], None)
    assert found["hub"].waiting == "promise"
    assert with_limits(None, ["hub"], ["requests=1000/PT1M", "slots=5"], None)["hub"].waiting == "line"


def test_with_several_gates_a_limit_says_whose_it_is() -> None:
    found = with_limits(None, ["a", "b"], ["a:requests=1/1s", "b:requests=2/1s"], "memory://x")
    assert [spec.limits[0].limit for spec in found.values()] == [1, 2]
    assert found["a"].store == "memory://x"
    with pytest.raises(ConfigError, match="of which gate"):
        with_limits(None, ["a", "b"], ["requests=1/1s"], None)
    with pytest.raises(ConfigError, match="has no limits"):
        with_limits(None, ["a"], [], None)
    with pytest.raises(ConfigError, match="already"):
        with_limits(None, ["a"], ["requests=1/1s", "requests=2/1s"], None)
    with pytest.raises(ConfigError, match="name the gate"):
        with_limits(None, [], ["requests=1/1s"], None)


def test_a_guard_is_started_with_limits_alone_and_hands_out_delays(tmp_path: Path) -> None:
    need_server()
    limits = ["requests=2/PT1M", "pu=100/PT1M", "pu=400000/PT744H"]
    command = [
        sys.executable,
        "-m",
        "headgate",
        "serve",
        "--port",
        "0",
        "--gate",
        "sentinel-hub",
        "--store",
        "sqlite:///s.db",
    ]
    command += [word for limit in limits for word in ("--limit", limit)]
    guard = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert guard.stdout is not None
        line = guard.stdout.readline()
        assert "1 gate" in line
        assert "the command line" in line
        address = line.split(" on ")[1].split(",")[0]

        def reserve(units: float) -> dict[str, object]:
            request = urllib.request.Request(
                f"{address}/v1/gates/sentinel-hub/reserve",
                json.dumps({"cost": {"requests": 1, "pu": units}}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                found: dict[str, object] = json.load(answer)
            return found

        first, second = reserve(1), reserve(1)
        third = reserve(90)
        assert (first["delay"], first["limit"]) == (0, None)
        assert isinstance(third["delay"], int)
        assert third["delay"] > 10_000
        assert third["limit"] == "requests-1m", second
    finally:
        guard.terminate()
        guard.communicate(timeout=60)

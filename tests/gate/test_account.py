"""Limits that are fetched from a Sentinel Hub account: the starting balance, refreshes, failures, and the secret."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate import Bucket, Denied, Gate, Quota, load
from headgate.config.account import Account, AccountError, AccountSpec, merged, read_contract, read_token_counts
from headgate.errors import ConfigError
from headgate.gate.account import AccountFollower
from headgate.simulate.upstreams import UpstreamThread, start

SEED = """{
  "data" : {
    "REQUESTS" : {
      "PT1M" : 1000.0
    },
    "PROCESSING_UNITS" : {
      "PT1M" : 1000.0,
      "PT744H" : 400000.0
    }
  }
}"""
MINUTE, MONTH = 60_000_000, 744 * 3_600_000_000
SECRET = "do-not-tell-8473"
NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SH_ID", "me")
    (tmp_path / "secret").write_text(SECRET + "\n")


@pytest.fixture
def hub() -> Iterator[UpstreamThread]:
    policies = ["requests=1000/1m", "pu=1000/1m", "pu=400000/744h", "pu=50/PT0S"]
    with start("sentinel-hub", policies, client_id="me", client_secret=SECRET) as server:
        yield server


def spec_of(hub: UpstreamThread, tmp_path: Path, **more: Any) -> AccountSpec:
    return AccountSpec(hub.url, "me", "env:SH_ID", f"file:{tmp_path}/secret", timeout_s=5, **more)


def test_the_published_token_counts_are_read_as_they_stand() -> None:
    assert read_token_counts(json.loads(SEED)) == {
        ("requests", MINUTE): 1000,
        ("pu", MINUTE): 1000,
        ("pu", MONTH): 400_000,
    }


@pytest.mark.parametrize("garbage", [None, 3, [], {}, {"data": 5}, {"data": {"REQUESTS": {"soon": 5}}}, {"data": [{}]}])
def test_garbage_is_an_account_error(garbage: Any) -> None:
    with pytest.raises(AccountError):
        read_contract(garbage)
    if garbage != {"data": [{}]}:
        with pytest.raises(AccountError):
            read_token_counts(garbage)


def test_the_contract_becomes_limits_and_a_budget_is_a_quota_that_never_comes_back(
    hub: UpstreamThread, tmp_path: Path
) -> None:
    limits = merged([], Account(spec_of(hub, tmp_path)).fetch())
    assert limits == [
        Bucket(1000, per="1m", name="requests-1m"),
        Bucket(1000, per="1m", name="pu-1m", unit="pu"),
        Bucket(400_000, per="744h", name="pu-31d", unit="pu"),
        Quota(50, per="ever", name="pu-ever", unit="pu"),
    ]
    gate = Gate(f"hub-{next(NUMBERS)}", limits, waiting="promise")
    gate.reserve({"requests": 1, "pu": 45})
    with pytest.raises(Denied) as denied:
        gate.reserve({"requests": 1, "pu": 10})
    assert (denied.value.limit, denied.value.retry_after) == ("pu-ever", None)


def test_what_others_have_spent_is_the_starting_balance_and_a_refresh_gives_nothing_back(
    hub: UpstreamThread, tmp_path: Path
) -> None:
    hub.upstream.books.arrive({"requests": 600.0})  # another program's calls
    account = Account(spec_of(hub, tmp_path))
    gate = Gate(f"hub-{next(NUMBERS)}", merged([], account.fetch()), waiting="promise")
    follower = AccountFollower(gate, account)
    assert follower.refresh()
    used = gate.usage()["requests-1m"].used
    assert 500 < used <= 601
    assert gate.usage()["pu-31d"].used < 10
    gate.reserve({"requests": 300, "pu": 1})
    promised = gate.reserve({"requests": 500, "pu": 1})
    assert promised.delay > 10
    assert follower.refresh()  # the upstream has not counted these, and they are not forgotten
    assert gate.reserve({"requests": 100, "pu": 1}).delay > promised.delay


def test_a_smaller_contract_tightens_and_a_larger_one_changes_nothing(tmp_path: Path) -> None:
    with start("sentinel-hub", ["requests=800/1m", "pu=5000/1m"]) as hub:
        own = [Bucket(1000, per="1m", name="requests"), Bucket(1000, per="1m", name="pu", unit="pu")]
        account = Account(spec_of(hub, tmp_path))
        assert merged(own, account.fetch()) == own
        gate = Gate(f"hub-{next(NUMBERS)}", own)
        assert AccountFollower(gate, account).refresh()
        assert (gate.usage()["requests"].limit, gate.usage()["pu"].limit) == (800, 1000)
        assert gate.overrides()[0].reason == "the contract has 800"


@pytest.mark.parametrize(
    "trouble", [{"status": 404}, {"status": 500}, {"drop": True}, {"status": 200, "body": "nonsense"}, {"status": 302}]
)
def test_an_account_that_does_not_answer_changes_nothing(
    hub: UpstreamThread, tmp_path: Path, trouble: dict[str, Any]
) -> None:
    account = Account(spec_of(hub, tmp_path))
    gate = Gate(f"hub-{next(NUMBERS)}", merged([], account.fetch()), waiting="promise")
    gate.reserve({"requests": 7, "pu": 1})
    hub.inject(count=10, path="/aux/", **trouble)
    follower = AccountFollower(gate, account)
    assert not follower.refresh()
    assert follower.failures == 1
    assert gate.usage()["requests-1m"].used > 5
    assert gate.overrides() == []


def config_with(url: str, tmp_path: Path, limits: str = "") -> Path:
    file = tmp_path / "headgate.toml"
    account = f'{{ url = "{url}", id = "me", client_id = "env:SH_ID", client_secret = "file:secret", timeout = "2s" }}'
    file.write_text(f'store = "sqlite:///s.db"\n[gates.hub]\nwaiting = "promise"\naccount = {account}\n{limits}')
    return file


def test_a_gate_by_configuration_has_the_contracts_limits_and_the_files_beside_them(
    hub: UpstreamThread, tmp_path: Path
) -> None:
    with load(config_with(hub.url, tmp_path)) as gates:
        assert [limit.name for limit in gates["hub"].policy.limits] == ["requests-1m", "pu-1m", "pu-31d", "pu-ever"]
    own = 'limits = [{ bucket = 10, per = "1m", name = "mine" }]'
    with load(config_with(hub.url, tmp_path, own)) as gates:
        limits = {limit.name: limit.limit for limit in gates["hub"].policy.limits}
        assert limits == {"mine": 10, "pu-1m": 1000, "pu-31d": 400_000, "pu-ever": 50}


def test_without_an_account_that_answers_a_gate_has_its_own_limits_or_is_refused(tmp_path: Path) -> None:
    with (
        load(config_with("http://127.0.0.1:9", tmp_path)) as gates,
        pytest.raises(ConfigError, match="no limits beside"),
    ):
        gates["hub"]
    own = 'limits = [{ bucket = 10, per = "1m", name = "mine" }]'
    with load(config_with("http://127.0.0.1:9", tmp_path, own)) as gates:
        assert [limit.name for limit in gates["hub"].policy.limits] == ["mine"]


def test_a_secret_does_not_follow_a_redirect_and_is_nowhere_to_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with start("sentinel-hub") as elsewhere:
        with start("sentinel-hub", redirect=elsewhere.url + "/oauth/token") as hub:
            spec = spec_of(hub, tmp_path)
            with pytest.raises(AccountError, match=r"redirects to .*not followed") as refused:
                Account(spec).fetch()
        assert elsewhere.books()["tokens_issued"] == 0
    other = start("sentinel-hub", client_id="me", client_secret="another")
    with other as hub, pytest.raises(AccountError, match="401") as wrong:
        Account(spec_of(hub, tmp_path)).fetch()
    for text in (str(refused.value), str(wrong.value), repr(spec), caplog.text):
        assert SECRET not in text
    file = config_with("http://x", tmp_path)
    file.write_text(file.read_text().replace("file:secret", SECRET))
    with pytest.raises(ConfigError) as told:
        load(file)
    assert "env:SH_CLIENT_SECRET" in str(told.value)
    assert SECRET not in str(told.value)


def test_a_token_is_bought_once_and_renewed_before_it_ends(tmp_path: Path) -> None:
    now = 0.0
    with start("sentinel-hub", token_lasts=3600.0) as hub:
        account = Account(spec_of(hub, tmp_path), clock=lambda: now)
        for _ in range(3):
            account.fetch()
        assert hub.books()["tokens_issued"] == 1
        now = 3545.0
        account.fetch()
        assert hub.books()["tokens_issued"] == 2

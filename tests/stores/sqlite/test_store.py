"""The SQLite store: the suite, its URLs, its log. That it decides as memory does is in test_equality.py."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from headgate import Bucket, Concurrency, InvalidInput
from headgate.kernel.commands import Admit, Renew
from headgate.kernel.plan import Policy
from headgate.stores import open_store
from headgate.stores.sqlite import SqliteStore, open_url
from headgate.testing import FakeClock, StoreSuite
from tests.support.sqlite import ask
from tests.support.waiting import until

# --- the suite of all stores ------------------------------------------------------------------------------------------


class TestSuite(StoreSuite):
    def make_store(self, clock: FakeClock) -> Any:
        self.folder = mkdtemp()
        return SqliteStore(os.path.join(self.folder, "gates.db"), clock=clock)

    def another_process(self, store: Any) -> Any:
        return SqliteStore(os.path.join(self.folder, "gates.db"), clock=self.clock)

    def lose_state(self, store: Any, gate: str) -> None:
        connection = sqlite3.connect(os.path.join(self.folder, "gates.db"), isolation_level=None)
        connection.execute("DELETE FROM heads WHERE gate = ?", (gate,))
        connection.execute("DELETE FROM members WHERE space LIKE ?1 || '/%'", (gate,))
        connection.close()

    def teardown_method(self, method: Any = None) -> None:
        super().teardown_method(method)
        shutil.rmtree(self.folder)


# --- URLs -------------------------------------------------------------------------------------------------------------


def test_three_slashes_are_a_relative_path_and_four_an_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url, name in [("sqlite:///near.db", "near.db"), (f"sqlite:///{tmp_path}/far.db?synchronous=off", "far.db")]:
        store = open_url(url)
        store.decide(ask())
        assert (tmp_path / name).exists()
        assert store.url == url.replace("///near", f"///{tmp_path}/near")
        store.close()


def test_a_store_stays_with_its_file_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_url("sqlite:///here.db")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    store.close()
    store.decide(ask())
    store.close()
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite://gates.db", "three|four slashes"),
        ("sqlite:///", "names no file"),
        ("sqlite:///folder/", "names no file"),
        ("sqlite:///:memory:", "memory://"),
        ("sqlite:///x.db?synchronous=sometimes", r"synchronous=normal\|full\|off"),
        ("sqlite:///x.db?synchronous=", r"synchronous=normal\|full\|off"),
        ("sqlite:///x.db?timeout=5", r"timeout=5 is not known"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused_with_what_would_be_right(
    url: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=says):
        open_url(url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mode", "number"), [("normal", 1), ("full", 2), ("off", 0)])
def test_the_url_says_how_far_a_commit_goes(path: str, mode: str, number: int) -> None:
    store = open_url(f"sqlite:///{path}?synchronous={mode}")
    assert store._transactions.file is not None
    assert store._transactions.file.execute("PRAGMA synchronous").fetchone() == (number,)
    assert store._transactions.file.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()


def test_the_same_url_is_the_same_store_until_it_is_closed(path: str) -> None:
    url = f"sqlite:///{path}"
    store = open_store(url)
    assert open_store(url) is store
    store.close()
    again = open_store(url)
    assert again is not store
    again.close()


# --- the log ----------------------------------------------------------------------------------------------------------


def test_the_log_does_not_grow_for_ever(path: str, store: SqliteStore) -> None:
    policy = Policy("g", [Bucket(10**9, per="1h", slack=0, by="org")])
    plans = [policy.plan(1, {"org": f"org-{number}"}) for number in range(3000)]
    for _ in range(10):
        for plan in plans:
            store.decide(Admit(plan))
    assert Path(path + "-wal").stat().st_size < 40 * 2**20
    until(lambda: Path(path).stat().st_size > 300_000)


def test_a_heartbeat_renews_many_leases_in_one_command(store: SqliteStore) -> None:
    plan = Policy("g", [Concurrency(10**6, lease="10s")]).plan()
    grants = store.execute([Admit(plan, f"id-{number}", None, plan.lease) for number in range(1000)])
    leases = tuple(
        (plan, f"id-{number}", grant.at, plan.lease, grant.fence, None) for number, grant in enumerate(grants)
    )
    store.close()
    pulse = store.decide(Renew("g", leases))
    assert len(pulse.expires) == 1000
    assert not pulse.gone

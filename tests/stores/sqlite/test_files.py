"""Files of the SQLite store: of others, of older formats, damaged, deleted, put back."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate import Bucket, Concurrency, Gate, InvalidInput, Window
from headgate.errors import StoreFormatError
from headgate.events import Event, subscribe
from headgate.kernel.commands import Admit, Peek, Release, Stand
from headgate.kernel.model import Wait
from headgate.kernel.plan import Policy
from headgate.stores.sqlite import SqliteStore
from headgate.stores.sqlite.schema import APPLICATION_ID
from tests.support.sqlite import ask, check_integrity, rate

# --- files that are not ours ------------------------------------------------------------------------------------------


def other_application(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE customers (name)")
    connection.execute("INSERT INTO customers VALUES ('Anna')")
    connection.commit()
    connection.close()


def empty_tables(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE records (space, member, score, value)")
    connection.commit()
    connection.close()


def other_id(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA application_id = 77")
    connection.execute("PRAGMA user_version = 1")
    connection.close()


def in_wal_mode(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    other_application(path)


def newer(path: str) -> None:
    SqliteStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 3")
    connection.close()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: Path(path).write_text("rpm = 190\n" * 100), "not a SQLite database"),
        (lambda path: Path(path).write_bytes(os.urandom(5000)), "not a SQLite database"),
        (lambda path: Path(path).write_text("x"), "not a SQLite database"),
        (other_application, "another application.*customers"),
        (in_wal_mode, "another application.*customers"),
        (empty_tables, "another application.*records"),
        (other_id, "another application"),
        (newer, "format 3.*up to 2.*upgrade Headgate"),
    ],
    ids=["text", "garbage", "one letter", "other tables", "in WAL", "empty tables", "other id", "newer"],
)
def test_a_file_that_is_not_ours_is_refused_and_left_as_it_is(
    path: str, make: Callable[[str], object], says: str
) -> None:
    make(path)
    before = Path(path).read_bytes()
    with pytest.raises(StoreFormatError, match=says) as caught:
        SqliteStore(path)
    assert path in str(caught.value)
    assert Path(path).read_bytes() == before
    assert sorted(os.listdir(os.path.dirname(path))) == [os.path.basename(path)]


def test_an_empty_file_is_taken_as_new(path: str) -> None:
    Path(path).touch()
    store = SqliteStore(path)
    assert isinstance(store.decide(ask()), tuple)
    store.close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


def test_a_directory_is_refused_with_what_would_be_right(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"is a directory; a SQLite store is a file"):
        SqliteStore(str(tmp_path))


def test_a_damaged_file_is_told_and_not_made_worse(path: str) -> None:
    store = SqliteStore(path)
    policy = Policy("g", [Bucket(10**9, per="1h", slack=0, by="org")])
    store.execute([Admit(policy.plan(1, {"org": f"org-{number}"})) for number in range(2000)])
    store.close()
    damaged = bytearray(Path(path).read_bytes())
    damaged[2048:-2048] = os.urandom(len(damaged) - 4096)
    Path(path).write_bytes(damaged)

    def ask_all() -> None:
        for number in range(2000):
            store.decide(Admit(policy.plan(1, {"org": f"org-{number}"})))

    with pytest.raises(StoreFormatError, match=r"damaged|not as Headgate made it") as caught:
        ask_all()
    assert path in str(caught.value)
    store.close()


def test_a_record_that_is_not_json_is_told_with_its_text(path: str, store: SqliteStore) -> None:
    store.decide(ask())
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE heads SET value = '{oops' WHERE gate = 'g'")
    connection.close()
    with pytest.raises(StoreFormatError, match=r"damaged: a record holds '\{oops'.*backup"):
        store.decide(ask())


def in_format_1(path: str) -> None:
    """As the first format has it: the heads among all other records."""
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in (
        "BEGIN",
        "DROP TRIGGER counted_in",
        "DROP TRIGGER counted_out",
        "ALTER TABLE members RENAME TO records",
        "INSERT INTO records SELECT gate, '', NULL, value FROM heads",
        "DROP TABLE heads",
        "CREATE TRIGGER counted_in AFTER INSERT ON records WHEN instr(new.space, '/#') BEGIN "
        "INSERT INTO records VALUES (replace(new.space, '/#', '/!'), '', NULL, 1) "
        "ON CONFLICT (space, member) DO UPDATE SET value = value + 1; END",
        "CREATE TRIGGER counted_out AFTER DELETE ON records WHEN instr(old.space, '/#') BEGIN "
        "UPDATE records SET value = value - 1 WHERE space = replace(old.space, '/#', '/!') AND member = ''; END",
        "PRAGMA user_version = 1",
        "COMMIT",
    ):
        connection.execute(statement)
    connection.close()


def test_a_file_of_the_first_format_opens_and_loses_nothing(path: str) -> None:
    slots = Policy("slots", [Concurrency(2, lease="1h")])
    keyed = Policy("by.org", [Bucket(1, per="1h", slack=0, by="org")])
    others = [Policy(f"gate{number}", [Bucket(1, per="1h", slack=0)]) for number in range(3)]
    mine = Stand(slots.plan(), "mine", None, slots.plan().lease, remembered=True)
    of_org = Admit(keyed.plan(1, {"org": "acme"}))
    first = SqliteStore(path)
    granted = first.decide(mine)
    for command in (of_org, *(Admit(policy.plan()) for policy in others)):
        assert isinstance(first.decide(command), tuple)
    first.close()
    in_format_1(path)

    old = sqlite3.connect(path)
    store = SqliteStore(path)
    with pytest.raises(sqlite3.OperationalError, match="no such table"):  # who has it open as it was is not misled
        old.execute("SELECT value FROM records")
    old.close()
    assert store.decide(mine) == granted
    for command in (of_org, *(Admit(policy.plan()) for policy in others)):
        assert isinstance(store.decide(command), Wait)
    numbered = Stand(slots.plan(), "guard-000000000007", None, slots.plan().lease, remembered=True)
    assert store.decide(numbered).fence > granted.fence
    assert isinstance(store.decide(Admit(slots.plan(), "third", None, 1)), Wait)
    assert not store.decide(Release(slots, "mine", "ok")).lost
    assert store.decide(Release(slots, "mine", "ok")).lost
    store.close()
    check_integrity(path)
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    connection.close()


def test_a_guards_permits_are_found_again_by_their_ids(path: str, store: SqliteStore) -> None:
    slots = Policy("slots", [Concurrency(1000, lease="1h")])
    plan = slots.plan()
    asks = [Stand(plan, f"guard-{number:012d}", None, plan.lease, remembered=True) for number in range(300)]
    granted = [store.decide(asked) for asked in asks[:100]] + store.execute(asks[100:])
    store.close()
    assert store.execute(asks) == granted
    ended = [store.decide(Release(slots, asked.id, "ok")).lost for asked in asks[::7]]
    store.close()
    again = [reply.lost for reply in store.execute([Release(slots, asked.id, "ok") for asked in asks])]
    assert not any(ended)
    assert again == [not number % 7 for number in range(300)]
    check_integrity(path)


# --- a file that goes away --------------------------------------------------------------------------------------------


def remove(path: str) -> None:
    for end in ("", "-wal", "-shm"):
        Path(path + end).unlink(missing_ok=True)


def test_a_file_that_was_deleted_is_made_anew_and_the_loss_is_noticed(path: str) -> None:
    store = SqliteStore(path)
    gate = Gate("g", [Window(10, per="1h", slack=0, name="w")], store=store)
    for _ in range(5):
        assert gate.try_acquire() is not None
    remove(path)
    time.sleep(0.3)
    # All is taken to be used up, and comes back in proportion to the time: not 10 at once, not even 5.
    assert gate.try_acquire() is None
    assert gate.usage()["w"].available < 1
    assert os.path.exists(path)
    store.close()


def test_a_file_that_others_have_made_anew_and_filled_is_noticed(path: str) -> None:
    limits = [Concurrency(3, lease="1h", name="slots")]
    store = SqliteStore(path)
    held = Gate("g", limits, store=store).acquire(holder="me")
    remove(path)
    other = SqliteStore(path)
    fresh = Gate("g", limits, store=other)
    for _ in range(40):  # far more than the process that holds a slot has seen
        fresh.acquire().release()
    time.sleep(0.3)
    told: list[Event] = []
    stop = subscribe(told.append)
    held.renew()
    stop()
    assert [event.kind for event in told] == ["state_lost"]
    assert [holder.holder for holder in fresh.holders()] == ["me"]
    assert held.release() is True
    store.close(), other.close()


def test_a_file_that_was_put_back_to_an_older_state_is_noticed(path: str, tmp_path: Path) -> None:
    store = SqliteStore(path)
    gate = Gate("g", [Window(10, per="1h", slack=0, name="w")], store=store)
    assert gate.try_acquire() is not None
    store.close()
    shutil.copy(path, tmp_path / "backup.db")
    for _ in range(5):
        assert gate.try_acquire() is not None
    remove(path)
    shutil.copy(tmp_path / "backup.db", path)
    time.sleep(0.3)
    assert gate.try_acquire() is None
    store.close()
    check_integrity(path)


def test_a_backup_that_is_restored_in_place_is_noticed(path: str, tmp_path: Path, store: SqliteStore) -> None:
    gate = Gate("g", [Window(10, per="1h", slack=0, name="w")], store=store)
    assert gate.try_acquire() is not None
    ours, copy = sqlite3.connect(path), sqlite3.connect(tmp_path / "backup.db")
    ours.backup(copy)
    for _ in range(5):
        assert gate.try_acquire() is not None
    copy.backup(ours)
    ours.close()
    copy.close()
    assert gate.try_acquire() is None


def test_nobody_closes_a_file_in_a_way_that_takes_the_log_of_its_successor(path: str) -> None:
    first = SqliteStore(path)
    first.decide(ask())
    remove(path)
    second = SqliteStore(path)
    for _ in range(50):
        second.decide(ask())
    time.sleep(0.3)
    first.decide(ask())
    first.close()
    third = SqliteStore(path)
    assert third.decide(Peek(rate())).seq >= 51
    second.close()
    third.close()
    check_integrity(path)

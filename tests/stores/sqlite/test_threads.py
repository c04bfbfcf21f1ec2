"""Many threads on one SQLite store, beside others who write."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headgate import Concurrency, InvalidInput, StoreUnavailable, Window
from headgate.kernel.commands import Admit, Command, Peek
from headgate.kernel.plan import Policy
from headgate.stores.sqlite import SqliteStore
from tests.support.sqlite import ask, rate, writing
from tests.support.timing import DECIDES_IN_TIME
from tests.support.waiting import until


@pytest.mark.usefixtures("patient")
def test_threads_that_wait_for_the_file_are_decided_in_one_transaction(path: str, store: SqliteStore) -> None:
    store.decide(ask())
    granted: list[Any] = []
    threads = [threading.Thread(target=lambda: granted.append(store.decide(ask()))) for _ in range(8)]
    with writing(path):
        for thread in threads:
            thread.start()
        until(lambda: len(store._transactions.queue) == 8)
    for thread in threads:
        thread.join()
    # One transaction has one time; and each has a number of its own.
    assert len({grant.at for grant in granted}) == 1
    assert len({grant.fence for grant in granted}) == 8


def test_threads_together_get_no_more_than_the_limit(store: SqliteStore) -> None:
    command = Admit(Policy("g", [Window(500, per="1h", slack=0)]).plan())
    counts: list[int] = []

    def work() -> None:
        counts.append(sum(isinstance(store.decide(command), tuple) for _ in range(100)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 500


class Broken(Command):
    """A bug."""

    __slots__ = ()

    def __init__(self) -> None:
        self.gate = "g"

    def apply(self, now: int, records: Any) -> Any:
        records.head.seq = 10**6
        raise ZeroDivisionError("a bug")


@pytest.mark.usefixtures("patient")
def test_a_bug_of_one_caller_is_its_own_and_leaves_nothing(path: str, store: SqliteStore) -> None:
    store.decide(ask())
    replies: list[Any] = []

    def call(command: Command) -> None:
        try:
            replies.append(store.decide(command))
        except ZeroDivisionError:
            replies.append("bug")

    threads = [threading.Thread(target=call, args=(command,)) for command in (ask(), Broken(), ask(), Broken())]
    with writing(path):
        for at, thread in enumerate(threads):
            thread.start()
            until(lambda at=at: len(store._transactions.queue) == at + 1)
    for thread in threads:
        thread.join()
    assert replies.count("bug") == 2
    assert sorted(reply.fence for reply in replies if reply != "bug") == [2, 3]
    with pytest.raises(ZeroDivisionError):
        store.decide(Broken())
    assert store.decide(ask())[2] == 4


def test_a_look_does_not_wait_for_those_who_write_and_writes_nothing(path: str, store: SqliteStore) -> None:
    policy = Policy("g", [Window(5, per="1s"), Concurrency(3, lease="1s")])
    plan = policy.plan()
    store.decide(Admit(plan, "one", None, plan.lease))
    store.close()
    with writing(path) as other:
        before = other.execute("PRAGMA data_version").fetchone()
        snapshot = store.decide(Peek(policy, leases=True))
        assert [row.id for row in snapshot.leases] == ["one"]
        assert other.execute("PRAGMA data_version").fetchone() == before
    assert Path(path + "-wal").stat().st_size == 0


def test_a_look_at_a_gate_that_nobody_used_makes_no_record(path: str, store: SqliteStore) -> None:
    store.decide(Peek(rate()))
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT (SELECT count(*) FROM heads) + (SELECT count(*) FROM members)").fetchone() == (0,)
    connection.close()


@DECIDES_IN_TIME
def test_who_holds_the_file_and_does_nothing_is_told_within_a_moment_and_later_all_is_well(
    path: str, store: SqliteStore
) -> None:
    store.decide(ask())
    with writing(path):
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="held the write lock for 200 ms") as caught:
            store.decide(ask())
        assert 0.2 < time.monotonic() - began < 2.0
        assert path in str(caught.value)
    assert store.decide(ask())[2] == 2


@DECIDES_IN_TIME
def test_all_who_wait_are_told_together(path: str, store: SqliteStore) -> None:
    store.decide(ask())
    errors: list[str] = []

    def call() -> None:
        try:
            store.decide(ask())
        except StoreUnavailable as error:
            errors.append(str(error))

    threads = [threading.Thread(target=call) for _ in range(8)]
    with writing(path):
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - began < 1.5, "each has waited for itself"
    assert len(errors) == 8
    assert store.decide(ask())[2] == 2


def test_others_who_write_are_waited_for(path: str, store: SqliteStore) -> None:
    store.decide(ask())
    stop = threading.Event()

    def hog() -> None:
        # Nearly always in a transaction, and for longer than one is waited for, but it gets on.
        connection = sqlite3.connect(path, isolation_level=None)
        for number in range(14):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("REPLACE INTO meta VALUES ('test', ?)", (number,))
            stop.wait(0.05)
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE") if number < 13 else None
            connection.execute("COMMIT") if number < 13 else None
        connection.close()

    thread = threading.Thread(target=hog)
    thread.start()
    time.sleep(0.02)
    granted = [store.decide(ask()) for _ in range(3)]
    thread.join()
    assert [grant.fence for grant in granted] == [2, 3, 4]


def test_after_close_the_next_call_opens_the_file_again(store: SqliteStore) -> None:
    store.decide(ask())
    store.close()
    store.close()
    assert store.decide(ask())[2] == 2


def test_an_error_of_the_file_is_over_when_the_file_is_well(path: str, store: SqliteStore) -> None:
    store.decide(ask())
    store.close()
    shutil.move(path, path + ".away")
    os.mkdir(path)
    with pytest.raises(InvalidInput, match="is a directory"):
        store.decide(ask())
    os.rmdir(path)
    shutil.move(path + ".away", path)
    assert store.decide(ask())[2] == 2


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_after_a_batch_as_it_was_before(store: SqliteStore, collects: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        store.execute([ask() for _ in range(3)])
        assert gc.isenabled() is collects
    finally:
        (gc.enable if before else gc.disable)()

"""Another user of the machine wants to read the state, or have it remove files that are not its own."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from headgate import Concurrency, Gate
from headgate.sqlite_file import WakeSocket, wake_folder
from headgate.stores.sqlite import SqliteStore
from tests.support.waiting import until


def waker(path: Path, name: str = "mine") -> WakeSocket:
    return WakeSocket(str(path), name, lambda message: None, lambda: 0)


def mode_of(path: Path | str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def dead_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(path))


def test_a_link_in_the_place_of_the_wake_folder_costs_the_victim_no_file(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "letter.sock").write_text("dear")
    dead_socket(precious / "other.sock")
    os.symlink(precious, wake_folder(str(tmp_path / "gates.db")))
    mine = waker(tmp_path / "gates.db")
    mine.open()
    mine.send("letter", b"x")
    mine.send("other", b"x")
    mine.close()
    assert sorted(os.listdir(precious)) == ["letter.sock", "other.sock"]


def test_only_sockets_are_removed_from_the_wake_folder(tmp_path: Path) -> None:
    folder = Path(wake_folder(str(tmp_path / "gates.db")))
    folder.mkdir(mode=0o700)
    (folder / "letter.sock").write_text("dear")
    dead_socket(folder / "dead.sock")
    mine = waker(tmp_path / "gates.db")
    mine.open()
    mine.send("letter", b"x")
    mine.close()
    assert os.listdir(folder) == ["letter.sock"]


def test_no_name_from_a_database_leads_out_of_the_wake_folder(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as outside:
        outside.bind(str(tmp_path / "outside.sock"))
        outside.setblocking(False)
        mine = waker(tmp_path / "gates.db")
        mine.open()
        for name in ("../outside", str(tmp_path / "outside"), "", ".", "..", "x\0y", "./../outside"):
            mine.send(name, b"x")
            mine.add_name(name)
            mine.remove_name(name)
        with pytest.raises(BlockingIOError):
            outside.recv(1)
        mine.close()
    assert sorted(os.listdir(tmp_path)) == ["outside.sock"]


def test_the_folder_and_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    was = os.umask(0o002)
    try:
        path = tmp_path / "gates.db"
        gate = Gate("g", [Concurrency(1, lease="1h")], store=SqliteStore(str(path)))
        held = gate.acquire()
        waiter = threading.Thread(target=lambda: gate.acquire(timeout=60).release())
        waiter.start()
        until(lambda: os.path.isdir(wake_folder(str(path))))
        assert mode_of(wake_folder(str(path))) == 0o700
        assert {name: mode_of(tmp_path / name) for name in os.listdir(tmp_path) if name.startswith("gates.db")} == {
            name: 0o700 if name.endswith("-wake") else 0o600
            for name in os.listdir(tmp_path)
            if name.startswith("gates.db")
        }
        held.release()
        waiter.join(60)
        gate.close()
    finally:
        os.umask(was)


def test_a_folder_that_a_group_may_write_to_is_closed_to_it(tmp_path: Path) -> None:
    folder = Path(wake_folder(str(tmp_path / "gates.db")))
    folder.mkdir()
    folder.chmod(0o777)
    mine = waker(tmp_path / "gates.db")
    mine.open()
    assert mode_of(folder) == 0o700
    mine.close()

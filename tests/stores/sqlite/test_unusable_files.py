"""Files that the SQLite store cannot use: missing directories, rights, full and read-only disks."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headgate import Bucket, StoreUnavailable
from headgate.kernel.commands import Admit, Peek
from headgate.kernel.plan import Policy
from headgate.stores.sqlite import SqliteStore
from tests.support.sqlite import ask, check_integrity, python, told


def test_a_missing_directory_is_told_when_somebody_asks_and_may_come_later(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "later" / "gates.db"))
    with pytest.raises(StoreUnavailable, match=r"the directory .*/later does not exist; make it"):
        store.decide(ask())
    (tmp_path / "later").mkdir()
    assert isinstance(store.decide(ask()), tuple)
    store.close()


AS_NOBODY = """
    import os, sys
    from headgate import StoreUnavailable
    from headgate.kernel.commands import Admit
    from headgate.limits import Bucket
    from headgate.kernel.plan import Policy
    from headgate.stores.sqlite import SqliteStore
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    store = SqliteStore(sys.argv[1])
    try:
        print(store.decide(Admit(Policy("g", [Bucket(5, per="1s")]).plan())))
    except StoreUnavailable as error:
        print(error)
    """


@pytest.mark.parametrize(
    ("mode", "folder_mode", "says"),
    [
        (0o444, 0o777, "cannot be read and written by this user; change its owner or mode"),
        (0o000, 0o777, "cannot be read and written by this user"),
        (0o666, 0o555, "cannot write to .*, where SQLite keeps its log"),
        (None, 0o555, "cannot write to .*, where SQLite keeps its log"),
    ],
    ids=["read-only file", "unreadable file", "read-only directory", "no file, read-only directory"],
)
def test_a_file_that_may_not_be_written_is_told_with_what_would_be_right(
    mode: int | None, folder_mode: int, says: str
) -> None:
    with TemporaryDirectory(dir="/tmp") as folder:  # pytest's own directories are closed to others
        path = os.path.join(folder, "gates.db")
        if mode is not None:
            store = SqliteStore(path)
            store.decide(ask())
            store.close()
            os.chmod(path, mode)
        os.chmod(folder, folder_mode)
        before = Path(path).read_bytes() if mode is not None and os.getuid() == 0 else b""
        printed = told(python(AS_NOBODY, path))
        os.chmod(folder, 0o777)
        assert re.search(says, printed), printed
        assert path in printed
        if before:
            assert Path(path).read_bytes() == before


FULL_DISK = """
    import resource, sys
    from headgate import StoreUnavailable
    from headgate.kernel.commands import Admit, Peek
    from headgate.limits import Bucket
    from headgate.kernel.plan import Policy
    from headgate.stores.sqlite import SqliteStore
    store = SqliteStore(sys.argv[1])
    policy = Policy("g", [Bucket(10**9, per="1h", slack=0, by="org")])
    plans = [policy.plan(1, {"org": f"org-{number}"}) for number in range(3000)]
    granted = 0
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
    try:
        for plan in plans:
            granted += isinstance(store.decide(Admit(plan)), tuple)
    except StoreUnavailable as error:
        print(error)
    try:
        granted += isinstance(store.decide(Admit(plans[0])), tuple)
    except StoreUnavailable as error:
        pass
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(granted)
    print(store.decide(Peek(policy)).seq)
    print(isinstance(store.decide(Admit(plans[0])), tuple))
    """


def test_when_a_file_cannot_grow_nothing_is_half_written_and_it_goes_on_later(path: str) -> None:
    error, granted, seq, again = told(python(FULL_DISK, path)).splitlines()
    assert path in error
    assert re.search("nothing was changed", error)
    assert int(granted) == int(seq) > 10
    assert again == "True"
    check_integrity(path)


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    with small_disk(tmp_path, "600k") as disk:
        store = SqliteStore(str(disk / "gates.db"))
        policy = Policy("g", [Bucket(10**9, per="1h", slack=0, by="org")])
        granted = 0

        def fill() -> None:
            nonlocal granted
            for number in range(10_000):
                store.decide(Admit(policy.plan(1, {"org": f"org-{number}"})))
                granted += 1

        with pytest.raises(StoreUnavailable, match=r"the disk is full; nothing was changed\. Free some space"):
            fill()
        assert store.decide(Peek(policy)).seq == granted > 10
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert isinstance(store.decide(Admit(policy.plan(1, {"org": "last"}))), tuple)
        store.close()
        check_integrity(str(disk / "gates.db"))


def test_a_read_only_file_system_is_told(tmp_path: Path) -> None:
    with small_disk(tmp_path, "2m") as disk:
        store = SqliteStore(str(disk / "gates.db"))
        store.decide(ask())
        store.close()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(StoreUnavailable, match=r"cannot write|read and written|mounted read-only"):
            store.decide(ask())
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        assert isinstance(store.decide(ask()), tuple)
        store.close()

"""How a process notifies another one that has the same database file open: a datagram to a socket beside the file.

Each process that waits has one socket, `<file>-wake/<name>.sock`, and a daemon thread that sleeps in `recv`. A datagram to
a process that is gone costs nothing and is no error: users must not rely on its arrival.

The folder must be a directory of this user that no other may write to. Where it is not (a link that somebody else has put
there), nothing is made or removed in it, and waiters live by their timers.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import threading
from contextlib import suppress
from hashlib import blake2b
from random import sample

from ..background import is_ending, start_daemon

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds without a datagram after which the thread ends and the socket is removed, if no waiter is left.
IDLE = 30.0

#: What fits into a socket's address everywhere (104 bytes on macOS, 108 on Linux).
_LONGEST = 100

#: How many sockets are probed when one is made, is idle or is closed, to remove those of processes that were killed.
_SWEPT = 64


#: A name comes from the database, and must not lead out of the folder.
_NAME = re.compile(r"[^/\0.][^/\0]*").fullmatch


def wake_folder(path: str) -> str:
    """Where the sockets of a database are: beside it; in the temp directory where its path is too long for an address."""
    beside = f"{path}-wake"
    if len(os.fsencode(beside)) + len("/0123456789ab.sock") <= _LONGEST:
        return beside
    import tempfile

    name = blake2b(os.fsencode(os.path.realpath(path)), digest_size=8).hexdigest()
    return os.path.join(tempfile.gettempdir(), f"headgate-{name}-wake")


class WakeSocket:
    """Sends and receives datagrams for one process, whose `name` no other process has.

    `on_message` is called with each datagram, in the thread that receives them. The socket stays for as long as `waiters`
    returns more than 0.
    """

    def __init__(self, path: str, name: str, on_message: Callable[[bytes], object], waiters: Callable[[], int]) -> None:
        self._folder = wake_folder(path)
        self._name = name
        self._on_message = on_message
        self._waiters = waiters
        self._lock = threading.Lock()
        self._sender: socket.socket | None = None
        self._receiver: socket.socket | None = None

    def _address(self, name: str) -> str:
        return os.path.join(self._folder, f"{name}.sock")

    # --- sending ------------------------------------------------------------------------------------------------

    def send(self, name: str, message: bytes) -> bool:
        """Send a datagram to the process of that name. Never blocks, never fails.

        Returns False where there surely is no such process; True does not mean that it was read.
        """
        if not _NAME(name):
            return False
        address = self._address(name)
        try:
            # A local: another thread may close it meanwhile.
            sender = self._sender or self._new_sender()
            sender.sendto(message, address)
        except ConnectionRefusedError:
            self._remove(address)  # its process was killed
            return False
        except FileNotFoundError:
            return False  # it waits no more
        except OSError:
            pass  # it has so much to read that it will look anyway
        return True

    def _new_sender(self) -> socket.socket:
        with self._lock:  # of two threads that send their first one, one would leave its socket open
            if (sender := self._sender) is None:
                self._sender = sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                sender.setblocking(False)
            return sender

    # --- receiving ----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the socket, if there is none yet: before another process has a reason to send.

        Where there can be none (a read-only directory), waiters live by their timers.
        """
        if self._receiver is not None or is_ending():
            return
        with self._lock:
            if self._receiver is not None:
                return
            self._receiver = receiver = self._bound()
            if receiver is not None:
                self._sweep()
                start_daemon("headgate-wake", self._run, receiver)

    def _bound(self) -> socket.socket | None:
        for _ in range(3):
            receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                with suppress(FileExistsError):
                    os.mkdir(self._folder, 0o700)
                if not self._is_ours():
                    receiver.close()
                    break
                receiver.bind(self._address(self._name))
                receiver.settimeout(IDLE)
                return receiver
            except FileNotFoundError:
                receiver.close()  # another process has just removed the folder, as the last one in it: again
            except OSError:
                receiver.close()
                break
        return None

    def _is_ours(self) -> bool:
        """Whether the folder is a directory of this user that no other may write to. Raises OSError where there is none."""
        status = os.lstat(self._folder)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return False
        if status.st_mode & 0o022:  # as versions before made it, under a umask that lets a group write
            os.chmod(self._folder, 0o700)
        return True

    def _remove(self, path: str) -> None:
        """Remove a socket, or a link to one, from the folder; nothing else, and from no other folder."""
        with suppress(OSError):
            mode = os.lstat(path).st_mode
            if (stat.S_ISSOCK(mode) or stat.S_ISLNK(mode)) and self._is_ours():
                os.unlink(path)

    def _run(self, receiver: socket.socket) -> None:
        with receiver:
            while True:
                try:
                    message = receiver.recv(4096)
                except TimeoutError:
                    self._sweep()
                    if self._retire(receiver):
                        return
                    continue
                except OSError:
                    return
                if self._receiver is not receiver:
                    return
                self._on_message(message)

    def _retire(self, receiver: socket.socket) -> bool:
        """Remove the socket unless there are waiters. Returns whether the thread is to end."""
        with self._lock:
            if self._waiters() and self._receiver is receiver:
                return False
            if self._receiver is receiver:
                self._receiver = None
                self._remove(self._address(self._name))
        return True

    def _sweep(self) -> None:
        """Remove sockets of processes that were killed: they refuse a connection."""
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            mine = f"{self._name}.sock"
            others = [name for name in os.listdir(self._folder) if name != mine]
            for name in sample(others, min(len(others), _SWEPT)):  # not always the same: those may all be alive
                address = os.path.join(self._folder, name)
                try:
                    probe.connect(address)
                except (ConnectionRefusedError, FileNotFoundError):  # the second: a link to a socket that is gone
                    self._remove(address)
                except OSError:
                    pass

    def add_name(self, name: str) -> None:
        """Receive what is sent to another name as well: it becomes a link to this socket."""
        with self._lock:
            if self._receiver is None or not _NAME(name):
                return
            beside = self._address(f"{self._name}-{name}")
            with suppress(OSError):
                os.symlink(os.path.basename(self._address(self._name)), beside)
                os.replace(beside, self._address(name))

    def remove_name(self, name: str) -> None:
        if not _NAME(name):
            return
        address = self._address(name)
        with suppress(OSError):
            if os.readlink(address) == os.path.basename(self._address(self._name)):
                self._remove(address)

    # --- ending -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        with self._lock:
            receiver, self._receiver = self._receiver, None
            sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
        if receiver is not None:
            # The thread sleeps in `recv`, and closing does not wake it: an empty message does.
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as knock:
                knock.setblocking(False)
                knock.sendto(b"", self._address(self._name))
            self._remove(self._address(self._name))
            self._sweep()
            with suppress(OSError):
                os.rmdir(self._folder)  # fails unless this process was the last one

    def abandon(self) -> None:
        """In the child of a fork: the sockets are the parent's, and so are their names."""
        for inherited in (self._sender, self._receiver):
            if inherited is not None:
                inherited.close()
        self._sender = self._receiver = None

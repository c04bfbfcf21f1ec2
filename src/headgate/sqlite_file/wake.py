"""How a process that decides tells another that one of its tickets was called: a datagram to a socket beside the file.

Each process that waits has one socket, `<file>-wake/<session>.sock`, and a daemon thread that sleeps in `recv`. Telling
somebody who is not there costs nothing and is no error: a ticket that is not taken is given back by itself.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from hashlib import blake2b

from ..kernel.model import Wake

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..stores.base import Listeners

#: Seconds without anybody waiting after which the thread ends and the socket goes.
IDLE = 30.0

#: What fits into a socket's address everywhere (104 bytes on macOS, 108 on Linux).
_LONGEST = 100

#: How many sockets of others are looked at, to clear away those of processes that were killed.
_SWEPT = 64


def wake_folder(path: str) -> str:
    """Where the sockets of a database are: beside it; in the temp directory where its path is too long for an address."""
    beside = f"{path}-wake"
    if len(os.fsencode(beside)) + len("/0123456789ab.sock") <= _LONGEST:
        return beside
    import tempfile

    name = blake2b(os.fsencode(os.path.realpath(path)), digest_size=8).hexdigest()
    return os.path.join(tempfile.gettempdir(), f"headgate-{name}-wake")


class Waker:
    """Sends and receives wakes for one process."""

    def __init__(self, path: str, session: str, listeners: Listeners) -> None:
        self._folder = wake_folder(path)
        self._session = session
        self._listeners = listeners
        self._lock = threading.Lock()
        self._sender: socket.socket | None = None
        self._receiver: socket.socket | None = None

    # --- sending ------------------------------------------------------------------------------------------------

    def tell(self, wake: Wake) -> None:
        """Wake a waiter, here or elsewhere. Never waits, never fails."""
        if self._listeners.tell(wake) or wake.session == self._session:
            return
        address = self._address(wake.session)
        message = f"{wake.ticket} {'' if wake.delay is None else wake.delay} {wake.session}".encode()
        try:
            if self._sender is None:
                self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._sender.setblocking(False)
            self._sender.sendto(message, address)
        except ConnectionRefusedError:
            _remove(address)  # its process was killed
        except OSError:
            pass  # it waits no more, or has so much to read that it will look anyway

    def _address(self, session: str) -> str:
        return os.path.join(self._folder, f"{session}.sock")

    # --- receiving ----------------------------------------------------------------------------------------------

    def attend(self) -> None:
        """Have the socket there before a ticket can be called. Where there can be none, waiters live by their timers."""
        if self._receiver is not None:
            return
        with self._lock:
            if self._receiver is not None:
                return
            self._receiver = receiver = self._bound()
            if receiver is not None:
                self._sweep()
                threading.Thread(target=self._run, args=(receiver,), name="headgate-wake", daemon=True).start()

    def _bound(self) -> socket.socket | None:
        for _ in range(3):
            receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                os.makedirs(self._folder, exist_ok=True)
                receiver.bind(self._address(self._session))
                receiver.settimeout(IDLE)
                return receiver
            except FileNotFoundError:
                receiver.close()  # the last one there has just removed the folder: again
            except OSError:
                receiver.close()
                break
        return None

    def _run(self, receiver: socket.socket) -> None:
        with receiver:
            while True:
                try:
                    message = receiver.recv(4096)
                except TimeoutError:
                    if self._retire(receiver):
                        return
                    continue
                except OSError:
                    return
                if self._receiver is not receiver:
                    return
                with suppress(ValueError):  # whoever wrote that is none of us
                    ticket, delay, session = message.decode().split(" ")
                    self._listeners.tell(Wake(session, ticket, int(delay) if delay else None))

    def _retire(self, receiver: socket.socket) -> bool:
        """Nobody has been woken for long: go, unless somebody still waits."""
        with self._lock:
            if len(self._listeners) and self._receiver is receiver:
                return False
            if self._receiver is receiver:
                self._receiver = None
                _remove(self._address(self._session))
        return True

    def _sweep(self) -> None:
        """Sockets of processes that were killed answer no more, and are removed."""
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            mine = f"{self._session}.sock"
            for name in [name for name in os.listdir(self._folder) if name != mine][:_SWEPT]:
                address = os.path.join(self._folder, name)
                try:
                    probe.connect(address)
                except (ConnectionRefusedError, FileNotFoundError):  # or it led to one that is gone
                    _remove(address)
                except OSError:
                    pass

    def adopt(self, session: str) -> None:
        """What is sent to another process comes here: its name leads to this socket."""
        with self._lock:
            if self._receiver is None:
                return
            beside = self._address(f"{self._session}-{session}")
            with suppress(OSError):
                os.symlink(os.path.basename(self._address(self._session)), beside)
                os.replace(beside, self._address(session))

    def disown(self, session: str) -> None:
        address = self._address(session)
        with suppress(OSError):
            if os.readlink(address) == os.path.basename(self._address(self._session)):
                _remove(address)

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
                knock.sendto(b"", self._address(self._session))
            _remove(self._address(self._session))
            with suppress(OSError):
                os.rmdir(self._folder)  # the last one turns off the light

    def abandon(self) -> None:
        """After a fork: the sockets are the parent's, and so are their names."""
        for inherited in (self._sender, self._receiver):
            if inherited is not None:
                inherited.close()
        self._sender = self._receiver = None


def _remove(path: str) -> None:
    with suppress(OSError):
        os.unlink(path)

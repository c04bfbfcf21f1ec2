"""A real PostgreSQL server for tests, on a free port of its own, where `initdb` is installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.servers import LOOPBACK, STARTING, NoServer, free_port

HOW_TO_GET_ONE = "no PostgreSQL server: on Debian and Ubuntu, `apt-get install postgresql`"


def programs() -> Path:
    """The folder of `initdb` and `postgres`. Raises NoServer."""
    found = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    if (path := shutil.which("initdb")) is not None:
        found.append(Path(path).parent)
    for folder in found:
        if (folder / "initdb").exists():
            return folder
    raise NoServer(HOW_TO_GET_ONE)


class Postgres:
    """A server of one's own, whose superuser is `tests`. It refuses to run as root, so then it is another user's."""

    def __init__(self) -> None:
        self.programs = programs()
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="headgate-pg-"))
        self.options: dict[str, Any] = {}
        if os.getuid() == 0:
            self.options = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(self.folder, "postgres", "postgres")
        self.process: subprocess.Popen[bytes] | None = None

    def address(self, user: str = "tests") -> str:
        """As the example's settings take it."""
        return f"{LOOPBACK}:{self.port}:{user}"

    def connect(self) -> Any:
        import psycopg

        return psycopg.connect(host=LOOPBACK, port=self.port, user="tests", dbname="postgres", autocommit=True)

    def __enter__(self) -> Postgres:
        data = self.folder / "data"
        try:
            subprocess.run(
                [self.programs / "initdb", "-D", data, "-U", "tests", "-A", "trust", "--no-sync", "-E", "UTF8"],
                check=True, capture_output=True, cwd=self.folder, **self.options,
            )  # fmt: skip
            settings = {"listen_addresses": LOOPBACK, "port": self.port, "unix_socket_directories": self.folder,
                        "fsync": "off", "max_connections": 300}  # fmt: skip
            words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
            with (self.folder / "log").open("wb") as log:
                self.process = subprocess.Popen(
                    [self.programs / "postgres", "-D", data, *words],
                    stdout=log, stderr=log, cwd=self.folder, **self.options,
                )  # fmt: skip
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        import psycopg

        end = time.monotonic() + STARTING
        while True:
            try:
                self.connect().close()
                return
            except psycopg.OperationalError as error:
                told = (self.folder / "log").read_text(errors="replace")[-2000:]
                if time.monotonic() > end:
                    raise RuntimeError(f"PostgreSQL did not start: {told}") from error
                if self.process is None or self.process.poll() is not None:
                    raise RuntimeError(f"PostgreSQL ended: {told}") from error
                time.sleep(0.05)

    def __exit__(self, *error: object) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)  # its "fast" shutdown: SIGTERM would wait for the last client
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

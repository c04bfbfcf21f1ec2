"""A master, its replica and a sentinel that watches them: real processes, to be killed."""

from __future__ import annotations

import socket
import subprocess
import time
from typing import Any

from tests.support.servers import LOOPBACK, STARTING, Server, answer, free_port, packed

MASTER = "mymaster"


class Watched:
    """Two servers and one sentinel, which makes the replica the master half a second after the master has gone."""

    def __init__(self, password: str = "", sentinel_password: str = "") -> None:
        login = ("--masterauth", password) if password else ()
        self.master = Server(*login, password=password)
        self.replica = Server(*login, password=password)
        self.port = free_port()
        self._sentinel_password = sentinel_password
        self._sentinel: subprocess.Popen[bytes] | None = None

    def start(self) -> Watched:
        try:
            self.master.start()
            self.replica.start()
            self.replica.command("REPLICAOF", LOOPBACK, self.master.port)
            self._wait(lambda: b"state=online" in self.master.command("INFO", "replication"))
            self._watch()
        except BaseException:
            self.stop()
            raise
        return self

    def _watch(self) -> None:
        lines = [
            f"port {self.port}",
            f"bind {LOOPBACK}",
            f"sentinel monitor {MASTER} {LOOPBACK} {self.master.port} 1",
            f"sentinel down-after-milliseconds {MASTER} 500",
            f"sentinel failover-timeout {MASTER} 2000",
            *([f"sentinel auth-pass {MASTER} {self.master.password}"] if self.master.password else []),
            *([f"requirepass {self._sentinel_password}"] if self._sentinel_password else []),
        ]
        file = self.master.folder / "sentinel.conf"
        file.write_text("\n".join(lines) + "\n")
        with (self.master.folder / "sentinel.log").open("ab") as log:
            self._sentinel = subprocess.Popen(
                [self.master.binary, str(file), "--sentinel"], stdout=log, stderr=log, cwd=self.master.folder
            )
        self._wait(lambda: b"slaves=1" in self.ask("INFO", "sentinel"))

    def _wait(self, true: Any) -> None:
        end = time.monotonic() + STARTING
        while True:
            try:
                if true():
                    return
            except OSError:
                pass
            assert time.monotonic() < end, "the sentinel and its servers did not find each other"
            time.sleep(0.02)

    def ask(self, *words: Any) -> Any:
        """What the sentinel answers."""
        with socket.create_connection((LOOPBACK, self.port), timeout=10) as connection:
            stream = connection.makefile("rb")
            if self._sentinel_password:
                connection.sendall(packed("AUTH", self._sentinel_password))
                answer(stream)
            connection.sendall(packed(*words))
            return answer(stream)

    def url(self, **options: str) -> str:
        login = f":{self.master.password}@" if self.master.password else ""
        query = "&".join(f"{name}={value}" for name, value in options.items())
        nobody = f"{LOOPBACK}:{free_port()}"  # of several sentinels some are away
        return f"redis+sentinel://{login}{nobody},{LOOPBACK}:{self.port}/{MASTER}?{query}"

    def replicated(self) -> None:
        """Wait until the replica has all that the master has been told."""

        def offsets() -> tuple[bytes, bytes]:
            told = dict(
                line.split(b":", 1) for line in self.master.command("INFO", "replication").splitlines() if b":" in line
            )
            replica = dict(pair.split(b"=") for pair in told[b"slave0"].split(b","))
            return told[b"master_repl_offset"], replica[b"offset"]

        self._wait(lambda: len(set(offsets())) == 1)

    def stop(self) -> None:
        if self._sentinel is not None:
            self._sentinel.kill()
            self._sentinel.wait()
        self.master.stop()
        self.replica.stop()

    def __enter__(self) -> Watched:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

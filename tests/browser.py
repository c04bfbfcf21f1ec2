"""A guard of one's own for a test, and a real Chromium to look at it. Knows no pytest."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: Seconds that a guard may take to start.
STARTING = 30.0

HOW_TO_GET_ONE = "no Chromium: `apt-get install chromium` brings it, and `pip install playwright` what drives it"

ROOT = Path(__file__).parent.parent


def chromium() -> str | None:
    """The program, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Guard:
    """A real `headgate serve` with a configuration of its own. It can be killed and started again on the same port."""

    def __init__(self, folder: Path, config: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.token = ""
        self.process: subprocess.Popen[str] | None = None
        (folder / "headgate.toml").write_text(config, encoding="utf-8")

    def start(self) -> None:
        command = [sys.executable, "-m", "headgate", "serve", "--port", str(self.port), "--log-level", "warning"]
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        line: list[str] = []
        reader = threading.Thread(target=lambda: line.append(self.process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        reader.join(STARTING)
        assert self.url in "".join(line), f"the guard did not start: {line} {self.log()}"

    def log(self) -> str:
        return (self.folder / "log").read_text(encoding="utf-8")

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def stop(self, how: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(15)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def ask(self, method: str, path: str, body: Any = None, wait: float = 30.0) -> Any:
        """The JSON of an answer. Raises urllib.error.HTTPError."""
        headers = {"content-type": "application/json"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=wait) as answer:
            return json.loads(answer.read())

    def acquire(self, gate: str, **ask: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("POST", f"/v1/gates/{gate}/acquire", ask)
        return found

    def release(self, permit: dict[str, Any], outcome: str = "ok") -> None:
        self.ask("POST", f"/v1/permits/{permit['id']}/release", {"outcome": outcome})

    @contextmanager
    def waiting(self, gate: str, *asks: dict[str, Any]) -> Iterator[list[Any]]:
        """Asks that stand in line, one after the other, in threads of their own. What each got is in the list."""
        found: list[Any] = [None] * len(asks)
        threads = []

        def stand(place: int, ask: dict[str, Any]) -> None:
            with suppress(OSError, urllib.error.URLError):
                found[place] = self.acquire(gate, wait=50, **ask)

        for place, ask in enumerate(asks):
            before = self.ask("GET", f"/v1/gates/{gate}")["waiting"]
            threads.append(threading.Thread(target=stand, args=(place, ask), daemon=True))
            threads[-1].start()
            while self.ask("GET", f"/v1/gates/{gate}")["waiting"] == before:
                assert threads[-1].is_alive(), f"it did not wait: {found}"
        yield found
        for permit in found:
            if permit:
                self.release(permit)


@contextmanager
def running(folder: Path, config: str) -> Iterator[Guard]:
    guard = Guard(folder, config)
    guard.start()
    try:
        yield guard
    finally:
        guard.stop(signal.SIGKILL)


def new_token(folder: Path, name: str, *scopes: str) -> str:
    """A token of the guard whose configuration lies there."""
    options = [part for scope in scopes for part in ("--scope", scope)]
    command = [sys.executable, "-m", "headgate", "token", "new", name, *options]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env={**os.environ})
    return next(word for word in made.stdout.split() if word.startswith("hg_"))

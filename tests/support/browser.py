"""A guard of one's own for a test, and a real Chromium to look at it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.support.guards import GuardProcess

HOW_TO_GET_ONE = "no Chromium: `apt-get install chromium` brings it, and `pip install playwright` what drives it"


def chromium() -> str | None:
    """The program, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Guard(GuardProcess):
    """A guard that is asked over HTTP, with its token where it has one."""

    token = ""

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
    guard = Guard(folder, config, "--log-level", "warning")
    try:
        yield guard
    finally:
        guard.kill()


def new_token(folder: Path, name: str, *scopes: str) -> str:
    """A token of the guard whose configuration lies there."""
    options = [part for scope in scopes for part in ("--scope", scope)]
    command = [sys.executable, "-m", "headgate", "token", "new", name, *options]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, env={**os.environ})
    return next(word for word in made.stdout.split() if word.startswith("hg_"))

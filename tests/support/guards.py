"""Guards for tests: one in a thread of the test, on a clock that stands still; and real processes, to be killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from headgate import Concurrency, Gate, Window, stores
from headgate.config import file as config_file
from headgate.gate.gates import Gates
from tests.support.waiting import stop, timed

MISSING = "uvicorn is missing: pip install 'headgate[server]'"


def need_server() -> None:
    """Skips where there is no server to be had, and fails in CI."""
    try:
        import httptools  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        if os.environ.get("CI"):
            raise
        pytest.skip(MISSING)


class GuardThread:
    """A guard in a thread. `store` is what its gates are on; by default they are those that clients name."""

    def __init__(
        self, store: Any, gates: str = "[gates.unused]\nlimits = [{ window = 1, per = '1s' }]", **more: Any
    ) -> None:
        need_server()
        import uvicorn

        from headgate.service.fast.protocol import protocol_of
        from headgate.service.server import listening, make_guard

        store.url = f"memory://{id(store)}"
        stores._open[store.url] = store
        config = config_file.parse(f'store = "{store.url}"\n{gates}')
        self.store = store
        self.guard = make_guard(Gates(config), config.serve, any_gate=more.pop("any_gate", True))
        self._socket = listening("127.0.0.1", 0)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        guard = self.guard

        class Server(uvicorn.Server):
            async def shutdown(self, sockets: Any = None) -> None:
                guard.close()
                await super().shutdown(sockets)

        settings: dict[str, Any] = {"log_level": "critical", "lifespan": "off", "timeout_graceful_shutdown": 2}
        settings["http"] = protocol_of(guard)
        self._server = Server(uvicorn.Config(self.guard, **{**settings, **more}))
        self._thread = threading.Thread(target=lambda: self._server.run(sockets=[self._socket]), daemon=True)
        self._thread.start()
        end = time.monotonic() + 60
        while not self._server.started:
            assert time.monotonic() < end, "the guard did not start"
            time.sleep(0.002)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(60)
        self._socket.close()
        stores._open.pop(self.store.url, None)
        self.store.close()


class GuardProcess:
    """`headgate serve` as a process of its own, which can be killed and started again on the same port."""

    def __init__(
        self, folder: Path, config: str, *options: str, port: int = 0, env: dict[str, str] | None = None
    ) -> None:
        need_server()
        self._folder = folder
        (folder / "headgate.toml").write_text(config, encoding="utf-8")
        self._options = options
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")} | (
            env or {}
        )
        self.port = port
        self.process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "headgate", "serve", "--port", str(self.port), *self._options]
        with open(self._folder / "guard.log", "a", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, cwd=self._folder, env=self._env, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found, f"the guard did not start: {line!r} {self.log()}"
        self.port = int(found[1])

    def log(self) -> str:
        return (self._folder / "guard.log").read_text(encoding="utf-8")

    def kill(self) -> None:
        """As a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, with_signal: int) -> int:
        process, self.process = self.process, None
        if process is None:
            return 0
        process.send_signal(with_signal)
        code = process.wait(120)
        assert process.stdout is not None
        process.stdout.close()
        return code

    def pause(self) -> None:
        """It is there, and says nothing."""
        assert self.process is not None
        stop(self.process)

    def go_on(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


GATES = """
store = "sqlite:///guard.db"

[gates.g]
limits = [
  { window = 1000, per = "1h", name = "w" },
  { concurrency = 100, name = "slots", lease = "1h" },
]

[gates.one]
limits = [{ concurrency = 1, name = "slots", lease = "1h" }]

[gates.slow]
claim = "2m"
limits = [{ concurrency = 1, name = "slots", lease = "1h" }]

[gates.three]
limits = [{ concurrency = 3, name = "slots", lease = "1h" }, { window = 100000, per = "1h", name = "w" }]
"""


def gate_of(url: str, mode: str = "closed", kind: Any = Gate, **more: Any) -> Any:
    limits = [Window(1000, per="1h", name="w"), Concurrency(100, name="slots", lease="1h")]
    return kind("g", limits, store=url, on_store_error=mode, **more)


def one_of(url: str, kind: Any = Gate) -> Any:
    return kind("one", [Concurrency(1, name="slots", lease="1h")], store=url)


def back(gate: Any) -> bool:
    """Whether the gate asks its guard again, having tried it."""
    _, permit = timed(gate.acquire)
    if not isinstance(permit, Exception):
        permit.release()
    return not gate._outage.away

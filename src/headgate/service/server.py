"""Runs the guard on uvicorn: where it may listen, how it starts and how it shuts down.

uvicorn with httptools, because it is the fastest well-maintained server in Python (docs/why.md). `fast/protocol.py` is the
one file that imports it.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import socket
from contextlib import contextmanager

from ..errors import ConfigError
from .app import Guard, is_loopback
from .audit import Audit
from .log import log, log_as_json
from .tokens import Tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..config.serve import Serve
    from ..gate.gates import Gates

#: Seconds that requests in progress are given to end, after the waiting ones were sent away.
GRACE = 10

#: Connections that the system may keep for the guard before it accepts them.
BACKLOG = 1024

#: What `accept` fails with when the process or the system has no more files or memory.
EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


def make_guard(gates: Gates, settings: Serve, any_gate: bool = False) -> Guard:
    """A guard with its tokens and its audit log. Raises ConfigError where it may not listen on the configured host."""
    beside = os.path.dirname(os.path.abspath(gates.config.path)) if gates.config.path else os.getcwd()
    tokens = None if settings.tokens is None else Tokens(os.path.join(beside, settings.tokens))
    if not tokens and not is_loopback(settings.host):
        problem = (
            f"{settings.host} is not loopback, and there are no tokens: anybody who can connect could do everything"
        )
        remedy = "make one with `headgate token new NAME --scope acquire`, or listen on 127.0.0.1"
        raise ConfigError(problem, file=gates.config.path, path="serve.host", remedy=remedy)
    audit = Audit(None if settings.audit is None else os.path.join(beside, settings.audit))
    for name in gates:
        gates.async_gate(name)  # so that a store that cannot be opened is reported before the guard starts
    return Guard(gates, tokens, settings, audit, any_gate, _history(gates, settings, beside))


def _history(gates: Gates, settings: Serve, beside: str) -> str | None:
    """The file of the dashboard's history: the one that is named, else one beside the SQLite store of most gates."""
    if settings.history is not None:
        return os.path.join(beside, settings.history)
    # A store that is a file has a path.
    files = [path for name in gates if (path := getattr(gates.async_gate(name).store, "path", None))]
    return f"{max(files, key=files.count)}-history.jsonl" if files else None


def listening(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError with the address in it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio switches Nagle's algorithm off only for sockets that name their protocol. Otherwise an answer in two writes
    # waits 40 ms for the client's acknowledgement of the first.
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host.strip("[]"), port))
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return made


#: When the next line about exhaustion may be logged.
_exhaustion_log_at = 0.0


def _log_exhaustion(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """The event loop's handler of exceptions: one line a minute where asyncio would write 1,000 a second."""
    global _exhaustion_log_at
    error = context.get("exception")
    if not (isinstance(error, OSError) and error.errno in EXHAUSTED and "socket" in context):
        loop.default_exception_handler(context)
    elif (now := loop.time()) >= _exhaustion_log_at:
        _exhaustion_log_at = now + 60.0
        log.error("connections cannot be accepted: %s; raise the limit of open files", error.strerror)


def serve(guard: Guard, level: str = "info", ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. `ready` is called with the address as soon as requests are answered."""
    from .fast.connections import ACCEPTS
    from .fast.protocol import Config, protocol_of
    from .fast.protocol import Server as BaseServer

    settings = guard.settings
    log_as_json(level)
    connection = listening(settings.host, settings.port)
    host, port = connection.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    class Server(BaseServer):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            # uvicorn's own raises the signal again at the end, so that the process would seem to have failed.
            before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().set_exception_handler(_log_exhaustion)
            await super().startup(sockets)
            connection.listen(BACKLOG)  # asyncio has set it to ACCEPTS
            log.info("serving", extra={"address": address, "gates": list(guard.gates)})
            if ready is not None:
                ready(address)

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            log.info("shutting down", extra={"waiting": guard.caps.waiters})
            guard.close()
            await super().shutdown(sockets)
            log.info("stopped")

    # Objects that exist now stay, so the collector need not scan them. A busy guard makes many objects that live for a
    # minute (remembered ids); scanning those at the default thresholds would cost a fifth of its time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    config = Config(
        guard,
        http=protocol_of(guard),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=GRACE,
        backlog=ACCEPTS,
        proxy_headers=False,
    )
    with connection:
        server = Server(config)
        runner = getattr(config, "get_loop_factory", None)
        with asyncio.Runner(loop_factory=runner() if runner is not None else None) as run:
            run.run(server.serve(sockets=[connection]))

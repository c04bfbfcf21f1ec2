"""The stores that the tests of the core run on, by name, and how each is made on a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from headgate.kernel.commands.base import compare
from headgate.kernel.head import is_epoch
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock
from tests.support.generated import generated


@contextmanager
def memory(clock: FakeClock) -> Iterator[Any]:
    yield MemoryStore(clock=clock)


@contextmanager
def sqlite(clock: FakeClock) -> Iterator[Any]:
    from headgate.stores.sqlite import SqliteStore

    with TemporaryDirectory() as folder:
        store = SqliteStore(str(Path(folder) / "headgate.db"), clock=clock)
        try:
            yield store
        finally:
            store.close()


@cache
def redis_server() -> Any:
    """One server for all tests of a run, or a sentence that says how to get one."""
    import atexit

    from tests.support.servers import NoServer, Server, in_ci

    try:
        server = Server()
    except NoServer as missing:
        if in_ci():
            raise
        return str(missing)
    atexit.register(server.stop)
    return server.start()


@contextmanager
def redis(clock: FakeClock) -> Iterator[Any]:
    from headgate.stores.redis import RedisStore

    server = redis_server()
    if isinstance(server, str):
        pytest.skip(server)
    # Each has a database of its own, for tests that have several at a time.
    database = next(_databases) % 16
    server.command("EVAL", f"redis.call('SELECT', {database}) redis.call('FLUSHDB')", 0)
    store = RedisStore(f"{server.url.removesuffix('/0')}/{database}?timeout=10s", clock=clock)
    try:
        yield store
    finally:
        store.close()


_databases = count()


@cache
def dynamo_server() -> Any:
    """One server for all tests of a run; None where there is none to be had."""
    import atexit
    import os

    from tests.support.dynamo_servers import CREDENTIALS, NoServer, Server

    try:
        server = Server()
        server.start()
    except NoServer as missing:
        if os.environ.get("CI"):
            raise
        return str(missing)
    for name, value in CREDENTIALS.items():
        os.environ.setdefault(name, value)
    atexit.register(server.stop)
    return server


@contextmanager
def dynamodb(clock: FakeClock) -> Iterator[Any]:
    from headgate.stores.dynamodb import DynamoStore
    from tests.support.dynamo_servers import make_table

    server = dynamo_server()
    if isinstance(server, str):
        pytest.skip(server)
    name = f"tests-{next(_tables)}"
    make_table(server.endpoint, name)
    store = DynamoStore(name, endpoint=server.endpoint, region="eu-central-1", timeout=10, clock=clock)
    try:
        yield store
    finally:
        store.close()


_tables = count()

STORES: dict[str, Callable[[FakeClock], Any]] = {"memory": memory}
if find_spec("headgate.stores.sqlite.store") is not None:
    STORES["sqlite"] = sqlite
if find_spec("redis") is not None:
    STORES["redis"] = redis
if find_spec("boto3") is not None:
    STORES["dynamodb"] = dynamodb


REMOTE = ("redis", "dynamodb")


def examples(store: str, count: int) -> Any:
    """Settings for generated tests: so many examples in memory, fewer on a file, and a few on a server."""
    return generated(count if store == "memory" else max(3, count // 60) if store in REMOTE else max(5, count // 12))


class KnownByProcesses:
    """What the processes of another store know of a gate, in the words of the core, which names epochs in its own way."""

    def __init__(self, core: MemoryStore) -> None:
        self._core = core
        self._names: dict[str, str] = {}

    def compare(self, gate: str, seen: int, told: str) -> None:
        """The next commands are those of a process that was told this."""
        compare(self._core._records(gate), seen, self._names.get(told, told))

    def learn(self, gate: str, told: str) -> None:
        """Afterwards it has been told this."""
        if is_epoch(told):
            self._names.setdefault(told, self._core._records(gate).head.epoch)


def forget(store: Any, gate: str) -> None:
    """The store in memory forgets a gate; the process remembers how far it had come."""
    records = store._gates[gate]
    seen = records.head.seq
    records.__init__(gate)
    records.seen = seen

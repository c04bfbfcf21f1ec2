"""Servers, proxies, tables and stores for the tests of the DynamoDB store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate.stores.dynamodb import DynamoStore
from headgate.testing import FakeClock
from tests.support.dynamo_servers import CREDENTIALS, Proxy, Server, make_table, proxied, started
from tests.support.dynamo_tables import NUMBERS


@pytest.fixture(scope="session")
def server_of_a_kind() -> Iterator[Callable[[str], Server]]:
    """Servers that many tests share, each started when it is first needed: DynamoDB Local takes seconds to start."""
    running: dict[str, Server] = {}

    def server(kind: str) -> Server:
        if kind not in running:
            running[kind] = started(kind)
        return running[kind]

    yield server
    for one in running.values():
        one.stop()


@pytest.fixture(params=["dynoxide", pytest.param("local", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest, server_of_a_kind: Callable[[str], Server]) -> Server:
    return server_of_a_kind(request.param)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with proxied(server) as proxy:
        yield proxy


@pytest.fixture
def table(server: Server) -> str:
    name = f"table-{next(NUMBERS)}"
    make_table(server.endpoint, name, ttl="ttl")
    return name


@pytest.fixture
def opened(proxy: Proxy, table: str) -> Iterator[Callable[..., DynamoStore]]:
    """Opens stores on the table, each as another process would have it."""
    stores = []

    def open(**options: Any) -> DynamoStore:
        options = {"endpoint": proxy.endpoint, "timeout": 10.0, "spread": 0.25, **options}
        store = DynamoStore(options.pop("table", table), region="eu-central-1", **options)
        stores.append(store)
        return store

    yield open
    for store in stores:
        store.close()


@pytest.fixture
def still(opened: Callable[..., DynamoStore]) -> DynamoStore:
    """A store whose clock stands still."""
    return opened(clock=FakeClock())

"""A proxy between a test and its server, which fails on order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers import Proxy, Server


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.address) as between:
        yield between

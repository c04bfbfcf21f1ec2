"""A guard that uses a local share while its store is away: permits of the share are renewed and released by their ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.guard_client import Client
from tests.support.guards import GuardProcess
from tests.support.servers import Proxy, Server
from tests.support.waiting import until


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy(server.address) as proxy:
        yield proxy


@pytest.fixture
def guard(proxy: Proxy, tmp_path: Path) -> Iterator[Client]:
    limits = "limits = [{ concurrency = 4, name = 'slots', lease = '1h' }]"
    process = GuardProcess(tmp_path, f'store = "{proxy.url}"\n[gates.g]\non_store_error = "local:0.5"\n{limits}\n')
    yield Client(process.port)
    process.kill()


def away(guard: Client) -> bool:
    return guard.get("/v1/gates/g").status == 503


def batch(guard: Client, *commands: dict[str, Any]) -> list[Any]:
    replies: list[Any] = guard.post("/v1/batch", {"commands": list(commands)}).json["replies"]
    return replies


@pytest.mark.parametrize("batched", [False, True], ids=["alone", "in a batch"])
def test_a_permit_of_the_share_is_released_also_when_the_store_is_back(
    guard: Client, proxy: Proxy, batched: bool
) -> None:
    assert guard.release(guard.acquire("g").json["id"]).json["released"] is True
    proxy.refuse()
    granted = [guard.acquire("g") for _ in range(3)]
    assert [answer.status for answer in granted] == [200, 200, 429]
    one, other = (answer.json["id"] for answer in granted[:2])
    if batched:
        [renewed] = batch(guard, {"do": "renew", "id": one})
        assert renewed["status"] == 200
    else:
        assert guard.post(f"/v1/permits/{one}/renew", {}).status == 200
    proxy.accept_again()
    until(lambda: not away(guard))
    if batched:
        ended = batch(guard, {"do": "renew", "id": other}, *({"do": "release", "id": id} for id in (one, other, one)))
        assert [reply["status"] for reply in ended] == [200] * 4
        assert [reply["released"] for reply in ended[1:]] == [True, True, False]
    else:
        assert guard.post(f"/v1/permits/{other}/renew", {}).status == 200
        assert [guard.release(id).json["released"] for id in (one, other, one)] == [True, True, False]
    proxy.refuse()
    assert [guard.acquire("g").status for _ in range(3)] == [200, 200, 429]

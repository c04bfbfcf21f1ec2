"""The client middleware of aiohttp: the same promises as the transports of httpx."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from headgate import AsyncGate, Bucket, Concurrency, Denied, Gate, InvalidInput, Window
from headgate.clients import Retry
from headgate.clients.aiohttp import AiohttpMiddleware
from headgate.stores.memory import MemoryStore
from tests.clients.test_transports import Steps
from tests.support.answering import Answering, answering
from tests.support.servers import free_port


@pytest.fixture(scope="module")
def server() -> Iterator[Answering]:
    with answering() as server:
        yield server


def gate_of(*limits: Any, store: Any = None) -> AsyncGate:
    usual = [Window(1000, per="1m", name="rpm"), Concurrency(1, name="slots", lease="1h")]
    return AsyncGate("aiohttp", limits or usual, store=store or MemoryStore())


def session_of(gate: AsyncGate, **options: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(middlewares=[AiohttpMiddleware(gate, **options)])


async def used(gate: AsyncGate, limit: str = "rpm") -> int:
    return round((await gate.usage())[limit].used)


async def free(gate: AsyncGate) -> None:
    async with asyncio.timeout(60):
        while await gate.holders():
            await asyncio.sleep(0.001)


def test_a_request_takes_a_permit_until_its_body_has_arrived(server: Answering) -> None:
    async def main() -> None:
        gate = gate_of()
        async with session_of(gate, timeout=0) as session:
            server.go.clear()
            async with session.get(f"{server.url}/endless") as response:
                assert response.status == 200
                assert len(await gate.holders()) == 1
                with pytest.raises(Denied):
                    await session.get(f"{server.url}/ok")
            assert await gate.holders() == []
            async with session.get(f"{server.url}/ok") as response:
                assert (await response.json())["status"] == "ok"
                assert await gate.holders() == []
            async with session.get(f"{server.url}/redirect") as response:
                assert (await response.json())["status"] == "ok"
        assert (await used(gate), await gate.holders()) == (4, [])

    asyncio.run(main())


def test_a_connection_that_is_refused_gives_the_permit_back_and_one_that_hangs_up_does_not(server: Answering) -> None:
    async def main() -> None:
        gate = gate_of()
        async with session_of(gate) as session:
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.get(f"http://127.0.0.1:{free_port()}/ok")
            assert await used(gate) == 0
            with pytest.raises(aiohttp.ServerDisconnectedError):
                await session.post(f"{server.url}/hang-up")
            assert await used(gate) == 1
            for status in (200, 429):
                async with session.post(f"{server.url}/cut?status={status}") as response:
                    with pytest.raises(aiohttp.ClientPayloadError):
                        await response.read()
            await free(gate)

    asyncio.run(main())


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("path", ["/ok", "/events", "/retry-info"])
def test_a_task_that_is_cancelled_at_any_await_leaves_no_permit(
    server: Answering, path: str, store: str, tmp_path: Any
) -> None:
    async def main() -> None:
        url: Any = MemoryStore() if store == "memory" else f"sqlite:///{tmp_path}/gate.db"
        gate = gate_of(Concurrency(1, name="slots", lease="1h"), store=url)

        async def fetch(session: aiohttp.ClientSession) -> None:
            async with session.get(server.url + path) as response:
                await response.read()

        for n in range(1, 200):
            async with session_of(gate, settle=lambda answer: None) as session:
                if not await Steps(n).run(fetch(session)):
                    break
            await gate.resume()
            await free(gate)
        else:
            raise AssertionError("the request had no end")
        assert n > 2
        await free(gate)
        await gate.aclose()

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:Unclosed", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_response_that_is_dropped_unread_gives_its_slot_back_when_its_session_is_closed(server: Answering) -> None:
    async def main() -> None:
        gate = gate_of()
        async with session_of(gate) as session:
            response = await session.get(f"{server.url}/endless")
            assert len(await gate.holders()) == 1
        del response  # an open connection keeps it, as aiohttp does
        gc.collect()
        await free(gate)

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/ok", "/events"])
@pytest.mark.parametrize("way", ["read", "lines", "chunks", "any", "chunked"])
def test_what_it_cost_is_settled_however_the_body_is_read(server: Answering, path: str, way: str) -> None:
    def settle(answer: Any) -> Any:
        said = list(answer.events()) if answer.is_event_stream else [answer.json()]
        return {"tokens": said[-1]["usage"]["total_tokens"]}

    async def main() -> None:
        gate = gate_of(Bucket(1000, per="1h", unit="tokens", name="tpm"))
        async with (
            session_of(gate, cost={"tokens": 500}, settle=settle) as session,
            session.get(server.url + path) as response,
        ):
            content = response.content
            if way == "read":
                body = await response.read()
            elif way == "lines":
                body = b"".join([line async for line in content])
            elif way == "chunks":
                body = b"".join([part async for part, _ in content.iter_chunks()])
            elif way == "any":
                body = b"".join([part async for part in content.iter_any()])
            else:
                body = b"".join([part async for part in content.iter_chunked(7)])
            assert b"usage" in body
        assert await used(gate, "tpm") == (7 if path == "/ok" else 11)

    asyncio.run(main())


def test_refusals_pause_and_are_retried(server: Answering) -> None:
    async def main() -> None:
        gate = gate_of()
        server.script += [503, 429, 200]
        async with session_of(gate, retry=Retry(base="1ms", deadline="10s")) as session:
            async with session.post(f"{server.url}/ok", json={"a": 1}) as response:
                assert await response.json() == {"status": 200}
            assert await used(gate) == 3
            async with session.get(f"{server.url}/retry-info") as response:
                assert (await response.json())["error"]["status"] == "RESOURCE_EXHAUSTED"
            assert (await gate.usage()).paused_for is not None
        await free(gate)

    asyncio.run(main())


def test_a_body_that_never_ends_is_given_up_when_it_is_closed(server: Answering) -> None:
    async def main() -> None:
        gate = gate_of()
        async with (
            session_of(gate, settle=lambda answer: {"requests": 1 / 0}) as session,
            session.get(f"{server.url}/endless?status=429") as response,
        ):
            assert len(await gate.holders()) == 1
            assert len(await response.content.readexactly(200_000)) == 200_000
        await free(gate)

    asyncio.run(main())


def test_a_wrong_gate_is_refused() -> None:
    with pytest.raises(InvalidInput, match="takes its permits from an AsyncGate"):
        AiohttpMiddleware(Gate("a", [Window(1, per="1s")]))  # type: ignore[arg-type]

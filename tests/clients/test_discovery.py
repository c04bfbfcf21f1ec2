"""Limits that answers tell: they tighten the gate for the whole fleet, for a time, and never raise it unasked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from headgate import AsyncGate, Concurrency, Gate, InvalidInput, Window
from headgate.clients import Discovery
from headgate.clients.discovery import published
from headgate.clients.httpx import AsyncHttpxTransport, HttpxTransport
from headgate.stores.memory import MemoryStore
from tests.support.answering import Answering, answering


@pytest.fixture(scope="module")
def server() -> Iterator[Answering]:
    with answering() as server:
        yield server


@pytest.mark.parametrize(
    ("value", "header", "told"),
    [
        ("100", "x", (100, None)),
        ("100, 100;w=60", "x", (100, None)),
        ("100;w=60", "x", (100, 60)),
        ('"default";q=100;w=60', "x", (100, 60)),
        ('"burst";q=10;w=1, "daily";q=500;w=86400', "x:daily", (500, 86400)),
        ('"burst";q=10;w=1', "x:daily", None),
        ("default;q=100;w=60", "x", (100, 60)),
        ("", "x", None),
        ("soon", "x", None),
        ("-5", "x", None),
        ("0", "x", None),
        ("nan", "x", None),
        ("1e999", "x", None),
        ('"a";q=;w=', "x", None),
    ],
)
def test_headers_tell_a_limit_and_its_window(value: str, header: str, told: Any) -> None:
    assert published({"x": value}, header) == told


def client_of(gate: Gate, discovery: Discovery) -> httpx.Client:
    return httpx.Client(transport=HttpxTransport(gate, discover=discovery), timeout=20)


def gate_of() -> Gate:
    return Gate("discovers", [Window(100, per="1m", name="rpm"), Concurrency(50, name="slots")], store=MemoryStore())


def test_a_lower_limit_is_in_force_for_the_fleet_with_its_reason_and_a_higher_one_is_not(server: Answering) -> None:
    gate = gate_of()
    discovery = Discovery({"rpm": "X-RateLimit-Limit"}, expires_in="5m")
    with client_of(gate, discovery) as client:
        server.script.append((200, {"x-ratelimit-limit": "500"}, {}))
        client.get(f"{server.url}/ok")
        assert gate.overrides() == []
        server.script.append((200, {"x-ratelimit-limit": "60"}, {}))
        client.get(f"{server.url}/ok")
        [found] = gate.overrides()
        assert (found.limit, found.value, found.tightened) == ("rpm", 60, True)
        assert found.reason == "x-ratelimit-limit: 60"
        other = Gate("discovers", [Window(100, per="1m", name="rpm"), Concurrency(50, name="slots")], store=gate.store)
        assert other.usage()["rpm"].limit == 60
        server.script.append((200, {"x-ratelimit-limit": "80"}, {}))
        client.get(f"{server.url}/ok")
        assert gate.usage()["rpm"].limit == 60
    assert gate.holders() == []


def test_a_policy_for_another_window_is_converted(server: Answering) -> None:
    gate = gate_of()
    with client_of(gate, Discovery({"rpm": "ratelimit-policy:hourly"})) as client:
        server.script.append((200, {"ratelimit-policy": '"second";q=9;w=1, "hourly";q=3000;w=3600'}, {}))
        client.get(f"{server.url}/ok")
    assert gate.usage()["rpm"].limit == 50


def test_it_raises_a_limit_only_when_told_so(server: Answering) -> None:
    gate = gate_of()
    with client_of(gate, Discovery({"rpm": "x-ratelimit-limit"}, may_raise=True)) as client:
        server.script.append((200, {"x-ratelimit-limit": "500"}, {}))
        client.get(f"{server.url}/ok")
    assert gate.usage()["rpm"].limit == 500


def test_it_works_on_an_event_loop_too(server: Answering) -> None:
    async def main() -> None:
        gate = AsyncGate("discovers", [Window(100, per="1m", name="rpm")], store=MemoryStore())
        transport = AsyncHttpxTransport(gate, discover=Discovery({"rpm": "x-ratelimit-limit"}))
        async with httpx.AsyncClient(transport=transport) as client:
            server.script.append((200, {"x-ratelimit-limit": "7"}, {}))
            await client.get(f"{server.url}/ok")
        assert (await gate.usage())["rpm"].limit == 7

    asyncio.run(main())


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no limit 'tpm'"):
        HttpxTransport(gate_of(), discover=Discovery({"tpm": "x"}))
    for wrong in ({}, {"rpm": ""}, {"rpm": 3}, "x"):
        with pytest.raises(InvalidInput):
            Discovery(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="discover is a"):
        HttpxTransport(gate_of(), discover="x")  # type: ignore[arg-type]

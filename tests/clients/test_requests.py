"""The adapter of requests: the same promises as the transports of httpx."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from headgate import AsyncGate, Bucket, Concurrency, Denied, Gate, InvalidInput, Window
from headgate.clients import Retry
from headgate.clients.requests import RequestsAdapter, on_every_session
from headgate.stores.memory import MemoryStore
from tests.support.answering import Answering, answering
from tests.support.servers import free_port
from tests.support.waiting import until


@pytest.fixture(scope="module")
def server() -> Iterator[Answering]:
    with answering() as server:
        yield server


def gate_of(*limits: Any) -> Gate:
    usual = [Window(1000, per="1m", name="rpm"), Concurrency(1, name="slots", lease="1h")]
    return Gate("requests", limits or usual, store=MemoryStore())


def session_of(gate: Gate, **options: Any) -> requests.Session:
    session = requests.Session()
    session.mount("http://", RequestsAdapter(gate, **options))
    return session


def used(gate: Gate, limit: str = "rpm") -> int:
    return round(gate.usage()[limit].used)


def test_a_request_takes_a_permit_until_its_body_was_read(server: Answering) -> None:
    gate = gate_of()
    with session_of(gate, timeout=0) as session:
        response = session.get(f"{server.url}/ok", stream=True)
        assert len(gate.holders()) == 1
        with pytest.raises(Denied):
            session.get(f"{server.url}/ok")
        assert response.json()["status"] == "ok"
        assert gate.holders() == []
        assert session.head(f"{server.url}/ok").status_code == 501  # a body of another kind of answer
        assert gate.holders() == []
        assert session.get(f"{server.url}/redirect").json()["status"] == "ok"
    assert (used(gate), gate.holders()) == (4, [])


def test_it_is_stamped_on_a_connection_that_stands(server: Answering) -> None:
    said: list[str] = []

    gate = gate_of()
    with session_of(gate) as session:
        adapter = session.get_adapter(server.url)
        pool = adapter.poolmanager.connection_from_url(server.url)
        connect = pool.ConnectionCls.connect
        try:
            pool.ConnectionCls.connect = lambda self: (said.append("connect"), connect(self))[1]
            session.get(f"{server.url}/ok")
        finally:
            pool.ConnectionCls.connect = connect
    assert said == ["connect"]
    assert used(gate) == 1


def test_a_connection_that_is_refused_gives_the_permit_back_and_one_that_hangs_up_does_not(server: Answering) -> None:
    gate = gate_of()
    with session_of(gate) as session:
        with pytest.raises(requests.ConnectionError):
            session.get(f"http://127.0.0.1:{free_port()}/ok")
        assert used(gate) == 0
        with pytest.raises(requests.ConnectionError):
            session.get(f"{server.url}/hang-up")
        assert used(gate) == 1
        for status in (200, 429):
            with pytest.raises(requests.RequestException):
                session.get(f"{server.url}/cut?status={status}")
    assert gate.holders() == []


@pytest.mark.parametrize("status", [200, 429])
def test_a_body_that_never_ends_is_held_until_it_is_closed(server: Answering, status: int) -> None:
    gate = gate_of()
    with session_of(gate) as session, session.get(f"{server.url}/endless?status={status}", stream=True) as response:
        assert len(gate.holders()) == 1
        for count, _ in enumerate(response.iter_content(4096)):
            if count == 50:
                break
    assert gate.holders() == []


def test_a_response_that_is_dropped_unread_gives_its_slot_back(server: Answering) -> None:
    gate = gate_of()
    with session_of(gate) as session:
        response = session.get(f"{server.url}/ok", stream=True)
        assert len(gate.holders()) == 1
        del response
        gc.collect()
        until(lambda: not gate.holders())


@pytest.mark.parametrize("path", ["/ok", "/events"])
def test_what_it_cost_is_settled(server: Answering, path: str) -> None:
    gate = gate_of(Bucket(1000, per="1h", unit="tokens", name="tpm"))

    def settle(answer: Any) -> Any:
        said = list(answer.events()) if answer.is_event_stream else [answer.json()]
        return {"tokens": said[-1]["usage"]["total_tokens"]}

    cost = lambda request: {"tokens": 500 + len(request.body or b"")}  # noqa: E731
    with session_of(gate, cost=cost, settle=settle) as session:
        session.get(server.url + path)
    assert used(gate, "tpm") == (7 if path == "/ok" else 11)


def test_refusals_pause_and_are_retried(server: Answering) -> None:
    gate = gate_of()
    server.script += [503, 429, 200]
    with session_of(gate, retry=Retry(base="1ms", deadline="10s")) as session:
        assert session.post(f"{server.url}/ok", json={"a": 1}).json() == {"status": 200}
        assert used(gate) == 3
        response = session.get(f"{server.url}/retry-info")
        assert response.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
        assert gate.usage().paused_for is not None
    assert gate.holders() == []


def test_every_session_of_the_process_can_be_gated_and_is_not_afterwards(server: Answering) -> None:
    gate = gate_of()
    host = f"127.0.0.1:{server.server_address[1]}"
    with on_every_session(RequestsAdapter(gate, hosts=host)):
        assert requests.get(f"{server.url}/ok", timeout=20).status_code == 200
        requests.get(f"http://localhost:{server.server_address[1]}/ok", timeout=20)
    requests.get(f"{server.url}/ok", timeout=20)
    assert used(gate) == 1
    with pytest.raises(InvalidInput, match="must name its hosts"), on_every_session(RequestsAdapter(gate)):
        pass


def test_a_wrong_gate_is_refused() -> None:
    with pytest.raises(InvalidInput, match="takes its permits from a Gate"):
        RequestsAdapter(AsyncGate("a", [Window(1, per="1s")]))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="max_retries"):
        RequestsAdapter(gate_of(), max_retries=3)  # type: ignore[call-arg]

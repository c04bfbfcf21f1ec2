"""The transports of httpx and httpx2: every request takes a permit, is stamped as it is written, and leaves none held."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Denied, Gate, InvalidInput, Window
from headgate.clients import Answer, Retry
from headgate.events import Event, subscribe
from headgate.stores.memory import MemoryStore
from tests.support.answering import Answering, answering
from tests.support.servers import free_port
from tests.support.waiting import until

LIBRARIES = ["httpx", "httpx2"]


@pytest.fixture(scope="module")
def server() -> Iterator[Answering]:
    with answering() as server:
        yield server


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Any:
    return import_module(request.param)


def gate_of(name: str, limits: list[Any], **more: Any) -> Gate:
    """A gate whose state no other test shares."""
    return Gate(name, limits, store=MemoryStore(), **more)


def client_of(library: Any, gate: Gate, **options: Any) -> Any:
    module = import_module(f"headgate.clients.{library.__name__}")
    inner = options.pop("client", {})
    return library.Client(
        transport=getattr(module, f"{library.__name__.title()}Transport")(gate, **options), timeout=20, **inner
    )


def async_client_of(library: Any, gate: AsyncGate, **options: Any) -> Any:
    module = import_module(f"headgate.clients.{library.__name__}")
    return library.AsyncClient(
        transport=getattr(module, f"Async{library.__name__.title()}Transport")(gate, **options), timeout=20
    )


def slots(n: int = 1, **more: Any) -> list[Any]:
    return [Window(1000, per="1m", name="rpm"), Concurrency(n, name="slots", lease="1h")]


def used(gate: Gate, limit: str = "rpm") -> float:
    return gate.usage()[limit].used


def is_free(gate: Gate) -> bool:
    return not gate.holders()


def test_a_request_takes_a_permit_and_a_second_waits_until_the_first_was_read(library: Any, server: Answering) -> None:
    gate = gate_of("one", slots())
    with client_of(library, gate, timeout=0) as client:
        with client.stream("GET", f"{server.url}/ok") as response:
            assert len(gate.holders()) == 1
            with pytest.raises(Denied):
                client.get(f"{server.url}/ok")
            response.read()
            assert is_free(gate)
        assert client.get(f"{server.url}/ok").json()["status"] == "ok"
    assert is_free(gate)
    assert used(gate) == 2


def test_only_requests_to_matching_hosts_take_a_permit(library: Any, server: Answering) -> None:
    gate = gate_of("hosts", slots())
    port = server.server_address[1]
    with client_of(library, gate, hosts=["api.example.com", f"127.0.0.1:{port}"]) as client:
        client.get(f"{server.url}/ok")
        assert used(gate) == 1
        client.get(f"http://localhost:{port}/ok")
        assert used(gate) == 1


def test_a_transport_inside_a_transport_serves_two_gates(library: Any, server: Answering) -> None:
    outer, inner = gate_of("outer", slots()), gate_of("inner", slots())
    module = import_module(f"headgate.clients.{library.__name__}")
    kind = getattr(module, f"{library.__name__.title()}Transport")
    with library.Client(transport=kind(outer, hosts="localhost", transport=kind(inner, hosts="127.0.0.1"))) as client:
        client.get(f"{server.url}/ok")
        client.get(f"{server.url}/ok")
        client.get(f"http://localhost:{server.server_address[1]}/ok")
    assert (used(outer), used(inner)) == (1, 2)


def test_each_redirect_is_a_call_of_its_own(library: Any, server: Answering) -> None:
    gate = gate_of("redirects", slots())
    with client_of(library, gate, client={"follow_redirects": True}) as client:
        assert client.get(f"{server.url}/redirect").json()["status"] == "ok"
    assert used(gate) == 2
    assert is_free(gate)


def test_cost_key_priority_and_holder_are_functions_of_the_request(library: Any, server: Answering) -> None:
    limits = [Bucket(100, per="1h", unit="tokens", by="org", name="tpm"), Concurrency(5, name="slots")]
    gate = gate_of("asks", limits, priorities={"live": 1.0, "batch": 0.5})
    with (
        client_of(
            library,
            gate,
            cost=lambda request: {"tokens": len(request.content)},
            key=lambda request: {"org": request.headers["x-org"]},
            priority=lambda request: request.headers.get("x-class"),
            holder=lambda request: request.url.path,
        ) as client,
        client.stream("POST", f"{server.url}/ok", content=b"12345", headers={"x-org": "acme", "x-class": "batch"}),
    ):
        [holder] = gate.holders()
        assert holder.holder == "/ok"
        usage = gate.usage(key={"org": "acme"})
        assert round(next(row.used for row in usage.limits if row.name == "tpm" and row.key)) == 5
    assert is_free(gate)


def test_a_cost_function_that_raises_charges_nothing_and_says_where(library: Any, server: Answering) -> None:
    gate = gate_of("raises", slots())
    before = len(server.arrivals)
    with client_of(library, gate, cost=lambda request: 1 / 0) as client, pytest.raises(ZeroDivisionError) as raised:
        client.get(f"{server.url}/ok")
    assert "cost= of the client of gate 'raises' for GET http://127.0.0.1" in raised.value.__notes__[0]
    assert (used(gate), is_free(gate), len(server.arrivals)) == (0, True, before)


@pytest.mark.parametrize("path", ["/ok", "/events"])
def test_what_it_really_cost_is_read_from_the_answer_also_when_it_streams(
    library: Any, server: Answering, path: str
) -> None:
    def usage(answer: Answer) -> dict[str, float] | None:
        said = list(answer.events()) if answer.is_event_stream else [answer.json()]
        return {"tokens": said[-1]["usage"]["total_tokens"]}

    gate = gate_of("settles", [Bucket(1000, per="1h", unit="tokens", name="tpm")])
    with client_of(library, gate, cost={"tokens": 500}, settle=usage) as client:
        client.get(server.url + path)
    assert round(used(gate, "tpm")) == (7 if path == "/ok" else 11)


def test_a_stream_that_is_dropped_after_its_usage_is_settled_and_released(library: Any, server: Answering) -> None:
    gate = gate_of("early", [Bucket(1000, per="1h", unit="tokens", name="tpm"), Concurrency(1, name="slots")])
    settle = lambda answer: {"tokens": next(e["usage"]["total_tokens"] for e in answer.events() if "usage" in e)}  # noqa: E731
    with (
        client_of(library, gate, cost={"tokens": 500}, settle=settle) as client,
        client.stream("GET", f"{server.url}/events") as response,
    ):
        for line in response.iter_lines():
            if "usage" in line:
                break
    assert is_free(gate)
    assert round(used(gate, "tpm")) == 11


def test_a_settle_function_that_raises_is_told_and_the_caller_has_the_answer(library: Any, server: Answering) -> None:
    gate = gate_of("bad-settle", [Bucket(1000, per="1h", unit="tokens", name="tpm"), Concurrency(1, name="slots")])
    told: list[Event] = []
    end = subscribe(told.append)
    try:
        with client_of(library, gate, cost={"tokens": 50}, settle=lambda answer: answer.json()["nothing"]) as client:
            assert client.get(f"{server.url}/ok").json()["status"] == "ok"
        with client_of(library, gate, cost={"tokens": 50}, settle=lambda answer: {"pages": 3}) as client:
            assert client.get(f"{server.url}/ok").json()["status"] == "ok"
    finally:
        end()
    assert [event.kind for event in told] == ["settle_failed", "settle_failed"]
    assert "KeyError: 'nothing'" in str(told[0])
    assert "not in 'pages'" in str(told[1])
    assert is_free(gate)
    assert round(used(gate, "tpm")) == 100


def test_a_compressed_body_is_settled_by_what_it_says(library: Any, server: Answering) -> None:
    gate = gate_of("gzip", [Bucket(1000, per="1h", unit="tokens", name="tpm")])
    body = gzip.compress(json.dumps({"usage": 9}).encode())
    server.script.append((200, {"content-encoding": "gzip"}, body))
    settle = lambda answer: {"tokens": answer.json()["usage"]}  # noqa: E731
    with client_of(library, gate, cost={"tokens": 500}, settle=settle) as client:
        assert client.get(f"{server.url}/ok").json() == {"usage": 9}
    assert round(used(gate, "tpm")) == 9


def test_a_connection_that_is_refused_gives_the_permit_back(library: Any) -> None:
    gate = gate_of("refused", slots())
    with client_of(library, gate) as client, pytest.raises(library.ConnectError):
        client.get(f"http://127.0.0.1:{free_port()}/ok")
    assert (used(gate), is_free(gate)) == (0, True)


def test_a_request_that_was_read_and_not_answered_stays_charged(library: Any, server: Answering) -> None:
    gate = gate_of("hung-up", slots())
    with client_of(library, gate) as client, pytest.raises(library.RemoteProtocolError):
        client.get(f"{server.url}/hang-up")
    assert (used(gate), is_free(gate)) == (1, True)


@pytest.mark.parametrize("status", [200, 429, 503])
def test_a_body_that_a_proxy_cuts_off_is_the_callers_error_and_no_permit_stays(
    library: Any, server: Answering, status: int
) -> None:
    gate = gate_of(f"cut-{status}", slots())
    with client_of(library, gate) as client, pytest.raises(library.RemoteProtocolError):
        client.get(f"{server.url}/cut?status={status}")
    assert (used(gate), is_free(gate)) == (1, True)


@pytest.mark.parametrize("status", [200, 429])
def test_a_body_that_never_ends_is_held_until_it_is_closed_and_not_kept_in_memory(
    library: Any, server: Answering, status: int
) -> None:
    gate = gate_of(f"endless-{status}", slots())
    told: list[Event] = []
    end = subscribe(told.append)
    try:
        with (
            client_of(library, gate, settle=lambda answer: {"requests": 1 / 0}) as client,
            client.stream("GET", f"{server.url}/endless?status={status}") as response,
        ):
            assert response.status_code == status
            assert len(gate.holders()) == 1
            for count, _ in enumerate(response.iter_raw()):
                if count == 50:
                    break
    finally:
        end()
    assert is_free(gate)
    assert [event for event in told if event.kind != "rate_limited"] == []


def test_an_answer_that_is_dropped_unread_gives_its_slot_back(library: Any, server: Answering) -> None:
    gate = gate_of("dropped", slots())
    with client_of(library, gate) as client:
        response = client.send(client.build_request("GET", f"{server.url}/ok"), stream=True)
        assert len(gate.holders()) == 1
        del response
        gc.collect()
        until(lambda: is_free(gate))


def test_a_429_with_a_retry_info_pauses_the_gate(library: Any, server: Answering) -> None:
    gate = gate_of("paused", slots())
    with client_of(library, gate, timeout=0) as client:
        response = client.get(f"{server.url}/retry-info")
        assert response.status_code == 429
        assert response.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
        with pytest.raises(Denied) as denied:
            client.get(f"{server.url}/ok")
    assert 27 < (denied.value.retry_after or 0) <= 28


def test_a_refusal_is_reported_before_its_caller_reads_it(library: Any, server: Answering) -> None:
    gate = gate_of("early-report", slots(2))
    with client_of(library, gate) as client, client.stream("GET", f"{server.url}/retry-info") as response:
        assert gate.usage().paused_for is not None
        assert b"RESOURCE_EXHAUSTED" in response.read()


def test_retries_take_a_permit_each_and_the_last_answer_is_the_callers(library: Any, server: Answering) -> None:
    gate = gate_of("retries", slots())
    server.script += [503, 429, 200]
    retry = Retry(attempts=3, base="1ms")
    with client_of(library, gate, retry=retry) as client:
        assert client.post(f"{server.url}/ok", json={"a": 1}).json() == {"status": 200}
        assert used(gate) == 3
        assert server.bodies[-3:] == [b'{"a":1}'] * 3
        server.script += [503, 503, 503]
        assert client.get(f"{server.url}/ok").status_code == 503
        assert used(gate) == 6
        server.script += [500]
        assert client.get(f"{server.url}/ok").status_code == 500
        assert used(gate) == 7
    assert is_free(gate)


def test_a_body_that_is_made_while_it_is_sent_is_sent_once(library: Any, server: Answering) -> None:
    gate = gate_of("generated", slots())
    server.script += [503]
    with client_of(library, gate, retry=Retry(base="1ms")) as client:
        assert client.post(f"{server.url}/ok", content=iter([b"a"]), headers={"content-length": "1"}).status_code == 503
    assert used(gate) == 1


def test_a_pause_beyond_the_deadline_is_not_waited_for(library: Any, server: Answering) -> None:
    gate = gate_of("deadline", slots())
    before = len(server.arrivals)
    with client_of(library, gate, retry=Retry(attempts=5, deadline="10s")) as client:
        assert client.get(f"{server.url}/retry-info").status_code == 429
    assert len(server.arrivals) == before + 1


def test_a_deadline_that_passes_in_line_gives_the_answer_that_there_was(library: Any, server: Answering) -> None:
    limits = [Window(1, per="1h", name="rpm")]
    gate = gate_of("late", limits)
    server.script += [503]
    with client_of(library, gate, retry=Retry(attempts=5, base="1ms", deadline="200ms")) as client:
        response = client.get(f"{server.url}/ok")
    assert (response.status_code, response.json()) == (503, {"status": 503})


def test_a_transport_that_does_not_trace_is_stamped_before_it_is_called(library: Any) -> None:
    gate = gate_of("mock", slots())
    mock = library.MockTransport(lambda request: library.Response(200, json={"said": "so"}))
    with client_of(library, gate, transport=mock) as client:
        assert client.get("http://nowhere/ok").json() == {"said": "so"}
    assert (used(gate), is_free(gate)) == (1, True)


def test_a_mock_that_refuses_is_retried_like_a_server(library: Any) -> None:
    gate = gate_of("mock-retry", slots())
    answers = [library.Response(429, json={"error": {}}), library.Response(200, json={"said": "so"})]
    mock = library.MockTransport(lambda request: answers.pop(0))
    with client_of(library, gate, transport=mock, retry=Retry(base="1ms")) as client:
        assert client.get("http://nowhere/ok").json() == {"said": "so"}
    assert (used(gate), is_free(gate)) == (2, True)


def test_the_trace_of_the_caller_is_called_too(library: Any, server: Answering) -> None:
    gate = gate_of("trace", slots())
    seen: list[str] = []
    with client_of(library, gate) as client:
        client.get(f"{server.url}/ok", extensions={"trace": lambda name, info: seen.append(name)})
    assert "http11.send_request_headers.started" in seen


def test_wrong_arguments_are_refused_where_the_client_is_made(library: Any) -> None:
    module = import_module(f"headgate.clients.{library.__name__}")
    kind = getattr(module, f"{library.__name__.title()}Transport")
    gate = gate_of("wrong", slots())
    with pytest.raises(InvalidInput, match="takes its permits from a Gate"):
        kind(AsyncGate("wrong", slots()))
    with pytest.raises(InvalidInput, match="no host"):
        kind(gate, hosts="https://api.example.com/v1")
    with pytest.raises(InvalidInput, match="names no host"):
        kind(gate, hosts=[])
    with pytest.raises(InvalidInput, match="tokens"):
        kind(gate, cost={"tokens": 1})
    with pytest.raises(InvalidInput, match="retry is a"):
        kind(gate, retry=3)
    with pytest.raises(InvalidInput, match="BaseTransport"):
        kind(gate, transport="http")
    with pytest.raises(InvalidInput, match="settle is a function"):
        kind(gate, settle={"tokens": 1})


# --- on an event loop ---------------------------------------------------------------------------------------------------


def test_the_async_client_does_the_same(library: Any, server: Answering) -> None:
    async def main() -> None:
        gate = AsyncGate("async", slots(2), store=MemoryStore())
        async with async_client_of(library, gate) as client:
            answers = await asyncio.gather(*(client.get(f"{server.url}/ok") for _ in range(10)))
            assert [answer.status_code for answer in answers] == [200] * 10
            assert (await gate.usage())["rpm"].used == 10
            assert not await gate.holders()
            with pytest.raises(library.ConnectError):
                await client.get(f"http://127.0.0.1:{free_port()}/ok")
            with pytest.raises(library.RemoteProtocolError):
                await client.get(f"{server.url}/cut?status=429")
            assert (await gate.usage())["rpm"].used == 11
            server.script += [503, 429, 200]
        async with async_client_of(library, gate, retry=Retry(base="1ms")) as client:
            assert (await client.get(f"{server.url}/ok")).json() == {"status": 200}
        assert not await gate.holders()
        await gate.aclose()

    asyncio.run(main())


def test_an_async_answer_that_is_dropped_unread_gives_its_slot_back(library: Any, server: Answering) -> None:
    async def main() -> None:
        gate = AsyncGate("async-dropped", slots(), store=MemoryStore())
        client = async_client_of(library, gate)
        response = await client.send(client.build_request("GET", f"{server.url}/ok"), stream=True)
        assert len(await gate.holders()) == 1
        del response
        gc.collect()
        while await gate.holders():
            await asyncio.sleep(0.003)
        await client.aclose()

    asyncio.run(main())


class Steps:
    """Drives a coroutine and cancels it at its n-th suspension."""

    def __init__(self, n: int) -> None:
        self.left = n

    async def run(self, work: Any) -> bool:
        """Whether it was cancelled."""
        task = asyncio.ensure_future(_counted(work, self))
        self.task = task
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False


class _counted:
    """An awaitable that asks for a cancellation of its task after so many steps of the work."""

    def __init__(self, work: Any, steps: Steps) -> None:
        self.work, self.steps = work, steps

    def __await__(self) -> Any:
        inner = self.work.__await__()
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                waiting = inner.send(value) if error is None else inner.throw(error)
            except StopIteration as done:
                return done.value
            self.steps.left -= 1
            if self.steps.left == 0:
                self.steps.task.cancel()
            value = error = None
            try:
                value = yield waiting
            except BaseException as caught:
                error = caught


@pytest.mark.parametrize("store", ["memory", "sqlite"])
@pytest.mark.parametrize("path", ["/ok", "/events", "/retry-info"])
def test_a_task_that_is_cancelled_at_any_await_leaves_no_permit(
    library: Any, server: Answering, path: str, store: str, tmp_path: Any
) -> None:
    async def main() -> None:
        url: Any = MemoryStore() if store == "memory" else f"sqlite:///{tmp_path}/gate.db"
        gate = AsyncGate("cancelled", [Concurrency(1, name="slots", lease="1h")], store=url)
        for n in range(1, 200):
            async with async_client_of(library, gate, settle=lambda answer: None) as client:
                if not await Steps(n).run(client.get(server.url + path)):
                    break
            await gate.resume()
            async with asyncio.timeout(60):
                while await gate.holders():
                    await asyncio.sleep(0.001)
        else:
            raise AssertionError("the request had no end")
        assert n > 2, "it was cancelled nowhere"
        await gate.aclose()

    asyncio.run(main())

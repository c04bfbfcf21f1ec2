"""The middleware: who may go, what the others are told, and that a permit ends exactly once, however a request ends."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate import AsyncGate, Bucket, Concurrency, Gate, InvalidInput, Quota, Window
from headgate.service.middleware import ANONYMOUS, GateMiddleware, client_address, key_value
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock

Message = dict[str, Any]


def count_ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every release of a permit, by its outcome."""
    from headgate.gate.permit import AsyncPermit

    ends: list[str] = []
    release = AsyncPermit.release

    async def counted(self: AsyncPermit, outcome: str = "ok", retry_after: float | None = None) -> bool:
        ends.append(outcome)
        return await release(self, outcome, retry_after)

    monkeypatch.setattr(AsyncPermit, "release", counted)
    return ends


class Client:
    """One request to an ASGI application, said and heard message by message."""

    def __init__(self, app: Any, path: str = "/", headers: dict[str, str] | None = None, type: str = "http") -> None:
        raw = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
        self.scope: Message = {"type": type, "method": "GET", "path": path, "headers": raw, "client": ("10.0.0.1", 5)}
        self._app = app
        self.said: asyncio.Queue[Message] = asyncio.Queue()
        self.heard: list[Message] = []
        self.heard_more = asyncio.Event()

    def say(self, kind: str = "http.request", **more: Any) -> None:
        self.said.put_nowait({"type": kind, **more})

    async def send(self, message: Message) -> None:
        self.heard.append(message)
        self.heard_more.set()

    async def run(self) -> Client:
        if self.scope["type"] == "http" and self.said.empty():
            self.say(body=b"", more_body=False)
        await self._app(self.scope, self.said.get, self.send)
        return self

    @property
    def status(self) -> int:
        return int(self.heard[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.heard[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.heard[1:])


async def hello(scope: Message, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"hello"})


def gate_of(*limits: Any, clock: FakeClock | None = None, **more: Any) -> AsyncGate:
    return AsyncGate("api", limits, store=MemoryStore(clock=clock), **more)


def twin_of(app: GateMiddleware) -> Gate:
    """The gate that the middleware asks, for looking at."""
    return Gate("api", app._gate.policy.limits, store=app._gate.store)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.001)


# --- who may go -------------------------------------------------------------------------------------------------------


async def ask(app: Any, path: str = "/", **headers: str) -> Client:
    return await Client(app, path, {name.replace("_", "-"): value for name, value in headers.items()}).run()


def test_a_request_beyond_the_limit_is_answered_with_a_problem_and_when_to_come_again() -> None:
    async def main() -> None:
        app = GateMiddleware(hello, gate_of(Window(2, per="10s", name="rpm"), clock=FakeClock()))
        for _ in range(2):
            client = await ask(app)
            assert (client.status, client.body) == (200, b"hello")
            assert client.headers["ratelimit-policy"] == '"rpm";q=2;w=10'
        refused = await ask(app)
        assert refused.status == 429
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.headers["retry-after"] == "10"
        assert refused.headers["ratelimit"] == '"rpm";r=0;t=10'
        assert refused.headers["content-length"] == str(len(refused.body))
        problem = json.loads(refused.body)
        assert (problem["status"], problem["limit"], problem["gate"], problem["retry_after"]) == (
            429,
            "rpm",
            "api",
            10.0,
        )

    asyncio.run(main())


def test_each_value_of_a_header_has_a_limit_of_its_own_and_those_without_it_share_one() -> None:
    async def main() -> None:
        app = GateMiddleware(hello, gate_of(Window(1, per="10s", by="tenant")), key="X-Tenant")
        assert [(await ask(app, x_tenant=name)).status for name in ("a", "b", "a", "b")] == [200, 200, 429, 429]
        assert [(await ask(app)).status for _ in range(2)] == [200, 429]
        assert twin_of(app).usage({"tenant": ANONYMOUS})["window"].used == 1

    asyncio.run(main())


@pytest.mark.parametrize("value", ["with space", "ü", "x" * 300, "a|b", "a\u200bb", "../../etc", "%00"])
def test_whatever_a_client_sends_as_its_key_is_a_key(value: str) -> None:
    async def main() -> None:
        app = GateMiddleware(hello, gate_of(Window(1, per="10s", by="tenant")), key="x-tenant")
        assert [(await ask(app, x_tenant=value)).status for _ in range(2)] == [200, 429]

    asyncio.run(main())


def test_what_is_secret_is_kept_as_a_hash_only() -> None:
    async def main() -> None:
        app = GateMiddleware(hello, gate_of(Concurrency(1, by="who", lease="1m")), key="Authorization")
        held = asyncio.Event()

        async def hold(scope: Message, receive: Any, send: Any) -> None:
            await held.wait()

        app._app = hold
        task = asyncio.create_task(ask(app, authorization="Bearer secret"))
        await until(lambda: bool(twin_of(app).holders()))
        [holder] = twin_of(app).holders()
        assert "secret" not in repr(holder)
        assert holder.key == {"who": key_value("Bearer secret", secret=True)}
        held.set()
        await task

    asyncio.run(main())


def test_a_function_gives_the_key_the_cost_and_the_class_or_lets_a_request_pass() -> None:
    async def main() -> None:
        def key(scope: Message) -> dict[str, str] | None:
            return None if scope["path"] == "/free" else {"org": "acme", "user": scope["path"].strip("/") or "-"}

        limits = [Window(10, per="10s", name="org", by="org"), Window(4, per="10s", name="user", by="user")]
        app = GateMiddleware(
            hello,
            gate_of(*limits, priorities={"live": 1.0, "batch": 0.5}),
            key=key,
            cost=lambda scope: 2,
            priority=lambda scope: "batch" if scope["path"] == "/bob" else "live",
        )
        assert [(await ask(app, "/ann")).status for _ in range(3)] == [200, 200, 429]
        assert [(await ask(app, "/bob")).status for _ in range(2)] == [200, 429]
        assert [(await ask(app, "/free")).status for _ in range(5)] == [200] * 5

    asyncio.run(main())


def test_the_address_of_the_client_can_be_the_key_and_paths_can_be_exempt() -> None:
    async def main() -> None:
        limit = Window(1, per="10s", by="address")
        app = GateMiddleware(hello, gate_of(limit), key=client_address, exempt=["/livez"])
        assert [(await ask(app)).status for _ in range(2)] == [200, 429]
        assert [(await ask(app, "/livez")).status for _ in range(3)] == [200] * 3
        assert twin_of(app).usage({"address": "10.0.0.1"})["window"].used == 1

    asyncio.run(main())


def test_what_is_left_is_told_with_every_answer_if_asked_for() -> None:
    async def main() -> None:
        clock = FakeClock()
        app = GateMiddleware(hello, gate_of(Window(3, per="10s", name="rpm"), clock=clock), remaining=True)
        left = [(await ask(app)).headers["ratelimit"] for _ in range(3)]
        assert left == ['"rpm";r=2;t=10', '"rpm";r=1;t=10', '"rpm";r=0;t=10']

    asyncio.run(main())


def test_a_gate_asked_here_has_no_slack_since_here_is_where_it_counts() -> None:
    limits = [Window(5, per="10s"), Bucket(5, per="10s"), Quota(5), Concurrency(5)]
    asked = GateMiddleware(hello, gate_of(*limits))._gate.policy.limits
    assert [getattr(limit, "slack", 0) for limit in asked] == [0, 0, 0, 0]
    assert [limit.name for limit in asked] == [limit.name for limit in limits]

    async def main() -> None:
        clock = FakeClock()
        app = GateMiddleware(hello, gate_of(Window(5, per="10s"), clock=clock))
        assert [(await ask(app)).status for _ in range(6)] == [200] * 5 + [429]
        clock.advance("10s")
        assert [(await ask(app)).status for _ in range(6)] == [200] * 5 + [429]

    asyncio.run(main())


def test_mistakes_show_where_the_middleware_is_made() -> None:
    with pytest.raises(InvalidInput, match="AsyncGate"):
        GateMiddleware(hello, Gate("api", [Window(1, per="1s")]))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match='key="x-org"'):
        GateMiddleware(hello, gate_of(Window(1, per="1s", by="org")))
    with pytest.raises(InvalidInput, match="one header is one key"):
        GateMiddleware(hello, gate_of(Window(1, per="1s")), key="x-org")


def test_a_store_that_is_away_is_answered_with_503_and_when_to_come_again() -> None:
    async def main() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        gate = AsyncGate("api", [Window(1, per="1s", slack=0)], store=f"http://127.0.0.1:{port}")
        client = await ask(GateMiddleware(hello, gate))
        assert client.status == 503
        assert client.headers["retry-after"] == "1"
        gate.store.close()

    asyncio.run(main())


def test_websockets_and_lifespan_pass_untouched() -> None:
    async def main() -> None:
        seen: list[tuple[Any, ...]] = []

        async def app(*call: Any) -> None:
            seen.append(call)

        middleware = GateMiddleware(app, gate_of(Concurrency(1)))
        for kind in ("websocket", "lifespan"):
            for _ in range(3):
                client = Client(middleware, type=kind)
                receive, send = object(), object()
                await middleware(client.scope, receive, send)  # type: ignore[arg-type]
                assert seen.pop() == (client.scope, receive, send)

    asyncio.run(main())


# --- how permits end --------------------------------------------------------------------------------------------------


def test_a_permit_ends_once_with_the_last_byte_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        ends = count_ends(monkeypatch)
        gate = gate_of(Concurrency(1, lease="1m"))
        used: list[float] = []
        twin: list[Gate] = []

        async def stream(scope: Message, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(3):
                used.append(twin[0].usage()["concurrency"].used)
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            used.append(twin[0].usage()["concurrency"].used)  # what comes after the response holds nobody up

        app = GateMiddleware(stream, gate)
        twin.append(twin_of(app))
        client = await ask(app)
        assert client.body == b"xxx"
        assert used == [1, 1, 1, 0]
        assert ends == ["ok"]

    asyncio.run(main())


@pytest.mark.parametrize(("status", "outcome"), [(200, "ok"), (404, "ok"), (500, "ok"), (429, "rate_limited"),
                                                 (503, "overloaded")])  # fmt: skip
def test_the_status_of_the_answer_is_the_outcome(monkeypatch: pytest.MonkeyPatch, status: int, outcome: str) -> None:
    async def main() -> None:
        ends = count_ends(monkeypatch)

        async def app(scope: Message, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": status, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        await ask(GateMiddleware(app, gate_of(Concurrency(1))))
        assert ends == [outcome]

    asyncio.run(main())


@pytest.mark.parametrize("when", ["before", "within"])
def test_an_error_of_the_service_ends_the_permit_once_and_is_passed_on(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    async def main() -> None:
        ends = count_ends(monkeypatch)

        async def app(scope: Message, receive: Any, send: Any) -> None:
            if when == "within":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
            raise ZeroDivisionError

        middleware = GateMiddleware(app, gate_of(Concurrency(1)))
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await ask(middleware)
        assert ends == ["error", "error"]
        assert twin_of(middleware).usage()["concurrency"].used == 0

    asyncio.run(main())


def test_cancelling_a_request_at_any_await_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        ends = count_ends(monkeypatch)

        async def app(scope: Message, receive: Any, send: Any) -> None:
            while (await receive()).get("more_body"):
                await asyncio.sleep(0)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(5):
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b""})

        middleware = GateMiddleware(app, gate_of(Concurrency(1)), remaining=True)
        for turns in range(30):
            task = asyncio.create_task(ask(middleware))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait((task,))
            assert twin_of(middleware).usage()["concurrency"].used == 0, turns
        assert len(ends) <= 30

    asyncio.run(main())


@pytest.mark.parametrize("listens", [True, False])
def test_a_client_that_hangs_up_frees_its_slot_once_whether_the_service_listens_or_not(
    monkeypatch: pytest.MonkeyPatch, listens: bool
) -> None:
    async def main() -> None:
        ends = count_ends(monkeypatch)
        stop = asyncio.Event()

        async def stream(scope: Message, receive: Any, send: Any) -> None:
            while (await receive()).get("more_body"):
                pass
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
            if listens:
                assert (await receive())["type"] == "http.disconnect"
            await stop.wait()

        app = GateMiddleware(stream, gate_of(Concurrency(1, lease="1m")))
        client = Client(app)
        task = asyncio.create_task(client.run())
        await until(lambda: len(client.heard) == 2)
        assert twin_of(app).usage()["concurrency"].used == 1
        client.say("http.disconnect")
        await until(lambda: twin_of(app).usage()["concurrency"].used == 0)
        stop.set()
        await task
        assert ends == ["ok"]

    asyncio.run(main())


def test_the_body_of_a_request_arrives_whole_and_in_order_also_after_a_wait() -> None:
    async def main() -> None:
        bodies: list[bytes] = []

        async def app(scope: Message, receive: Any, send: Any) -> None:
            body, more = b"", True
            while more:
                message = await receive()
                body += message["body"]
                more = message["more_body"]
            bodies.append(body)
            await hello(scope, receive, send)

        gate = gate_of(Concurrency(1, lease="1m"))
        middleware = GateMiddleware(app, gate, wait=20)
        permit = await middleware._gate.acquire()
        parts = [bytes([65 + number]) * 30_000 for number in range(5)]
        client = Client(middleware)
        task = asyncio.create_task(client.run())
        for part in parts:
            client.say(body=part, more_body=part is not parts[-1])
        await until(lambda: twin_of(middleware).usage().waiting == 1)
        assert client.said.qsize() >= 1, "what is more than it keeps is left with the server"
        await permit.release()
        await task
        assert client.status == 200
        assert bodies == [b"".join(parts)]

    asyncio.run(main())


def test_a_client_that_hangs_up_while_it_waits_leaves_the_line() -> None:
    async def main() -> None:
        middleware = GateMiddleware(hello, gate_of(Concurrency(1, lease="1m")), wait=20)
        permit = await middleware._gate.acquire()
        client = Client(middleware)
        task = asyncio.create_task(client.run())
        await until(lambda: twin_of(middleware).usage().waiting == 1)
        client.say("http.disconnect")
        await task
        assert client.heard == []
        assert twin_of(middleware).usage().waiting == 0
        await permit.release()
        assert twin_of(middleware).usage()["concurrency"].used == 0

    asyncio.run(main())


# --- on a real server -------------------------------------------------------------------------------------------------


@pytest.fixture
def served() -> Iterator[Callable[[Any], int]]:
    """Serves an application with uvicorn in a thread; returns the port."""
    uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is missing: pip install 'headgate[server]'")
    running: list[tuple[Any, threading.Thread, socket.socket]] = []

    def serve(app: Any) -> int:
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: server.run(sockets=[listening]), daemon=True)
        thread.start()
        running.append((server, thread, listening))
        end = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.005)
        return int(listening.getsockname()[1])

    yield serve
    for server, thread, listening in running:
        server.should_exit = True
        thread.join(60)
        listening.close()


def test_under_uvicorn_slots_are_free_after_answers_hang_ups_and_refusals(served: Callable[[Any], int]) -> None:
    async def app(scope: Message, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        for _ in range(10_000 if scope["path"] == "/endless" else 3):
            await send({"type": "http.response.body", "body": b"tick\n", "more_body": True})
            await asyncio.sleep(0.01)
        await send({"type": "http.response.body", "body": b""})

    middleware = GateMiddleware(app, gate_of(Concurrency(2, lease="1m")))
    port, gate = served(middleware), twin_of(middleware)

    def used() -> float:
        return gate.usage()["concurrency"].used

    def wait_for(number: float) -> None:
        end = time.monotonic() + 60
        while used() != number:
            assert time.monotonic() < end, f"{used()} slots are used, not {number}"
            time.sleep(0.005)

    def get(path: str) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", port), timeout=60)
        made.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return made

    endless = [get("/endless") for _ in range(2)]
    wait_for(2)
    with get("/") as refused:
        assert refused.recv(4096).startswith(b"HTTP/1.1 429")
    for connection in endless:
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")
        connection.close()
    wait_for(0)
    with get("/") as short:
        heard = b""
        while not heard.endswith(b"0\r\n\r\n"):
            heard += short.recv(4096)
        assert heard.count(b"tick") == 3
    wait_for(0)

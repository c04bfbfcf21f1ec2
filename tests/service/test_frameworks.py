"""WSGI, Flask and FastAPI in front of a gate, in real servers: who may go, what the others are told, what is held."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn
from fastapi import Depends, FastAPI
from fastapi.responses import StreamingResponse
from flask import Flask, request
from werkzeug.serving import make_server

from headgate import AsyncGate, AsyncPermit, Concurrency, Gate, InvalidInput, Window
from headgate.contrib.fastapi import TakePermit
from headgate.contrib.flask import limited
from headgate.service.wsgi import WsgiGateMiddleware, remote_address
from headgate.stores.memory import MemoryStore
from tests.support.waiting import until


def limits() -> list[Any]:
    return [Window(2, per="1h", name="per-org", by="org"), Concurrency(5, name="slots")]


def gate_of() -> Gate:
    return Gate("web", limits(), store=MemoryStore())


@contextmanager
def wsgi_server(app: Any) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def asgi_server(app: Any) -> Iterator[str]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def get(url: str, **headers: str) -> tuple[int, dict[str, str], Any]:
    asked = urllib.request.Request(url, headers={name.replace("_", "-"): value for name, value in headers.items()})
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {k.lower(): v for k, v in error.headers.items()}, error.read()


def hello(environ: Any, start_response: Any) -> Any:
    if environ["PATH_INFO"] == "/raises":
        raise ValueError("mine")
    start_response("200 OK", [("content-type", "text/plain")])
    return (part for part in [b"hel", b"lo"])


def refused(answer: tuple[int, dict[str, str], Any], under: str = "") -> None:
    status, headers, body = answer
    assert status == 429
    assert int(headers["retry-after"]) > 3000
    assert headers["ratelimit-policy"].startswith('"per-org";q=2;w=3600')
    assert headers["ratelimit"].startswith('"per-org";r=0;t=')
    value = json.loads(body)
    value = value[under] if under else value
    assert (value["type"], value["limit"]) == ("urn:headgate:problem:denied", "per-org")


def test_a_wsgi_service_answers_two_of_an_organisation_and_tells_the_third_when() -> None:
    gate = gate_of()
    with wsgi_server(WsgiGateMiddleware(hello, gate, key="x-org", exempt=["/livez"])) as url:
        for _ in range(2):
            status, headers, body = get(url, x_org="acme")
            assert (status, body) == (200, b"hello")
            assert headers["ratelimit-policy"].startswith('"per-org";q=2')
            assert "ratelimit" in headers
        answer = get(url, x_org="acme")
        refused(answer)
        assert answer[1]["content-type"] == "application/problem+json"
        assert get(url, x_org="other")[0] == 200
        assert get(f"{url}/livez")[0] == 200
        until(lambda: not gate.holders())


def test_a_wsgi_service_that_raises_and_a_client_that_hangs_up_leave_no_permit() -> None:
    gate = Gate("web", [Concurrency(2, name="slots", lease="1h")], store=MemoryStore())

    def endless(environ: Any, start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/raises":
            raise ValueError("mine")
        start_response("200 OK", [("content-type", "text/plain")])
        while True:
            yield b"x" * 10_000

    def raising(environ: Any, start_response: Any) -> Any:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        WsgiGateMiddleware(raising, gate)({"PATH_INFO": "/"}, lambda *_: None)
    assert gate.holders() == []
    with wsgi_server(WsgiGateMiddleware(endless, gate)) as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
            client.recv(100)
            assert len(gate.holders()) == 1
        until(lambda: not gate.holders())


def test_an_answer_that_its_server_forgets_to_close_gives_its_slot_back() -> None:
    gate = Gate("web", [Concurrency(2, name="slots", lease="1h")], store=MemoryStore())
    answer = WsgiGateMiddleware(hello, gate)({"PATH_INFO": "/"}, lambda *_: None)
    assert len(gate.holders()) == 1
    del answer
    until(lambda: not gate.holders())


def test_a_flask_view_takes_a_permit_until_its_response_was_sent() -> None:
    gate = gate_of()
    app = Flask("app")
    inside: list[int] = []

    @app.get("/stream")
    @limited(gate, key=lambda: request.headers.get("x-org"), holder=lambda: request.path)
    def stream() -> Any:
        def parts() -> Iterator[str]:
            inside.append(len(gate.holders()))
            yield "hello"

        return app.response_class(parts())

    @app.get("/free")
    def free() -> str:
        return "free"

    with wsgi_server(app) as url:
        for _ in range(2):
            status, headers, body = get(f"{url}/stream", x_org="acme")
            assert (status, body) == (200, b"hello")
            assert headers["ratelimit-policy"].startswith('"per-org";q=2')
        refused(get(f"{url}/stream", x_org="acme"))
        assert get(f"{url}/stream")[0] == 200  # a key of None needs no permit
        assert get(f"{url}/free")[0] == 200
        until(lambda: not gate.holders())
    assert inside[:2] == [1, 1]


def test_a_fastapi_route_takes_a_permit_until_its_response_was_sent() -> None:
    store = MemoryStore()
    gate = AsyncGate("web", limits(), store=store)
    look = Gate("web", limits(), store=store)
    app = FastAPI()
    inside: list[int] = []

    @app.get("/stream")
    async def stream(permit: Any = Depends(TakePermit(gate, key="x-org"))) -> Any:  # noqa: B008  FastAPI's own form
        assert isinstance(permit, AsyncPermit)

        async def parts() -> Any:
            inside.append(len(look.holders()))
            await asyncio.sleep(0)
            yield b"hello"

        return StreamingResponse(parts())

    @app.get("/json", dependencies=[Depends(TakePermit(gate, key=lambda asked: asked.headers.get("x-org")))])
    def plain() -> dict[str, int]:
        return {"holders": len(look.holders())}

    with asgi_server(app) as url:
        assert get(f"{url}/stream", x_org="acme")[::2] == (200, b"hello")
        status, headers, body = get(f"{url}/json", x_org="acme")
        assert (status, json.loads(body)) == (200, {"holders": 1})
        assert headers["ratelimit-policy"].startswith('"per-org";q=2')
        refused(get(f"{url}/json", x_org="acme"), under="detail")
        refused(get(f"{url}/stream", x_org="acme"), under="detail")
        assert json.loads(get(f"{url}/json")[2]) == {"holders": 0}
        until(lambda: not look.holders())
    assert inside == [1]


def test_a_request_may_wait_for_its_turn() -> None:
    gate = Gate("web", [Concurrency(1, name="slots")], store=MemoryStore())
    permit = gate.acquire()
    app = WsgiGateMiddleware(hello, gate, wait=60)
    answers: list[bytes] = []

    def ask() -> None:
        answer: Any = app({"PATH_INFO": "/"}, lambda *_: None)
        answers.append(b"".join(answer))
        answer.close()

    thread = threading.Thread(target=ask)
    thread.start()
    until(lambda: gate.waiters())
    permit.release()
    thread.join()
    assert answers == [b"hello"]


def test_what_makes_no_sense_is_refused_where_it_is_written() -> None:
    on_loop = AsyncGate("web", limits(), store=MemoryStore())
    with pytest.raises(InvalidInput, match="needs a Gate"):
        WsgiGateMiddleware(hello, on_loop, key="x-org")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="needs a Gate"):
        limited(on_loop)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="needs an AsyncGate"):
        TakePermit(gate_of())  # type: ignore[arg-type]
    for make in (lambda: WsgiGateMiddleware(hello, gate_of()), lambda: limited(gate_of()), lambda: TakePermit(on_loop)):
        with pytest.raises(InvalidInput, match="limits by org"):
            make()
    plain = Gate("plain", [Window(1, per="1s")], store=MemoryStore())
    with pytest.raises(InvalidInput, match="one header is one key"):
        WsgiGateMiddleware(hello, plain, key="x-org")
    assert remote_address({"REMOTE_ADDR": "10.0.0.1"}) == "10.0.0.1"

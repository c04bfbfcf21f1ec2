"""A small HTTP/1.1 server for local upstreams: in a thread of this process, or in a process of its own.

Standard library only. One coroutine per connection, so that thousands of clients that wait for slow answers cost little.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import urllib.request
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import parse_qs, unquote, urlsplit

from ...errors import HeadgateError
from .frame import Fault, UpstreamRequest, UpstreamResponse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self

    from .frame import Upstream

#: Bytes of a request: its head, and its body.
LARGEST_HEAD, LARGEST_BODY = 64 * 1024, 64 * 1024 * 1024


class BadRequest(Exception):
    """What arrived is no HTTP request that this server reads."""


class UpstreamThread:
    """An upstream that listens on loopback, in a thread. Use it as a context manager, or `start` and `stop`."""

    def __init__(self, upstream: Upstream, port: int = 0, host: str = "127.0.0.1") -> None:
        self.upstream = upstream
        self._socket = socket.create_server((host, port), backlog=4096)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(ready,), name=f"upstream-{self.upstream.name}", daemon=True
        )
        self._thread.start()
        ready.wait()
        return self

    def stop(self) -> None:
        """Close the port and every connection. Calls that are under way get no answer."""
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None
        self._socket.close()

    def books(self) -> dict[str, Any]:
        """What the upstream has counted so far."""
        return self.upstream.page()

    def inject(self, **fault: Any) -> None:
        """Have requests fail: the fields of a `Fault`."""
        self.upstream.inject(Fault.from_json(fault))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, ready: threading.Event) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(
            asyncio.start_server(Connections(self.upstream), sock=self._socket, limit=LARGEST_HEAD)
        )
        loop.call_soon(ready.set)
        try:
            loop.run_forever()
        finally:
            server.close()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.close()


class UpstreamProcess:
    """An upstream in a process of its own, used like `UpstreamThread`. It ends with the process that made it."""

    def __init__(self, name: str, port: int = 0, host: str = "127.0.0.1", **arguments: Any) -> None:
        given = json.dumps({"name": name, "port": port, "host": host, **arguments})
        command = [sys.executable, "-m", "headgate.simulate.upstreams", given]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line:
            self.stop()
            raise HeadgateError(f"the upstream {name} did not start; what it said is on standard error")
        self.url = line
        self.port = int(line.rpartition(":")[2])

    @property
    def pid(self) -> int:
        return self._process.pid

    def books(self) -> dict[str, Any]:
        """What the upstream has counted so far."""
        found: dict[str, Any] = json.loads(self._fetch("/_books"))
        return found

    def inject(self, **fault: Any) -> None:
        """Have requests fail: the fields of a `Fault`."""
        self._fetch("/_faults", json.dumps(fault).encode())

    def stop(self) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _fetch(self, path: str, body: bytes | None = None) -> bytes:
        with urllib.request.urlopen(self.url + path, data=body, timeout=60) as answer:
            found: bytes = answer.read()
        return found


class Connections:
    """Serves each connection: reads requests one after the other, has the upstream answer, and writes."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        if connection is not None:  # an answer is small, and its client waits for it
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while await self._one(reader, writer):
                pass
        except BadRequest as error:
            writer.write(rendered(UpstreamResponse(400, {"error": str(error)}), keep=False))
            with suppress(OSError):
                await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, asyncio.CancelledError):
            pass  # the client went away, or we do
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve one request. Returns whether the connection stays open."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise BadRequest("the head of the request is too large") from None
        request, keep = await read(head, reader, writer)
        answer = await self._upstream.respond(request)
        if answer.delay > 0:
            await asyncio.sleep(answer.delay)
        if answer.drop:
            return False
        if answer.chunks is None:
            writer.write(rendered(answer, keep, with_body=request.method != "HEAD"))
            await writer.drain()
            return keep
        writer.write(rendered(answer, keep, with_body=False, streamed=True))
        for delay, chunk in answer.chunks:
            await writer.drain()
            if delay > 0:
                await asyncio.sleep(delay)
            writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return keep


async def read(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[UpstreamRequest, bool]:
    """The request whose head was read, with its body; and whether the client wants to go on."""
    lines = head.decode("latin-1").split("\r\n")
    parts = lines[0].split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise BadRequest("the first line is not METHOD PATH HTTP/1.1")
    method, target, version = parts
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    body = await read_body(headers, reader)
    keep = headers.get("connection", "keep-alive" if version == "HTTP/1.1" else "close").lower() != "close"
    url = urlsplit(target)
    return UpstreamRequest(
        method, unquote(url.path) or "/", parse_qs(url.query, keep_blank_values=True), headers, body
    ), keep


async def read_body(headers: dict[str, str], reader: asyncio.StreamReader) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = bytearray()
        while True:
            size = parse_size((await reader.readline()).split(b";")[0].decode("latin-1"), 16)
            if size == 0:
                while (await reader.readline()).strip():
                    pass
                return bytes(body)
            if len(body) + size > LARGEST_BODY:
                raise BadRequest("the body is too large")
            body += await reader.readexactly(size)
            await reader.readexactly(2)
    size = parse_size(headers.get("content-length", "0"), 10)
    if size > LARGEST_BODY:
        raise BadRequest("the body is too large")
    return await reader.readexactly(size)


def parse_size(text: str, base: int) -> int:
    try:
        size = int(text, base)
    except ValueError:
        size = -1
    if size < 0:
        raise BadRequest(f"{text!r} is not a length")
    return size


def rendered(answer: UpstreamResponse, keep: bool, with_body: bool = True, streamed: bool = False) -> bytes:
    """The answer as bytes: its head, and its body unless that is streamed or not wanted."""
    payload = b"" if streamed else answer.payload()
    kind = "application/octet-stream" if isinstance(answer.body, bytes) else "application/json"
    headers = {"Content-Type": kind, **answer.headers}
    if streamed:
        headers["Transfer-Encoding"] = "chunked"
    else:
        headers["Content-Length"] = str(len(payload))
    if not keep:
        headers["Connection"] = "close"
    try:
        reason = HTTPStatus(answer.status).phrase
    except ValueError:
        reason = "Unknown"
    lines = [f"HTTP/1.1 {answer.status} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
    head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return head + payload if with_body else head

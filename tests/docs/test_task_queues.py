"""The pages on gates inside Celery and dramatiq, run by real workers: what a wait costs a task, and what a kill costs.

Each page's Python is the module of tasks that its worker imports. Only its two waits are shortened, and what is put back is
noted; the limits come from a headgate.toml of the test's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import headgate
from tests.docs.test_pages import DOCS, script_of
from tests.support.redis_gates import PATIENT
from tests.support.servers import Server
from tests.support.waiting import until

pytestmark = pytest.mark.slow

#: Seconds that a process may take to start on a busy machine.
PATIENCE = 240.0

#: Seconds after which the slot of a dead worker is free.
LEASE = 6

LIMITS = """
store = "{store}"

[gates.summaries]
limits = [
  {{ window = 1000, per = "1m", name = "rpm" }},
  {{ concurrency = 1, name = "in_flight", lease = "{lease}s" }},
]
"""

#: What the worker imports in place of the page, which it imports itself.
IMPATIENT = """
import tasks
from tasks import *

tasks.WAIT = 0.05
tasks.LONGEST = 0.2
as_on_the_page = tasks.put_back


def noted(*of):
    with open("put-back", "a") as notes:
        notes.write("x")
    return as_on_the_page(*of)


tasks.put_back = noted
"""


@dataclass
class Upstream:
    """An upstream that writes down what it was asked, and can be made to fail or to hang."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    #: What it answers to the next requests, the first first; then 200.
    statuses: list[int] = field(default_factory=list)
    answers: threading.Event = field(default_factory=threading.Event)

    def ask(self, body: dict[str, Any]) -> int:
        self.asked.append(body)
        self.answers.wait()
        return self.statuses.pop(0) if self.statuses else 200


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    books = Upstream()
    books.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status = books.ask(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            try:
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")
            except OSError:
                pass  # the worker that asked was killed

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    books.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield books
    books.answers.set()
    server.shutdown()
    thread.join()
    server.server_close()


class Celery:
    page = "celery"
    words = ("celery", "-A", "worker_tasks", "worker", "--concurrency", "1", "--loglevel", "WARNING")
    #: For a worker that looks for tasks of dead ones: soon, and not held up by one that died while it looked.
    soon = """
app.conf.broker_transport_options = {
    "visibility_timeout": 3, "unacked_restore_interval": 1, "unacked_restore_throttle": 1, "unacked_mutex_expire": 3,
}
"""

    @staticmethod
    def send(title: str, broker: str) -> str:
        from celery import Celery

        with Celery("sender", broker=broker, set_as_current=False) as app:
            return str(app.send_task("summarise", args=(title,)).id)


class Dramatiq:
    page = "dramatiq"
    words = ("dramatiq", "worker_tasks", "--processes", "1", "--threads", "1")
    soon = "broker.maintenance_chance, broker.heartbeat_timeout = 1_000_000, 3_000\n"

    @staticmethod
    def send(title: str, broker: str) -> str:
        from dramatiq import Message
        from dramatiq.brokers.redis import RedisBroker

        sender = RedisBroker(url=broker)
        sender.declare_queue("default")
        message: Message[Any] = Message(
            queue_name="default", actor_name="summarise", args=(title,), kwargs={}, options={}
        )
        try:
            return str(sender.enqueue(message).message_id)
        finally:
            sender.client.close()
            sender.client.connection_pool.disconnect()


@dataclass
class Fleet:
    """One task queue with its workers, all on one server."""

    queue: Any
    server: Server
    upstream: Upstream
    folder: Path
    gate: headgate.Gate

    def send(self, title: str) -> str:
        return str(self.queue.send(title, self.server.url))

    def put_back(self) -> int:
        """How often tasks were put back."""
        notes = self.folder / "put-back"
        return len(notes.read_text()) if notes.exists() else 0

    @contextmanager
    def worker(self, takes_over: bool = False) -> Iterator[subprocess.Popen[bytes]]:
        """A worker as on the page, or one that takes the tasks of dead workers over after seconds."""
        module = IMPATIENT + (self.queue.soon if takes_over else "")
        (self.folder / "worker_tasks.py").write_text(module, encoding="utf-8")
        # Nothing that other tests of this process have set: with DJANGO_SETTINGS_MODULE Celery would load that project.
        env = {name: value for name, value in os.environ.items() if not name.startswith(("HEADGATE_", "DJANGO_"))}
        env |= {"PYTHONDONTWRITEBYTECODE": "1"}  # the module is written anew for each worker
        env |= {"BROKER": self.server.url, "UPSTREAM": self.upstream.url, "PYTHONPATH": str(self.folder)}
        command = [sys.executable, "-m", *self.queue.words]
        process = subprocess.Popen(command, cwd=self.folder, env=env, start_new_session=True)
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of a worker and of all of its processes."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(params=[Celery, Dramatiq], ids=lambda queue: queue.page)
def fleet(request: pytest.FixtureRequest, server: Server, upstream: Upstream, tmp_path: Path) -> Iterator[Fleet]:
    queue = request.param
    (tmp_path / "tasks.py").write_text(script_of(DOCS / "how-to" / f"{queue.page}.md"), encoding="utf-8")
    # Patient: on a busy machine a healthy server may take seconds to answer, and an outage would be a failure of the task.
    limits = LIMITS.format(store=server.url + PATIENT, lease=LEASE)
    (tmp_path / "headgate.toml").write_text(limits, encoding="utf-8")
    with headgate.load(tmp_path / "headgate.toml") as gates:
        yield Fleet(queue, server, upstream, tmp_path, gates["summaries"])


def test_a_wait_for_the_limit_and_a_refusal_by_the_upstream_burn_no_retry_and_a_failure_does(fleet: Fleet) -> None:
    fleet.upstream.statuses += [429] * 4 + [500]  # after the fourth, no retry would be left of three
    with fleet.worker():
        with fleet.gate.acquire(holder="somebody else", lease="10m"):
            fleet.send("Weirs")
            until(lambda: fleet.put_back() > 4, PATIENCE)
            assert fleet.upstream.asked == []
        until(lambda: len(fleet.upstream.asked) == 6, PATIENCE)
    assert [asked["retries"] for asked in fleet.upstream.asked] == [0, 0, 0, 0, 0, 1]


def test_after_kill_9_of_a_worker_its_slot_is_back_after_one_lease_and_its_task_is_delivered_again(
    fleet: Fleet,
) -> None:
    fleet.upstream.answers.clear()
    with fleet.worker() as process:
        id = fleet.send("Weirs")
        until(lambda: fleet.upstream.asked, PATIENCE)
        until(lambda: [holder.holder for holder in fleet.gate.holders()] == [id], PATIENCE)
        kill(process)
    begun = time.monotonic()
    left = max((holder.expires_in for holder in fleet.gate.holders()), default=0.0)
    assert left <= LEASE
    until(lambda: fleet.gate.holders() == [], PATIENCE)
    assert time.monotonic() - begun >= left - 0.5, "the call may be under way for as long as the lease says"

    fleet.upstream.answers.set()
    with fleet.worker(takes_over=True):
        until(lambda: len(fleet.upstream.asked) > 1, PATIENCE)
        until(lambda: fleet.gate.holders() == [], PATIENCE)
    assert fleet.upstream.asked[:2] == [{"title": "Weirs", "retries": 0}] * 2

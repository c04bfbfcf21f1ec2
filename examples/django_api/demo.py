"""`make demo-django`: two server processes, a worker, and 60 requests of three organisations at once.

Everything is on the embedded default: SQLite files in a folder that is gone afterwards, on loopback.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Site:
    """The example as a fleet: gunicorn with so many server processes, and a worker. Use it in a `with` block."""

    def __init__(self, data: Path, processes: int = 2, threads: int = 30, run_seconds: float = 1.0, **env: str) -> None:
        self.port = free_port()
        self.data, self.processes, self.threads, self.run_seconds = data, processes, threads, run_seconds
        paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        self.env = {
            **os.environ, "EXAMPLE_DATA": str(data), "PYTHONPATH": paths, "EXAMPLE_LOG": "ERROR",
            "DJANGO_SETTINGS_MODULE": "project.settings", **env,
        }  # fmt: skip
        self.server: subprocess.Popen | None = None
        self.worker: subprocess.Popen | None = None

    def manage(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "django", *words],
            env=self.env,
            cwd=self.data,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"manage.py {' '.join(words)}: {done.stderr}")
        return done.stdout

    def books(self, lost_for: float = 0.0) -> dict[str, dict[str, int]]:
        return json.loads(self.manage("show_books", "--lost-for", str(lost_for)))["books"]

    def start_worker(self) -> None:
        words = ["run_worker", "--threads", "32", "--seconds", str(self.run_seconds)]
        with (self.data / "worker.log").open("ab") as log:
            self.worker = subprocess.Popen(
                [sys.executable, "-m", "django", *words], env=self.env, cwd=self.data, stdout=log, stderr=log
            )

    def kill_worker(self) -> None:
        """kill -9, and another one begins."""
        self.worker.kill()
        self.worker.wait()
        self.start_worker()

    def kill_server_process(self) -> None:
        """kill -9 of one of gunicorn's processes; gunicorn starts another."""
        children = Path(f"/proc/{self.server.pid}/task/{self.server.pid}/children").read_text().split()
        if children:
            os.kill(int(children[len(children) // 2]), signal.SIGKILL)

    def __enter__(self) -> Site:
        with (self.data / "server.log").open("ab") as log:
            self.server = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", "project.wsgi", "--bind", f"127.0.0.1:{self.port}",
                 "--workers", str(self.processes), "--threads", str(self.threads), "--worker-class", "gthread",
                 "--backlog", "1024", "--graceful-timeout", "1", "--timeout", "120"],
                env=self.env, cwd=HERE, stdout=log, stderr=log,
            )  # fmt: skip
        self.start_worker()
        self._wait()
        return self

    def _wait(self) -> None:
        end = time.monotonic() + 120
        while True:
            try:
                self.ask("nobody", "nothing")
                return
            except OSError:
                if time.monotonic() > end or self.server.poll() is not None:
                    told = (self.data / "server.log").read_text()[-2000:]
                    self.__exit__()
                    raise RuntimeError(f"the server did not start: {told}") from None
                time.sleep(0.1)

    def __exit__(self, *error: object) -> None:
        for process, sign in ((self.worker, signal.SIGKILL), (self.server, signal.SIGTERM)):
            if process is not None and process.poll() is None:
                process.send_signal(sign)
                try:
                    process.wait(timeout=20)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def ask(self, organization: str, key: str, timeout: float = 120.0) -> tuple[int, str]:
        """One request of the API: the status, and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(
                "POST", f"/deployment/api/{organization}/invoices/", json.dumps({"document": "x"}),
                {"Content-Type": "application/json", "Authorization": f"Bearer {key}"},
            )  # fmt: skip
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


ORGANIZATIONS = {"acme": "key-of-acme", "bolt": "key-of-bolt", "cord": "key-of-cord"}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="headgate-demo-") as folder:
        limits = {"API_DEPLOYMENT_DEFAULT_RATE_LIMIT": "12", "API_DEPLOYMENT_GLOBAL_RATE_LIMIT": "25"}
        site = Site(Path(folder), run_seconds=4.0, **limits)
        site.manage("migrate", "-v0")
        site.manage("make_example", *(f"{name}={key}" for name, key in ORGANIZATIONS.items()))
        print("$ manage.py set_org_rate_limit acme 5")
        print(site.manage("set_org_rate_limit", "acme", "5"))
        with site:
            print(
                "60 requests at once, 20 of each organization, to 2 server processes (12 each, acme 5, 25 in total):\n"
            )
            answers = fire(site)
            for name in ORGANIZATIONS:
                got = answers[name]
                print(
                    f"  {name}: {got[200]} queued, {got[429]} refused"
                    + (f", others: {got}" if set(got) - {200, 429} else "")
                )
            for text in sorted({text for _, text in TEXTS}):
                print(f"\n  429  {text}")
            print("\n$ manage.py list_org_rate_limits --with-usage")
            print(site.manage("list_org_rate_limits", "--with-usage"))
            queued = sum(got[200] for got in answers.values())
            end = time.monotonic() + 60
            while site.books().get("all", {}).get("ended", 0) < queued and time.monotonic() < end:
                time.sleep(0.3)
            print("the example's own books, when the worker has finished:\n")
            for which, books in sorted(site.books().items()):
                runs = f"{books['accepted']} runs, {books['ended']} completed"
                print(f"  {which}: {runs}, at most {books['most_at_once']} at once")
            print("\n$ manage.py get_org_rate_limit acme")
            print(site.manage("get_org_rate_limit", "acme"))


TEXTS: list[tuple[str, str]] = []


def fire(site: Site) -> dict[str, Counter[int]]:
    """60 requests at the same moment; status codes by organisation."""
    answers: dict[str, Counter[int]] = {name: Counter() for name in ORGANIZATIONS}
    together = threading.Barrier(60)

    def one(name: str) -> None:
        together.wait()
        status, body = site.ask(name, ORGANIZATIONS[name])
        answers[name][status] += 1
        if status == 429:
            TEXTS.append((name, json.loads(body)["errors"][0]["detail"]))

    threads = [threading.Thread(target=one, args=(name,)) for name in ORGANIZATIONS for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


if __name__ == "__main__":
    main()

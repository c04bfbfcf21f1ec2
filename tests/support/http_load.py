"""Clients of the Django example in a process of their own: `python -m tests.support.http_load`, told what to do by JSON.

Each client sends one request after the other and notes its status and how long it took. A connection that breaks, because
its server process was killed, is counted and opened again.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from collections import Counter
from typing import Any


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


class Clients:
    """The clients of one organisation."""

    def __init__(self, port: int, name: str, key: str, count: int, pause: float) -> None:
        self.port, self.name, self.key, self.count, self.pause = port, name, key, count, pause
        self.statuses: Counter[str] = Counter()
        self.took: list[float] = []
        self._lock = threading.Lock()

    def run(self, until: float) -> None:
        connection: http.client.HTTPConnection | None = None
        path, body = f"/deployment/api/{self.name}/invoices/", json.dumps({"document": "x"})
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        while (begun := time.monotonic()) < until:
            try:
                connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                told = answer.read().decode()
                status = str(answer.status)
                if answer.status == 429:
                    status = "429 org" if "Organization has" in told else "429 global"
            except (OSError, http.client.HTTPException):
                connection, status = None, "broken"
                time.sleep(0.05)
            took = time.monotonic() - begun
            with self._lock:
                self.statuses[status] += 1
                if status != "broken":
                    self.took.append(took)
            time.sleep(self.pause)

    def result(self) -> dict[str, Any]:
        return {
            "statuses": dict(self.statuses),
            "p50_ms": percentile(self.took, 0.5) * 1000,
            "p99_ms": percentile(self.took, 0.99) * 1000,
        }


def main() -> None:
    told = json.loads(sys.stdin.readline())
    groups = [Clients(told["port"], **group) for group in told["groups"]]
    until = time.monotonic() + told["seconds"]
    threads = [threading.Thread(target=group.run, args=(until,)) for group in groups for _ in range(group.count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(json.dumps({group.name: group.result() for group in groups}) + "\n")


if __name__ == "__main__":
    main()

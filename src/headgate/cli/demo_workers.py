"""The workers of `headgate demo`. A module of their own, so that a worker process loads nothing that it does not need."""

from __future__ import annotations

import http.client
import random
import signal
import threading
import time
from dataclasses import dataclass

from headgate import Denied, Gate, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: What a worker that is refused does on its own, for a window of a minute: a second, doubled each time, up to a minute.
BACKOFF_FIRST, BACKOFF_LONGEST = 1 / 60, 1.0
#: By how much the delays of two calls, from grant to upstream, may differ, as a share of the window. The answer confirms a
#: call, so a generous slack costs a round trip and not itself: it is there for a machine that is busy with something else.
SLACK = 0.1


@dataclass(frozen=True, slots=True)
class Setting:
    """What is demonstrated: `limit` requests in any `per` seconds; `calls` to be made by `workers` × `threads`."""

    limit: int
    per: float
    calls: int
    workers: int
    #: How many calls each worker process makes at a time.
    threads: int
    #: An uncoordinated run is cut off after so many seconds.
    seconds: float


class Caller:
    """A connection to the upstream, kept open."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def get(self, path: str = "/work") -> tuple[http.client.HTTPResponse, bytes]:
        self._connection.request("GET", path)
        answer = self._connection.getresponse()
        return answer, answer.read()

    def close(self) -> None:
        self._connection.close()


def work(setting: Setting, store: str, ports: Any, left: Any, deadlines: Any, barrier: Any) -> None:
    """A worker process: takes part in each run, and makes calls until the shared count of them is used up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends everything
    gate = Gate("demo", [Window(setting.limit, per=setting.per, slack=setting.per * SLACK, name="rate")], store=store)
    gate.usage()
    for number, run in enumerate((uncoordinated, with_headgate)):
        barrier.wait()
        callers = [Caller(ports[number]) for _ in range(setting.threads)]
        threads = [
            threading.Thread(target=run, args=(setting, gate, caller, left[number], deadlines[number]))
            for caller in callers
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for caller in callers:
            caller.close()
        barrier.wait()


def take_one(left: Any) -> bool:
    with left.get_lock():
        left.value -= 1
        return bool(left.value >= 0)


def uncoordinated(setting: Setting, gate: Gate, caller: Caller, left: Any, deadline: Any) -> None:
    """Call; when refused, back off and retry. What most programs do."""
    while take_one(left):
        pause = setting.per * BACKOFF_FIRST
        while caller.get()[0].status == 429:
            time.sleep(max(0.0, min(pause * random.uniform(0.5, 1.0), deadline.value - time.monotonic())))
            if time.monotonic() >= deadline.value:
                return
            pause = min(pause * 2, setting.per * BACKOFF_LONGEST)
        if time.monotonic() >= deadline.value:
            return


def with_headgate(setting: Setting, gate: Gate, caller: Caller, left: Any, deadline: Any) -> None:
    """Take a permit, call, report the answer."""
    while take_one(left):
        try:
            with gate.acquire(timeout=max(0.0, deadline.value - time.monotonic())) as permit:
                answer, _ = caller.get()
                permit.report(answer)
        except Denied:
            return

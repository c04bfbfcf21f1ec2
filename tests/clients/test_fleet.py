"""Three processes with clients on one gate: a refusal that names a delay stops them all, and there is no herd after it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.answering import RETRY_INFO, answering

WORKER = """
import asyncio, sys
import httpx2
from headgate import AsyncGate, Concurrency, Window
from headgate.clients import Retry
from headgate.clients.httpx2 import AsyncHttpx2Transport

async def main(url, store):
    limits = [Window(20, per="1s", name="rps"), Concurrency(1, name="slots")]
    gate = AsyncGate("fleet", limits, store=store)
    transport = AsyncHttpx2Transport(gate, retry=Retry(attempts=5))
    async with httpx2.AsyncClient(transport=transport, timeout=60) as client:
        answers = await asyncio.gather(*(client.get(url) for _ in range(20)))
    assert [answer.status_code for answer in answers] == [200] * 20, answers
    await gate.aclose()

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_retry_info_of_one_process_stops_every_process_for_its_length_and_all_calls_are_made(tmp_path: Path) -> None:
    delay = 3.0
    refusal = json.loads(json.dumps(RETRY_INFO).replace('"28s"', f'"{delay:g}s"'))
    with answering() as server:
        server.script += [200] * 9 + [(429, {}, refusal)]
        command = [sys.executable, "-c", WORKER, f"{server.url}/ok", f"sqlite:///{tmp_path}/gate.db"]
        working = [subprocess.Popen(command) for _ in range(3)]
        assert [process.wait(200) for process in working] == [0, 0, 0]
        arrived = sorted(at for at, _, _ in server.arrivals)
    # One call at a time: when the tenth was refused no other was under way, so nothing may arrive before the delay is over.
    assert len(arrived) == 61
    assert arrived[10] - arrived[9] >= delay
    # And after it each waits its turn: at most 20 in any second, as ever.
    assert all(later - earlier >= 1.0 for earlier, later in zip(arrived, arrived[20:], strict=False))

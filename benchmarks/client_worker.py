"""One process of callers for `bench_clients`: tasks that call an upstream through gated clients.

python -m benchmarks.client_worker '{"kind": "sdks", …}'
"""

import asyncio
import json
import sys
import time
from typing import Any

import httpx2

from headgate import AsyncGate, Concurrency, Window
from headgate.clients.httpx2 import AsyncHttpx2Transport
from headgate.clients.tokens import estimate_tokens, used_tokens


async def cold(job: dict[str, Any]) -> dict[str, int]:
    """Plain calls on a pool that was never used: `calls` of them, by `tasks` tasks."""
    gate = AsyncGate("bench", [Window(job["limit"], per=job["per"], name="rpm"), Concurrency(1000)], store=job["store"])
    left = iter(range(job["calls"]))
    refused = 0
    async with httpx2.AsyncClient(transport=AsyncHttpx2Transport(gate), timeout=60) as client:

        async def call() -> None:
            nonlocal refused
            for _ in left:
                refused += (await client.get(f"{job['url']}/work")).status_code == 429

        await asyncio.gather(*(call() for _ in range(job["tasks"])))
    await gate.aclose()
    return {"refused": refused}


async def sdks(job: dict[str, Any]) -> dict[str, int]:
    """Real clients of openai, anthropic and google-genai, a third of the tasks each, for `seconds`."""
    from anthropic import AsyncAnthropic
    from google import genai
    from google.genai import types
    from openai import AsyncOpenAI

    gate = AsyncGate(
        "llm",
        [
            Window(job["requests"], per=job["per"], name="rpm"),
            Window(job["tokens"], per=job["per"], unit="tokens", name="tpm"),
            Concurrency(1000, name="in_flight"),
        ],
        store=job["store"],
    )

    def transport() -> AsyncHttpx2Transport:
        return AsyncHttpx2Transport(gate, cost=estimate_tokens(), settle=used_tokens())

    http = httpx2.AsyncClient(transport=transport(), timeout=120)
    openai = AsyncOpenAI(base_url=f"{job['url']}/v1", api_key="k", http_client=http, max_retries=0)
    claude = AsyncAnthropic(base_url=job["url"], api_key="k", http_client=http, max_retries=0)
    options = types.HttpOptions(base_url=job["url"], async_client_args={"transport": transport(), "timeout": 120})
    gemini = genai.Client(api_key="k", http_options=options)
    end = time.monotonic() + job["seconds"]
    counts = {"calls": 0, "failed": 0}

    async def call(which: int) -> None:
        turn = 0
        while time.monotonic() < end:
            turn += 1
            said: list[Any] = [{"role": "user", "content": f"task {which} turn {turn} " + "x" * 80}]
            longest = job["longest"]
            try:
                if which % 3 == 0:
                    await openai.chat.completions.create(model="m", messages=said, max_tokens=longest)
                elif which % 3 == 1:
                    await claude.messages.create(model="m", messages=said, max_tokens=longest)
                else:
                    config = types.GenerateContentConfig(max_output_tokens=longest)
                    await gemini.aio.models.generate_content(model="m", contents=said[0]["content"], config=config)
                counts["calls"] += 1
            except Exception:
                counts["failed"] += 1

    await asyncio.gather(*(call(which) for which in range(job["tasks"])))
    await http.aclose()
    await gemini.aio.aclose()
    await gate.aclose()
    return counts


KINDS = {"cold": cold, "sdks": sdks}


def main() -> None:
    job = json.loads(sys.argv[1])
    sys.stdout.write(json.dumps(asyncio.run(KINDS[job["kind"]](job))))


if __name__ == "__main__":
    main()

"""The workers of the Sentinel Hub benchmark: many asyncio workers in each of several processes, over real HTTP."""

import asyncio
import json
import random
import time
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

SCRIPT = '//VERSION=3\nfunction setup() { return { input: ["B02", "B03", "B04"], output: { bands: 3 } } }'


class Setting(NamedTuple):
    """What a process is told: strategy, addresses, calls per worker, seconds of work, the share that dies, the scale."""

    strategy: str
    hub: str
    guard: str
    calls: int
    work_s: float
    dying: float
    scale: float


class Connection:
    """HTTP/1.1 over one kept connection; it is opened again where it broke."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes, headers: str = "") -> tuple[int, dict[str, str], bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        host = f"Host: {self._host}:{self._port}\r\nContent-Type: application/json\r\n"
        head = f"POST {path} HTTP/1.1\r\n{host}{headers}Content-Length: {len(body)}\r\n\r\n"
        try:
            writer.write(head.encode() + body)
            text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            found = dict(line.lower().split(": ", 1) for line in text[1:] if ": " in line)
            answer = await reader.readexactly(int(found.get("content-length", 0)))
        except BaseException:
            self._streams = None
            writer.close()
            raise
        return int(text[0].split(" ")[1]), found, answer

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


def body_of(number: int) -> tuple[bytes, float]:
    """A Process API request of 1 to 3 processing units, and what it costs."""
    units = 1 + number % 3
    body = {
        "input": {"bounds": {"bbox": [0, 0, 1, 1]}, "data": [{"type": "sentinel-2-l2a"}]},
        "output": {
            "width": 512,
            "height": 512 * units,
            "responses": [{"identifier": "default", "format": {"type": "image/png"}}],
        },
        "evalscript": SCRIPT,
    }
    return json.dumps(body).encode(), float(units)


class Worker:
    """One worker: asks as its strategy says, sends, waits for the answer, works, and does it again."""

    def __init__(
        self, setting: Setting, name: str, token: str, limiter: Any, tally: dict[str, int], end: float
    ) -> None:
        self._setting = setting
        self._name = name
        self._headers = f"Authorization: Bearer {token}\r\n"
        self._limiter = limiter
        self._tally = tally
        self._end = end
        self._hub = Connection(setting.hub)
        self._guard = Connection(setting.guard) if setting.guard else None

    async def run(self, start: float) -> None:
        setting = self._setting
        dies = random.random() < setting.dying
        await asyncio.sleep(start - time.monotonic())
        try:
            for number in range(setting.calls):
                body, units = body_of(number)
                if not await self._call(number, body, units, dies and number == setting.calls // 2):
                    return
                await asyncio.sleep(setting.work_s)
        finally:
            self._hub.close()
            if self._guard is not None:
                self._guard.close()

    async def _call(self, number: int, body: bytes, units: float, dies: bool) -> bool:
        pause = 1.0 * self._setting.scale
        attempt = 0
        while time.monotonic() < self._end:
            permit = await self._turn(f"{self._name}-{number}-{attempt}", units)
            attempt += 1
            if dies:
                self._tally["dead"] += 1
                return False
            status, headers, _ = await self._hub.post("/api/v1/process", body, self._headers)
            if status == 200:
                self._tally["done"] += 1
                return True
            self._tally["429"] += status == 429
            wait = float(headers.get("retry-after", "0")) / 1000
            if self._setting.strategy == "backoff":
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, 32 * self._setting.scale)
            elif self._limiter is not None:
                self._limiter.update({"Retry-After": str(round(wait * 1000))}, default=30_000)
            else:
                await self._tell(permit, wait)
                await asyncio.sleep(wait)
        return False

    async def _turn(self, id: str, units: float) -> str:
        """Wait for the turn of a call, as the strategy says. Returns the id of its permit, where it has one."""
        if self._limiter is not None:
            while wait := self._limiter.register_next():
                await asyncio.sleep(wait)
        if self._guard is None:
            return ""
        ours = self._setting.strategy == "headgate"
        path = "/v1/gates/sentinel-hub/reserve" if ours else "/reserve"
        ask = {"cost": {"requests": 1, "pu": units}, "id": id} if ours else {"pu": units}
        while True:
            try:
                status, _, answer = await self._guard.post(path, json.dumps(ask).encode())
                if status == 200:
                    break
            except (OSError, asyncio.IncompleteReadError):
                pass  # the guard is being started again; the same id asks for the same promise
            await asyncio.sleep(0.05)
        told = json.loads(answer)
        await asyncio.sleep(told["delay"] / 1000)
        return str(told.get("id", ""))

    async def _tell(self, id: str, wait: float) -> None:
        """Tell the guard of a refusal: it pauses the fleet, and tightens itself where it is told to."""
        if self._guard is None or self._setting.strategy != "headgate":
            return
        body = json.dumps({"outcome": "rate_limited", "retry_after": wait}).encode()
        with suppress(OSError, asyncio.IncompleteReadError):
            await self._guard.post(f"/v1/permits/{quote(id, safe='')}/release", body)


def work(setting: Setting, count: int, process: int, longest: float, ready: Any, results: Any) -> None:
    """A worker process; puts what its workers did into `results`."""
    tally = {"done": 0, "429": 0, "dead": 0}
    random.seed(process)
    limiter = None
    if setting.strategy == "package":
        from sentinelhub.download.rate_limit import SentinelHubRateLimit

        limiter = SentinelHubRateLimit(num_processes=1, minimum_wait_time=0.05 * setting.scale)

    async def run() -> None:
        token = await buy(setting.hub)
        ready.wait()
        start = time.monotonic() + 0.5
        end = start + longest
        workers = [Worker(setting, f"w{process}-{at}", token, limiter, tally, end) for at in range(count)]
        await asyncio.gather(*(worker.run(start) for worker in workers))

    asyncio.run(run())
    results.put(tally)


async def buy(hub: str) -> str:
    form = {"grant_type": "client_credentials", "client_id": "bench", "client_secret": "bench"}
    connection = Connection(hub)
    _, _, answer = await connection.post("/oauth/token", urlencode(form).encode())
    connection.close()
    return str(json.loads(answer)["access_token"])

"""A guard as it was first drawn: buckets that may go below nought, and a filler. For comparison, in the benchmark alone.

An ask takes what it costs from every bucket at once; its delay is the time after which the lowest would be back at
nought. A filler adds to the buckets every 100 ms. Nothing is cancelled, and nothing survives a restart.
"""

import json
import sys
import threading
import time

from headgate.simulate.upstreams import Upstream, UpstreamRequest, UpstreamResponse, UpstreamThread


class SeedGuard(Upstream):
    """`POST /reserve` with {"pu": N} answers {"delay": milliseconds}."""

    name = "seed-guard"

    def __init__(self, requests: float, pu: float, per: float) -> None:
        super().__init__(())
        self._capacity = {"requests": requests, "pu": pu}
        self._per = per
        self._level = dict(self._capacity)
        self._lock = threading.Lock()
        threading.Thread(target=self._fill, daemon=True).start()

    def _fill(self) -> None:
        step = min(0.1, self._per / 100)
        while True:
            time.sleep(step)
            with self._lock:
                for unit, capacity in self._capacity.items():
                    self._level[unit] = min(capacity, self._level[unit] + capacity * step / self._per)

    async def answer(self, request: UpstreamRequest) -> UpstreamResponse:
        cost = {"requests": 1.0, "pu": float(request.json()["pu"])}
        with self._lock:
            for unit, amount in cost.items():
                self._level[unit] -= amount
            waits = [max(0.0, -level) * self._per / self._capacity[unit] for unit, level in self._level.items()]
        return UpstreamResponse(body={"delay": round(max(waits) * 1000)})


if __name__ == "__main__":
    with UpstreamThread(SeedGuard(**json.loads(sys.argv[1]))) as server:
        sys.stdout.write(server.url + "\n")
        sys.stdout.flush()
        sys.stdin.read()

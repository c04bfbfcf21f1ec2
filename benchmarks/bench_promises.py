"""Promise gates: what another promise costs among 10, 1,000 and 100,000 that are outstanding, with mixed costs.

Time is a clock that the benchmark moves: with every promise it moves on by as much as its cost takes in the long run, so
that about as many stay outstanding as there were.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from time import perf_counter_ns

from benchmarks.measure import Samples, Spread, Table, ratio
from benchmarks.redis_growth import script_time
from headgate.kernel.commands import Stand
from headgate.kernel.limits import Bucket, Limit, Window
from headgate.kernel.model import SECOND, Grant
from headgate.kernel.plan import Policy
from headgate.stores.memory import MemoryStore
from headgate.stores.redis import RedisStore
from headgate.testing import FakeClock
from tests.support.servers import Server

TYPE_CHECKING = False
if TYPE_CHECKING:
    from headgate.stores.base import Store

    #: Name → what makes a store with a clock, and what tells the microseconds that it has spent.
    Stores = dict[str, tuple[Callable[[FakeClock], Store], Callable[[], float]]]

SIZES = (10, 1_000, 100_000)

#: A decision may cost at most so many times what it costs among the fewest.
FLAT = 2.0

#: A thousand units a minute.
LIMITS: dict[str, Callable[[], Limit]] = {
    "bucket": lambda: Bucket(1000, per="1m", burst=100, slack=0, name="pu"),
    "window": lambda: Window(1000, per="1m", slack=0, name="pu"),
}

#: Units that a promise takes: hardly two are the same.
LEAST, MOST = 0.1, 20.0


def run(quick: bool) -> list[Table]:
    sizes, rounds = ((10, 1_000), 3) if quick else (SIZES, 15)
    tables = []
    for kind, limit in LIMITS.items():
        with Server() as server:
            url = f"{server.url}?timeout=60s"
            stores: Stores = {
                "memory": (MemoryStore, perf_counter_us),
                "Redis, server": (partial(_redis, url), partial(script_time, server)),
            }
            tables.append(table(kind, limit, sizes, rounds, stores))
    return tables


def _redis(url: str, clock: FakeClock) -> RedisStore:
    return RedisStore(url, clock=clock)


def perf_counter_us() -> float:
    return perf_counter_ns() / 1000


class Promises:
    """A gate with so many promises outstanding."""

    def __init__(self, name: str, limit: Limit, make: Callable[[FakeClock], Store], size: int) -> None:
        self._clock = FakeClock()  # of its own: each promise moves it on by as much as it takes
        self._policy, self._store = Policy(name, [limit], waiting="promise"), make(self._clock)
        self._numbers, self._ids = random.Random(size), count()
        self._promise(limit.largest(limit.limit), moves=False)
        for first in range(0, size, 500):
            commands = [self._ask(self._cost()) for _ in range(min(500, size - first))]
            for reply in self._store.execute(commands):
                assert isinstance(reply, Grant), reply

    def _cost(self) -> float:
        return self._numbers.uniform(LEAST, MOST)

    def _ask(self, cost: float) -> Stand:
        return Stand(self._policy.plan(cost), f"{next(self._ids)}")

    def _promise(self, cost: float, moves: bool = True) -> None:
        reply = self._store.decide(self._ask(cost))
        assert isinstance(reply, Grant), reply
        if moves:
            self._clock.advance(microseconds=round(cost * 60 * SECOND / 1000))

    def close(self) -> None:
        self._store.close()

    def more(self, times: int) -> None:
        for _ in range(times):
            self._promise(self._cost())


def table(
    kind: str,
    limit: Callable[[], Limit],
    sizes: Sequence[int],
    rounds: int,
    stores: Stores,
) -> Table:
    rows = []
    for where, (make, clock) in stores.items():
        gates: dict[str, Promises] = {}
        for size in sizes:
            if size >= 100_000:
                sys.stderr.write(f"{kind}s, {where}: filling {size:,} ...\n")
            gates[f"{size:,}"] = Promises(f"{kind}-{size}", limit(), make, size)
            gates[f"{size:,}"].more(50)
        samples: dict[str, list[float]] = {name: [] for name in gates}
        for _ in range(rounds):
            for name in random.sample(list(gates), len(gates)):
                before = clock()
                gates[name].more(100)
                samples[name].append((clock() - before) / 100)
        rows += [row(where, name, samples) for name in gates]
        for gate in gates.values():
            gate.close()
    columns = ["store, promises outstanding", "µs per promise", "× fewest", "middle half", "bound"]
    load = os.getloadavg()[0]
    note = (
        f"A gate of one {kind} of 1,000 units a minute. Each promise takes {LEAST:g} to {MOST:g} units, hardly two the "
        f"same. For Redis it is the time of the server, without the way there. Measured at a load of {load:.0f}."
    )
    return Table(f"Promises among many, on a {kind}", columns, rows, note)


def row(where: str, name: str, samples: Samples) -> list[str]:
    first = next(iter(samples))
    times = ratio(samples, name, first)
    kept = "" if name == first else f"at most {FLAT:g}: {'kept' if times.median <= FLAT else 'MISSED'}"
    cost = Spread.of(samples[name]).median
    return [f"{where}, {name}", f"{cost:.1f}", f"{times.median:.2f}", f"{times.low:.2f} to {times.high:.2f}", kept]

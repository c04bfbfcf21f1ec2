"""What a decision of the Redis store costs its server as keys, leases and waiters grow in number."""

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import count

import redis

from benchmarks.measure import Samples, Spread, Table, ratio
from benchmarks.redis_asks import ENOUGH, PATIENT, granted, stand
from headgate.kernel.commands import Admit, Command, Settle
from headgate.kernel.limits import Bucket, Concurrency
from headgate.kernel.model import Wait
from headgate.kernel.plan import Policy
from headgate.stores.redis import RedisStore
from tests.support.servers import Server

Operation = Callable[[], object]

#: An operation may cost at most so many times what it costs at the smallest size.
FLAT = 1.5

#: So many leases, or waiters.
LEASED = (10, 100, 1_000, 10_000)


class Floor:
    """What a decision does at least: bare scripts on plain rows of a hash and their order in a sorted set."""

    fill = """for at = ARGV[1], ARGV[2] do
        redis.call('HSET', KEYS[1], at, ('-'):rep(50))
        redis.call('ZADD', KEYS[2], at, at)
    end"""
    touch = "return redis.call('HSET', KEYS[1], ARGV[1], redis.call('HGET', KEYS[1], ARGV[1]))"
    add = "redis.call('HSET', KEYS[1], ARGV[1], ('-'):rep(50)) return redis.call('ZADD', KEYS[2], ARGV[1], ARGV[1])"
    take = "redis.call('HDEL', KEYS[1], ARGV[1]) return redis.call('ZREM', KEYS[2], ARGV[1])"
    shift = "return redis.call('HDEL', KEYS[1], redis.call('ZPOPMIN', KEYS[2])[1])"

    def __init__(self, client: redis.Redis, size: int) -> None:
        self._scripts = {text: client.register_script(text) for text in (self.touch, self.add, self.take, self.shift)}
        self._numbers = count(size + 1)
        self.size = size
        for first in range(1, size + 1, 10_000):
            client.eval(self.fill, 2, "floor", "floor:z", first, min(size, first + 9_999))

    def run(self, text: str, number: int = 0) -> None:
        self._scripts[text](["floor", "floor:z"], [number])

    def any_row(self) -> None:
        self.run(self.touch, random.randint(1, self.size))

    def row_more_and_less(self) -> None:
        number = next(self._numbers)
        self.run(self.add, number)
        self.run(self.take, number)

    def first_for_last(self) -> None:
        self.run(self.shift)
        self.run(self.add, next(self._numbers))


def script_time(server: Server) -> int:
    """Microseconds that the server was busy with script calls since it started."""
    spent = 0
    for line in server.command("INFO", "commandstats").decode().splitlines():
        if line.startswith(("cmdstat_fcall:", "cmdstat_evalsha:")):
            spent += int(line.partition("usec=")[2].partition(",")[0])
    return spent


def server_time(server: Server, operation: Operation, times: int) -> float:
    """Microseconds of script calls, per operation."""
    for _ in range(times // 10):
        operation()
    before = script_time(server)
    for _ in range(times):
        operation()
    return (script_time(server) - before) / times


def growth(
    title: str,
    sizes: Sequence[int],
    rounds: int,
    fill: Callable[[RedisStore, int], Operation],
    least: Callable[[Floor], None],
    note: str,
) -> Table:
    """Server time of an operation at growing sizes.

    Each size has a server of its own, and all are measured in turn, so that a ratio is of figures of one moment. So has the
    floor, filled as much: its own growth is the machine's, whose caches are too small.
    """
    ours: dict[str, list[float]] = {f"{size:,}": [] for size in sizes}
    floors: dict[str, list[float]] = {name: [] for name in ours}
    memory: dict[int, int] = {}
    turns = []
    with ExitStack() as stack:
        for size, name in zip(sizes, ours, strict=True):
            server = stack.enter_context(Server())
            store = stack.enter_context(closing(RedisStore(server.url + PATIENT)))
            other = stack.enter_context(Server())
            client = stack.enter_context(closing(redis.Redis(port=other.port)))
            if size >= 100_000:
                sys.stderr.write(f"{title}: filling {name} ...\n")
            operation = fill(store, size)
            memory[size] = used_memory(server)
            turns.append((ours[name], server, operation))
            turns.append((floors[name], other, partial(least, Floor(client, size))))
        for _, server, operation in turns:
            server_time(server, operation, 300)  # what is made on first use is made now
        for _ in range(rounds):
            for samples, server, operation in random.sample(turns, len(turns)):
                samples.append(server_time(server, operation, 40))
    rows = []
    smallest, first = sizes[0], next(iter(ours))
    for size, name in zip(sizes, ours, strict=True):
        row = [name, *told(ours, name, first), *told(floors, name, first)]
        if size == smallest:
            rows.append([*row, "", ""])
        else:
            each = (memory[size] - memory[smallest]) / (size - smallest)
            kept = "kept" if ratio(ours, name, first).median <= FLAT else "MISSED"
            rows.append([*row, f"{each:,.0f}", f"at most {FLAT:g}: {kept}"])
    of_each = [f"× {first}", "middle half"]
    columns = ["", "server µs per operation", *of_each, "floor, µs", *of_each, "bytes each", "bound"]
    return Table(title, columns, rows, f"The floor is {note}.")


def told(samples: Samples, name: str, first: str) -> list[str]:
    times = ratio(samples, name, first)
    return [f"{Spread.of(samples[name]).median:.1f}", f"{times.median:.2f}", f"{times.low:.2f} to {times.high:.2f}"]


def used_memory(server: Server) -> int:
    return int(server.command("INFO", "memory").decode().partition("used_memory:")[2].split()[0])


def execute(store: RedisStore, commands: Iterator[Command]) -> None:
    batch: list[Command] = []
    for command in commands:
        batch.append(command)
        if len(batch) == 200:
            store.execute(batch)
            batch.clear()
    if batch:
        store.execute(batch)


def keys(quick: bool) -> Table:
    """One bucket per key, all of them live, drawn at random."""
    policy = Policy("bench", [Bucket(ENOUGH, per="24h", slack=0, by="org")])

    def fill(store: RedisStore, size: int) -> Operation:
        execute(store, (Admit(policy.plan(1, {"org": f"org-{at}"})) for at in range(size)))
        return lambda: granted(store.decide(stand(store, policy.plan(1, {"org": f"org-{random.randrange(size)}"}))))

    sizes = [10, 1_000, 100_000] if quick else [10, 1_000, 100_000, 1_000_000]
    note = "a script that reads and writes one row of a hash, drawn at random of as many"
    return growth("Redis, live keys", sizes, 9 if quick else 61, fill, Floor.any_row, note)


def leases(quick: bool) -> Table:
    """A grant and its release, among so many live leases."""
    plan = Policy("bench", [Concurrency(10**6, lease="24h")]).plan()

    def fill(store: RedisStore, size: int) -> Operation:
        execute(store, (stand(store, plan) for _ in range(size)))

        def pair() -> None:
            ask = stand(store, plan)
            at = granted(store.decide(ask)).at
            store.decide(Settle(plan, at, ask.id, "ok"))

        return pair

    note = "two scripts: one puts a row into a hash and a sorted set of as many, one takes it out again"
    return growth("Redis, live leases", LEASED, 9 if quick else 61, fill, Floor.row_more_and_less, note)


def waiters(quick: bool) -> Table:
    """One goes, the next is called and takes its call, and another comes to the end of the line."""
    plan = Policy("bench", [Concurrency(1, lease="24h", name="slots")]).plan()

    def fill(store: RedisStore, size: int) -> Operation:
        first = stand(store, plan)
        holding = (first, granted(store.decide(first)).at)
        line = deque(stand(store, plan) for _ in range(size))
        execute(store, iter(line))

        def turn() -> None:
            nonlocal holding
            ask, at = holding
            store.decide(Settle(plan, at, ask.id, "ok"))
            following = line.popleft()
            following.fresh = False  # it is known: it stands in line
            holding = (following, granted(store.decide(following)).at)
            last = stand(store, plan)
            assert isinstance(store.decide(last), Wait)
            line.append(last)

        return turn

    title = "Redis, waiters (a release, the taking of the call, a new ticket)"
    note = "two scripts: one takes the first row of a hash and a sorted set of as many, one puts another at the end"
    return growth(title, LEASED, 9 if quick else 61, fill, Floor.first_for_last, note)

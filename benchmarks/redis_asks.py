"""The asks, limits and stores that the benchmarks of the Redis store share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count

from headgate.kernel.commands import Stand
from headgate.kernel.limits import Bucket, Concurrency, Limit, Window
from headgate.kernel.model import Grant
from headgate.kernel.plan import Plan
from headgate.stores.redis import RedisStore
from tests.support.servers import Server

ENOUGH = 10**9
PATIENT = "?timeout=30s"
BARE = "bare EVALSHA"

_numbers = count()


def bucket() -> Sequence[Limit]:
    return [Bucket(ENOUGH, per="1s", slack=0, name="b")]


def two_limits() -> Sequence[Limit]:
    return [Window(ENOUGH, per="1m", name="w"), Concurrency(10**6, name="c")]


def stand(store: RedisStore, plan: Plan) -> Stand:
    """An ask as a gate sends it."""
    id = f"{store.session}-{next(_numbers)}"
    ask = Stand(plan, id, None, plan.lease, waits=True, session=store.session, remembered=True)
    ask.fresh = True
    return ask


def granted(reply: object) -> Grant:
    if not isinstance(reply, Grant):
        raise RuntimeError(f"refused: only grants are to be timed, and this was {reply!r}")
    return reply


@contextmanager
def opened(server: Server) -> Iterator[RedisStore]:
    server.command("FLUSHALL", "SYNC")
    store = RedisStore(server.url + PATIENT)
    try:
        yield store
    finally:
        store.close()

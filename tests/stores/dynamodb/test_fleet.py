"""Many processes on one DynamoDB table: killed, stopped, with wrong clocks. An upstream keeps its own books."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tests.gate.test_processes import FLEET, RATE, fleet_run, judge, say
from tests.support.dynamo_servers import CREDENTIALS, Server, make_table, started
from tests.support.waiting import until
from tests.support.workers import Child, children


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Child]]:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with children() as starter:
        yield starter


@pytest.fixture(params=["dynoxide", pytest.param("local", marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = started(request.param)
    yield server
    server.stop()


@pytest.fixture
def url(server: Server) -> str:
    """Everything runs on the cores of one machine, so answers take their time: what is allowed for is more than in life."""
    make_table(server.endpoint, "fleet", ttl="ttl")
    return f"dynamodb://fleet?region=eu-central-1&endpoint={server.endpoint}&timeout=10&spread=0.25"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_fleet_of_200_workers_that_is_killed_and_stopped_at_random_stays_within_its_limits(
    start: Callable[..., Child], url: str
) -> None:
    fleet_run(start, url, 8, threads=25)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_a_fleet_of_200_workers_that_is_killed_and_stopped_for_long_stays_within_its_limits(
    start: Callable[..., Child], url: str
) -> None:
    fleet_run(start, url, 30, threads=25)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_worker_whose_wall_clock_is_an_hour_off_neither_over_admits_nor_hangs_nor_holds_up_others(
    start: Callable[..., Child], url: str
) -> None:
    upstream = start("upstream")
    port = upstream.read()["port"]
    # Leases that a busy machine renews in time too: an hour would end them as surely as short ones.
    limits = {**FLEET, "slots": {**FLEET["slots"], "lease": "30s"}}
    options = {"store": url, "limits": limits, "port": port, "threads": 3}
    clocks: list[dict[str, float]] = [{"wall_clock": 3600.0}, {"wall_clock": -3600.0}, {"wall_clock": 0.0}, {}]
    workers = [start("worker", **options, **clock) for clock in clocks]
    for worker in workers:
        worker.read()
    time.sleep(6)
    # On a busy machine some of them come to their first call late.
    until(lambda: upstream.order("count")["count"] >= 3 * RATE)
    for worker in workers:
        worker.end_orders()
    told = [worker.finish() for worker in workers]
    books = upstream.finish()
    judge(books)
    assert [worker["lost"] for worker in told] == [0] * 4
    assert all(worker["served"] > 0 for worker in told), "each of them gets its share"
    say(f"\n{len(books['arrivals'])} calls in 6 s, shares {[worker['served'] for worker in told]}")

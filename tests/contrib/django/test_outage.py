"""Without its store the gate is open, as its users know it: told and counted each time. A busy store opens nothing."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headgate.contrib.django import LimitReached, complete, slot, tenants
from headgate.contrib.django.models import Organization, OrganizationRateLimit
from tests.contrib.django.conftest import example_process, occupy, patient, used
from tests.contrib.django.test_views import run
from tests.support.servers import Server
from tests.support.waiting import DECIDED, timed, until


@pytest.fixture
def in_a_hurry(redis: Server, limits: Callable[..., None]) -> Callable[[], None]:
    """From now on the server is to answer within 200 ms, as in production."""
    return lambda: limits(HEADGATE_STORE=redis.url)


def kinds(events: list[Any]) -> list[str]:
    return [event.kind for event in events]


def test_a_request_passes_while_the_store_is_away_with_one_line_and_one_count_each(
    acme: Organization,
    redis: Server,
    in_a_hurry: Callable[[], None],
    events: list[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    occupy(acme, 20)
    assert run().status_code == 429
    in_a_hurry()
    redis.kill()
    for _ in range(3):
        assert run().status_code == 200
    assert kinds(events).count("passed_open") == 3
    assert caplog.text.count("let pass uncounted, because the store cannot be reached") == 3


@pytest.mark.timing("the contract is that a request passes within 250 ms while the store is away")
def test_a_request_passes_within_a_quarter_of_a_second_when_the_store_hangs(
    acme: Organization, redis: Server, in_a_hurry: Callable[[], None]
) -> None:
    in_a_hurry()
    slot(acme, "first").take()
    redis.freeze()
    try:
        for _ in range(3):
            took, answer = timed(lambda: slot(acme).take())
            assert not isinstance(answer, Exception)
            assert took < DECIDED
    finally:
        redis.thaw()


def test_a_limit_that_is_saved_while_the_store_is_away_is_saved_and_told(
    acme: Organization, redis: Server, in_a_hurry: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    in_a_hurry()
    redis.kill()
    OrganizationRateLimit.objects.create(organization=acme, concurrent_request_limit=7)
    assert "is saved, and the store could not be told" in caplog.text
    assert "clear_org_rate_limit_cache --org-id org_a1b2c3d4e5f6g7h8" in caplog.text


def test_a_run_that_completes_while_the_store_hangs_is_released_when_it_is_back(
    acme: Organization, redis: Server, in_a_hurry: Callable[[], None]
) -> None:
    occupy(acme, 2)
    in_a_hurry()
    redis.freeze()
    complete(f"{acme.organization_id}-run-0")
    redis.thaw()

    def one_left() -> bool:
        return [holder.id for holder in tenants().gate.holders()] == [f"{acme.organization_id}-run-1"]

    until(lambda: _when_back(one_left))


def _when_back(look: Callable[[], bool]) -> bool:
    from headgate import StoreUnavailable

    try:
        return look()
    except StoreUnavailable:
        return False


FLOOD = """
import sys, threading
import django; django.setup()
from headgate import StoreUnavailable
from headgate.contrib.django import LimitReached, LimiterUnavailable, slot
from headgate.contrib.django.models import Organization
from headgate.events import subscribe
events = []
subscribe(lambda event: events.append(event.kind))
acme = Organization.objects.get(name="acme-corp")
admitted = []
def ask(first):
    for number in range(first, first + 25):
        try:
            slot(acme, f"{sys.argv[1]}-{number}").take()
            admitted.append(number)
        except (LimitReached, LimiterUnavailable):
            pass
sys.stdin.readline()
threads = [threading.Thread(target=ask, args=(1000 * n,)) for n in range(8)]
[thread.start() for thread in threads]; [thread.join() for thread in threads]
print(len(admitted), events.count("passed_open"), flush=True)
"""


@pytest.mark.parametrize("url", ["sqlite", "redis"])
def test_contention_never_opens_the_gate(
    acme: Organization, url: str, store: str, request: pytest.FixtureRequest
) -> None:
    """Three processes with eight threads each ask for one organisation at once: 20 are let in, and no more."""
    if url == "redis":
        store = patient(request.getfixturevalue("redis"))
    env = example_process(store, EXAMPLE_LOG="CRITICAL")
    processes = [
        subprocess.Popen([sys.executable, "-c", FLOOD, str(number)], env=env, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True)
        for number in range(3)
    ]  # fmt: skip
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    counts = [tuple(map(int, process.communicate()[0].split())) for process in processes]
    assert sum(passed for _, passed in counts) == 0
    assert sum(admitted for admitted, _ in counts) == 20
    assert used(acme) == 20


def test_threads_of_one_process_never_get_more_than_the_limit(acme: Organization) -> None:
    admitted: list[int] = []

    def ask(first: int) -> None:
        for number in range(first, first + 20):
            try:
                slot(acme, f"run-{number}").take()
                admitted.append(number)
            except LimitReached:
                pass

    threads = [threading.Thread(target=ask, args=(1000 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(admitted) == 20

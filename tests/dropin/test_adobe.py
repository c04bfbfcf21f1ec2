"""The drop-in for the limiter of an Adobe container: its names, its lines in the log, and what the original got wrong."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate import Concurrency, ConfigError, Gate, InvalidInput, StoreUnavailable, Window
from headgate.dropin import adobe
from headgate.stores.memory import MemoryStore
from headgate.testing import FakeClock, UnreachableStore
from tests.support.aws_servers import aws_server
from tests.support.dynamo_servers import CREDENTIALS, make_table, started
from tests.support.servers import new
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("HEADGATE_STORE", "RATE_LIMIT_TABLE", "ADOBE_API_RPM_PARAM", "ADOBE_API_MAX_IN_FLIGHT_PARAM"):
        monkeypatch.delenv(name, raising=False)
    yield
    adobe.close()


@pytest.fixture
def clock() -> FakeClock:
    clock = FakeClock()
    adobe.configure(MemoryStore(clock=clock))
    return clock


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/limits.db"
    monkeypatch.setenv("HEADGATE_STORE", url)
    return url


@contextmanager
def store_of(kind: str, folder: Path) -> Iterator[str]:
    """The URL of an empty store. Nothing is to fail in these tests for want of a processor: it has a minute to answer."""
    with ExitStack() as stack:
        if kind == "sqlite":
            yield f"sqlite:///{folder}/limits.db"
        elif kind == "redis":
            yield f"{stack.enter_context(new()).url}?timeout=60s"
        else:
            server = started()
            stack.callback(server.stop)
            make_table(server.endpoint, "adobe-api-in-flight-tracker", ttl="ttl")
            yield f"dynamodb://adobe-api-in-flight-tracker?endpoint={server.endpoint}&timeout=60s&spread=1s"


def program(code: str, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **CREDENTIALS, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


# --- the surface ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("clock")
def test_a_slot_is_taken_with_the_rate_and_given_back_without_it() -> None:
    assert adobe.acquire_slot("autotag", max_wait_seconds=300, filename="chunk_001.pdf") is True
    assert adobe.get_current_in_flight() == 1
    assert adobe.get_current_usage() == {
        "in_flight": 1,
        "max_in_flight": 150,
        "available": 149,
        "utilization_pct": 0.7,
        "rpm_current": 1,
        "rpm_max": 190,
        "rpm_available": 189,
        "rpm_utilization_pct": 0.5,
        "window_seconds_remaining": 61.0,
    }
    [file] = adobe.get_in_flight_files()
    assert (file["filename"], file["api_type"], file["seconds"]) == ("chunk_001.pdf", "autotag", 0.0)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", file["started_at"])
    assert adobe.release_slot("autotag", "chunk_001.pdf") is True
    usage = adobe.get_current_usage()
    assert (usage["in_flight"], usage["rpm_current"]) == (0, 1)
    assert adobe.get_in_flight_files() == []


def test_the_four_lines_of_the_log_are_those_of_the_original(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="headgate.dropin.adobe")

    def line() -> str:
        return caplog.records[-1].getMessage()

    assert adobe.acquire_slot("autotag")
    assert line() == "[autotag] Acquired slot: 1/150 in-flight, 1/190 RPM"
    for _ in range(149):
        assert adobe.acquire_slot("extract")
    # The store's clock stands still, so nothing that waits is ever served: it gives up at once.
    assert not adobe.acquire_slot("autotag", max_wait_seconds=0.001)
    assert re.fullmatch(r"\[autotag\] At in-flight capacity \(150/150\), waiting \d+\.\ds \(attempt 1\)\.\.\.", line())
    assert adobe.release_slot("extract")
    assert line() == "[extract] Released slot: 149 now in-flight"
    while adobe.acquire_token("warm-up"):
        pass
    assert not adobe.acquire_slot("autotag", max_wait_seconds=0.001)
    waiting = r"\[autotag\] RPM limit reached \(190/190\), waiting 60\.\ds for next minute window \(attempt 1\)\.\.\."
    assert re.fullmatch(waiting, line())
    clock.advance("1s")


@pytest.mark.usefixtures("store")
def test_one_call_under_a_slot_as_a_block_and_as_a_decorator() -> None:
    @adobe.rate_limited_call("extract")
    def call() -> int:
        return adobe.get_current_in_flight()

    with adobe.rate_limited_call("autotag"):
        assert call() == 2
    assert adobe.get_current_in_flight() == 0
    with pytest.raises(ZeroDivisionError), adobe.rate_limited_call("autotag"):
        raise ZeroDivisionError
    assert adobe.get_current_in_flight() == 0


@pytest.mark.usefixtures("clock")
def test_a_block_that_gets_no_slot_in_time_says_so_and_calls_nothing() -> None:
    while adobe.acquire_token("warm-up"):
        pass
    with pytest.raises(TimeoutError, match="no slot within 0 s"), adobe.rate_limited_call("autotag", 0):
        pytest.fail("it was called")


@pytest.mark.usefixtures("clock")
def test_tokens_and_slots_of_all_api_types_count_in_one_window() -> None:
    taken = sum(adobe.acquire_token("autotag", max_per_minute=100) for _ in range(200))
    assert taken == 100
    for _ in range(40):
        assert adobe.acquire_slot("extract")
    assert sum(adobe.acquire_token("extract") for _ in range(200)) == 50  # 190 in all, not 200 each
    assert adobe.get_current_in_flight() == 40


@pytest.mark.usefixtures("store")
def test_a_token_is_waited_for() -> None:
    adobe.wait_for_token("autotag")
    assert adobe.get_current_usage()["rpm_current"] == 1


@pytest.mark.parametrize("most", [0, -1, float("nan"), float("inf")])
@pytest.mark.usefixtures("clock")
def test_a_senseless_rate_is_refused_and_charges_nothing(most: float) -> None:
    with pytest.raises(InvalidInput, match="max_per_minute"):
        adobe.acquire_token("autotag", most)
    assert adobe.get_current_usage()["rpm_current"] == 0


# --- what the original got wrong --------------------------------------------------------------------------------------


def test_without_a_store_every_call_is_an_error_and_never_unlimited() -> None:
    calls: list[Callable[[], Any]] = [
        adobe.acquire_slot,
        adobe.get_current_in_flight,
        lambda: adobe.acquire_token("autotag"),
        lambda: adobe.wait_for_token("autotag"),
        lambda: adobe.rate_limited_call("autotag").__enter__(),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match="set RATE_LIMIT_TABLE to the DynamoDB table"):
            call()


def test_a_store_that_is_away_lets_nothing_through_and_a_release_does_not_raise() -> None:
    adobe.configure(UnreachableStore())
    with pytest.raises(StoreUnavailable):
        adobe.acquire_slot("autotag")
    assert adobe.release_slot("autotag") is False


def test_no_two_minutes_worth_goes_through_across_the_turn_of_a_minute(clock: FakeClock) -> None:
    clock.advance(f"{60 - clock() / 1e6 % 60 - 0.1:.6f}s")  # a tenth of a second before a minute's turn
    assert sum(adobe.acquire_token("autotag") for _ in range(400)) == 190
    clock.advance("1s")
    assert sum(adobe.acquire_token("autotag") for _ in range(400)) == 0
    clock.advance("58s")
    assert sum(adobe.acquire_token("autotag") for _ in range(400)) == 0
    clock.advance("3s")
    assert sum(adobe.acquire_token("autotag") for _ in range(400)) == 190


@pytest.mark.usefixtures("clock")
def test_releases_are_never_more_than_what_was_taken() -> None:
    assert adobe.release_slot("autotag") is False
    assert adobe.acquire_slot("autotag")
    assert [adobe.release_slot("autotag") for _ in range(3)] == [True, False, False]
    assert adobe.get_current_in_flight() == 0
    assert adobe.get_current_usage()["available"] == 150


@pytest.mark.usefixtures("clock")
def test_a_thread_releases_its_own_slot_first_and_then_the_oldest_of_that_type() -> None:
    def other() -> None:
        assert adobe.acquire_slot("autotag", filename="of the thread")

    assert adobe.acquire_slot("autotag", filename="oldest")
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert adobe.acquire_slot("autotag", filename="mine")

    def files() -> set[str]:
        return {file["filename"] for file in adobe.get_in_flight_files()}

    assert adobe.release_slot("extract") is False  # another type's
    assert adobe.release_slot("autotag")
    assert files() == {"oldest", "of the thread"}
    assert adobe.release_slot("autotag")  # this thread's as well
    assert files() == {"of the thread"}
    assert adobe.release_slot("autotag")
    assert files() == set()


@pytest.mark.usefixtures("clock")
def test_a_worker_that_got_no_slot_frees_nobody_elses_by_its_file() -> None:
    assert adobe.acquire_slot("autotag", filename="a.pdf")
    assert adobe.release_slot("autotag", "b.pdf") is False  # its own acquire_slot had said False
    assert adobe.get_current_in_flight() == 1
    assert adobe.release_slot("autotag", "a.pdf") is True


@pytest.mark.usefixtures("clock")
def test_tasks_release_what_they_took_themselves() -> None:
    async def work(number: int) -> list[str]:
        assert adobe.acquire_slot("autotag", filename=str(number))
        await asyncio.sleep(0)
        assert adobe.release_slot("autotag")
        return sorted(file["filename"] for file in adobe.get_in_flight_files())

    async def main() -> list[list[str]]:
        return await asyncio.gather(*[work(number) for number in range(3)])

    assert asyncio.run(main()) == [["1", "2"], ["2"], []]


class TooManyRequests(Exception):
    status_code = 429
    headers = {"retry-after": "7"}  # noqa: RUF012 (as a client's exception has it)


def test_a_429_that_is_on_its_way_out_pauses_the_fleet(store: str) -> None:
    def call() -> None:
        assert adobe.acquire_slot("autotag")
        try:
            raise TooManyRequests
        finally:
            assert adobe.release_slot("autotag") is True

    with pytest.raises(TooManyRequests):
        call()
    other = Gate("adobe", [Window(190, per="1m", name="rpm"), Concurrency(150, name="in_flight")], store=store)
    paused = other.usage().paused_for
    assert paused is not None
    assert 0 < paused <= 7
    assert adobe.get_current_in_flight() == 0


AT_ONE_BARRIER = """
import os, sys, time
from headgate import StoreUnavailable
from headgate.dropin import adobe
# Once, not in each of the children.
if "dynamodb" in os.environ["HEADGATE_STORE"]:
    import headgate.aws, headgate.stores.dynamodb
elif "redis" in os.environ["HEADGATE_STORE"]:
    import redis, redis.asyncio, headgate.stores.redis
processes = int(sys.argv[1])
begin, barrier = os.pipe()
told, tell = os.pipe()
children = []
for number in range(processes):
    child = os.fork()
    if child == 0:
        os.close(barrier)
        adobe.get_current_in_flight()  # connected
        os.write(tell, b".")
        os.read(begin, 1)
        while True:
            try:
                os._exit(0 if adobe.acquire_slot("autotag", max_wait_seconds=0) else 3)
            except StoreUnavailable:
                pass  # so many at once on few cores; nothing was decided
    children.append(child)
ready = 0
while ready < processes:
    ready += len(os.read(told, 100))
began = time.monotonic()
if os.fork() == 0:
    os._exit(0 if all(adobe.acquire_token("warm-up") for _ in range(189)) else 1)
assert os.wait()[1] == 0
os.close(barrier)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(codes.count(0), codes.count(3), time.monotonic() - began, flush=True)
os._exit(0)
"""


#: On a server each of the hundred loads a driver and connects, which takes minutes on a busy machine.
HUNDRED = [pytest.param(kind, 100, marks=pytest.mark.soak) for kind in ("redis", "dynamodb")]


@pytest.mark.parametrize(("kind", "processes"), [("sqlite", 100), ("redis", 16), ("dynamodb", 16), *HUNDRED])
def test_of_all_processes_that_ask_at_one_barrier_for_the_last_call_exactly_one_gets_in(
    kind: str, processes: int, tmp_path: Path
) -> None:
    took = 60.0
    while took > 55:  # where the machine takes a minute, the first calls count no longer: once more
        tmp_path /= "again"
        tmp_path.mkdir()
        with store_of(kind, tmp_path) as url:
            asked = program(AT_ONE_BARRIER, str(processes), HEADGATE_STORE=url)
            inside, refused, seconds = asked.communicate()[0].split()
        took = float(seconds)
    assert (int(inside), int(refused)) == (1, processes - 1)


HOLDER = """
import sys
from headgate.dropin import adobe
adobe.LEASE = "1s"
assert adobe.acquire_slot("autotag", filename="killed.pdf")
print("held", flush=True)
sys.stdin.read()
"""


def test_the_slot_of_a_killed_task_is_back_after_one_lease(store: str) -> None:
    task = program(HOLDER, HEADGATE_STORE=store)
    assert task.stdout is not None
    assert task.stdout.readline() == "held\n"
    assert [file["filename"] for file in adobe.get_in_flight_files()] == ["killed.pdf"]
    task.send_signal(signal.SIGKILL)
    task.communicate()
    until(lambda: adobe.get_current_in_flight() == 0)


@pytest.mark.usefixtures("store")
def test_a_forked_child_does_not_release_its_parents_slot() -> None:
    assert adobe.acquire_slot("autotag")
    child = os.fork()
    if child == 0:
        os._exit(0 if adobe.release_slot("autotag") is False else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert adobe.get_current_in_flight() == 1


# --- on AWS -----------------------------------------------------------------------------------------------------------


def test_a_lowered_parameter_stays_lowered_when_it_is_gone_or_holds_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    table = started()
    try:
        make_table(table.endpoint, "adobe-api-in-flight-tracker", ttl="ttl")
        with aws_server("ssm") as aws:
            for name, value in {
                **CREDENTIALS,
                "AWS_ENDPOINT_URL_DYNAMODB": table.endpoint,
                "AWS_ENDPOINT_URL_SSM": aws.endpoint,
                "RATE_LIMIT_TABLE": "adobe-api-in-flight-tracker",
                "ADOBE_API_RPM_PARAM": "/own/rpm",
            }.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setattr(adobe, "REFRESH", 0.02)
            ssm = aws.client("ssm")

            def put(name: str, value: str) -> None:
                ssm.put_parameter(Name=name, Value=value, Type="String", Overwrite=True)

            def limits() -> tuple[float, float]:
                usage = adobe.get_current_usage()
                return usage["rpm_max"], usage["max_in_flight"]

            def failed_reads(of: str) -> int:
                return sum(f"{of} of adobe stays" in record.getMessage() for record in records)

            records: list[logging.LogRecord] = []
            handler = logging.Handler()
            handler.emit = records.append  # type: ignore[method-assign]
            log = logging.getLogger("headgate.config.sources")
            log.addHandler(handler)
            try:
                put("/own/rpm", "180")
                put("/pdf-processing/adobe-api-max-in-flight", "175")  # the original's name, since none is set
                assert limits() == (180, 175)
                put("/own/rpm", "60")
                until(lambda: limits() == (60, 175))
                ssm.delete_parameter(Name="/own/rpm")
                until(lambda: failed_reads("rpm") > 1)
                assert limits() == (60, 175)
                put("/own/rpm", "a hundred")
                seen = failed_reads("rpm")
                until(lambda: failed_reads("rpm") > seen + 1)
                assert limits() == (60, 175)
                assert sum(adobe.acquire_token("autotag") for _ in range(100)) == 60
            finally:
                log.removeHandler(handler)
                adobe.close()
    finally:
        table.stop()


@pytest.mark.parametrize("text", ["", "a b", "/own/rpm?zone=eu", "/own/rpm?region=", "/ünicode", "//"])
def test_a_parameter_that_cannot_be_one_is_refused_by_name(text: str) -> None:
    from headgate.config.sources import open_source

    with pytest.raises(InvalidInput, match=r"ssm:"):
        open_source(f"ssm:{text}")

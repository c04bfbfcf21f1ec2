"""Local upstreams: their policies by the definition, their server over real sockets, their process and their command."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection, RemoteDisconnected
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidInput
from headgate.simulate import upstreams
from headgate.simulate.upstreams import (
    Upstream,
    UpstreamBooks,
    UpstreamPolicy,
    UpstreamRequest,
    UpstreamResponse,
    UpstreamThread,
    parse_policy,
)
from headgate.testing import FakeUpstream
from tests.support import ROOT
from tests.support.command_line import run
from tests.test_imports import SOURCE, imports_of


class Clock:
    """Nanoseconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000_000_000_000

    def __call__(self) -> int:
        return self.now


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("requests=50/10s", UpstreamPolicy("requests", 50, 10_000_000_000)),
        ("pu=400000/PT744H", UpstreamPolicy("pu", 400_000, 744 * 3_600_000_000_000)),
        ("pu=200/10s,burst=100", UpstreamPolicy("pu", 200, 10_000_000_000, burst=100)),
        ("requests=5/1m,sliding,by=model", UpstreamPolicy("requests", 5, 60_000_000_000, "sliding", by="model")),
        ("pu=5000/PT0S", UpstreamPolicy("pu", 5000, 0, "budget")),
        ("requests=4,slots", UpstreamPolicy("requests", 4, 0, "slots")),
    ],
)
def test_a_policy_is_read_from_its_text_and_written_back(text: str, policy: UpstreamPolicy) -> None:
    assert parse_policy(text) == policy
    assert parse_policy(policy.as_text()) == policy


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "requests",
            "requests=",
            "requests=0/1s",
            "requests=-1/1s",
            "requests=nan/1s",
            "requests=inf/1s",
            "=5/1s",
        ),
        *("requests=5/", "requests=5/yesterday", "requests=5/1s,leaky", "requests=5/1s,burst=0", "requests=5/1s,by="),
        *("requests=5/1s,sliding,burst=3", "requests=5,bucket", "requests=5/1s,slots", "requests=5/1s,bucket,sliding"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"policy .*write it like"):
        parse_policy(text)


@given(
    kind=st.sampled_from(["window", "bucket"]),
    limit=st.integers(1, 20),
    arrivals=st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(1, 8)), max_size=60),
)
def test_the_books_accept_what_the_definition_accepts(kind: str, limit: int, arrivals: list[tuple[int, int]]) -> None:
    clock = Clock()
    fake = FakeUpstream(limit, "1s", kind)
    books = UpstreamBooks([parse_policy(f"pu={limit}/1s,{'sliding' if kind == 'window' else kind}")], clock)
    begun = clock.now
    for after_us, units in sorted(arrivals):
        clock.now = begun + after_us * 1000
        refusal = books.arrive({"pu": float(units)})
        assert (refusal is None) == fake.arrive(after_us, units)
    page = books.page()
    assert page["accepted"] == len(fake.accepted)
    assert page["refused"] == len(fake.refused)


@pytest.mark.parametrize("kind", ["sliding", "bucket", "calendar"])
def test_a_refused_call_fits_after_the_time_that_the_refusal_names(kind: str) -> None:
    clock = Clock()
    books = UpstreamBooks([parse_policy(f"pu=10/1s,{kind}")], clock)
    for units in (4, 6):
        assert books.arrive({"pu": units}) is None
        clock.now += 1_000_000
    refusal = books.arrive({"pu": 3})
    assert refusal is not None
    clock.now += round(refusal.wait_s * 1e9) - 2_000_000
    assert books.arrive({"pu": 3}) is not None
    clock.now += 2_000_001
    assert books.arrive({"pu": 3}) is None


def test_a_call_that_one_policy_refuses_counts_against_none() -> None:
    clock = Clock()
    books = UpstreamBooks([parse_policy("requests=10/1s"), parse_policy("pu=5/1s")], clock)
    assert books.arrive({"requests": 1, "pu": 5}) is None
    refusal = books.arrive({"requests": 1, "pu": 5})
    assert refusal is not None
    assert (refusal.policy.unit, refusal.wait_s) == ("pu", pytest.approx(1.0))
    assert [policy["left"] for policy in books.page()["policies"]] == [9, 0]
    assert books.page()["refused_by"] == {"pu=5.0/1s,bucket": 1}


def test_a_budget_does_not_refill_and_slots_come_back_when_a_call_is_done() -> None:
    clock = Clock()
    books = UpstreamBooks([parse_policy("pu=3/PT0S"), parse_policy("requests=1,slots")], clock)
    assert books.arrive({"requests": 1, "pu": 2}) is None
    assert books.arrive({"requests": 1, "pu": 1}) is not None
    books.leave()
    assert books.arrive({"requests": 1, "pu": 1}) is None
    books.leave()
    clock.now += 10**15
    refusal = books.arrive({"requests": 1, "pu": 1})
    assert refusal is not None
    assert refusal.policy.kind == "budget"


def test_a_policy_by_a_key_is_counted_apart_for_every_key() -> None:
    books = UpstreamBooks([parse_policy("requests=1/1h,by=model")], Clock())
    assert [books.arrive({"requests": 1}, {"model": model}) is None for model in "aab"] == [True, False, True]


def test_the_ideal_is_the_time_that_the_binding_policy_needs() -> None:
    policies = [parse_policy("requests=50/10s"), parse_policy("pu=200/10s")]
    assert upstreams.ideal_seconds(policies, {"requests": 500, "pu": 2000}) == pytest.approx(90.0)
    assert upstreams.ideal_seconds(policies, {"requests": 500, "pu": 4000}) == pytest.approx(190.0)


# --- over HTTP ----------------------------------------------------------------------------------------------------


class Echo(Upstream):
    """Answers with what it was asked."""

    name = "echo"

    async def answer(self, request: UpstreamRequest) -> UpstreamResponse:
        if request.path == "/stream":
            return UpstreamResponse(chunks=[(0.0, b"one"), (0.001, b"two")], headers={"Content-Type": "text/plain"})
        if request.path == "/wrong":
            raise KeyError("no such thing")
        body = {"method": request.method, "path": request.path, "query": request.query, "body": request.body.decode()}
        return UpstreamResponse(body=body, delay=self.delay)


def call(url: str, **more: Any) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, **more), timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_requests_of_every_shape_arrive_whole_on_one_connection() -> None:
    with UpstreamThread(Echo()) as server:
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)

        def ask(method: str, path: str, **more: Any) -> tuple[int, bytes]:
            connection.request(method, path, **more)
            answer = connection.getresponse()
            return answer.status, answer.read()

        status, body = ask("GET", "/a%20b?x=1&x=2")
        assert json.loads(body) == {"method": "GET", "path": "/a b", "query": {"x": ["1", "2"]}, "body": ""}
        assert json.loads(ask("POST", "/", body=b"x" * 200_000)[1])["body"] == "x" * 200_000
        chunked = iter([b"several ", b"parts"])
        assert json.loads(ask("PUT", "/", body=chunked, encode_chunked=True)[1])["body"] == "several parts"
        assert ask("HEAD", "/x") == (200, b"")
        assert ask("GET", "/stream") == (200, b"onetwo")
        status, body = ask("GET", "/wrong")
        assert (status, "KeyError" in body.decode()) == (500, True)
        assert ask("GET", "/still/there")[0] == 200
        connection.close()


@pytest.mark.parametrize(
    "garbage",
    [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: many\r\n\r\n", b"GET / SPDY/9\r\n\r\n", b"x" * 100_000],
)
def test_garbage_is_answered_with_400_and_the_server_goes_on(garbage: bytes) -> None:
    with UpstreamThread(Echo()) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            connection.sendall(garbage)
            assert connection.recv(1000).startswith(b"HTTP/1.1 400")
        assert call(server.url + "/x")[0] == 200


def test_five_hundred_slow_calls_at_once_are_answered_together() -> None:
    async def one(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /x HTTP/1.1\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer[:12]

    async def all_of(port: int) -> list[bytes]:
        return await asyncio.gather(*(one(port) for _ in range(500)))

    with UpstreamThread(Echo(delay=0.5)) as server:
        assert set(asyncio.run(all_of(server.port))) == {b"HTTP/1.1 200"}


def test_injected_failures_strike_in_order_and_then_it_is_well_again() -> None:
    with upstreams.start("window", ["requests=100/1h"]) as server:
        server.inject(status=503, count=2, skip=1, path="/work")
        assert [call(server.url + path)[0] for path in ("/work", "/other", "/work", "/work", "/work")] == [
            *(200, 200, 503, 503, 200)
        ]
        server.inject(drop=True, counted=True)
        with pytest.raises((RemoteDisconnected, urllib.error.URLError)):
            call(server.url + "/work")
        books = server.books()
        assert (books["accepted"], books["refused"], books["failed"]) == (4, 0, 2)
        assert call(server.url + "/_faults", data=b'{"colour": "red"}')[0] == 400


def test_many_threads_are_judged_one_at_a_time() -> None:
    with (
        upstreams.start_process("window", ["requests=100/1h"]) as server,
        ThreadPoolExecutor(16) as pool,
    ):
        statuses = list(pool.map(lambda _: call(server.url + "/work")[0], range(300)))
        assert (statuses.count(200), statuses.count(429)) == (100, 200)
        books = server.books()
        assert (books["accepted"], books["refused"], len(books["accepted_at"])) == (100, 200, 100)
        assert "accepted_at" not in call(server.url + "/_books?brief")[1]


def test_an_upstream_in_a_process_ends_with_the_process_that_started_it() -> None:
    server = upstreams.start_process("window")
    assert call(server.url + "/x")[0] == 200
    server.inject(status=418)
    assert call(server.url + "/x")[0] == 418
    server.stop()
    with pytest.raises(urllib.error.URLError):
        call(server.url + "/x")


def test_a_setting_or_an_upstream_that_there_is_not_is_named_before_anything_starts() -> None:
    with pytest.raises(InvalidInput, match="no upstream 'mars'; there are window"):
        upstreams.start("mars")
    with pytest.raises(InvalidInput, match="window has no setting 'colour'"):
        upstreams.start_process("window", colour="red")


# --- the command, and what the upstreams may know -------------------------------------------------------------------


def test_the_command_serves_until_it_is_told_to_end_and_says_what_it_counted() -> None:
    command = [sys.executable, "-m", "headgate", "upstream", "window", "--policy", "requests=2/1h"]
    served = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert served.stdout is not None
    line = served.stdout.readline()
    found = re.fullmatch(r"headgate: window on (http://127\.0\.0\.1:\d+) \(requests=2\.0/1h,sliding\)\n", line)
    assert found is not None, line
    assert [call(found[1] + "/work")[0] for _ in range(3)] == [200, 200, 429]
    with urllib.request.urlopen(found[1] + "/") as page:
        assert "<h1>window</h1>" in page.read().decode()
    served.send_signal(signal.SIGTERM)
    _, told = served.communicate(timeout=60)
    assert (served.returncode, told) == (0, "headgate: 2 accepted, 1 refused\n")


def test_the_command_refuses_what_makes_no_sense_in_one_line() -> None:
    for arguments in (["mars"], ["window", "--policy", "requests=none/1s"], ["window", "--colour", "red"]):
        result = run("upstream", *arguments)
        assert result.exit_code == 2, result.output
        assert len(result.output.splitlines()) == 1


def test_local_upstreams_know_nothing_of_headgate_but_durations_and_errors() -> None:
    """Their books are evidence about Headgate only as long as they share no rule with it."""
    allowed = {"duration", "errors", "simulate"}
    ours = [found for found in imports_of(SOURCE) if found.file.startswith("simulate/upstreams/") and found.is_ours]
    assert len(ours) > 5
    assert {found.target_part for found in ours} <= allowed
    inside = {found.target for found in ours if found.target_part == "simulate"}
    assert {name for name in inside if not name.startswith("headgate.simulate.upstreams")} <= {
        "headgate.simulate.books"
    }


def test_every_upstream_has_a_row_in_the_documentation() -> None:
    page = (ROOT / "docs" / "how-to" / "local-upstreams.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `([a-z-]+)` \| ", page, flags=re.MULTILINE) == list(upstreams.UPSTREAMS)

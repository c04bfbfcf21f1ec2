"""The local Sentinel Hub: tokens, processing, both endpoints of limits, refusals in its own format."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from headgate.http.report import read
from headgate.sentinelhub import processing_units_of
from headgate.simulate.upstreams import UpstreamThread, start
from tests.sentinelhub.test_units import body

POLICIES = ["requests=50/10s", "pu=200/10s", "pu=400000/PT744H"]


@pytest.fixture
def hub() -> Iterator[UpstreamThread]:
    with start("sentinel-hub", POLICIES, client_id="me", client_secret="hush") as server:
        yield server


def call(url: str, data: Any = None, token: str = "", **headers: str) -> tuple[int, dict[str, str], bytes]:
    if token:
        headers["Authorization"] = f"Bearer {token}"
    payload = json.dumps(data).encode() if isinstance(data, dict) else data
    try:
        with urllib.request.urlopen(urllib.request.Request(url, payload, headers), timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def token_of(hub: UpstreamThread, path: str = "/oauth/token", **form: str) -> tuple[int, Any]:
    given = {"grant_type": "client_credentials", "client_id": "me", "client_secret": "hush", **form}
    status, _, text = call(hub.url + path, urllib.parse.urlencode(given).encode())
    return status, json.loads(text)


@pytest.mark.parametrize("path", ["/oauth/token", "/auth/realms/main/protocol/openid-connect/token"])
def test_a_token_is_had_at_both_addresses_and_with_the_right_secret_alone(hub: UpstreamThread, path: str) -> None:
    status, answer = token_of(hub, path)
    assert (status, answer["token_type"], answer["expires_in"]) == (200, "Bearer", 3600)
    assert token_of(hub, path, client_secret="guess")[0] == 401
    assert token_of(hub, path, grant_type="password")[0] == 400
    assert call(hub.url + "/api/v1/process", body(), token=answer["access_token"])[0] == 200
    assert call(hub.url + "/api/v1/process", body(), token="made-up")[0] == 401
    assert call(hub.url + "/api/v1/process", body())[0] == 401
    books = hub.books()
    assert (books["tokens_issued"], books["unauthorized"], books["accepted"]) == (1, 2, 1)


@pytest.mark.parametrize(
    ("kind", "size"), [("image/png", (40, 30)), ("image/tiff", (40, 30)), ("image/jpeg", (16, 16))]
)
def test_processing_answers_with_a_real_image_and_what_it_cost(
    hub: UpstreamThread, kind: str, size: tuple[int, int]
) -> None:
    token = token_of(hub)[1]["access_token"]
    request = body(format=kind, width=40, height=30)
    status, headers, image = call(hub.url + "/api/v1/process", request, token)
    assert (status, headers["Content-Type"]) == (200, kind)
    assert Image.open(io.BytesIO(image)).size == size
    assert float(headers["x-processingunits-spent"]) == pytest.approx(processing_units_of(request), abs=1e-6)
    assert hub.books()["units"] == {"requests": 1, "pu": pytest.approx(processing_units_of(request))}


def test_a_refusal_is_told_in_milliseconds_and_read_as_such() -> None:
    with start("sentinel-hub", ["requests=2/10s", "pu=200/10s"]) as hub:
        token = token_of(hub)[1]["access_token"]
        statuses = [call(hub.url + "/api/v1/process", body(), token) for _ in range(3)]
        assert [status for status, _, _ in statuses] == [200, 200, 429]
        status, headers, text = statuses[-1]
        assert json.loads(text) == {
            "status": 429,
            "reason": "Too Many Requests",
            "message": "You have exceeded your rate limit",
            "code": "RATE_LIMIT_EXCEEDED",
        }
        assert 1000 < int(headers["retry-after"]) <= 5000
        report = read({"status": status, "headers": headers, "body": json.loads(text)}, 0)
        assert (report.outcome, report.retry_after) == ("rate_limited", int(headers["retry-after"]) / 1000)


def test_the_endpoints_of_limits_tell_capacity_and_what_is_left(hub: UpstreamThread) -> None:
    token = token_of(hub)[1]["access_token"]
    assert call(hub.url + "/aux/ratelimit/contract?userId=eq:me")[0] == 401
    contract = json.loads(call(hub.url + "/aux/ratelimit/contract?userId=eq:me", token=token)[2])
    assert contract["data"][0] == {
        "type": {"name": "REQUESTS"},
        "policies": [{"capacity": 50, "samplingPeriod": "PT10S", "nanosBetweenRefills": 200_000_000}],
    }
    assert [policy["samplingPeriod"] for policy in contract["data"][1]["policies"]] == ["PT10S", "PT744H"]
    call(hub.url + "/api/v1/process", body(width=2500, height=2500), token)
    counts = json.loads(call(hub.url + "/aux/ratelimit/statistics/tokenCounts/me", token=token)[2])["data"]
    assert 49 <= counts["REQUESTS"]["PT10S"] <= 50
    assert counts["PROCESSING_UNITS"]["PT744H"] == pytest.approx(400_000 - 2500 * 2500 / 512**2, abs=5)


def test_with_ramp_up_a_burst_of_a_whole_allowance_is_partly_refused() -> None:
    with start("sentinel-hub", ["requests=20/1h"], ramp_up=True) as hub:
        token = token_of(hub)[1]["access_token"]
        statuses = [call(hub.url + "/api/v1/process", body(), token)[0] for _ in range(20)]
        assert statuses == [200] * 10 + [429] * 10


def test_a_token_that_has_ended_is_refused() -> None:
    with start("sentinel-hub", token_lasts=0.0) as hub:
        token = token_of(hub)[1]["access_token"]
        assert call(hub.url + "/api/v1/process", body(), token)[0] == 401


@pytest.mark.parametrize("wrong", [b"", b"not json", b"[]", b'{"input": {}}', b'{"output": {"width": 9999999}}'])
def test_a_body_that_is_none_is_a_400_and_counts_nothing(hub: UpstreamThread, wrong: bytes) -> None:
    token = token_of(hub)[1]["access_token"]
    assert call(hub.url + "/api/v1/process", wrong or b" ", token)[0] == 400
    assert call(hub.url + "/api/v1/nothing", body(), token)[0] == 404
    books = hub.books()
    assert (books["accepted"], books["refused"]) == (0, 0)

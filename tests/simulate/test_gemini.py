"""The local Gemini: the real wire format, to the real google-genai; quotas, capacity and pictures of its own."""

import struct
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest
from google import genai
from google.genai import errors, types

from headgate import InvalidInput
from headgate.http.report import read
from headgate.simulate.upstreams import parse_policy, start
from headgate.simulate.upstreams.pictures import painted
from tests.support import ROOT

MODEL = "gemini-2.5-flash-image"
NONE = "requests=1000/1m"


def client(url: str, key: str = "local") -> genai.Client:
    return genai.Client(api_key=key, http_options=types.HttpOptions(base_url=url))


def image(url: str, prompt: str = "a fox", key: str = "local") -> bytes:
    service = client(url, key)  # it closes its connections when it goes
    answer = service.models.generate_content(model=MODEL, contents=prompt)
    (part,) = answer.candidates[0].content.parts  # type: ignore[index, union-attr, misc]
    assert part.inline_data.mime_type == "image/png"  # type: ignore[union-attr]
    return part.inline_data.data  # type: ignore[union-attr, return-value]


def refusal(url: str, **more: Any) -> errors.APIError:
    with pytest.raises(errors.APIError) as caught:
        image(url, **more)
    return caught.value


def pixels(data: bytes) -> tuple[int, int, bytes]:
    """Width, height and rows of a PNG, read as its standard says."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, rows, size = 8, b"", (0, 0)
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(name + body)
        if name == b"IHDR":
            size = struct.unpack(">II", body[:8])
            assert body[8:] == bytes((8, 2, 0, 0, 0))
        elif name == b"IDAT":
            rows += body
        at += 12 + length
    return size[0], size[1], zlib.decompress(rows)


def test_it_makes_a_real_picture_that_follows_from_the_prompt() -> None:
    with start("gemini", [NONE], delay=0.0, size=64) as upstream:
        one, same, other = (image(upstream.url, prompt) for prompt in ("a fox", "a fox", "an owl"))
    assert one == same == painted("a fox", 64)
    assert one != other
    width, height, rows = pixels(one)
    assert (width, height, len(rows)) == (64, 64, 64 * (1 + 3 * 64))


def test_a_quota_of_the_minute_is_refused_with_its_id_and_a_delay_that_a_report_reads() -> None:
    with start("gemini", ["requests=1/1m"], delay=0.0) as upstream:
        image(upstream.url)
        error = refusal(upstream.url)
        assert (error.code, error.status) == (429, "RESOURCE_EXHAUSTED")
        report = read(error, 0.0)
        assert (report, report.permanent) == ("rate_limited", False)
        assert report.retry_after is not None
        assert 50 < report.retry_after <= 60
        assert "GenerateRequestsPerMinutePerProjectPerModel-FreeTier" in str(error.details)
        assert (upstream.books()["accepted"], upstream.books()["refused"]) == (1, 1)


def test_a_quota_of_the_day_is_permanent() -> None:
    with start("gemini", ["requests=1/1d,calendar"], delay=0.0) as upstream:
        image(upstream.url)
        report = read(refusal(upstream.url), 0.0)
        assert (report, report.permanent) == ("rate_limited", True)


def test_images_have_a_quota_of_their_own_and_errors_may_come_in_a_list_and_without_a_delay() -> None:
    with start("gemini", ["images=1/1m"], delay=0.0, listed=True, tells_delay=False) as upstream:
        image(upstream.url)
        error = refusal(upstream.url)
        assert error.code == 429
        assert "GenerateImagesPerMinute" in str(error.details)
        assert read(error, 0.0).retry_after is None


@pytest.mark.parametrize(("overload", "outcome"), [(429, "rate_limited"), (503, "overloaded")])
def test_one_too_many_at_once_is_refused_without_details(overload: int, outcome: str) -> None:
    with start("gemini", ["in_flight=2,slots"], delay=0.0, overload=overload) as upstream:
        books = upstream.upstream.books
        for _ in range(2):
            assert books.arrive({"in_flight": 1.0}) is None  # two calls that take as long as the test does
        error = refusal(upstream.url)
        assert error.code == overload
        report = read(error, 0.0)
        assert (report, report.retry_after, report.permanent) == (outcome, None, False)
        books.leave()
        image(upstream.url)
        image(upstream.url)  # its slot is free again when it is done


def test_the_capacity_changes_when_it_was_told_to() -> None:
    with start("gemini", ["in_flight=9,slots,1@1us"], delay=0.0) as upstream:
        assert (
            upstream.upstream.books.arrive({"in_flight": 1.0}) is None
        )  # the first call: a microsecond later it is one
        assert refusal(upstream.url).code == 429
        assert (upstream.books()["accepted"], upstream.books()["refused"]) == (1, 1)


def test_a_wrong_key_no_key_and_no_prompt_are_told_as_the_service_does_and_count_nothing() -> None:
    with start("gemini", ["requests=1/1m"], delay=0.0, api_key="secret") as upstream:
        wrong = refusal(upstream.url, key="guess")
        assert (wrong.code, wrong.status) == (400, "INVALID_ARGUMENT")
        assert "API key not valid" in str(wrong)
        assert refusal(upstream.url, key="secret", prompt=" ").code == 400
        assert upstream.books()["accepted"] == upstream.books()["refused"] == 0


def test_a_policy_may_change_with_time_and_says_so_again() -> None:
    policy = parse_policy("in_flight=20,slots,6@50s,14@100s")
    assert policy.steps == ((50 * 10**9, 6.0), (100 * 10**9, 14.0))
    assert parse_policy(policy.as_text()) == policy
    assert policy.scaled(0.5).steps == ((50 * 10**9, 3.0), (100 * 10**9, 7.0))
    for wrong in ("in_flight=20,slots,0@50s", "in_flight=20,slots,6@100s,14@50s", "in_flight=20,slots,six@5s"):
        with pytest.raises(InvalidInput, match="is no later limit"):
            parse_policy(wrong)


def test_the_example_with_one_import_changed_makes_its_images(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.json"
    prompts.write_text('{"a.png": "a fox", "b.png": "an owl", "c.png": "a hare"}', encoding="utf-8")
    with start("gemini", ["in_flight=8,slots"], delay=0.01, size=32) as upstream:
        import os

        env = {**os.environ, "GOOGLE_GEMINI_BASE_URL": upstream.url, "GOOGLE_API_KEY": "local"}
        command = [sys.executable, str(ROOT / "examples/nanobanana/batch.py"), str(prompts), str(tmp_path / "out")]
        first, again = (subprocess.run(command, env=env, capture_output=True, text=True) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert "Batch complete: 3/3 successful, 0 failed" in first.stderr
    assert "Skipped (exists): a.png" in again.stderr
    assert pixels((tmp_path / "out" / "b.png").read_bytes())[:2] == (32, 32)

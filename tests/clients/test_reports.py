"""`permit.report()` and the exceptions and answers of the real packages."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate import Concurrency, Gate, Report, Window
from headgate.stores.memory import MemoryStore
from tests.support.answering import RETRY_INFO, Answering, answering
from tests.support.servers import free_port


@pytest.fixture
def server() -> Iterator[Answering]:
    with answering() as server:
        yield server


def report(call: Callable[[], Any]) -> Report:
    """What a permit makes of the call; it must have raised."""
    gate = Gate("reports", [Window(100, per="1m", name="rpm"), Concurrency(1, name="slots")], store=MemoryStore())
    with gate.acquire() as permit:
        try:
            call()
        except Exception as error:
            said = permit.report(error)
        else:
            raise AssertionError("it did not fail")
    assert gate.holders() == []
    assert gate.usage()["rpm"].used == (0 if said == "unsent" else 1)
    assert (gate.usage().paused_for is not None) is bool(said.retry_after)
    return said


def facts(said: Report) -> tuple[str, float | None, bool, int]:
    return said.outcome, said.retry_after, said.permanent, said.status


def openai_call(url: str) -> Callable[[], Any]:
    import openai

    client = openai.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    return lambda: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


def anthropic_call(url: str) -> Callable[[], Any]:
    import anthropic

    client = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0)
    return lambda: client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "hi"}])


def genai_call(url: str, is_async: bool = False) -> Callable[[], Any]:
    from google import genai
    from google.genai import types

    def call() -> Any:
        client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=url))
        if not is_async:
            return client.models.generate_content(model="m", contents="hi")

        async def main() -> Any:
            try:
                return await client.aio.models.generate_content(model="m", contents="hi")
            finally:
                await client.aio.aclose()

        return asyncio.run(main())

    return call


def test_openai(server: Answering) -> None:
    server.script.append(
        (429, {"retry-after": "2", "retry-after-ms": "1500"}, {"error": {"code": "rate_limit_exceeded"}})
    )
    assert facts(report(openai_call(server.url))) == ("rate_limited", 1.5, False, 429)
    server.script.append((429, {}, {"error": {"code": "insufficient_quota", "type": "insufficient_quota"}}))
    assert facts(report(openai_call(server.url))) == ("rate_limited", None, True, 429)
    server.script.append((401, {}, {"error": {"code": "invalid_api_key"}}))
    assert facts(report(openai_call(server.url))) == ("ok", None, False, 401)
    assert facts(report(openai_call(f"http://127.0.0.1:{free_port()}"))) == ("unsent", None, False, 0)


def test_anthropic(server: Answering) -> None:
    server.script.append((429, {"retry-after": "7"}, {"type": "error", "error": {"type": "rate_limit_error"}}))
    assert facts(report(anthropic_call(server.url))) == ("rate_limited", 7.0, False, 429)
    server.script.append((529, {}, {"type": "error", "error": {"type": "overloaded_error"}}))
    assert facts(report(anthropic_call(server.url))) == ("overloaded", None, False, 529)
    assert facts(report(anthropic_call(f"http://127.0.0.1:{free_port()}"))) == ("unsent", None, False, 0)


# What google-genai does with aiohttp is deprecated there.
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("wrapped", [False, True])
def test_google_genai(server: Answering, is_async: bool, wrapped: bool) -> None:
    server.script.append((429, {}, [RETRY_INFO] if wrapped else RETRY_INFO))
    assert facts(report(genai_call(server.url, is_async))) == ("rate_limited", 28.0, False, 429)
    spent = json.loads(json.dumps(RETRY_INFO).replace('"PerMinute"', '"GenerateRequestsPerDayPerProjectPerModel"'))
    server.script.append((429, {}, spent))
    assert facts(report(genai_call(server.url, is_async))) == ("rate_limited", 28.0, True, 429)
    server.script.append((503, {}, {"error": {"code": 503, "status": "UNAVAILABLE", "message": "overloaded"}}))
    assert facts(report(genai_call(server.url, is_async))) == ("overloaded", None, False, 503)


def test_botocore(server: Answering) -> None:
    import boto3
    from botocore.config import Config

    def client(url: str) -> Any:
        return boto3.client(
            "dynamodb",
            endpoint_url=url,
            region_name="eu-west-1",
            aws_access_key_id="a",
            aws_secret_access_key="b",
            config=Config(retries={"total_max_attempts": 1}),
        )

    kind = {"content-type": "application/x-amz-json-1.0"}
    server.script.append((400, kind, {"__type": "com.amazonaws#ThrottlingException", "message": "slow down"}))
    assert facts(report(lambda: client(server.url).list_tables())) == ("rate_limited", None, False, 400)
    server.script.append((400, kind, {"__type": "com.amazonaws#ValidationException", "message": "no"}))
    assert facts(report(lambda: client(server.url).list_tables())) == ("ok", None, False, 400)
    server.script.append((503, kind, {}))
    assert facts(report(lambda: client(server.url).list_tables())) == ("overloaded", None, False, 503)
    away = f"http://127.0.0.1:{free_port()}"
    assert facts(report(lambda: client(away).list_tables())) == ("unsent", None, False, 0)
    server.script.append((200, kind, {"TableNames": []}))
    answer = client(server.url).list_tables()
    with Gate("aws", [Window(5, per="1m")], store=MemoryStore()).acquire() as permit:
        assert facts(permit.report(answer)) == ("ok", None, False, 200)


def test_pdfservices_sdk() -> None:
    from adobe.pdfservices.operation.exception.exceptions import (
        SdkException,
        ServiceApiException,
        ServiceUsageException,
    )

    def failing(error: Exception) -> Callable[[], Any]:
        def call() -> None:
            raise error

        return call

    assert facts(report(failing(ServiceUsageException("m", "r", 429, "TOO_MANY_REQUESTS")))) == (
        *("rate_limited", None, False),
        429,
    )
    assert facts(report(failing(ServiceUsageException("m", "r", 429, "INSUFFICIENT_QUOTA")))) == (
        *("rate_limited", None, True),
        429,
    )
    assert facts(report(failing(ServiceApiException("m", "r", 503)))) == ("overloaded", None, False, 503)
    assert facts(report(failing(ServiceApiException("m", "r")))) == ("error", None, False, 0)
    assert facts(report(failing(SdkException("m")))) == ("error", None, False, 0)


def test_requests_and_aiohttp(server: Answering) -> None:
    import aiohttp
    import requests

    def raising() -> None:
        requests.get(f"{server.url}/ok", timeout=20).raise_for_status()

    server.script.append((429, {"retry-after": "3"}, {}))
    assert facts(report(raising)) == ("rate_limited", 3.0, False, 429)
    assert report(lambda: requests.get(f"http://127.0.0.1:{free_port()}", timeout=20)) == "unsent"

    async def fetch(url: str) -> None:
        async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(url):
            pass

    server.script.append((429, {"retry-after": "3"}, {}))
    assert facts(report(lambda: asyncio.run(fetch(f"{server.url}/ok")))) == ("rate_limited", 3.0, False, 429)
    assert report(lambda: asyncio.run(fetch(f"http://127.0.0.1:{free_port()}"))) == "unsent"


def test_a_403_of_github_is_a_refusal_and_another_403_is_an_answer() -> None:
    gate = Gate("github", [Window(5, per="1m")], store=MemoryStore())
    with gate.acquire() as permit:
        assert permit.report({"status": 403, "headers": {}}) == "ok"
        assert permit.report({"status": 403, "headers": {"x-ratelimit-remaining": "12"}}) == "ok"
        assert facts(permit.report({"status": 403, "headers": {"Retry-After": "60"}}))[:2] == ("rate_limited", 60.0)


def test_an_error_that_was_raised_while_another_was_handled_is_not_read_as_that_other_one() -> None:
    def call() -> None:
        try:
            raise ConnectionRefusedError
        except ConnectionRefusedError:
            raise TimeoutError("the second attempt was written, and never answered") from None

    def retrying() -> None:
        try:
            raise ConnectionRefusedError
        except ConnectionRefusedError:
            raise TimeoutError  # noqa: B904  on purpose

    assert report(call) == "error"
    assert report(retrying) == "error"


def test_reading_a_report_imports_none_of_these_packages() -> None:
    script = (
        "import sys, headgate; p = headgate.Gate('g', [headgate.Window(1, per='1m')]).acquire();"
        "p.report(ValueError()); p.report({'status': 429, 'headers': {}});"
        "print([n for n in ('httpx', 'httpx2', 'openai', 'anthropic', 'google.genai', 'botocore', 'requests', 'aiohttp')"
        " if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"

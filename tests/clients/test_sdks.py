"""The real SDKs by their own doors, against a local server that counts requests and tokens by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from headgate import AsyncGate, Concurrency, Denied, Gate, InvalidInput, Window
from headgate.clients import Retry
from headgate.clients.boto3 import gate_client
from headgate.clients.httpx2 import AsyncHttpx2Transport, Httpx2Transport
from headgate.clients.requests import RequestsAdapter, on_every_session
from headgate.clients.tokens import estimate_tokens, read_usage, used_tokens
from headgate.simulate import upstreams
from headgate.stores.memory import MemoryStore
from tests.support.answering import RETRY_INFO, Answering, answering

SAID: list[Any] = [{"role": "user", "content": "how much is the fish? " * 4}]


@pytest.fixture
def llm() -> Iterator[upstreams.UpstreamThread]:
    with upstreams.start("llm", ["requests=1000/1m", "tokens=100000/1m"], delay=0.0) as server:
        yield server


@pytest.fixture
def server() -> Iterator[Answering]:
    with answering() as server:
        yield server


def limits() -> list[Any]:
    return [
        Window(1000, per="1m", name="rpm"),
        Window(100_000, per="1m", unit="tokens", name="tpm"),
        Concurrency(20, name="in_flight", lease="1h"),
    ]


def gate_of() -> Gate:
    return Gate("llm", limits(), store=MemoryStore())


def async_gate_of() -> AsyncGate:
    return AsyncGate("llm", limits(), store=MemoryStore())


def agree(gate: Gate, llm: upstreams.UpstreamThread) -> None:
    """The gate's books and the upstream's own are the same, to the token."""
    books, usage = llm.books(), gate.usage()
    assert books["refused"] == 0
    assert usage["rpm"].used == books["accepted"] > 0
    assert usage["tpm"].used == books["units"]["tokens"]
    assert gate.holders() == []


async def async_agree(gate: AsyncGate, llm: upstreams.UpstreamThread) -> None:
    books, usage = llm.books(), await gate.usage()
    assert books["refused"] == 0
    assert usage["rpm"].used == books["accepted"] > 0
    assert usage["tpm"].used == books["units"]["tokens"]
    assert await gate.holders() == []


def test_openai_takes_requests_and_tokens_and_settles_them_streamed_or_not(llm: upstreams.UpstreamThread) -> None:
    import httpx2
    from openai import OpenAI

    gate = gate_of()
    transport = Httpx2Transport(gate, cost=estimate_tokens(), settle=used_tokens())
    with (
        httpx2.Client(transport=transport) as http,
        OpenAI(base_url=f"{llm.url}/v1", api_key="k", http_client=http, max_retries=0) as client,
    ):
        whole = client.chat.completions.create(model="m", messages=SAID, max_tokens=50)
        assert whole.usage is not None
        assert whole.usage.total_tokens == llm.books()["units"]["tokens"]
        stream = client.chat.completions.create(
            model="m", messages=SAID, max_tokens=60, stream=True, stream_options={"include_usage": True}
        )
        assert "word" in "".join(part.choices[0].delta.content or "" for part in stream if part.choices)
        assert "word" in client.responses.create(model="m", input="hello", max_output_tokens=30).output_text
        for event in client.responses.create(model="m", input="hello", max_output_tokens=31, stream=True):
            assert event.type in ("response.output_text.delta", "response.completed")
    agree(gate, llm)


def test_anthropic_takes_requests_and_tokens_and_settles_them_streamed_or_not(llm: upstreams.UpstreamThread) -> None:
    import httpx2
    from anthropic import Anthropic

    gate = gate_of()
    transport = Httpx2Transport(gate, cost=estimate_tokens(), settle=used_tokens())
    with (
        httpx2.Client(transport=transport) as http,
        Anthropic(base_url=llm.url, api_key="k", http_client=http, max_retries=0) as client,
    ):
        client.messages.create(model="m", max_tokens=50, messages=SAID)
        with client.messages.stream(model="m", max_tokens=60, messages=SAID) as stream:
            assert "word" in "".join(stream.text_stream)
    agree(gate, llm)


def test_google_genai_does_not_pass_the_gate_by_on_its_async_side_although_aiohttp_is_there(
    llm: upstreams.UpstreamThread,
) -> None:
    from google import genai
    from google.genai import types

    gate, async_gate = gate_of(), async_gate_of()
    options = {"cost": estimate_tokens(), "settle": used_tokens()}
    client = genai.Client(
        api_key="k",
        http_options=types.HttpOptions(
            base_url=llm.url,
            client_args={"transport": Httpx2Transport(gate, **options)},
            async_client_args={"transport": AsyncHttpx2Transport(async_gate, **options)},
        ),
    )
    config = types.GenerateContentConfig(max_output_tokens=40)
    assert "word" in (client.models.generate_content(model="m", contents="hello", config=config).text or "")
    for part in client.models.generate_content_stream(model="m", contents="hello you", config=config):
        assert "word" in (part.text or "")
    agree(gate, llm)
    before = llm.books()["accepted"]

    async def main() -> None:
        await client.aio.models.generate_content(model="m", contents="hello all", config=config)
        async for _ in await client.aio.models.generate_content_stream(model="m", contents="you all", config=config):
            pass
        await client.aio.aclose()
        usage = await async_gate.usage()
        assert usage["rpm"].used == llm.books()["accepted"] - before == 2
        assert usage["tpm"].used + gate.usage()["tpm"].used == llm.books()["units"]["tokens"]
        assert await async_gate.holders() == []

    asyncio.run(main())
    client.close()


def test_the_async_clients_of_openai_and_anthropic_do_the_same(llm: upstreams.UpstreamThread) -> None:
    async def main() -> None:
        import httpx2
        from anthropic import AsyncAnthropic
        from openai import AsyncOpenAI

        gate = async_gate_of()
        transport = AsyncHttpx2Transport(gate, cost=estimate_tokens(), settle=used_tokens())
        async with httpx2.AsyncClient(transport=transport) as http:
            openai = AsyncOpenAI(base_url=f"{llm.url}/v1", api_key="k", http_client=http, max_retries=0)
            claude = AsyncAnthropic(base_url=llm.url, api_key="k", http_client=http, max_retries=0)
            await asyncio.gather(
                *(openai.chat.completions.create(model="m", messages=SAID, max_tokens=n) for n in range(20, 30)),
                *(claude.messages.create(model="m", messages=SAID, max_tokens=n) for n in range(20, 30)),
            )
            async with claude.messages.stream(model="m", max_tokens=60, messages=SAID) as stream:
                async for _ in stream.text_stream:
                    break  # the rest of it is never read, and its usage not known
        assert await gate.holders() == []
        assert (await gate.usage())["tpm"].used >= llm.books()["units"]["tokens"]

    asyncio.run(main())


def test_the_retries_of_an_sdk_take_a_permit_each(server: Answering) -> None:
    import httpx2
    from openai import OpenAI, RateLimitError

    gate = Gate("sdk-retries", [Window(100, per="1m", name="rpm")], store=MemoryStore())
    server.script += [(429, {"retry-after-ms": "1"}, {"error": {}})] * 3
    with httpx2.Client(transport=Httpx2Transport(gate)) as http:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="k", http_client=http)
        with pytest.raises(RateLimitError):
            client.chat.completions.create(model="m", messages=SAID)
    assert gate.usage()["rpm"].used == 3


def test_boto3_takes_a_permit_for_every_attempt(server: Answering) -> None:
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    gate = Gate("aws", [Window(100, per="1m", name="rpm"), Concurrency(1, name="slots")], store=MemoryStore())
    client = boto3.client(
        "dynamodb",
        endpoint_url=server.url,
        region_name="eu-west-1",
        aws_access_key_id="a",
        aws_secret_access_key="b",
        config=Config(retries={"mode": "standard", "total_max_attempts": 3}),
    )
    gated = gate_client(client, gate, operations=["ListTables"], holder=lambda request: request.url)
    kind = {"content-type": "application/x-amz-json-1.0"}
    server.script += [(400, kind, {"__type": "a#ThrottlingException"}), (200, kind, {"TableNames": []})]
    assert client.list_tables()["TableNames"] == []
    assert (gate.usage()["rpm"].used, gate.holders()) == (2, [])
    server.script += [(200, kind, {"Table": {}})]
    client.describe_table(TableName="t")
    assert gate.usage()["rpm"].used == 2
    client.meta.config.retries["total_max_attempts"] = 1
    client._endpoint.host = f"{server.url}/hang-up"
    with pytest.raises(BotoCoreError):
        client.list_tables()
    assert gate.holders() == []
    before = gate.usage()["rpm"].used
    gated.stop()
    with pytest.raises(BotoCoreError):
        client.list_tables()
    assert gate.usage()["rpm"].used == before
    with pytest.raises(InvalidInput, match="no operation Nothing"):
        gate_client(client, gate, operations=["Nothing"])
    with pytest.raises(InvalidInput, match="a client of boto3"):
        gate_client("s3", gate)


def test_pdfservices_sdk_is_gated_by_its_host(server: Answering, tmp_path: Any) -> None:
    import json

    from adobe.pdfservices.operation.auth.service_principal_credentials import ServicePrincipalCredentials
    from adobe.pdfservices.operation.config.client_config import ClientConfig
    from adobe.pdfservices.operation.exception.exceptions import ServiceUsageException
    from adobe.pdfservices.operation.pdf_services import PDFServices
    from adobe.pdfservices.operation.pdf_services_media_type import PDFServicesMediaType

    gate = Gate("adobe", [Window(100, per="1m", name="rpm"), Concurrency(1, name="slots")], store=MemoryStore())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"pdfServices": {"pdfServicesUri": server.url}}))
    server.script += [
        (200, {}, {"access_token": "t", "token_type": "bearer", "expires_in": 86399}),
        (200, {}, {"assetID": "urn:1", "uploadUri": f"{server.url}/upload"}),
        (200, {}, {}),
    ]
    host = f"127.0.0.1:{server.server_address[1]}"
    with on_every_session(RequestsAdapter(gate, hosts=host)):
        services = PDFServices(
            credentials=ServicePrincipalCredentials("id", "secret"), client_config=ClientConfig().from_file(str(path))
        )
        services.upload(input_stream=b"%PDF-1.7", mime_type=PDFServicesMediaType.PDF)
        assert (gate.usage()["rpm"].used, gate.holders()) == (3, [])
        server.script += [(429, {}, {"error": {"code": "TOO_MANY_REQUESTS", "message": "m"}})]
        with pytest.raises(ServiceUsageException):
            services.upload(input_stream=b"%PDF-1.7", mime_type=PDFServicesMediaType.PDF)
    assert gate.usage()["rpm"].used == 4


def test_a_call_that_no_transport_sees_is_retried_around_the_sdk(server: Answering) -> None:
    from google import genai
    from google.genai import types

    gate = Gate("around", [Window(100, per="1m", name="rpm")], store=MemoryStore())
    client = genai.Client(api_key="k", http_options=types.HttpOptions(base_url=server.url))
    server.script += [(503, {}, {"error": {"code": 503}}), (200, {}, {"candidates": []}), (429, {}, RETRY_INFO)]
    retry = Retry(base="1ms", deadline="5s")
    retry.call(gate, lambda permit: client.models.generate_content(model="m", contents="hi"))
    assert gate.usage()["rpm"].used == 2
    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED"):
        retry.call(gate, lambda permit: client.models.generate_content(model="m", contents="hi"))
    with pytest.raises(Denied):
        gate.acquire(timeout=0)
    client.close()


# --- tokens --------------------------------------------------------------------------------------------------------------


class Asked:
    def __init__(self, body: Any) -> None:
        self.content = body


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"messages": [{"role": "", "content": "12345678"}], "max_tokens": 10}', 12),
        (b'{"contents": [{"parts": [{"text": "1234"}]}], "generationConfig": {"maxOutputTokens": 5}}', 6),
        (b'{"input": "1234", "max_output_tokens": 0}', 1),
        (b"not json", 1025),
        (b"", 1025),
        (None, 1025),
        (b'[1, {"a": null}]', 1025),
        (b'{"parts": [{"inlineData": {"data": "' + b"A" * 4000 + b'"}}], "max_tokens": 9}', 10),
    ],
)
def test_tokens_are_estimated_by_the_length_of_the_text_and_the_longest_answer(body: Any, tokens: float) -> None:
    assert round(estimate_tokens()(Asked(body))["tokens"]) == tokens


def test_tokens_of_prompt_and_answer_can_be_units_of_their_own() -> None:
    asked = Asked(b'{"messages": "12345678", "max_tokens": 10}')
    assert estimate_tokens(input="in", output="out")(asked) == {"in": 2, "out": 10}
    assert estimate_tokens(count=lambda text: 99)(asked) == {"tokens": 109}
    with pytest.raises(InvalidInput):
        estimate_tokens(input="in")
    with pytest.raises(InvalidInput):
        used_tokens(output="out")


@pytest.mark.parametrize(
    ("parts", "usage"),
    [
        ([{"usage": {"prompt_tokens": 3, "completion_tokens": 4}}], (3, 4)),
        ([{"usage": {"prompt_tokens": 3}}], (3, 0)),
        ([{"usage": {"input_tokens": 3, "output_tokens": 4, "cache_read_input_tokens": 9}}], (3, 4)),
        (
            [
                {"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}},
                {"type": "message_delta", "usage": {"output_tokens": 5}},
            ],
            (7, 5),
        ),
        ([{"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 1}}}], None),
        ([{"response": {"usage": {"input_tokens": 1, "output_tokens": 2}}}], (1, 2)),
        ([{"usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2, "thoughtsTokenCount": 4}}], (1, 6)),
        ([[{"usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 2}}]], (1, 2)),
        ([{"usage": None}, 3, "x", {"usage": {"prompt_tokens": "many"}}], (0, 0)),
        ([{"choices": []}], None),
        ([], None),
    ],
)
def test_usage_is_read_from_every_dialect(parts: list[Any], usage: tuple[float, float] | None) -> None:
    assert read_usage(parts) == usage

"""A local language model service: the wire formats of OpenAI, Anthropic and Gemini, with requests and tokens per minute."""

from __future__ import annotations

import json
from math import ceil
from zlib import crc32

from .frame import Option, Upstream, UpstreamRequest, UpstreamResponse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, ClassVar

    from .policies import UpstreamRefusal


class LlmUpstream(Upstream):
    """Speak OpenAI's, Anthropic's and Gemini's formats.

    `POST /v1/chat/completions`, `/v1/responses`, `/v1/messages` and `/v1/models/M:generateContent` (also `/v1beta`, and
    `:streamGenerateContent`) answer with made-up words and true usage, streamed where that is asked for. A prompt has a
    token per four characters; how long an answer is follows from its request, and is never more than it allows. What is
    counted is what is used.
    """

    name: ClassVar[str] = "llm"
    summary: ClassVar[str] = "A language model service: requests and tokens per minute."
    policies: ClassVar[tuple[str, ...]] = ("requests=500/1m", "tokens=30000/1m")
    kind: ClassVar[str] = "sliding"
    options: ClassVar[Mapping[str, Option]] = {
        "longest": Option(256, "How many tokens an answer has at most where its request sets no bound."),
    }
    delay_s: ClassVar[float] = 0.05

    async def answer(self, request: UpstreamRequest) -> UpstreamResponse:
        dialect = _dialect(request.path)
        if dialect is None or request.method != "POST":
            return UpstreamResponse(404, {"error": {"message": f"no such path: {request.path}", "code": 404}})
        try:
            body = request.json()
        except ValueError:
            return UpstreamResponse(400, {"error": {"message": "the body is not JSON", "code": 400}})
        prompt = max(1, ceil(sum(map(len, _texts(body))) / 4))
        most = next(_bounds(body), int(self.settings["longest"]))
        produced = 1 + crc32(request.body) % max(1, most)
        refusal = self.books.arrive({"requests": 1, "tokens": prompt + produced})
        if refusal is not None:
            return self._refused(dialect, refusal)
        streams = bool(body.get("stream")) or request.path.endswith(":streamGenerateContent")
        headers = self._headers(dialect)
        if not streams:
            return UpstreamResponse(body=_whole(dialect, prompt, produced), headers=headers, delay=self.delay)
        events = list(_events(dialect, prompt, produced, body))
        headers["Content-Type"] = "text/event-stream"
        pause = self.delay / len(events)
        return UpstreamResponse(headers=headers, chunks=[(pause, event) for event in events])

    def _headers(self, dialect: str) -> dict[str, str]:
        """What is left, as the services tell it."""
        headers: dict[str, str] = {}
        for policy in self.books.policies:
            left, limit = int(self.books.left(policy)), int(policy.limit)
            if dialect in ("chat", "responses"):
                headers |= {
                    f"x-ratelimit-limit-{policy.unit}": str(limit),
                    f"x-ratelimit-remaining-{policy.unit}": str(left),
                }
            elif dialect == "messages":
                headers |= {
                    f"anthropic-ratelimit-{policy.unit}-limit": str(limit),
                    f"anthropic-ratelimit-{policy.unit}-remaining": str(left),
                }
        return headers

    def _refused(self, dialect: str, refusal: UpstreamRefusal) -> UpstreamResponse:
        wait = max(0.001, refusal.wait_s)
        told = (
            f"Rate limit reached for {refusal.policy.unit}: limit {refusal.policy.limit:g}. Try again in {wait:.3f}s."
        )
        headers = self._headers(dialect)
        if dialect == "gemini":
            details = [
                {
                    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
                    "violations": [{"quotaId": f"Generate{refusal.policy.unit.title()}PerMinutePerProjectPerModel"}],
                },
                {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": f"{wait:.3f}s"},
            ]
            error = {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": told, "details": details}
            return UpstreamResponse(429, {"error": error}, headers)
        headers["retry-after"] = str(ceil(wait))
        if dialect == "messages":
            error = {"type": "rate_limit_error", "message": told}
            return UpstreamResponse(429, {"type": "error", "error": error}, headers)
        headers["retry-after-ms"] = str(ceil(wait * 1000))
        error = {"message": told, "type": refusal.policy.unit, "param": None, "code": "rate_limit_exceeded"}
        return UpstreamResponse(429, {"error": error}, headers)


def _dialect(path: str) -> str | None:
    path = path.removesuffix("/")
    if path.endswith("/chat/completions"):
        return "chat"
    if path.endswith("/responses"):
        return "responses"
    if path.endswith("/messages"):
        return "messages"
    return "gemini" if path.endswith((":generateContent", ":streamGenerateContent")) else None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def _bounds(body: Any) -> Iterator[int]:
    for place in (body, body.get("generationConfig") or {}):
        for name in ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens"):
            if isinstance(place.get(name), int):
                yield place[name]


def _whole(dialect: str, prompt: int, produced: int) -> dict[str, Any]:
    words = "word " * produced
    if dialect == "chat":
        message = {"role": "assistant", "content": words, "refusal": None}
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": "local",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
            "usage": _openai_usage(prompt, produced),
        }
    if dialect == "responses":
        return _response(prompt, produced, [_output(words)])
    if dialect == "messages":
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "local",
            "content": [{"type": "text", "text": words}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": prompt, "output_tokens": produced},
        }
    return _gemini(words, prompt, produced)


def _openai_usage(prompt: int, produced: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": produced, "total_tokens": prompt + produced}


def _output(words: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": words, "annotations": []}]
    return {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": content}


def _response(prompt: int, produced: int, output: list[Any]) -> dict[str, Any]:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "local",
        "status": "completed",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": prompt, "output_tokens": produced, "total_tokens": prompt + produced},
    }


def _gemini(words: str, prompt: int, produced: int) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"role": "model", "parts": [{"text": words}]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": prompt,
            "candidatesTokenCount": produced,
            "totalTokenCount": prompt + produced,
        },
        "modelVersion": "local",
    }


def _events(dialect: str, prompt: int, produced: int, body: dict[str, Any]) -> Iterator[bytes]:
    """The events of a streamed answer, in at most four pieces of text."""
    sizes = [size for size in (produced // 4, produced // 4, produced // 4, produced - 3 * (produced // 4)) if size]
    if dialect == "chat":
        base = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "local"}
        for size in sizes:
            delta = {"index": 0, "delta": {"content": "word " * size}, "finish_reason": None}
            yield _event({**base, "choices": [delta]})
        yield _event({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            yield _event({**base, "choices": [], "usage": _openai_usage(prompt, produced)})
        yield b"data: [DONE]\n\n"
    elif dialect == "responses":
        for size in sizes:
            delta = {"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0}
            yield _event({**delta, "delta": "word " * size, "sequence_number": 1, "logprobs": []}, delta["type"])  # type: ignore[arg-type]
        done = {"type": "response.completed", "sequence_number": 2, "response": _response(prompt, produced, [])}
        yield _event(done, "response.completed")
    elif dialect == "messages":
        start = {**_whole(dialect, prompt, 1), "content": [], "stop_reason": None}
        start["usage"] = {"input_tokens": prompt, "output_tokens": 1}
        yield _event({"type": "message_start", "message": start}, "message_start")
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        yield _event(block, "content_block_start")
        for size in sizes:
            delta = {"type": "text_delta", "text": "word " * size}
            yield _event({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")
        yield _event({"type": "content_block_stop", "index": 0}, "content_block_stop")
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        yield _event({"type": "message_delta", "delta": end, "usage": {"output_tokens": produced}}, "message_delta")
        yield _event({"type": "message_stop"}, "message_stop")
    else:
        for number, size in enumerate(sizes, 1):
            so_far = sum(sizes[:number])
            yield _event(_gemini("word " * size, prompt, so_far))


def _event(value: Any, name: str = "") -> bytes:
    return (f"event: {name}\n" if name else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n"

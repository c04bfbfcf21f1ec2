"""What calls of language models cost in tokens: estimated before the call, and read from the answer's usage afterwards.

    Httpx2Transport(gate, cost=estimate_tokens(), settle=used_tokens())

Both understand the wire formats of OpenAI (chat completions, responses, embeddings), Anthropic (messages) and Gemini
(generateContent), streamed or not. They import no SDK.
"""

from __future__ import annotations

import json

from ..errors import InvalidInput

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from .answers import Answer

#: Where requests say how long the answer may be.
_LONGEST = ("max_completion_tokens", "max_output_tokens", "max_tokens", "maxOutputTokens")

#: Keys whose text is no prompt: binary data, which is not paid for by its length.
_NOT_TEXT = frozenset({"data", "image_url", "url", "file_data", "inlineData", "inline_data"})


def estimate_tokens(
    unit: str = "tokens",
    *,
    input: str | None = None,
    output: str | None = None,
    characters: float = 4.0,
    longest: int = 1024,
    count: Callable[[str], float] | None = None,
) -> Callable[[Any], dict[str, float]]:
    """A `cost` function: the tokens of a request as `unit`; or, where those are named, as `input` and `output` apart.

    The prompt is its text by `count`, or its length over `characters`. The answer is as long as the request allows, or
    `longest` where it sets no bound: an estimate that is never below the truth lets no refusal through, and what it is too
    much is given back when the answer has come.
    """
    if (input is None) != (output is None):
        raise InvalidInput("name both units, input= and output=, or neither")

    def cost(request: Any) -> dict[str, float]:
        try:
            body = json.loads(body_of(request) or b"{}")
        except ValueError:
            body = {}
        text = "\n".join(_texts(body))
        prompt = max(1.0, count(text) if count is not None else len(text) / characters)
        answer = float(next(_bounds(body), longest))
        return {unit: prompt + answer} if input is None or output is None else {input: prompt, output: max(1.0, answer)}

    return cost


def used_tokens(
    unit: str = "tokens", *, input: str | None = None, output: str | None = None
) -> Callable[[Answer], dict[str, float] | None]:
    """A `settle` function: what the answer's usage says, in the same units. None where it says nothing.

    OpenAI's streamed chat completions tell their usage only when asked: `stream_options={"include_usage": True}`.
    """
    if (input is None) != (output is None):
        raise InvalidInput("name both units, input= and output=, or neither")

    def settle(answer: Answer) -> dict[str, float] | None:
        if answer.status >= 400:
            # A refused or failed call has produced nothing.
            return {unit: 0.0} if input is None or output is None else {input: 0.0, output: 0.0}
        try:
            parts = list(answer.events()) if answer.is_event_stream else [answer.json()]
        except ValueError:
            return None
        found = read_usage(parts)
        if found is None:
            return None
        return {unit: found[0] + found[1]} if input is None or output is None else {input: found[0], output: found[1]}

    return settle


def read_usage(parts: list[Any]) -> tuple[float, float] | None:
    """PURE. The tokens of prompt and answer that the JSON values of one answer tell; None where they tell nothing."""
    prompt = answer = None
    for part in parts:
        if isinstance(part, list):  # Gemini streams a list where it does not stream events
            inner = read_usage(part)
            prompt, answer = inner if inner is not None else (prompt, answer)
            continue
        if not isinstance(part, dict):
            continue
        if part.get("type") == "message_start":  # Anthropic: the prompt now, and what was produced with the end
            usage = (part.get("message") or {}).get("usage") or {}
            prompt = _anthropic_prompt(usage)
            continue
        response = part.get("response")  # OpenAI's responses, streamed
        usage = (
            part.get("usage")
            or part.get("usageMetadata")
            or (response.get("usage") if isinstance(response, dict) else None)
        )
        if not isinstance(usage, dict):
            continue
        if "promptTokenCount" in usage:
            prompt = _number(usage, "promptTokenCount")
            answer = _number(usage, "candidatesTokenCount") + _number(usage, "thoughtsTokenCount")
        elif "prompt_tokens" in usage:
            prompt, answer = _number(usage, "prompt_tokens"), _number(usage, "completion_tokens")
        elif "output_tokens" in usage:
            if "input_tokens" in usage:
                prompt = _anthropic_prompt(usage)
            answer = _number(usage, "output_tokens")
    return None if prompt is None or answer is None else (prompt, answer)


def _anthropic_prompt(usage: Mapping[str, Any]) -> float:
    # What was read from the cache does not count against the limit.
    return _number(usage, "input_tokens") + _number(usage, "cache_creation_input_tokens")


def _number(usage: Mapping[str, Any], name: str) -> float:
    value = usage.get(name)
    return float(value) if isinstance(value, int | float) and value >= 0 else 0.0


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        for name, one in value.items():
            if name not in _NOT_TEXT:
                yield from _texts(one)


def _bounds(body: Any) -> Iterator[float]:
    if not isinstance(body, dict):
        return
    for place in (body, body.get("generationConfig"), body.get("generation_config")):
        if isinstance(place, dict):
            for name in _LONGEST:
                value = place.get(name)
                if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
                    yield float(value)


def body_of(request: Any) -> bytes:
    """The body of a request of httpx, httpx2, requests or aiohttp, where it is there as a whole; else nothing."""
    for name in ("content", "body"):
        try:
            body: Any = getattr(request, name, None)
            body = (
                body.decode() if hasattr(body, "decode") and not isinstance(body, bytes) else body
            )  # aiohttp's payload
        except Exception:  # a body that is made while it is sent
            continue
        if isinstance(body, str):
            return body.encode()
        if isinstance(body, bytes):
            return body
    return b""

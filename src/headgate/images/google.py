"""The one home of google-genai: a client, and one image by it."""

from __future__ import annotations

from headgate import HeadgateError
from headgate.extras import how_to_install

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class NoImage(HeadgateError):
    """The service answered without an image: what it said instead is the message."""


class ImageModel:
    """A model that makes images, through google-genai's async client. Its own retries stay off: each would be a call more.

    `base_url` is for another host, such as a local simulator.
    """

    def __init__(self, api_key: str, model: str, base_url: str | None = None, timeout_s: float = 300.0) -> None:
        try:
            from google import genai
            from google.genai import types
        except ImportError:
            raise HeadgateError(f"making images needs google-genai: {how_to_install('gemini')}") from None
        self.model = model
        options = types.HttpOptions(base_url=base_url, timeout=int(timeout_s * 1000))
        self._client = genai.Client(api_key=api_key, http_options=options)
        self._config = types.GenerateContentConfig(response_modalities=["IMAGE"])

    async def image(self, prompt: str) -> bytes:
        """The bytes of one image. Raises google-genai's `APIError` where it is refused, NoImage where none was made."""
        answer: Any = await self._client.aio.models.generate_content(
            model=self.model, contents=prompt, config=self._config
        )
        said = []
        for candidate in answer.candidates or []:
            for part in (candidate.content.parts if candidate.content else None) or []:
                if part.inline_data is not None and part.inline_data.data:
                    data: bytes = part.inline_data.data
                    return data
                if part.text:
                    said.append(part.text)
            if candidate.finish_reason is not None:
                said.append(f"finish reason {candidate.finish_reason.name}")
        feedback = answer.prompt_feedback
        if feedback is not None and feedback.block_reason is not None:
            said.append(f"blocked: {feedback.block_reason.name}")
        raise NoImage(f"the model made no image: {'; '.join(said)[:200] or 'it said nothing'}")

    async def aclose(self) -> None:
        await self._client.aio.aclose()
        self._client.close()

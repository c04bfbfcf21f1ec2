"""A local Gemini image API: the real wire format, quotas on books of its own, a capacity that changes, and real PNGs."""

from __future__ import annotations

import asyncio
import base64
import hmac
import random
import re
from math import ceil

from .frame import Option, Upstream, UpstreamRequest, UpstreamResponse
from .pictures import painted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .policies import UpstreamRefusal

PATH = re.compile(r"/v1(?:alpha|beta)?/models/([^/:]+):(generateContent|streamGenerateContent)")
TYPE = "type.googleapis.com/google.rpc."
DOMAIN = "generativelanguage.googleapis.com"
DAY_NS = 86_400 * 10**9


class Gemini(Upstream):
    """Point google-genai at it: Client(api_key="local", http_options=HttpOptions(base_url=URL)), or GOOGLE_GEMINI_BASE_URL.

    Policies count requests, images and in_flight (calls that are worked on at once). A capacity that changes is
    in_flight=20,slots,6@50s,14@100s: 20 at once, 6 from 50 s after the first call on, then 14. A quota is refused with 429,
    RESOURCE_EXHAUSTED and the details of the real service; a full capacity with 429 without details, or with 503.
    """

    name = "gemini"
    summary = "The Gemini image API: generateContent with quotas, daily quotas and a capacity that changes."
    policies = ("requests=50/1m", "images=50/1m", "requests=1000/1d,calendar", "in_flight=20,slots")
    kind = "sliding"
    delay_s = 4.0
    options = {  # noqa: RUF012
        "api_key": Option("", "The only key that is taken. Default: any."),
        "size": Option(256, "Width and height of the images, in pixels."),
        "spread": Option(0.5, "How much calls differ in length: 0.5 is half to one and a half times --delay."),
        "overload": Option(429, "The status of a call that is one too many at once: 429 or 503."),
        "tells_delay": Option(True, "Name the delay in RetryInfo when a quota is used up."),
        "listed": Option(False, "Wrap errors in a list, as the service sometimes does."),
    }

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._random = random.Random(1)
        self._busy = self._most = 0

    def page(self) -> dict[str, Any]:
        return {**super().page(), "busy": self._busy, "most_at_once": self._most}

    async def answer(self, request: UpstreamRequest) -> UpstreamResponse:
        found = PATH.fullmatch(request.path)
        if found is None or request.method != "POST":
            return self._error(404, "NOT_FOUND", f"there is no {request.method} {request.path} here")
        key = request.headers.get("x-goog-api-key") or (request.query.get("key") or [""])[-1]
        if not key:
            return self._error(
                403,
                "PERMISSION_DENIED",
                "Method doesn't allow unregistered callers (callers without established identity). Please use API Key or "
                "other form of API consumer identity to call this API.",
            )
        wanted = self.settings["api_key"]
        if wanted and not hmac.compare_digest(key.encode(), wanted.encode()):
            details = [{"@type": TYPE + "ErrorInfo", "reason": "API_KEY_INVALID", "domain": "googleapis.com"}]
            return self._error(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", details)
        try:
            prompt = prompt_of(request.json())
        except (ValueError, KeyError, TypeError, AttributeError):
            return self._error(400, "INVALID_ARGUMENT", "contents.parts must not be empty.")
        refusal = self.books.arrive({"requests": 1.0, "images": 1.0, "in_flight": 1.0})
        if refusal is not None:
            return self._refused(refusal, found[1])
        self._busy += 1
        self._most = max(self._most, self._busy)
        try:
            spread = float(self.settings["spread"])
            await asyncio.sleep(self.delay * self._random.uniform(1 - spread, 1 + spread))
        finally:  # the slot is free when the work is done, whether or not the client is still there
            self._busy -= 1
            self.books.leave()
        return UpstreamResponse(body=generated(prompt, int(self.settings["size"]), found[1]))

    def _refused(self, refusal: UpstreamRefusal, model: str) -> UpstreamResponse:
        policy = refusal.policy
        if policy.kind == "slots":
            if int(self.settings["overload"]) == 503:
                return self._error(503, "UNAVAILABLE", "The model is overloaded. Please try again later.")
            return self._error(429, "RESOURCE_EXHAUSTED", "Resource has been exhausted (e.g. check quota).")
        span = "Day" if policy.per_ns >= DAY_NS else "Minute"
        what = "Images" if policy.unit == "images" else "Requests"
        wait = ceil(refusal.wait_s)
        violation = {
            "quotaMetric": f"{DOMAIN}/generate_content_free_tier_{what.lower()}",
            "quotaId": f"Generate{what}Per{span}PerProjectPerModel-FreeTier",
            "quotaDimensions": {"location": "global", "model": model},
            "quotaValue": f"{policy.limit:g}",
        }
        links = [
            {
                "description": "Learn more about Gemini API quotas",
                "url": "https://ai.google.dev/gemini-api/docs/rate-limits",
            }
        ]
        details: list[dict[str, Any]] = [
            {"@type": TYPE + "QuotaFailure", "violations": [violation]},
            {"@type": TYPE + "Help", "links": links},
        ]
        if self.settings["tells_delay"]:
            details.append({"@type": TYPE + "RetryInfo", "retryDelay": f"{wait}s"})
        message = (
            "You exceeded your current quota, please check your plan and billing details. "
            f"* Quota exceeded for metric: {violation['quotaMetric']}, limit: {policy.limit:g}, model: {model}\n"
            f"Please retry in {refusal.wait_s:.9f}s."
        )
        return self._error(429, "RESOURCE_EXHAUSTED", message, details)

    def _error(
        self, code: int, status: str, message: str, details: list[dict[str, Any]] | None = None
    ) -> UpstreamResponse:
        """An error as the service tells it."""
        told: dict[str, Any] = {"code": code, "message": message, "status": status}
        if details:
            told["details"] = details
        body: Any = {"error": told}
        return UpstreamResponse(
            code, [body] if self.settings["listed"] else body, {"Server": "scaffolding on HTTPServer2"}
        )


def prompt_of(body: Any) -> str:
    """The text of a request; raises where there is none."""
    contents = body["contents"]
    parts = [part for content in contents for part in content["parts"]]
    text = " ".join(part["text"] for part in parts if "text" in part).strip()
    if not text:
        raise ValueError("no text")
    return text


def generated(prompt: str, size: int, model: str) -> dict[str, Any]:
    """An answer with one image, which follows from its prompt."""
    data = base64.b64encode(painted(prompt, size)).decode()
    tokens = max(1, len(prompt) // 4)
    return {
        "candidates": [
            {
                "content": {"role": "model", "parts": [{"inlineData": {"mimeType": "image/png", "data": data}}]},
                "finishReason": "STOP",
                "index": 0,
            }
        ],
        "usageMetadata": {
            "promptTokenCount": tokens,
            "candidatesTokenCount": 1290,
            "totalTokenCount": tokens + 1290,
        },
        "modelVersion": model,
        "responseId": "local",
    }

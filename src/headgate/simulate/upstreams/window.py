"""A service in which any request is work: 200 when it fits its policies, 429 with `Retry-After` when it does not."""

from __future__ import annotations

from math import ceil

from .frame import Upstream, UpstreamRequest, UpstreamResponse


class WindowUpstream(Upstream):
    """Any path, any method. By default so many requests in any window; other policies as they are named."""

    name = "window"
    summary = "Any request is work, within so many in any window of time."
    policies = ("requests=200/1m",)
    kind = "sliding"

    async def answer(self, request: UpstreamRequest) -> UpstreamResponse:
        refusal = self.books.arrive({"requests": 1.0})
        if refusal is None:
            return UpstreamResponse(body={"status": "done"}, delay=self.delay)
        return UpstreamResponse(429, {"status": "too many requests"}, {"Retry-After": str(ceil(refusal.wait_s))})

"""`GET /v1/wakes?session=…`: server-sent events for the process of an `http://` store: which of its tickets are called.

    event: ready              calls from now on are sent here; poll once for earlier ones
    event: wake
    data: [["5fd0-17", null], ["5fd0-18", 250000]]      null: called; a number: poll again after so many microseconds

An idle stream sends a heartbeat every few seconds; a client that receives nothing for longer reconnects.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from json import dumps

from ..schema.shapes import Field
from ..web import EVENT_STREAM
from .execute import store_server_of
from .read import check_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from typing import Any

    from ...kernel.model import Wake
    from ...stores.base import Store
    from ..app import Guard
    from ..web import Request

#: Seconds of silence after which a stream sends a heartbeat.
HEARTBEAT_EVERY = 3.0

READY = b"event: ready\ndata: {}\n\n"
HEARTBEAT = b": still there\n\n"


class Wakes:
    """The streams of one guard, by session. A new stream of a session replaces the one before."""

    def __init__(self, stores: Iterable[Store]) -> None:
        # Where a store does not forward wakes, its clients learn of calls by their own heartbeats.
        self._stores: list[Any] = [store for store in stores if store.capabilities.forwards_wakes]
        self._streams: dict[str, _WakeStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    async def stream(self, session: str) -> AsyncGenerator[bytes, None]:
        """What is written to one client, until it disconnects or the guard shuts down."""
        stream = _WakeStream(asyncio.get_running_loop())
        before, self._streams[session] = self._streams.get(session), stream
        for store in self._stores:
            await asyncio.to_thread(store.adopt, session, stream.add)
        if before is not None:
            before.end()
        try:
            yield READY
            while not stream.over:
                news = await stream.news()
                yield b"event: wake\ndata: %s\n\n" % dumps(news).encode() if news else HEARTBEAT
        finally:
            if self._streams.get(session) is stream:
                del self._streams[session]
                for store in self._stores:
                    store.disown(session)


class _WakeStream:
    """The wakes that are still to be written to one client."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._news: list[tuple[str, int | None]] = []
        self._arrived = asyncio.Event()
        self.over = False

    def add(self, wake: Wake) -> None:
        """Add a wake; called from any thread."""
        self._news.append((wake.ticket, wake.delay))
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._arrived.set)

    def end(self) -> None:
        self.over = True
        self._arrived.set()

    async def news(self) -> list[tuple[str, int | None]]:
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_EVERY):
                await self._arrived.wait()
        self._arrived.clear()
        news, self._news = self._news, []
        return news


# --- the route ------------------------------------------------------------------------------------------------------

SESSION = Field(
    lambda name, value: None,  # the handler checks it
    "The process whose wakes are wanted, as it named itself when it asked.",
    type="string",
    pattern="^[0-9a-z][0-9a-z-]{0,31}$",
)


class _OpenStream:
    """An open stream, for the guard to end when it shuts down."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def send_away(self) -> None:
        self._task.cancel()


async def wakes(guard: Guard, request: Request) -> None:
    """`GET /v1/wakes`. Streams until the client disconnects or the guard shuts down."""
    session = check_session(request.query().get("session"))
    streams: Wakes = guard.state.get("wakes") or guard.state.setdefault("wakes", Wakes(store_server_of(guard).stores()))
    loop = asyncio.get_running_loop()
    await request.send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
    writing = loop.create_task(_write(streams, session, request))
    watching = loop.create_task(request.until_disconnected())
    stream = _OpenStream(writing)
    guard.waiting.add(stream)
    try:
        if guard.closing:
            writing.cancel()
        await asyncio.wait((writing, watching), return_when=asyncio.FIRST_COMPLETED)
    finally:
        guard.waiting.discard(stream)
        for task in (writing, watching):
            task.cancel()
        await asyncio.wait((writing, watching))
    with suppress(OSError):
        await request.send({"type": "http.response.body", "body": b""})


async def _write(streams: Wakes, session: str, request: Request) -> None:
    stream = streams.stream(session)
    try:
        async for part in stream:
            await request.send({"type": "http.response.body", "body": part, "more_body": True})
    finally:
        await stream.aclose()
